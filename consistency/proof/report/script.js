"use strict";
// The page is complete without this: it adds a crosshair with values, zoom, and filters.
const tip = document.querySelector(".tip");
const seconds = t => (Math.abs(t) >= 100 ? t.toFixed(0) : t.toFixed(t < 10 ? 2 : 1)) + " s";

for (const figure of document.querySelectorAll(".timeline")) {
  const whole = +figure.dataset.seconds, cross = figure.querySelector(".cross"), area = figure.querySelector(".span-select");
  let from = 0, until = whole, pressed = null;
  const plot = () => figure.querySelector(".axis").getBoundingClientRect();
  const at = x => { const box = plot(); return from + (x - box.left) / box.width * (until - from); };
  const place = t => { const box = plot(); return box.left - figure.getBoundingClientRect().left + (t - from) / (until - from) * box.width; };

  const show = () => {
    for (const svg of figure.querySelectorAll("svg.plot")) {
      const height = svg.dataset.height;
      svg.setAttribute("viewBox", `${from / whole * 1000} 0 ${(until - from) / whole * 1000} ${height}`);
    }
    const axis = figure.querySelector(".axis"), span = until - from;
    const steps = [.01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600, 7200, 14400];
    const step = steps.find(s => span / s <= 9) || 28800;
    axis.replaceChildren();
    for (let n = 0, t = Math.ceil(from / step) * step; t <= until + 1e-9; t += step, n++) {
      const mark = document.createElement("span");
      mark.style.left = (t - from) / span * 100 + "%";
      if (t < until - span / 50) mark.style.transform = t > from + span / 50 ? "translateX(-50%)" : "none";
      mark.className = n % 2 ? "minor" : "";
      mark.textContent = (step < 1 ? t.toFixed(step < .1 ? 2 : 1) : t.toFixed(0)) + " s";
      axis.append(mark);
    }
    figure.querySelector(".unzoom").hidden = from === 0 && until === whole;
  };

  const told = event => {
    const t = at(event.clientX);
    if (t < from || t > until) return leave();
    cross.style.display = "block"; cross.style.left = place(t) + "px";
    // Of replicas what is not as it should be; of outputs the one under the pointer.
    const unit = t / whole * 1000, lines = [], here = event.target.closest(".row");
    for (const row of figure.querySelectorAll(".row:not([hidden])")) {
      if (row.dataset.group && row.dataset.group !== here?.dataset.group) continue;
      for (const mark of row.querySelectorAll("[data-tip]")) {
        if (unit >= +mark.dataset.a && unit < +mark.dataset.b && (row === here || mark.dataset.tip !== "STABLE")) lines.push([row.dataset.name, mark.dataset.tip]);
      }
    }
    tip.replaceChildren();
    const head = document.createElement("div"), bold = document.createElement("b");
    bold.textContent = seconds(t); head.append(bold); tip.append(head);
    for (const [name, text] of lines.slice(0, 14)) {
      const line = document.createElement("div");
      line.textContent = (name ? name + ": " : "") + text; tip.append(line);
    }
    tip.style.display = "block";
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.min(event.clientX + 16, innerWidth - box.width - 8) + "px";
    tip.style.top = Math.max(8, Math.min(event.clientY + 16, innerHeight - box.height - 8)) + "px";
    if (pressed !== null) {
      const [a, b] = [Math.min(pressed, t), Math.max(pressed, t)];
      area.style.display = "block"; area.style.left = place(a) + "px"; area.style.width = place(b) - place(a) + "px";
    }
  };
  const leave = () => { cross.style.display = tip.style.display = area.style.display = "none"; pressed = null; };
  figure.addEventListener("pointermove", told);
  figure.addEventListener("pointerleave", leave);
  figure.addEventListener("pointerdown", e => { if (e.pointerType === "mouse" && !e.target.closest("button")) { pressed = at(e.clientX); e.preventDefault(); } });
  figure.addEventListener("pointerup", e => {
    if (pressed === null) return;
    const [a, b] = [Math.max(0, Math.min(pressed, at(e.clientX))), Math.min(whole, Math.max(pressed, at(e.clientX)))];
    if ((b - a) / (until - from) > .02) { from = a; until = b; show(); }
    pressed = null; area.style.display = "none";
  });
  figure.querySelector(".unzoom").addEventListener("click", () => { from = 0; until = whole; show(); });
  show();
}

for (const chips of document.querySelectorAll(".chips[data-rows]")) {
  for (const button of chips.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", on);
      for (const row of document.querySelectorAll(`.row[data-group="${CSS.escape(button.dataset.group)}"]`)) row.hidden = !on;
    });
  }
}

for (const input of document.querySelectorAll("input[data-table]")) {
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of document.querySelectorAll(`#${input.dataset.table} tbody tr`)) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    }
  });
}
