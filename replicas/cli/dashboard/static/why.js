// What an operator asks first: is all well; if not, why, and what will happen next?  As spe explain-stall says it.

import {el, keyed, text, className} from "./dom.js";
import {icon, kindOfOutput, worst} from "./states.js";

const ELSEWHERE = 4;
const WORDS = {tentative: "tentative", late: "late", silent: "silent", unknown: "unknown"};

export function drawVerdict(node, model) {
  const {layout, frame} = model;
  const at = layout.channelsAt.state;
  const bad = new Map();
  let kinds = [];
  for (const row of frame.channels) {
    const kind = kindOfOutput(row[at]);
    kinds.push(kind);
    if (kind !== "stable" && kind !== "ended" && kind !== "idle") bad.set(row[at], (bad.get(row[at]) ?? 0) + 1);
  }
  for (const one of frame.why) if (!one.client && one.condition !== "fine") bad.set(one.condition, (bad.get(one.condition) ?? 0) + 1);
  const causes = unique(frame.why.flatMap((one) => one.causes));
  const elsewhere = unique(frame.why.flatMap((one) => one.elsewhere).concat(bad.size ? [] : causes));
  const ended = frame.channels.length > 0 && frame.channels.every((row) => row[at] === "ended");
  const kind = bad.size ? worst([...bad.keys()].map(kindOfOutput)) : elsewhere.length && !ended ? "watch" : "stable";
  const total = frame.channels.length || frame.why.length;
  const parts = [...bad].map(([state, n]) => `${total > 1 ? `${n} of ${total} ${total === 1 ? "output is" : "outputs are"}` : nameOf(layout, frame) + " is"} ${WORDS[state] ?? state}`);
  const head = bad.size ? parts.join(", ") : ended ? "All results are complete and stable"
    : elsewhere.length ? "All results are stable; something else needs attention" : total ? "All results are stable" : "Waiting for the first results";
  const said = bad.size ? causes : ended ? [] : elsewhere;
  const why = said.length ? said[0].why + (said.length > 1 ? `  (and ${said.length - 1} more)` : "")
    : bad.size ? "The cause is being looked for." : ended ? "The run is over." : "Every input arrives within X, and every replica is where it should be.";
  if (!node.mark) {
    node.mark = icon("stable");
    node.querySelector("h2").before(node.mark);
  }
  node.mark.set(kind === "watch" ? "stable" : kind);
  className(node, `verdict v-${kind}`);
  text(node.querySelector("h2"), head);
  text(node.querySelector("p"), sentence(why));
  node.title = sentence(why);
}

function unique(causes) {
  return [...new Map(causes.map((cause) => [`${cause.kind} ${cause.processes.join()}`, cause])).values()];
}

function nameOf(layout, frame) {
  return layout.channels.length ? layout.channels[0][1] : frame.why.length ? frame.why[0].channel : "the output";
}

export function sentence(words) {
  // Names begin as they are written.
  return words ? words.replace(/^(the|all|nothing|an?) /, (word) => word[0].toUpperCase() + word.slice(1)) + (/[.!?)]$/.test(words) ? "" : ".") : "";
}

// Says whether there is, or was, anything to say.
export function drawWhy(node, model) {
  const {frame} = model;
  if (!node.list) {
    node.list = el("div");
    node.none = el("p.soft", {}, "Nothing is tentative, late or silent now.");
    node.append(el("h2", {}, "Why ", el("small.soft", {}, "from the client to the cause")), node.none, node.list);
  }
  const bad = frame.why.filter((one) => one.condition !== "fine" && one.condition !== "ended");
  const shown = bad.length ? bad : frame.why.filter((one) => one.elsewhere.length || one.causes.length);
  keyed(node.list, shown, (one) => `${one.client} ${one.channel}`, makeChain, (box, one) => updateChain(box, one));
  node.none.hidden = shown.length > 0;
  // It keeps its room, so that the page does not jump; but not for what was said before the first results came.
  node.said ||= shown.length > 0 && node.wasFine;
  node.wasFine ||= !bad.length && frame.why.length > 0;
  return node.said || shown.length > 0;
}

function makeChain() {
  const box = el("article.chain");
  box.mark = icon("stable");
  box.title_ = el("h3");
  box.steps = el("ol.steps");
  box.causes = el("div.causes");
  box.next = el("ul.next");
  box.append(el("div.chain-head", {}, box.mark, box.title_), box.steps, box.causes, box.next);
  return box;
}

function updateChain(box, one) {
  const written = JSON.stringify(one);
  if (box.written === written) return;
  box.written = written;
  box.mark.set(kindOfOutput(one.condition));
  text(box.title_, `${one.channel}${one.client ? ` at ${one.client}` : ""} is ${one.condition === "fine" ? "stable" : one.condition}`);
  box.steps.replaceChildren(...(one.condition === "fine" ? [] : one.steps).map((step) =>
    el("li", {"--depth": String(step.depth)}, el("b", {}, step.who), ` ${step.what}`)));
  box.causes.replaceChildren(
    ...one.causes.map((cause) => cause_("cause", cause)),
    ...one.elsewhere.slice(0, ELSEWHERE).map((cause) => cause_("elsewhere", cause)),
    ...(one.elsewhere.length > ELSEWHERE ? [el("p.soft", {}, `and ${one.elsewhere.length - ELSEWHERE} more elsewhere`)] : []),
  );
  const lines = [...one.next, ...one.moves.map((move) => `under way: ${move}`)];
  box.next.replaceChildren(...lines.map((line) => el("li", {}, line)));
  box.next.hidden = lines.length === 0;
}

function cause_(title, cause) {
  return el(`p.cause.${title}`, {"data-kind": cause.kind}, el("span.tag", {}, `${title}: ${cause.kind}`), ` ${sentence(cause.why)}`);
}
