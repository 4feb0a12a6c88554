// The query as a graph: sources, units with their replicas, clients, from left to right; who reads whom as lines.

import {bar, el, keyed, svg, text, className, hideTip, showTip} from "./dom.js";
import {duration, rate, setting} from "./format.js";
import {icon, kindOf, kindOfOutput, LEGEND, ORDER} from "./states.js";

// A unit with more replicas is a field of small squares.
const ROWS_MAX = 12;

export function drawGraph(node, legend, model) {
  const {layout, frame} = model;
  if (node.layout !== layout) {
    node.layout = layout;
    build(node, layout, model);
  }
  if (!legend.firstChild) {
    legend.append(...LEGEND.map(([kind, word, means]) => el("span", {title: means}, icon(kind), word)));
  }
  for (const update of node.updates) update(frame);
  drawLines(node, layout, frame);
}

// Columns by distance from the sources.
function build(node, layout, model) {
  const made = new Map();
  layout.units.forEach((unit, i) => unit.outputs.forEach((s) => made.set(s, i)));
  const depth = layout.units.map(() => 0);
  layout.units.forEach((unit, i) => { depth[i] = 1 + Math.max(0, ...unit.inputs.map((s) => (made.has(s) ? depth[made.get(s)] : 0))); });
  const columns = [...Array(Math.max(1, ...depth) + 2)].map((_, i) => el(depth.includes(i) ? "div.column.units" : "div.column"));
  node.updates = [];
  node.fields = [];
  node.anchors = new Map();
  node.made = made;
  for (const [i, name] of layout.sources.entries()) columns[0].append(sourceBox(node, layout, i, name, model));
  for (const [i, unit] of layout.units.entries()) columns[depth[i]].append(unitBox(node, layout, i, unit, model));
  for (const client of new Set(layout.channels.map((one) => one[0]))) columns[columns.length - 1].append(clientBox(node, layout, client, model));
  fit(node, depth, columns.length);
  node.lines = svg("svg", {class: "lines", "aria-hidden": "true"});
  node.replaceChildren(node.lines, ...columns.filter((one) => one.childElementCount));
  node.observer?.disconnect();
  node.observer = new ResizeObserver(() => drawLines(node, layout, model.frame));
  node.observer.observe(node);
}

// Fields of squares share the room that is there.
function fit(node, depth, columns) {
  node.closest(".pair").classList.toggle("stacked", node.fields.length > 0 || columns > 3);
  const abreast = new Set(depth).size, room = node.clientWidth - 400 - (columns - 1) * 30 - abreast * 28;
  for (const one of node.fields) one(Math.max(120, Math.min(360, room / abreast)));
}

function row(node, key, select) {
  const line = el("button.replica", {type: "button", onclick: select});
  line.mark = icon("idle");
  line.name_ = el("b");
  line.state = el("span.state");
  line.append(line.mark, line.name_, line.state);
  node.anchors.set(key, line);
  return line;
}

function sourceBox(node, layout, i, name, model) {
  const line = row(node, `source:${name}`, () => model.select(`source:${name}`));
  text(line.name_, name);
  const s = layout.sourcesAt;
  node.updates.push((frame) => {
    const one = frame.sources[i];
    line.mark.set(one[s.holds] > 0 && kindOf(one[s.state]) === "stable" ? "late" : kindOf(one[s.state]));
    line.dataset.state = one[s.state];
    text(line.state, one[s.state] !== "running" ? one[s.state] : one[s.behind] ? `${duration(one[s.lag])} behind` : `${rate(one[s.rate])} /s`);
  });
  return el("div.box.source", {}, line);
}

function unitBox(node, layout, index, unit, model) {
  const box = el("div.box.unit");
  const replicas = layout.replicas.map((one, i) => [one, i]).filter(([one]) => one[1] === index);
  box.append(el("h3", {}, unit.name, el("small.soft", {}, ` ${unit.operators.map((o) => o[1]).join(" · ")}`)));
  if (replicas.length > ROWS_MAX) return field(node, layout, box, replicas, unit, model);
  let last = -1;
  for (const [[name, , partition, at], i] of replicas) {
    if (unit.partitions > 1 && partition !== last) box.append(el("div.partition.soft", {}, `${unit.name}/${partition}`));
    last = partition;
    box.append(replicaRow(node, layout, name, layout.nodes[at], i, model));
  }
  return box;
}

function replicaRow(node, layout, name, at, i, model) {
  const line = row(node, name, () => model.select(at));
  const waits = bar(), time = el("span.figure.waits");
  line.append(waits, time);
  line.dataset.replica = name;
  text(line.name_, at);
  const r = layout.replicasAt;
  node.updates.push((frame) => {
    const one = frame.replicas[i], state = one[r.state];
    line.mark.set(kindOf(state));
    line.dataset.state = state;
    text(line.state, state);
    const x = one[r.x], answers = state === state.toUpperCase() && x;
    const share = answers ? one[r.waiting] / x : 0, alpha = one[r.alpha] ?? 0;
    waits.set(share, answers ? alpha : 0, !answers ? "none" : share > 1 ? "over" : share >= alpha && alpha ? "high" : "ok");
    text(time, answers ? (one[r.waiting] ? `${duration(one[r.waiting])} of X ${setting(x)}` : `X ${setting(x)}`) : "");
  });
  return line;
}

// Squares, one per replica, and how many are in which state.
function field(node, layout, box, replicas, unit, model) {
  const r = layout.replicasAt;
  const canvas = el("canvas.field");
  const counts = el("div.counts");
  const scale = devicePixelRatio || 1;
  let columns = 1, size = 11;
  node.fields.push((width) => {
    size = Math.max(6, Math.min(12, Math.floor(Math.sqrt(width * width * 0.55 / replicas.length))));
    columns = Math.max(1, Math.floor(width / size));
    const rows = Math.ceil(replicas.length / columns);
    canvas.width = columns * size * scale;
    canvas.height = rows * size * scale;
    canvas.style.setProperty("width", `${columns * size}px`);
    canvas.style.setProperty("height", `${rows * size}px`);
    canvas.kinds = null;
  });
  const under = (event) => {
    const {left, top} = canvas.getBoundingClientRect();
    return replicas[Math.floor((event.clientY - top) / size) * columns + Math.floor((event.clientX - left) / size)];
  };
  canvas.addEventListener("pointermove", (event) => {
    const found = under(event);
    if (found) showTip(event.clientX, event.clientY, [found[0][0], model.frame.replicas[found[1]][r.state]]);
    else hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => { const found = under(event); if (found) model.select(layout.nodes[found[0][3]]); });
  box.append(el("div.partition.soft", {}, `${unit.partitions.toLocaleString("en")} partitions, ${replicas.length.toLocaleString("en")} replicas`), canvas, counts);
  node.anchors.set(`unit:${unit.name}`, box);
  box.classList.add("big");
  let style = "";
  node.updates.push((frame) => {
    const context = canvas.getContext("2d"), colours = getComputedStyle(document.documentElement);
    const found = new Map(), next = colours.getPropertyValue("--stable");
    if (style !== next) { style = next; canvas.kinds = null; }
    const before = canvas.kinds ?? [], kinds = replicas.map(([, i]) => kindOf(frame.replicas[i][r.state]));
    kinds.forEach((kind, i) => {
      found.set(kind, (found.get(kind) ?? 0) + 1);
      if (before[i] === kind) return;
      const x = (i % columns) * size * scale, y = Math.floor(i / columns) * size * scale, side = (size - 1.5) * scale;
      context.clearRect(x, y, size * scale, size * scale);
      context.fillStyle = colours.getPropertyValue(`--${kind}`).trim() || "#888";
      if (kind === "down") { // a cross, so that it is not the colour alone
        context.fillRect(x, y, side, side);
        context.strokeStyle = colours.getPropertyValue("--card").trim();
        context.lineWidth = 1.2 * scale;
        context.beginPath();
        context.moveTo(x + side * 0.2, y + side * 0.2); context.lineTo(x + side * 0.8, y + side * 0.8);
        context.moveTo(x + side * 0.8, y + side * 0.2); context.lineTo(x + side * 0.2, y + side * 0.8);
        context.stroke();
      } else if (kind === "stable") {
        context.globalAlpha = 0.55;
        context.fillRect(x, y, side, side);
        context.globalAlpha = 1;
      } else if (kind === "tentative") {
        context.beginPath(); context.moveTo(x + side / 2, y); context.lineTo(x + side, y + side); context.lineTo(x, y + side); context.fill();
      } else context.fillRect(x, y, side, side);
    });
    canvas.kinds = kinds;
    keyed(counts, ORDER.filter((kind) => found.get(kind)), (kind) => kind, (kind) => {
      const line = el("span", {}, icon(kind), el("b"), " ", kind);
      return line;
    }, (line, kind) => text(line.querySelector("b"), found.get(kind).toLocaleString("en")));
  });
  return box;
}

function clientBox(node, layout, client, model) {
  const box = el("div.box.client");
  const channels = layout.channels.map((one, i) => [one, i]).filter(([one]) => one[0] === client);
  box.append(el("h3", {}, client, el("small.soft", {}, " client")));
  const c = layout.channelsAt;
  if (channels.length > ROWS_MAX) {
    const counts = el("div.counts");
    box.append(el("div.partition.soft", {}, `${channels.length.toLocaleString("en")} outputs`), counts);
    node.anchors.set(`client:${client}`, box);
    node.updates.push((frame) => {
      const found = new Map();
      for (const [, i] of channels) found.set(frame.channels[i][c.state], (found.get(frame.channels[i][c.state]) ?? 0) + 1);
      keyed(counts, [...found.keys()].sort(), (s) => s, (s) => el("span", {}, icon(kindOfOutput(s)), el("b"), " ", s === "fine" ? "stable" : s),
        (line, s) => text(line.querySelector("b"), found.get(s).toLocaleString("en")));
    });
    return box;
  }
  for (const [[, stream, partition, of], i] of channels) {
    const line = row(node, `client:${client} ${stream}/${partition}`, () => model.select(`client:${client}`));
    text(line.name_, of > 1 ? `${stream}/${partition}` : stream);
    box.append(line);
    node.updates.push((frame) => {
      const state = frame.channels[i][c.state];
      line.mark.set(kindOfOutput(state));
      text(line.state, state === "fine" ? "stable" : state);
    });
  }
  return box;
}

// --- lines ---

function drawLines(node, layout, frame) {
  if (!frame || node.layout !== layout) return;
  const {left, top} = node.getBoundingClientRect();
  const places = new Map();
  const place = (key) => {
    const line = node.anchors.get(key);
    if (!line) return null;
    if (!places.has(key)) {
      const at = line.getBoundingClientRect();
      places.set(key, {x1: at.left - left + node.scrollLeft, x2: at.right - left + node.scrollLeft, y: at.top - top + at.height / 2, y1: at.top - top, y2: at.bottom - top});
    }
    return places.get(key);
  };
  const wide = getComputedStyle(node).flexDirection === "row";
  const lines = connections(node, layout, frame).map(([from, to, kind]) => {
    const a = place(from), b = place(to);
    if (!a || !b) return null;
    const path = wide ? curve(a.x2, a.y, b.x1, b.y) : beside(a, b);
    return {key: `${from}>${to}>${kind}`, path, kind};
  }).filter(Boolean);
  // Without its own size, which would keep the graph as large as it ever was, and so its scroll bars.
  node.lines.setAttribute("width", 0);
  node.lines.setAttribute("height", 0);
  const [width, height] = [node.scrollWidth, node.scrollHeight];
  node.lines.setAttribute("width", width);
  node.lines.setAttribute("height", height);
  keyed(node.lines, lines, (one) => one.key, (one) => svg("path", {class: `line l-${one.kind}`}),
    (path, one) => { if (path.getAttribute("d") !== one.path) path.setAttribute("d", one.path); });
}

// Where boxes are below each other, lines run on their right.
function beside(a, b) {
  const x = Math.max(a.x2, b.x2) + 14;
  return `M${a.x2} ${a.y}H${x - 5}q5 0 5 5V${b.y - 5}q0 5 -5 5H${b.x2}`;
}

function curve(x1, y1, x2, y2) {
  const bend = Math.max(18, (x2 - x1) / 2);
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}

// From, to, and of which kind: what is read, with the producer's state; corrections; what is read from nobody.
function connections(node, layout, frame) {
  const r = layout.replicasAt, c = layout.channelsAt, found = new Map();
  const names = new Map(layout.replicas.map(([name], i) => [name, i]));
  const add = (from, to, kind) => found.set(`${from} ${to} ${kind}`, [from, to, kind]);
  const producer = (channel, who) => {
    if (who.startsWith("source:")) return [who, "stable"];
    const [stream, partition] = split(channel), unit = layout.units[node.made.get(stream)];
    if (!unit) return [who, "stable"];
    const name = `${unit.name}${unit.partitions > 1 ? `/${partition}` : ""}@${who}`, at = names.get(name);
    const state = at === undefined ? "" : kindOf(frame.replicas[at][r.state]);
    return [node.anchors.has(name) ? name : `unit:${unit.name}`, state === "tentative" ? "tentative" : "stable"];
  };
  const consumer = (name, unit) => (node.anchors.has(name) ? name : `unit:${layout.units[unit].name}`);
  layout.replicas.forEach(([name, unit], i) => {
    const one = frame.replicas[i], state = one[r.state];
    if (!one[r.reads] || state !== state.toUpperCase()) return;
    const to = consumer(name, unit);
    for (const [channel, who] of one[r.reads]) { const [from, kind] = producer(channel, who); add(from, to, kind); }
    for (const [channel, who] of one[r.correcting]) add(producer(channel, who)[0], to, "correcting");
    for (const channel of one[r.lost]) {
      const [stream] = split(channel), made = node.made.get(stream);
      add(made === undefined ? `source:${stream}` : node.anchors.has(`unit:${layout.units[made].name}`) ? `unit:${layout.units[made].name}` : firstOf(layout, made, channel), to, "lost");
    }
  });
  // Units with many replicas: one line per stream.
  layout.units.forEach((unit) => {
    if (!node.anchors.has(`unit:${unit.name}`)) return;
    for (const stream of unit.inputs) {
      const made = node.made.get(stream);
      const from = made === undefined ? `source:${stream}` : `unit:${layout.units[made].name}`;
      if (![...found.keys()].some((key) => key.startsWith(`${from} unit:${unit.name} `))) add(from, `unit:${unit.name}`, "stable");
    }
  });
  layout.channels.forEach(([client, stream, partition], i) => {
    const one = frame.channels[i], own = `client:${client} ${stream}/${partition}`;
    const to = node.anchors.has(own) ? own : `client:${client}`;
    if (!one[c.reads]) return;
    const [from, kind] = producer(`${stream}/${partition}`, one[c.reads]);
    add(from, to, one[c.held] ? "tentative" : kind === "tentative" ? "tentative" : "stable");
  });
  return [...found.values()];
}

function firstOf(layout, unit, channel) {
  const partition = Number(split(channel)[1]);
  const one = layout.replicas.find((each) => each[1] === unit && each[2] === partition);
  return one ? one[0] : "";
}

function split(channel) {
  const at = channel.lastIndexOf("/");
  return [channel.slice(0, at), channel.slice(at + 1)];
}
