// States and what they look like: a colour and a shape each, so that nobody needs to tell colours apart.

import {svg} from "./dom.js";

const SHAPES = {
  stable: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11z",
  tentative: "M8 2l6.5 11.5h-13z",
  correcting: "M8 1.5L14.5 8 8 14.5 1.5 8z",
  recovering: "M8 2.2a5.8 5.8 0 1 0 5.8 5.8h-2.6A3.2 3.2 0 1 1 8 4.8z",
  down: "M3.6 2L8 6.4 12.4 2 14 3.6 9.6 8l4.4 4.4-1.6 1.6L8 9.6 3.6 14 2 12.4 6.4 8 2 3.6z",
  late: "M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8zm-.9 2.4h1.8v3.6l2.6 1.6-.9 1.5-3.5-2.2z",
  idle: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zm0 2a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7z",
  ended: "M3 3h10v10H3z",
};

// Worst first: what a summary shows.
export const ORDER = ["down", "late", "tentative", "correcting", "recovering", "idle", "ended", "stable"];

const KINDS = {
  STABLE: "stable", fine: "stable", running: "stable",
  UP_FAILURE: "tentative", tentative: "tentative",
  STABILIZATION: "correcting",
  RECOVERING: "recovering", starting: "idle", "stands by": "idle", unknown: "idle", "": "idle",
  late: "late", ended: "ended",
};

export function kindOf(state) {
  return KINDS[state] ?? "down";
}

// Of an output that nothing comes of, as against a process that does not answer.
export function kindOfOutput(state) {
  return state === "silent" ? "late" : kindOf(state);
}

export function icon(kind) {
  const path = svg("path", {d: SHAPES[kind]});
  const node = svg("svg", {viewBox: "0 0 16 16", class: `icon k-${kind}`, "aria-hidden": "true"}, path);
  node.set = (next) => {
    if (next === kind) return;
    kind = next;
    path.setAttribute("d", SHAPES[kind]);
    node.setAttribute("class", `icon k-${kind}`);
  };
  return node;
}

export function worst(kinds) {
  let found = ORDER.length - 1;
  for (const kind of kinds) found = Math.min(found, ORDER.indexOf(kind));
  return ORDER[found];
}

export const LEGEND = [
  ["stable", "stable", "final results"],
  ["tentative", "tentative", "goes on without some input; will be undone"],
  ["correcting", "correcting", "undoes and recomputes"],
  ["recovering", "recovering", "takes its state and catches up"],
  ["late", "late", "nothing new, or later than X"],
  ["down", "down", "killed, frozen, silent or stopped"],
];
