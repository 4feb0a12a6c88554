// Sources: how fast they come, how far each is behind the others, and who waits for it.

import {bar, el, keyed, text, className} from "./dom.js";
import {count, duration, rate, tupleTime} from "./format.js";
import {icon, kindOf} from "./states.js";

export function drawSources(node, model) {
  const {layout, frame} = model, s = layout.sourcesAt;
  if (!node.list) node.append(node.list = el("div.list"));
  const furthest = Math.max(1e6, ...frame.sources.map((row) => row[s.lag] ?? 0));
  const items = layout.sources.map((name, i) => ({name, row: frame.sources[i]}));
  keyed(node.list, items, (one) => one.name, (one) => make(one, model), (box, one) => update(box, one, s, furthest));
}

function make({name}, model) {
  const box = el("button.item", {type: "button", onclick: () => model.select(`source:${name}`)});
  box.mark = icon("idle");
  box.rate = el("span.figure");
  box.bar = bar();
  box.lag = el("span.figure");
  box.note = el("span.note");
  box.append(el("span.item-head", {}, box.mark, el("b", {}, name), el("span.grow"), box.rate),
    el("span.item-row", {}, el("span.label", {}, "behind"), box.bar, box.lag), box.note);
  return box;
}

function update(box, {name, row}, s, furthest) {
  const state = row[s.state], kind = kindOf(state), holds = row[s.holds] ?? 0;
  box.dataset.source = name;
  box.dataset.state = state;
  box.dataset.holds = String(holds);
  box.mark.set(holds && kind === "stable" ? "late" : kind);
  text(box.rate, state === "running" ? `${rate(row[s.rate])} rows/s` : state);
  box.bar.set((row[s.lag] ?? 0) / furthest, 0, row[s.behind] ? "over" : "ok");
  text(box.lag, row[s.lag] === null || row[s.lag] === undefined ? (row[s.frontier] === -1 ? "end" : "–") : duration(row[s.lag]));
  const odd = [["late", "late"], ["malformed", "malformed"], ["refused", "refused"]].filter(([key]) => row[s[key]]).map(([key, word]) => `${count(row[s[key]])} ${word}`);
  text(box.note, row[s.trouble] || (holds ? `${count(holds)} ${holds === 1 ? "replica waits" : "replicas wait"} for its rows` : [`${count(row[s.rows])} rows, at ${tupleTime(row[s.frontier])}`, ...odd].join(" · ")));
  className(box.note, `note ${row[s.trouble] || holds ? "bad" : "soft"}`);
}
