// The whole run: rates, how much of X is in use, and the state of everything, from left to right.

import {el, text, hideTip, showTip} from "./dom.js";
import {elapsed, percent, rate, wallTime} from "./format.js";
import {kindOf, kindOfOutput, ORDER} from "./states.js";

const SPANS = [["All", 0], ["10 min", 600e6], ["1 min", 60e6]];
const LANE = 15, TALL = 62, LOW = 30, AXIS = 20, LANES_MAX = 14;

export class Timeline {
  constructor(node, choices, model, lookAt) {
    Object.assign(this, {node, model, lookAt, span: 0, after: 0, points: [], lanes: {replica: new Map(), output: new Map()}, recoveries: [], first: null, asking: false});
    this.labels = el("div.labels");
    this.canvas = el("canvas");
    this.range = el("input", {type: "range", min: "0", max: "1000", value: "1000", ariaLabel: "Time"});
    node.append(this.labels, el("div.plot", {}, this.canvas, this.range));
    choices.append(...SPANS.map(([name, us]) => el("button.choice", {type: "button", ariaPressed: String(us === 0), onclick: (event) => {
      this.span = us;
      for (const one of choices.children) one.setAttribute("aria-pressed", String(one === event.currentTarget));
      this.draw();
    }}, name)));
    this.range.addEventListener("input", () => this.goTo(Number(this.range.value) * 1e3 + this.from));
    this.range.addEventListener("keydown", (event) => { if (event.key === "End") { event.preventDefault(); lookAt(null); } });
    this.canvas.addEventListener("pointerdown", (event) => { this.canvas.setPointerCapture(event.pointerId); this.dragged(event); });
    this.canvas.addEventListener("pointermove", (event) => { if (event.buttons & 1) this.dragged(event); this.hover(event); });
    this.canvas.addEventListener("pointerleave", hideTip);
    new ResizeObserver(() => this.draw()).observe(node);
  }

  // --- what is known ---

  newFrame(frame) {
    this.newest = frame.at;
    if (!this.asking && (this.after === 0 || frame.at - this.after >= 900e3 || this.asked === undefined || performance.now() - this.asked > 900)) this.fetch();
    this.draw();
  }

  async fetch() {
    if (this.asked !== undefined && performance.now() - this.asked < 900) return;
    this.asking = true;
    this.asked = performance.now();
    try {
      const answer = await fetch(`api/timeline?after=${this.after}`);
      if (answer.ok) this.take(await answer.json());
    } catch {
      // The server is gone; it is asked again with the next frame.
    } finally {
      this.asking = false;
    }
  }

  take(data) {
    this.first = data.from;
    this.recoveries = data.recoveries;
    if (data.points.length) {
      this.points.push(...data.points);
      this.after = data.points[data.points.length - 1][0];
      // The server keeps fewer of what is long ago: the page takes all of it anew, and does not grow with the run.
      if (this.points.length > 5000) Object.assign(this, {points: [], after: 0, lanes: {replica: new Map(), output: new Map()}});
    }
    for (const kind of ["replica", "output"]) {
      for (const [name, changes] of data[kind]) {
        const known = this.lanes[kind].get(name) ?? [];
        for (const [at, state] of changes) {
          const last = known[known.length - 1];
          if (!last || (at > last[0] && last[1] !== state)) known.push([at, state]);
        }
        if (known.length > 2000) known.splice(0, known.length - 2000);
        this.lanes[kind].set(name, known);
      }
    }
    this.groups = null;
    this.draw();
  }

  // --- time and place ---

  get to() {
    return Math.max(this.newest ?? 0, (this.first ?? 0) + 10e6);
  }

  get from() {
    const begun = this.model.newest?.begun;
    const first = Math.max(this.first ?? this.to - 10e6, begun ? Math.min(begun - 500e3, this.to - 10e6) : 0);
    if (!this.span) return first;
    const middle = this.model.at ?? this.to;
    return Math.max(first, Math.min(this.to, middle + this.span / 2) - this.span);
  }

  get until() {
    return this.span ? Math.min(this.to, this.from + this.span) : this.to;
  }

  x(at) {
    return this.width * (at - this.from) / Math.max(1, this.until - this.from);
  }

  time(event) {
    const {left, width} = this.canvas.getBoundingClientRect();
    return this.from + (this.until - this.from) * Math.min(1, Math.max(0, (event.clientX - left) / width));
  }

  dragged(event) {
    const at = this.time(event);
    this.goTo(at);
  }

  goTo(at) {
    this.lookAt(at >= (this.newest ?? at) - 250e3 ? null : at);
  }

  // --- rows ---

  // Outputs and replicas one by one where they are few; else the worst of each stream and each unit.
  rows() {
    const {layout, frame} = this.model;
    if (!layout) return [];
    if (this.groups?.of === layout.number && this.groups.list) return this.groups.list;
    const rows = [{title: "Results", unit: "/s", height: TALL, draw: (c, y) => this.rates(c, y)}, {title: "X in use", height: LOW, draw: (c, y) => this.inUse(c, y)},
      {title: "Faults", height: LANE, draw: (c, y) => this.faults(c, y), at: (t) => this.faultsAt(t)}];
    const several = new Set(layout.channels.map(([client]) => client)).size > 1;
    const outputs = layout.channels.map(([client, stream, partition, of]) => ({name: `${client} ${stream}/${partition}`,
      title: `${of > 1 ? `${stream}/${partition}` : stream}${several ? ` · ${client}` : ""}`, group: stream}));
    const replicas = layout.replicas.map(([name, unit]) => ({name, title: name, group: layout.units[unit].name}));
    rows.push(...this.laneRows("output", outputs, 6), ...this.laneRows("replica", replicas, LANES_MAX));
    this.groups = {of: layout.number, list: rows};
    return rows;
  }

  laneRows(kind, items, most) {
    const row = (title, lane) => ({title, height: LANE, draw: (c, y) => this.lane(c, y, lane(), kind === "output" ? kindOfOutput : kindOf), at: (t) => stateAt(lane(), t)});
    if (items.length <= most) return items.map((one) => row(one.title, () => this.lanes[kind].get(one.name) ?? []));
    const groups = [...new Set(items.map((one) => one.group))];
    return groups.slice(0, most).map((group) => {
      let merged = null;
      const names = items.filter((one) => one.group === group).map((one) => one.name);
      return row(`${group} (${names.length})`, () => (merged ??= worstOf(names.map((name) => this.lanes[kind].get(name) ?? []))));
    });
  }

  // --- drawing ---

  restyle() {
    this.colours = null;
    this.draw();
  }

  colour(name) {
    const style = this.colours ?? (this.colours = Object.assign(new Map(), {of: getComputedStyle(document.documentElement)}));
    if (!style.has(name)) style.set(name, style.of.getPropertyValue(`--${name}`).trim());
    return style.get(name);
  }

  draw() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => { this.scheduled = false; this.paint(); });
  }

  paint() {
    const rows = this.rows();
    if (!rows.length || this.newest === undefined) return;
    const height = rows.reduce((sum, row) => sum + row.height + 3, AXIS);
    const scale = devicePixelRatio || 1, width = this.canvas.clientWidth;
    if (!width) return;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.setProperty("height", `${height}px`);
    }
    if (this.labels.rows !== rows) {
      this.labels.rows = rows;
      this.labels.replaceChildren(...rows.map((row) => el("div", {title: row.title, "--height": `${row.height + 3}px`}, row.title)));
    }
    this.width = width;
    const c = this.canvas.getContext("2d");
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, width, height);
    let y = 0;
    for (const row of rows) {
      row.y = y;
      row.draw(c, y);
      y += row.height + 3;
    }
    this.axis(c, y, height);
    this.range.max = String(Math.max(1, Math.round((this.until - this.from) / 1e3)));
    this.range.value = String(Math.round(((this.model.at ?? this.until) - this.from) / 1e3));
    this.range.step = "1000";
    const begun = this.model.newest?.begun;
    this.range.setAttribute("aria-valuetext", this.model.at === null ? "now" : begun ? elapsed(this.model.at - begun) : wallTime(this.model.at));
  }

  axis(c, y, height) {
    const begun = this.model.newest?.begun ?? this.from, length = (this.until - this.from) / 1e6;
    const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600].find((s) => length / s <= this.width / 70) ?? 7200;
    c.fillStyle = this.colour("soft");
    c.font = "11px system-ui, sans-serif";
    c.textAlign = "center";
    for (let s = Math.ceil((this.from - begun) / 1e6 / step) * step; s * 1e6 + begun <= this.until; s += step) {
      const x = this.x(s * 1e6 + begun);
      if (s >= 0 && x > 14 && x < this.width - 14) c.fillText(elapsed(s * 1e6, false), x, y + 14);
    }
    if (this.model.at !== null) {
      const x = Math.round(this.x(this.model.at)) + 0.5;
      c.strokeStyle = this.colour("ink");
      c.lineWidth = 1.5;
      c.beginPath(); c.moveTo(x, 0); c.lineTo(x, height - AXIS); c.stroke();
      c.fillStyle = this.colour("ink");
      c.beginPath(); c.moveTo(x - 5, 0); c.lineTo(x + 5, 0); c.lineTo(x, 7); c.fill();
    }
  }

  rates(c, y) {
    const base = y + TALL, points = this.points.filter((p) => p[0] >= this.from - 2e6 && p[0] <= this.until);
    const top = Math.max(1e-9, ...points.map((p) => p[1] + p[2]));
    const area = (low, high, colour) => {
      c.fillStyle = colour;
      c.beginPath();
      points.forEach((p, i) => c[i ? "lineTo" : "moveTo"](this.x(p[0]), base - (TALL - 14) * high(p) / top));
      for (let i = points.length - 1; i >= 0; i--) c.lineTo(this.x(points[i][0]), base - (TALL - 14) * low(points[i]) / top);
      c.fill();
    };
    // The newest rates hold until there are newer ones.
    if (points.length) points.push([this.until, ...points[points.length - 1].slice(1)]);
    area(() => 0, (p) => p[1], this.colour("stable"));
    area((p) => p[1], (p) => p[1] + p[2], this.colour("tentative"));
    this.line(c, base);
    c.fillStyle = this.colour("soft");
    c.font = "11px system-ui, sans-serif";
    c.textAlign = "right";
    if (points.length) c.fillText(`largest ${rate(top)} /s`, this.width - 4, y + 10);
  }

  inUse(c, y) {
    const base = y + LOW, points = this.points;
    const top = Math.max(1, ...points.map((p) => p[3]));
    for (const [i, p] of points.entries()) {
      if (p[0] < this.from || p[0] > this.until || p[3] <= 0) continue;
      c.fillStyle = this.colour(p[3] >= 0.9 ? "tentative" : "idle");
      const h = (LOW - 2) * Math.min(p[3], top) / top;
      c.fillRect(this.x(p[0]), base - h, Math.max(1, this.x(Math.min(i + 1 < points.length ? points[i + 1][0] : this.to, p[0] + 60e6)) - this.x(p[0])), h);
    }
    c.strokeStyle = this.colour("down");
    c.setLineDash([4, 3]);
    c.lineWidth = 1;
    const x = Math.round(base - (LOW - 2) / top) + 0.5;
    c.beginPath(); c.moveTo(0, x); c.lineTo(this.width, x); c.stroke();
    c.setLineDash([]);
    this.line(c, base);
  }

  line(c, y) {
    c.strokeStyle = this.colour("line");
    c.lineWidth = 1;
    c.beginPath(); c.moveTo(0, Math.round(y) + 0.5); c.lineTo(this.width, Math.round(y) + 0.5); c.stroke();
  }

  lane(c, y, changes, kinds) {
    for (let i = 0; i < changes.length; i++) {
      const until = i + 1 < changes.length ? changes[i + 1][0] : this.to;
      if (until < this.from || changes[i][0] > this.until) continue;
      const x1 = Math.max(0, this.x(changes[i][0])), x2 = Math.min(this.width, this.x(until)), kind = kinds(changes[i][1]);
      const width = Math.max(1, x2 - x1), share = changes[i][2] ?? 1;
      if (share < 1) {
        c.fillStyle = this.colour("stable-band");
        c.fillRect(x1, y, width, LANE);
      }
      // Of many, as high as the share that is in another state; what is few can be seen, too.
      const height = Math.max(4, LANE * Math.sqrt(share)), top = y + LANE - height;
      c.fillStyle = this.colour(kind === "stable" ? "stable-band" : kind === "idle" || kind === "ended" ? "wash" : kind);
      if (kind === "down") {
        c.globalAlpha = 0.25;
        c.fillRect(x1, top, width, height);
        c.globalAlpha = 1;
        hatch(c, x1, top, Math.max(1.5, width), height, this.colour("down"));
      } else c.fillRect(x1, top, width, height);
    }
  }

  faults(c, y) {
    for (const one of this.model.newest?.faults ?? []) {
      if (one.began_us === null) continue;
      const until = one.ended_us ?? (one.for_us === null ? one.began_us : this.to);
      const x1 = this.x(one.began_us), x2 = Math.max(x1 + 3, this.x(until));
      if (x2 < 0 || x1 > this.width) continue;
      c.fillStyle = this.colour("down");
      c.globalAlpha = 0.8;
      c.fillRect(x1, y + 3, x2 - x1, LANE - 6);
      c.globalAlpha = 1;
    }
  }

  faultsAt(t) {
    return (this.model.newest?.faults ?? []).filter((one) => one.began_us !== null && one.began_us <= t && (one.ended_us ?? (one.for_us === null ? one.began_us + 1e6 : Infinity)) >= t).map((one) => one.fault).join(", ");
  }

  hover(event) {
    const at = this.time(event), {top} = this.canvas.getBoundingClientRect(), y = event.clientY - top;
    const row = this.rows().find((one) => y >= one.y && y < one.y + one.height + 3);
    const begun = this.model.newest?.begun;
    const lines = [begun ? elapsed(at - begun) : wallTime(at)];
    const point = this.points.findLast?.((p) => p[0] <= at);
    if (row?.at) { const said = row.at(at); if (said) lines.push(`${row.title}: ${said}`); }
    else if (point) lines.push(`${rate(point[1])} stable, ${rate(point[2])} tentative /s`, `X in use: ${percent(point[3])}`);
    showTip(event.clientX, event.clientY, lines);
  }
}

function stateAt(changes, t) {
  let found = "";
  for (const [at, state] of changes) { if (at > t) break; found = state; }
  return found === "fine" ? "stable" : found;
}

// Of several lanes the worst state at each time.
function worstOf(lanes) {
  const changes = lanes.flatMap((lane, i) => lane.map(([at, state]) => [at, i, state])).sort((a, b) => a[0] - b[0]);
  const now = new Map(), counts = new Map(), found = [];
  for (const [at, i, state] of changes) {
    const before = now.get(i);
    if (before !== undefined) counts.set(before, counts.get(before) - 1);
    now.set(i, state);
    counts.set(state, (counts.get(state) ?? 0) + 1);
    let worst = null;
    for (const [one, n] of counts) if (n > 0 && (worst === null || ORDER.indexOf(kindOf(one)) < ORDER.indexOf(kindOf(worst)))) worst = one;
    const last = found[found.length - 1];
    let odd = 0;
    for (const [one, n] of counts) if (kindOf(one) !== "stable") odd += n;
    const share = kindOf(worst) === "stable" ? 1 : odd / lanes.length;
    if (last && last[0] === at) { last[1] = worst; last[2] = share; }
    else if (!last || last[1] !== worst || last[2] !== share) found.push([at, worst, share]);
  }
  return found;
}

function hatch(c, x, y, width, height, colour) {
  c.save();
  c.beginPath();
  c.rect(x, y, width, height);
  c.clip();
  c.strokeStyle = colour;
  c.lineWidth = 1.4;
  c.beginPath();
  for (let i = x - height - (x % 5); i < x + width; i += 5) { c.moveTo(i, y + height); c.lineTo(i + height, y); }
  c.stroke();
  c.restore();
}
