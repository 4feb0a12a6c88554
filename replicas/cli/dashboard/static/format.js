// Figures for people: short, with a unit, and of about the same width from moment to moment.

const grouped = new Intl.NumberFormat("en", {maximumFractionDigits: 0});

export function count(n) {
  if (n === null || n === undefined) return "–";
  if (n >= 1e9) return `${(n / 1e9).toFixed(2)} G`;
  if (n >= 1e7) return `${(n / 1e6).toFixed(1)} M`;
  return grouped.format(n);
}

export function rate(n) {
  if (n === null || n === undefined) return "–";
  if (n >= 1e6) return `${(n / 1e6).toFixed(2)} M`;
  if (n >= 1e5) return `${(n / 1e3).toFixed(0)} k`;
  return n >= 100 || n === 0 ? grouped.format(n) : n.toFixed(1);
}

export function duration(us) {
  if (us === null || us === undefined) return "–";
  const s = us / 1e6;
  if (s < 0.0095) return `${(us / 1e3).toFixed(1)} ms`;
  if (s < 0.9995) return `${Math.round(us / 1e3)} ms`;
  if (s < 9.995) return `${s.toFixed(2)} s`;
  if (s < 99.95) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
}

// X as people set it: "2 s" rather than "2.00 s".
export function setting(us) {
  return us >= 1e6 ? `${+(us / 1e6).toFixed(2)} s` : `${+(us / 1e3).toFixed(1)} ms`;
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (n >= size) return `${(n / size).toFixed(1)} ${unit}`;
  return `${n} B`;
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  return share > 0 && share < 0.0995 ? `${(share * 100).toFixed(1)} %` : `${Math.round(share * 100)} %`;
}

// Since the sources began: 0:41.3, 1:02:07.
export function elapsed(us, tenths = true) {
  const s = Math.max(0, us / 1e6);
  const whole = Math.floor(s);
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const text = parts[0] ? `${parts[0]}:${two(parts[1])}:${two(parts[2])}` : `${parts[1]}:${two(parts[2])}`;
  return tenths ? `${text}.${Math.floor((s - whole) * 10)}` : text;
}

export function wallTime(us) {
  const at = new Date(us / 1e3);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
}

// Tuple time, UTC; -1 is the end of the stream.
export function tupleTime(us) {
  if (us === null || us === undefined) return "–";
  if (us < 0) return "end";
  return new Date(us / 1e3).toISOString().slice(11, 21);
}

function two(n) {
  return String(n).padStart(2, "0");
}
