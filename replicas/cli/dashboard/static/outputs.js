// What each client gets of each output: rates, what is being corrected, and the delay against X.

import {bar, el, keyed, svg, text, className} from "./dom.js";
import {count, duration, percent, rate, setting} from "./format.js";
import {icon, kindOfOutput, ORDER} from "./states.js";

// Where there are more outputs, there is a card for all of them, and one for each of the two worst.
const CARDS_MAX = 6, WORST = 2, NAMED = 12, POINTS = 120;
// Rates of the last minutes, of each card, for its curve.
const past = new Map();
const GOOD = new Set(["stable", "ended", "idle"]);

export function remember(layout, frame) {
  if (!layout) return;
  const c = layout.channelsAt;
  const rows = layout.channels.map(([client, stream, partition], i) => [`${client} ${stream}/${partition}`, frame.channels[i]]);
  if (rows.length > CARDS_MAX) {
    const all = total(layout, frame);
    rows.splice(0, rows.length, [`${all.client} ${all.stream}/0`, all.row]);
  }
  rows.forEach(([key, row]) => {
    const points = past.get(key) ?? [];
    points.push([frame.at, row[c.stable_rate] ?? 0, row[c.tentative_rate] ?? 0]);
    if (points.length > POINTS) points.splice(0, points.length - POINTS);
    past.set(key, points);
  });
  if (past.size > 256) past.clear();
}

export function drawOutputs(node, model) {
  const {layout, frame} = model;
  if (!node.grid) {
    node.grid = el("div.cards-grid");
    node.rest = el("p.soft.rest");
    node.append(node.grid, node.rest);
  }
  const at = layout.channelsAt.state;
  let items = layout.channels.map(([client, stream, partition, of], i) => ({client, stream, partition, of, row: frame.channels[i]}));
  const all = items.length;
  if (all > CARDS_MAX) {
    const odd = items.filter((one) => !GOOD.has(kindOfOutput(one.row[at])));
    items = [total(layout, frame), ...odd.map((one, i) => [ORDER.indexOf(kindOfOutput(one.row[at])), i, one])
      .sort((a, b) => a[0] - b[0] || a[1] - b[1]).slice(0, WORST).map((one) => one[2])];
    node.odd = odd.map((one) => `${one.stream}/${one.partition}`);
  }
  keyed(node.grid, items, (one) => `${one.client} ${one.stream}/${one.partition}`, makeCard, (card, one) => update(card, one, model));
  text(node.rest, all > CARDS_MAX ? summary(all, node.odd)
    : all ? "" : "The clients of this cluster are not asked: only those of spe run answer.");
  node.rest.hidden = node.rest.textContent === "";
}

function summary(all, odd) {
  if (!odd.length) return `${count(all)} outputs, all stable.`;
  return `${count(odd.length)} of ${count(all)} outputs are not stable: ${odd.slice(0, NAMED).join(", ")}${odd.length > NAMED ? ", …" : ""}`;
}

// All outputs together, as one card.
function total(layout, frame) {
  const c = layout.channelsAt;
  const sum = (name) => frame.channels.reduce((s, row) => s + (row[name] || 0), 0);
  const largest = (name) => frame.channels.reduce((s, row) => Math.max(s, row[name] ?? 0), 0);
  const kinds = frame.channels.map((row) => row[c.state]);
  const worst = [...new Set(kinds)].sort((a, b) => ORDER.indexOf(kindOfOutput(a)) - ORDER.indexOf(kindOfOutput(b)))[0];
  const row = [];
  for (const name of ["stable_rate", "tentative_rate", "stable", "tentative", "undone", "switches"]) row[c[name]] = sum(c[name]);
  for (const name of ["delay", "bound", "delay_max", "gap", "lag"]) row[c[name]] = largest(c[name]);
  row[c.held] = frame.channels.some((one) => one[c.held]);
  row[c.state] = worst;
  row[c.reads] = "";
  return {client: several(new Set(layout.channels.map((one) => one[0])).size, "client"), stream: "All outputs", partition: 0, of: 1, row};
}

function several(n, what) {
  return `${count(n)} ${what}${n === 1 ? "" : "s"}`;
}

function makeCard() {
  const card = el("article.card");
  const figure = (label, kind) => {
    const value = el("b.big");
    const node = el(`div.metric.${kind}`, {}, el("span.label", {}, label), el("span.value", {}, value, el("small", {}, " /s")));
    return [node, value];
  };
  card.mark = icon("stable");
  card.name = el("h3");
  card.client = el("span.soft");
  card.state = el("span.chip");
  const [stable, stableValue] = figure("stable", "m-stable");
  const [tentative, tentativeValue] = figure("tentative", "m-tentative");
  card.stable = stableValue;
  card.tentative = tentativeValue;
  card.bar = bar();
  card.delay = el("span.figure");
  card.correct = el("p.correct");
  card.newest = el("div.newest", {hidden: true});
  card.foot = el("p.soft.foot");
  card.lines = [svg("path", {class: "area stable"}), svg("path", {class: "area tentative"})];
  card.spark = svg("svg", {class: "spark", viewBox: "0 0 120 32", preserveAspectRatio: "none", "aria-hidden": "true"}, ...card.lines);
  card.append(
    el("div.card-head", {}, card.mark, card.name, card.client, el("span.grow"), card.state),
    el("div.metrics", {}, stable, tentative, card.spark),
    el("div.delay", {}, el("span.label", {}, "delay"), card.bar, card.delay),
    card.correct, card.foot, card.newest,
  );
  return card;
}

function update(card, {client, stream, partition, of, row}, {layout, frame}) {
  const c = layout.channelsAt;
  const state = row[c.state], kind = kindOfOutput(state);
  card.mark.set(kind);
  card.dataset.output = `${client} ${stream}/${partition}`;
  card.dataset.state = state;
  card.dataset.reads = row[c.reads] ?? "";
  text(card.name, of > 1 ? `${stream}/${partition}` : stream);
  text(card.client, client);
  text(card.state, state === "fine" ? "stable" : state);
  className(card.state, `chip k-${kind}`);
  className(card, `card c-${kind}`);
  text(card.stable, rate(row[c.stable_rate]));
  text(card.tentative, rate(row[c.tentative_rate]));
  const bound = row[c.bound], delay = row[c.delay];
  const share = delay === null || delay === undefined || !bound ? null : delay / bound;
  card.bar.set(share ?? 0, 0, share === null ? "none" : share > 1 ? "over" : share > 0.6 ? "high" : "ok");
  text(card.delay, share === null ? `not known${bound ? ` (X ${setting(bound)})` : ""}` : `${duration(delay)} of ${setting(bound)}`);
  const held = (row[c.tentative] ?? 0) - (row[c.undone] ?? 0);
  text(card.correct, row[c.held] ? `${count(Math.max(held, 1))} tentative results will be replaced`
    : row[c.tentative] ? `${count(row[c.undone])} tentative results were replaced by stable ones` : "No result has been tentative");
  className(card.correct, `correct ${row[c.held] ? "now" : "soft"}`);
  const reads = row[c.reads] ? `reads ${row[c.reads]}` : state === "ended" ? "complete" : row[c.reads] === "" ? "" : "reads nobody";
  text(card.foot, [reads, `${count(row[c.stable])} stable`, row[c.switches] > 0 ? `${count(row[c.switches])} ${row[c.switches] === 1 ? "switch" : "switches"}` : "",
    row[c.delay_max] ? `longest delay ${duration(row[c.delay_max])}${bound ? ` (${percent(row[c.delay_max] / bound)} of X)` : ""}` : ""].filter(Boolean).join(" · "));
  sparkline(card, past.get(card.dataset.output));
  newest(card.newest, partition === 0 ? frame.newest[stream] : null);
}

// The last results of an output, the newest one last; the room of its rows stays when some are undone.
function newest(box, results) {
  box.hidden = !results;
  const written = JSON.stringify(results);
  if (!results || box.written === written) return;
  box.written = written;
  const [columns, rows] = results;
  box.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, ""), ...columns.map((name) => el("th", {scope: "col"}, name)))),
    el("tbody", {}, ...rows.map(([tentative, values]) => el(tentative ? "tr.tentative" : "tr", {title: tentative ? "tentative: will be replaced" : ""},
      el("td", {}, tentative && icon("tentative")), ...values.map((value) => el("td", {}, value)))))));
}

function sparkline(card, points) {
  if (!points || points.length < 2) return;
  const first = points[0][0], span = points[points.length - 1][0] - first || 1;
  const top = Math.max(1e-9, ...points.map((p) => p[1] + p[2]));
  const x = (p) => (120 * (p[0] - first) / span).toFixed(1);
  const y = (v) => (31 - 29 * v / top).toFixed(1);
  const area = (low, high) => `M${points.map((p) => `${x(p)} ${y(high(p))}`).join("L")}L${[...points].reverse().map((p) => `${x(p)} ${y(low(p))}`).join("L")}Z`;
  card.lines[0].setAttribute("d", area(() => 0, (p) => p[1]));
  card.lines[1].setAttribute("d", area((p) => p[1], (p) => p[1] + p[2]));
}
