// Making and changing elements.  What comes from the cluster only ever becomes text or a number here: no markup.

const SVG = "http://www.w3.org/2000/svg";

// el("button.plain", {title: "…", onclick: f}, "text", child)
export function el(what, props = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else if (name in node && name !== "list" && name !== "for") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

export function className(node, value) {
  if (node.className !== value) node.className = value;
}

// Brings the children of an element in line with a list: one element for each key, made once and updated after.
export function keyed(parent, items, key, make, update) {
  const known = parent.keyed ?? (parent.keyed = new Map());
  const wanted = new Set();
  let before = null;
  for (const item of items) {
    const name = key(item);
    wanted.add(name);
    let node = known.get(name);
    if (!node) known.set(name, node = make(item));
    update(node, item);
    const place = before ? before.nextSibling : parent.firstChild;
    if (place !== node) parent.insertBefore(node, place);
    before = node;
  }
  for (const [name, node] of known) {
    if (!wanted.has(name)) {
      node.remove();
      known.delete(name);
    }
  }
}

// A bar: filled, with a mark where something changes.
export function bar() {
  const fill = el("i");
  const node = el("span.bar", {}, fill, el("b"));
  node.set = (share, mark, kind) => {
    const width = Math.min(1, Math.max(0, share || 0));
    fill.style.setProperty("transform", `scaleX(${width.toFixed(4)})`);
    className(node, `bar ${kind}${mark ? " marked" : ""}`);
    if (mark) node.style.setProperty("--mark", `${(Math.min(1, mark) * 100).toFixed(1)}%`);
  };
  return node;
}

const tip = document.getElementById("tip");

export function showTip(x, y, lines) {
  tip.replaceChildren(...lines.map((line) => el("div", {}, line)));
  tip.hidden = false;
  const {width, height} = tip.getBoundingClientRect();
  tip.style.setProperty("left", `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`);
  tip.style.setProperty("top", `${y + 18 + height > innerHeight ? y - height - 10 : y + 18}px`);
}

export function hideTip() {
  tip.hidden = true;
}
