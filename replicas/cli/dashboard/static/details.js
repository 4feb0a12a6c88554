// One process: all that it says, and what can be done to it.

import {el, keyed, text} from "./dom.js";
import {bytes, count, duration, percent, rate, setting, tupleTime} from "./format.js";
import {ask} from "./faults.js";
import {icon, kindOf} from "./states.js";

export function drawDetails(node, model) {
  const {layout, frame, selected} = model;
  if (node.of !== `${selected} ${layout.number}`) {
    node.of = `${selected} ${layout.number}`;
    node.mark = icon("idle");
    node.state = el("span.chip");
    node.parts = el("div");
    const answer = el("output.answer");
    const buttons = ["kill", "freeze", "restart", "stall", "cut"].filter((kind) => layout.faults.kinds[kind] && (kind !== "stall" || selected.startsWith("source:")))
      .map((kind) => {
        const words = {kill: "Kill for 5 s", freeze: "Freeze for 5 s", restart: "Restart", stall: "Stall for 5 s", cut: "Cut off for 5 s"}[kind];
        const button = el("button", {type: "button", onclick: () => ask(model, {kind, target: [selected], ...(kind === "restart" ? {} : {for: "5s"})}, button, answer)}, words);
        return button;
      });
    node.replaceChildren(
      el("div.head", {}, node.mark, el("h2", {}, selected), node.state, el("span.grow"), el("button.plain", {type: "button", title: "Close (Esc)", onclick: () => model.select(null)}, "Close")),
      node.parts, el("div.buttons", {}, ...buttons), answer);
  }
  const word = frame.processes[selected];
  const state = word ?? (selected.startsWith("source:") ? frame.sources[layout.sources.indexOf(selected.slice(7))]?.[0] ?? "" : "running");
  node.mark.set(kindOf(state));
  text(node.state, state);
  const disks = Object.entries(frame.disks).filter(([what]) => what.startsWith(`${selected}: `)).map(([what, why]) => `${what.slice(selected.length + 2)}: ${why}`);
  const facts = [...(frame.errors[selected] ? [["", "It does not answer", frame.errors[selected]]] : []), ...disks.map((why) => ["", "The disk is full", why]), ...factsOf(layout, frame, selected)];
  keyed(node.parts, facts, ([part, name], i) => `${part} ${name}`, ([part, name]) => {
    const line = el(`div.fact${part ? "" : ".bad"}`, {}, el("span.soft", {}, name), el("span"));
    if (name === "title") line.replaceChildren(el("h3", {}, part));
    return line;
  }, (line, [, name, value]) => { if (name !== "title") text(line.lastChild, value); });
}

function factsOf(layout, frame, name) {
  const r = layout.replicasAt, s = layout.sourcesAt, c = layout.channelsAt, found = [];
  if (name.startsWith("source:")) {
    const row = frame.sources[layout.sources.indexOf(name.slice(7))];
    if (row) found.push([name, "rows", `${count(row[s.rows])}, ${rate(row[s.rate])} /s`], [name, "frontier", tupleTime(row[s.frontier])], [name, "behind other sources", duration(row[s.lag])],
      [name, "replicas that wait for it", count(row[s.holds])], [name, "late, malformed, refused", `${count(row[s.late])}, ${count(row[s.malformed])}, ${count(row[s.refused])}`], ...(row[s.trouble] ? [["", "trouble", row[s.trouble]]] : []));
    return found;
  }
  if (name.startsWith("client:")) {
    layout.channels.forEach(([client, stream, partition], i) => {
      if (`client:${client}` !== name) return;
      const row = frame.channels[i], part = `${stream}/${partition}`;
      found.push([part, "title", ""], [part, "reads", row[c.reads] ?? "nobody"], [part, "stable, tentative, undone", `${count(row[c.stable])}, ${count(row[c.tentative])}, ${count(row[c.undone])}`],
        [part, "position", count(row[c.position])], [part, "frontier", tupleTime(row[c.frontier])], [part, "longest gap of stable results", duration(row[c.gap])]);
    });
    return found.slice(0, 60);
  }
  layout.replicas.forEach(([replica, , , at], i) => {
    if (layout.nodes[at] !== name) return;
    const row = frame.replicas[i];
    found.push([replica, "title", ""], [replica, "state", row[r.state]]);
    if (row[r.x] === null || row[r.x] === undefined) return;
    found.push([replica, "waits", `${duration(row[r.waiting])} of X ${setting(row[r.x])}; α ${percent(row[r.alpha])}`], [replica, "stable, tentative", `${count(row[r.stable])}, ${count(row[r.tentative])}`],
      [replica, "stable frontier", `${tupleTime(row[r.frontier])}, lag ${duration(row[r.lag])}`], [replica, "held, suffix", `${bytes(row[r.held])}, ${bytes(row[r.suffix])}`],
      [replica, "corrections", `${count(row[r.corrections])}, ${count(row[r.redone])} rows redone`],
      ...row[r.reads].map(([channel, who]) => [replica, `reads ${channel}`, `from ${who}`]), ...row[r.lost].map((channel) => [replica, `reads ${channel}`, "from nobody"]),
      ...(row[r.trouble] ? [["", replica, row[r.trouble]]] : []));
  });
  return found.slice(0, 120);
}
