// The page: takes events of the server, keeps what is shown, and draws all parts of it.

import {text, className, hideTip} from "./dom.js";
import {elapsed, wallTime} from "./format.js";
import {drawDetails} from "./details.js";
import {drawFaults} from "./faults.js";
import {drawGraph} from "./graph.js";
import {drawMoves} from "./moves.js";
import {drawOutputs, remember} from "./outputs.js";
import {drawReplicas} from "./replicas.js";
import {drawSources} from "./sources.js";
import {Timeline} from "./timeline.js";
import {drawVerdict, drawWhy} from "./why.js";

const byId = (id) => document.getElementById(id);
// In the present, the shown frame is the newest one; in the past, at is the time that is looked at.
const model = {
  layout: null, frame: null, newest: null, at: null, selected: null, key: location.hash.slice(1), layouts: new Map(),
  draw: schedule, select, inject,
};
const timeline = new Timeline(byId("timeline"), byId("span"), model, lookAt);
let connected = false, scheduled = false, drawn = 0, refused = "";

// --- the server ---

let source = null;

function connect() {
  source = new EventSource("api/events");
  source.addEventListener("open", () => { connected = true; refused = ""; drawStatus(); });
  source.addEventListener("layout", (event) => takeLayout(JSON.parse(event.data)));
  source.addEventListener("frame", (event) => takeFrame(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    connected = false;
    drawStatus();
    if (source.readyState === EventSource.CLOSED) {
      refused = "no room";
      source.close();
      setTimeout(connect, 5000);
    }
  });
}

function takeLayout(layout) {
  for (const [part, columns] of Object.entries(layout.columns)) {
    layout[`${part}At`] = Object.fromEntries(columns.map((name, i) => [name, i]));
  }
  model.layouts.set(layout.number, layout);
  while (model.layouts.size > 20) model.layouts.delete(model.layouts.keys().next().value);
  return layout;
}

function takeFrame(frame) {
  model.newest = frame;
  remember(model.layouts.get(frame.layout), frame);
  timeline.newFrame(frame);
  if (model.at === null) show(frame);
}

function show(frame) {
  model.frame = frame;
  model.layout = model.layouts.get(frame.layout);
  schedule();
}

async function inject(fault) {
  const answer = await fetch("api/faults", {
    method: "POST", body: JSON.stringify(fault),
    headers: {"Content-Type": "application/json", "X-Spe-Key": model.key},
  });
  return answer.ok ? (await answer.json()).error : (await answer.text()).trim();
}

// --- the past ---

let wanted = null, asking = false;

// Shows the cluster as it was at a time; null is the present.
function lookAt(at) {
  model.at = at;
  if (at === null) {
    if (model.newest) show(model.newest);
  } else {
    wanted = at;
    if (!asking) fetchPast();
  }
  drawStatus();
  timeline.draw();
}

async function fetchPast() {
  asking = true;
  try {
    while (wanted !== null && model.at !== null) {
      const at = wanted;
      wanted = null;
      const answer = await fetch(`api/frame?at=${Math.round(at)}`);
      if (!answer.ok) break;
      const frame = await answer.json();
      if (!model.layouts.has(frame.layout)) {
        const layout = await fetch(`api/layout/${frame.layout}`);
        if (!layout.ok) break;
        takeLayout(await layout.json());
      }
      if (model.at !== null) show(frame);
    }
  } catch {
    // The server is gone; the status says so.
  } finally {
    asking = false;
  }
}

// --- drawing ---

function schedule() {
  if (scheduled) return;
  scheduled = true;
  // A page in the background need not draw; requestAnimationFrame waits until it is seen.
  requestAnimationFrame(() => { scheduled = false; drawAll(); });
}

function drawAll() {
  if (!model.frame || !model.layout) return;
  const {layout} = model;
  text(byId("cluster"), layout.cluster);
  text(byId("where"), layout.title.replace(layout.cluster, "").trim());
  document.title = `${layout.cluster} · Tentative SPE`;
  drawStatus();
  drawVerdict(byId("verdict"), model);
  drawOutputs(byId("outputs"), model);
  byId("why").hidden = model.selected !== null;
  byId("details").hidden = model.selected === null;
  const side = byId("side");
  if (model.selected === null) side.hidden = !drawWhy(byId("why"), model);
  else {
    drawDetails(byId("details"), model);
    side.hidden = false;
  }
  // What it has taken stays, so that the page does not jump each time that something begins or ends.
  side.style.minHeight = side.hidden ? "" : `${side.offsetHeight}px`;
  // Behind what takes room beside it: its lines go by the places of its boxes.
  drawGraph(byId("graph"), byId("legend"), model);
  drawReplicas(byId("replicas"), byId("states"), byId("filter"), model);
  drawSources(byId("sources"), model);
  drawMoves(byId("moves"), model, timeline.recoveries);
  drawFaults(byId("faults"), model);
  document.documentElement.dataset.drawn = String(++drawn);
  document.documentElement.dataset.at = String(model.frame.at);
}

function drawStatus() {
  const {frame, at} = model;
  const live = byId("live");
  className(live, `live ${!connected ? "lost" : at === null ? "on" : "off"}`);
  text(live.lastElementChild, !connected ? (refused ? "too many pages" : frame ? "connection lost" : "connecting") : at === null ? "live" : "paused");
  byId("past").hidden = at === null;
  if (frame) {
    text(byId("clock"), frame.begun ? elapsed(frame.at - frame.begun) : wallTime(frame.at));
    if (at !== null) text(byId("past-time"), `${frame.begun ? elapsed(frame.at - frame.begun) : ""}  (${wallTime(frame.at)})`);
  }
}

function select(name) {
  model.selected = model.selected === name ? null : name;
  schedule();
}

// --- light and dark, keys ---

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  text(byId("theme"), theme[0].toUpperCase() + theme.slice(1));
  try { localStorage.setItem("theme", theme); } catch { /* not kept, then */ }
  timeline.restyle();
}

function currentTheme() {
  return document.documentElement.dataset.theme ?? "auto";
}

const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length]);

byId("theme").addEventListener("click", nextTheme);
byId("live").addEventListener("click", () => lookAt(null));
byId("now").addEventListener("click", () => lookAt(null));
byId("filter").addEventListener("input", schedule);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => timeline.restyle());
addEventListener("scroll", hideTip, {passive: true});
addEventListener("resize", schedule);
addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "range";
  if (event.key === "Escape") {
    if (typing && event.target.id === "filter") { event.target.value = ""; event.target.blur(); schedule(); }
    else if (model.selected !== null) select(null);
    else lookAt(null);
  } else if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    if (event.key === "/") { event.preventDefault(); byId("filter").focus(); }
    else if (event.key === "l" || event.key === "L") lookAt(null);
    else if (event.key === "t" || event.key === "T") nextTheme();
  }
});

let theme = "auto";
try { theme = localStorage.getItem("theme") ?? "auto"; } catch { /* as the system has it */ }
setTheme(THEMES.includes(theme) ? theme : "auto");
connect();
