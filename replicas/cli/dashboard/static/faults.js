// Faults: what is planned, what happens, and buttons to make some happen.

import {el, keyed, text, className} from "./dom.js";
import {duration, elapsed} from "./format.js";

const SHOWN = 8;

export function drawFaults(node, model) {
  const {layout, frame} = model;
  if (node.of !== layout.number) {
    node.of = layout.number;
    const said = node.form?.read();
    node.form?.remove();
    node.form = form(layout, model, said);
    if (!node.list) node.append(node.list = el("div.list"), node.none = el("p.soft"));
    node.prepend(node.form);
  }
  const begun = frame.faults.filter((one) => one.began_us !== null).sort((a, b) => b.began_us - a.began_us);
  const coming = frame.faults.filter((one) => one.began_us === null).sort((a, b) => (a.planned_us ?? 0) - (b.planned_us ?? 0));
  const shown = [...begun.slice(0, SHOWN - Math.min(2, coming.length)), ...coming].slice(0, SHOWN);
  keyed(node.list, shown.map((one, i) => ({one, i})), ({one}) => `${one.fault} ${one.planned_us} ${one.planned_us === null ? one.began_us : ""}`, () => {
    const line = el("div.fault-line");
    line.at = el("span.figure.soft");
    line.what = el("b");
    line.state = el("span");
    line.append(line.at, line.what, line.state);
    return line;
  }, (line, {one}) => update(line, one, frame));
  const more = frame.faults.length - shown.length;
  text(node.none, frame.faults.length === 0 ? "No fault was planned or injected." : more > 0 ? `and ${more} more` : "");
  node.none.hidden = node.none.textContent === "";
}

function update(line, one, frame) {
  const at = one.began_us ?? one.planned_us;
  text(line.at, at === null || !frame.begun ? "" : elapsed(at - frame.begun));
  text(line.what, one.fault);
  const [kind, said] = one.errors.length ? ["bad", one.errors.join("; ")]
    : one.began_us === null ? ["soft", `in ${duration(Math.max(0, one.planned_us - frame.at))}`]
    : one.ended_us !== null && one.ended_us <= frame.at ? ["soft", `over after ${duration(one.ended_us - one.began_us)}`]
    : one.for_us !== null ? ["bad", `now, ${duration(Math.max(0, one.began_us + one.for_us - frame.at))} left`] : ["bad", "done"];
  text(line.state, said);
  className(line.state, kind);
}

// What one fault needs, by its kind; the fields are those of a fault file.
function form(layout, model, said) {
  const kinds = Object.keys(layout.faults.kinds);
  const node = el("form.inject");
  node.read = () => ({});
  if (!kinds.length) {
    node.append(el("p.soft", {}, "Faults can be injected only into a run of this machine, from this machine."));
    return node;
  }
  const options = (names) => names.map((name) => el("option", {value: name}, name));
  const kind = el("select", {ariaLabel: "What happens"}, ...options(kinds));
  const target = el("select", {ariaLabel: "To whom"}, ...options(layout.faults.targets));
  const other = el("select", {ariaLabel: "The other end"}, ...options(["all", ...layout.faults.targets]));
  const by = el("input", {value: "200ms", ariaLabel: "By how much", size: 6});
  const length = el("select", {ariaLabel: "For how long"}, ...["5s", "10s", "30s", "until healed"].map((one) => el("option", {value: one === "until healed" ? "" : one}, one)));
  const go = el("button.danger", {type: "submit"}, "Inject");
  const answer = el("output.answer");
  const withBy = el("label", {}, "by ", by), withOther = el("label", {}, "from ", other), withFor = el("label", {}, "for ", length), withTarget = el("label", {}, target);
  const arrange = () => {
    const fields = layout.faults.kinds[kind.value];
    withTarget.hidden = kind.value === "heal";
    withOther.hidden = !fields.includes("to") || kind.value === "heal";
    withBy.hidden = !fields.includes("by") && !fields.includes("bytes_per_second");
    by.value = fields.includes("bytes_per_second") ? "100000" : "200ms";
    withFor.hidden = !fields.includes("for");
  };
  kind.addEventListener("change", arrange);
  if (said?.kind) { kind.value = said.kind; target.value = said.target; }
  node.read = () => ({kind: kind.value, target: target.value});
  arrange();
  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    const fields = layout.faults.kinds[kind.value], fault = {kind: kind.value};
    if (!withOther.hidden) Object.assign(fault, {from: [target.value], to: [other.value]});
    else if (!withTarget.hidden) fault.target = [target.value];
    if (!withBy.hidden) { if (fields.includes("bytes_per_second")) fault.bytes_per_second = Number(by.value); else fault.by = by.value; }
    if (!withFor.hidden && length.value) fault.for = length.value;
    await ask(model, fault, go, answer);
  });
  const heal = el("button", {type: "button", onclick: () => ask(model, {kind: "heal"}, heal, answer)}, "Heal all");
  node.append(kind, withTarget, withOther, withBy, withFor, go, heal, answer);
  return node;
}

export async function ask(model, fault, button, answer) {
  button.disabled = true;
  text(answer, "asking …");
  className(answer, "answer soft");
  try {
    const error = await model.inject(fault);
    text(answer, error || "done");
    className(answer, `answer ${error ? "bad" : "good"}`);
  } catch {
    text(answer, "the server does not answer");
    className(answer, "answer bad");
  } finally {
    button.disabled = false;
  }
}
