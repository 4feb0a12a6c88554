// Partitions that move, replicas that come back: how long it was expected to take, and how long it takes.

import {bar, el, keyed, text, className} from "./dom.js";
import {duration, elapsed, percent} from "./format.js";

const SHOWN = 8;

export function drawMoves(node, model, recoveries) {
  const {frame} = model;
  if (!node.list) {
    node.plan = el("div.plan");
    node.list = el("div.list");
    node.none = el("p.soft", {}, "Nothing has moved, and no replica has had to come back.");
    node.append(node.plan, node.list, node.none);
  }
  drawPlan(node.plan, frame.recovery);
  const past = together(recoveries.filter((one) => one.began <= frame.at).map((one) => (one.ended !== null && one.ended > frame.at ? {...one, ended: null} : one)));
  const items = [
    ...frame.moves.map((one) => ({key: `m${one.number}`, move: one, over: one.over, began: one.began ?? 0})),
    ...past.map((one) => ({key: `r${one.node} ${one.began}`, back: one, over: one.ended !== null, began: one.began})),
  ].sort((a, b) => a.over - b.over || b.began - a.began).slice(0, SHOWN);
  keyed(node.list, items, (one) => one.key, make, (box, one) => (one.move ? updateMove(box, one.move) : updateBack(box, one.back, frame)));
  node.none.hidden = items.length > 0 || frame.recovery !== null;
}

// What one node lost at one time comes back as one.
function together(recoveries) {
  const found = new Map();
  for (const one of recoveries) {
    const node = one.replica.slice(one.replica.lastIndexOf("@") + 1), key = `${node} ${one.began}`;
    const known = found.get(key);
    if (!known) { found.set(key, {...one, node, count: 1}); continue; }
    known.count++;
    known.replica = `${known.count} replicas on ${node}`;
    known.ended = known.ended === null || one.ended === null ? null : Math.max(known.ended, one.ended);
    known.installing = known.installing === null ? one.installing : Math.min(known.installing, one.installing ?? Infinity);
    known.expected = Math.max(known.expected ?? 0, one.expected ?? 0) || null;
  }
  return [...found.values()];
}

function make() {
  const box = el("div.item");
  box.title_ = el("b");
  box.state = el("span.figure");
  box.bar = bar();
  box.times = el("span.figure");
  box.note = el("span.note.soft");
  box.append(el("span.item-head", {}, box.title_, el("span.grow"), box.state), el("span.item-row", {}, box.bar, box.times), box.note);
  return box;
}

function updateMove(box, one) {
  box.dataset.move = String(one.number);
  text(box.title_, `${one.partition}: ${one.source} → ${one.target}`);
  text(box.state, one.phase);
  const share = one.predicted ? (one.took ?? 0) / one.predicted : one.over ? 1 : 0;
  box.bar.set(share, 0, one.phase === "dropped" ? "over" : one.over ? "done" : share > 1 ? "high" : "ok");
  text(box.times, `${one.over ? "took" : "has taken"} ${duration(one.took)}, expected ${one.predicted === null ? "not known" : duration(one.predicted)}`);
  text(box.note, `${one.why ? `${one.why}; ` : ""}${one.role}, ${one.reason}`);
}

function updateBack(box, one, frame) {
  const until = one.ended ?? frame.at, installing = one.installing === null || one.installing > frame.at ? null : one.installing;
  box.dataset.back = one.replica;
  text(box.title_, one.replica);
  text(box.state, one.ended === null ? (installing === null ? "down" : "recovering") : "back");
  const whole = Math.max(1, until - one.began), expected = one.expected;
  box.bar.set(expected ? (until - (installing ?? until)) / expected : installing === null ? 0 : (until - installing) / whole, 0, one.ended === null ? "high" : "done");
  text(box.times, installing === null ? `${one.ended === null ? "down" : "was away"} for ${duration(until - one.began)}`
    : `recovery ${one.ended === null ? "has taken" : "took"} ${duration(until - installing)}${expected ? `, expected ${duration(expected)}` : ""}`);
  text(box.note, `${frame.begun ? `at ${elapsed(one.began - frame.begun)}, ` : ""}away for ${duration(until - one.began)} in all`);
}

// The order in which the coordinator brings back what was lost.
function drawPlan(node, recovery) {
  node.hidden = recovery === null;
  if (recovery === null) return;
  if (!node.head) {
    node.head = el("p.cause");
    node.bar = bar();
    node.lines = el("ul.next");
    node.append(node.head, node.bar, node.lines);
  }
  const last = recovery.values.length ? recovery.values[recovery.values.length - 1] : null;
  text(node.head, `Recovery in order: ${percent(recovery.value)} of what results are worth is there now${last ? `; ${percent(last.value)} expected ${last.after_s.toFixed(0)} s after the plan` : ""}`);
  node.bar.set(recovery.value, 0, "ok");
  const lines = [
    ...Object.entries(recovery.under_way).map(([p, n]) => `${p} is restored on ${n}`),
    ...recovery.planned.map((one) => `${one.partition} comes next on ${one.node}`),
    ...Object.entries(recovery.waits).map(([p, why]) => `${p} waits: ${why}`),
  ];
  node.lines.replaceChildren(...lines.slice(0, 8).map((line) => el("li", {}, line)), ...(lines.length > 8 ? [el("li.soft", {}, `and ${lines.length - 8} more`)] : []));
  className(node, "plan");
}
