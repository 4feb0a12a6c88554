// All replicas as a table.  Only the rows in sight are elements, however many there are.

import {bar, el, keyed, text, className} from "./dom.js";
import {bytes, count, duration, percent, rate, setting, tupleTime} from "./format.js";
import {icon, kindOf, ORDER} from "./states.js";

const ROW = 36, SPARE = 8;
const only = new Set();
let sort = {by: "", down: false};

// Title, what it shows, what it is sorted by, and whether narrow screens have it.
const COLUMNS = [
  ["Replica", "", (one) => one.name, "always"],
  ["State", "", (one) => ORDER.indexOf(kindOf(one.row[one.r.state])), "always"],
  ["Waits, of X", "How long the next bucket has waited for its inputs. At the mark (α) the replica goes on without.", (one) => -(one.row[one.r.waiting] / one.row[one.r.x] || 0), "always"],
  ["X used", "Of all releases: what 99 % used of X at most, and the largest", (one) => -(one.row[one.r.x99] ?? -1), ""],
  ["Stable to", "Stable frontier, in tuple time (UTC)", (one) => one.row[one.r.frontier] ?? 0, ""],
  ["Lag", "How far that is behind the furthest source", (one) => -(one.row[one.r.lag] ?? -1), "always"],
  ["Tentative", "How far the tentative frontier is ahead of the stable one", (one) => -(one.row[one.r.lead] ?? -1), ""],
  ["Buffer", "Share of the fullest output buffer in use", (one) => -(one.row[one.r.fill] ?? -1), ""],
  ["Held", "Input in memory that waits for other input, or for a correction", (one) => -(one.row[one.r.held] ?? -1), ""],
  ["CPU", "Of one core, in its last 10 s without a failure", (one) => -(one.row[one.r.cpu] ?? -1), ""],
  ["Rows/s", "That came in, in its last 10 s without a failure", (one) => -(one.row[one.r.rows] ?? -1), ""],
  ["Corrections", "That have ended", (one) => -(one.row[one.r.corrections] ?? -1), ""],
];

export function drawReplicas(node, states, filter, model) {
  const {layout, frame} = model, r = layout.replicasAt;
  if (!node.body) build(node, model);
  const all = layout.replicas.map(([name, , , at], i) => ({name, node: layout.nodes[at], row: frame.replicas[i], i, r}));
  drawStates(states, all, model);
  const words = filter.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
  let shown = all.filter((one) => (only.size === 0 || only.has(one.row[r.state]))
    && words.every((word) => `${one.name} ${one.row[r.state]}`.toLowerCase().includes(word)));
  const column = COLUMNS.find(([title]) => title === sort.by);
  if (column || all.length > 40) {
    const by = column ? column[2] : COLUMNS[1][2];
    shown = shown.map((one) => [by(one), one]).sort(([a, x], [b, y]) => (a < b ? -1 : a > b ? 1 : x.i - y.i)).map(([, one]) => one);
    if (sort.down) shown.reverse();
  }
  node.shown = shown;
  drawRows(node, model);
}

function build(node, model) {
  node.head = COLUMNS.map(([title, what, , when]) => el(`th.${when || "wide"}`, {scope: "col", title: what},
    el("button.plain", {type: "button", onclick: () => {
      sort = {by: sort.by === title && sort.down ? "" : title, down: sort.by === title && !sort.down};
      node.head.forEach((th, i) => th.setAttribute("aria-sort", COLUMNS[i][0] === sort.by ? (sort.down ? "descending" : "ascending") : "none"));
      model.draw();
    }}, title)));
  node.above = el("tr.spacer");
  node.below = el("tr.spacer");
  node.body = el("tbody");
  node.append(el("table.replicas", {}, el("thead", {}, el("tr", {}, ...node.head)), el("tbody", {}, node.above), node.body, el("tbody", {}, node.below)));
  node.addEventListener("scroll", () => drawRows(node, model), {passive: true});
}

function drawStates(node, all, model) {
  const counts = new Map();
  for (const one of all) counts.set(one.row[one.r.state], (counts.get(one.row[one.r.state]) ?? 0) + 1);
  for (const state of only) if (!counts.has(state)) counts.set(state, 0);
  const sorted = [...counts.keys()].sort((a, b) => ORDER.indexOf(kindOf(a)) - ORDER.indexOf(kindOf(b)) || (a < b ? -1 : 1));
  keyed(node, sorted, (state) => state, (state) => {
    const button = el("button.choice", {type: "button", onclick: () => { only.has(state) ? only.delete(state) : only.add(state); model.draw(); }});
    button.append(icon(kindOf(state)), el("b"), ` ${state}`);
    return button;
  }, (button, state) => {
    text(button.querySelector("b"), count(counts.get(state)));
    button.setAttribute("aria-pressed", String(only.has(state)));
  });
}

function drawRows(node, model) {
  const shown = node.shown ?? [];
  let first = 0, last = shown.length;
  if (shown.length > 60) {
    first = Math.max(0, Math.floor(node.scrollTop / ROW) - SPARE);
    last = Math.min(shown.length, first + Math.ceil(node.clientHeight / ROW) + 2 * SPARE);
  }
  node.above.style.setProperty("height", `${first * ROW}px`);
  node.below.style.setProperty("height", `${(shown.length - last) * ROW}px`);
  // Elements are used again for other replicas: a table that scrolls makes none.
  keyed(node.body, shown.slice(first, last).map((one, i) => ({...one, at: i})), (one) => one.at, () => makeRow(model), (line, one) => updateRow(line, one));
}

function makeRow(model) {
  const line = el("tr", {onclick: () => model.select(line.node)});
  line.mark = icon("idle");
  line.name_ = el("b");
  line.state = el("span");
  line.trouble = el("span.trouble");
  line.bar = bar();
  line.waits = el("span.figure");
  line.of = el("span.figure.of");
  line.tds = COLUMNS.map(([, , , when]) => el(`td.${when || "wide"}`));
  line.tds[0].append(el("button.plain.name", {type: "button"}, line.name_));
  line.tds[1].append(line.mark, line.state, line.trouble);
  line.tds[2].append(line.bar, line.waits, line.of);
  line.append(...line.tds);
  return line;
}

function updateRow(line, {name, node, row, r}) {
  const state = row[r.state], kind = kindOf(state), answers = state === state.toUpperCase();
  line.node = node;
  line.dataset.replica = name;
  line.dataset.state = state;
  className(line, `c-${kind}`);
  text(line.name_, name);
  line.mark.set(kind);
  text(line.state, state);
  text(line.trouble, row[r.trouble] ?? "");
  line.trouble.title = row[r.trouble] ?? "";
  const x = row[r.x], share = x ? row[r.waiting] / x : 0, alpha = row[r.alpha] ?? 0;
  line.bar.set(answers ? share : 0, answers && x ? alpha : 0, !answers || !x ? "none" : share > 1 ? "over" : share >= alpha && alpha ? "high" : "ok");
  text(line.waits, answers && x ? duration(row[r.waiting]) : "–");
  text(line.of, answers && x ? ` of ${setting(x)}` : "");
  const figures = [
    row[r.x99] === null || row[r.x99] === undefined ? "–" : `${percent(row[r.x99])} · ${percent(row[r.xmax])}`, tupleTime(row[r.frontier]), row[r.frontier] === -1 ? "end" : duration(row[r.lag]),
    row[r.lead] ? `+${duration(row[r.lead])}` : "–", percent(row[r.fill]), row[r.held] ? bytes(row[r.held]) : "–",
    percent(row[r.cpu]), rate(row[r.rows]), row[r.corrections] ? count(row[r.corrections]) : "–",
  ];
  figures.forEach((figure, i) => text(line.tds[3 + i], answers || i === 8 ? figure : "–"));
}
