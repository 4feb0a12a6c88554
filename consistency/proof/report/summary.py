"""Summarizes the report: the sentence under the verdict, the four figures, the text in the terminal.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from consistency.proof.losses import measure_of
from consistency.proof.report.model import Flaw, FlawCount, OutputReport, Report, Verdict
from consistency.proof.report.words import count, plural, seconds, share

#: Maximum number of reasons of one kind in the terminal.
_LINES: Final = 8


@dataclass(frozen=True)
class Headline:
    """One figure with its explanation.

    Attributes:
      limit: the figure to compare it with.
      filled: used share of the allowed value; None where there is none.
      bad: whether it is worse than allowed.
    """

    what: str
    figure: str
    note: str
    limit: str = ""
    filled: float | None = None
    bad: bool = False


def sentence(report: Report) -> str:
    """Explains the verdict on this run."""
    tentative = sum(o.tentative.count for o in report.outputs)
    stable = sum(o.stable for o in report.outputs)
    flawed = sum(f.count for o in report.outputs for f in o.findings)
    parts = [f"The clients received {plural(stable, 'stable tuple')}"]
    if report.verdict is Verdict.INCONSISTENT and not flawed:
        return f"{parts[0]}, and more than the sources' logs account for."
    if report.verdict is Verdict.INCONSISTENT:
        if not flawed:
            return f"{parts[0]}, but this is not the run that the configuration asks for:"
        kinds = ", ".join(dict.fromkeys(f.flaw for o in report.outputs for f in o.findings))
        are = "is" if flawed == 1 else "are"
        return f"{parts[0]}; {plural(flawed, 'tuple')} {are} not as in a run without failures: {kinds}."
    parts.append("exactly those of a run without failures, in the same order")
    if report.verdict is Verdict.UNKNOWN:
        return f"{parts[0]}, and none of them is wrong. That is not yet a proof:"
    if tentative:
        parts.append(f"all {count(tentative)} tentative ones were taken back and replaced")
    return f"{parts[0]}: {'; '.join(parts[1:])}."


def headline(report: Report) -> list[Headline]:
    """Returns the four figures at the top of the page."""
    outputs = report.outputs
    return [_right(outputs), _tentative(outputs), _delay(outputs), _recovery(outputs)]


def _right(outputs: list[OutputReport]) -> Headline:
    stable, truth = sum(o.stable for o in outputs), sum(o.truth for o in outputs)
    wrong = sum(f.count for o in outputs for f in o.findings)
    note = "all as in the truth" if not wrong else f"{count(wrong)} wrong"
    if not wrong and stable < truth:
        note = f"{count(truth - stable)} still to come"
    return Headline("Stable tuples", count(stable), note, f"of {count(truth)}", bad=wrong > 0)


def _tentative(outputs: list[OutputReport]) -> Headline:
    total = sum(o.tentative.count for o in outputs)
    right = sum(o.tentative.right for o in outputs)
    left = sum(f.count for o in outputs for f in o.findings if f.flaw is Flaw.UNCORRECTED)
    if not total:
        return Headline("Tentative tuples", "0", "nothing had to be corrected")
    back = f"{count(left)} never taken back" if left else "all taken back"
    note = f"{share(right / total) if right else 'none'} right as they were; {back}"
    impossible = sum(o.tentative.impossible or 0 for o in outputs)
    note += f"; {count(impossible)} that no part of the logs gives" if impossible else ""
    return Headline("Tentative tuples", count(total), note, bad=left + impossible > 0)


def _delay(outputs: list[OutputReport]) -> Headline:
    known = [o for o in outputs if o.delay.max_us is not None]
    unknown = [o for o in outputs if o.delay.why]
    if not known:
        return Headline("Longest delay", "unknown", unknown[0].delay.why if unknown else "nothing new was received")
    worst = max(known, key=lambda o: (o.delay.max_us or 0) / max(o.delay.bound_us, 1))
    filled = (worst.delay.max_us or 0) / max(worst.delay.bound_us, 1)
    allowed = f"of {'kX' if worst.k > 1 else 'X'} = {seconds(worst.delay.bound_us)}"
    missed = any(o.delay.kept is False for o in known)
    note = "not kept" if missed else "not known whether kept" if worst.delay.kept is None else "kept"
    if len(outputs) > 1:
        note += f" (worst: {worst.output})"
    if unknown:
        note += f"; unknown of {', '.join(dict.fromkeys(o.output for o in unknown))}: {unknown[0].delay.why}"
    return Headline("Longest delay of a new tuple", seconds(worst.delay.max_us), note, allowed, filled, missed)


def _recovery(outputs: list[OutputReport]) -> Headline:
    gap = max((o.gaps.any_us for o in outputs), default=0)
    took = [o.healing.took_us for o in outputs if o.healing.took_us is not None]
    note = f"last correction {seconds(max(took))} after healing" if took else "no correction was needed"
    return Headline("Longest gap", seconds(gap), note)


def text(report: Report) -> list[str]:
    """Returns the lines of the terminal: the verdict, the reasons, and the figures."""
    lines = [f"{report.verdict}  {sentence(report)}"]
    lines += [f"  {reason}" for reason in report.reasons]
    for output in report.outputs:
        lines += finding_lines(output.title, output.findings)
    lines += [f"  {h.what.lower()}: {h.figure}{f' {h.limit}' if h.limit else ''}; {h.note}" for h in headline(report)]
    lines += [f"  source {entry.name}: {entry.compared}" for entry in report.sources if entry.compared]
    lines += [f"  sink {entry.sink}: {entry.text}" for entry in report.sinks]
    return lines + _promised(report) + _lost(report)


def finding_lines(title: str, findings: Sequence[FlawCount]) -> list[str]:
    """Lists the flaws of an output, and the first tuples."""
    lines = []
    for finding in findings:
        lines.append(f"  {title}: {count(finding.count)} {finding.flaw}")
        for offender in finding.offenders[:3]:
            shown = ", ".join(f"{k} {v}" for k, v in offender.tuple.items())
            lines.append(
                f"    partition {offender.partition}, {count(offender.place)}, at {offender.time}"
                f"{shown and f': {shown}'}"
            )
    return lines


def _promised(report: Report) -> list[str]:
    """Lists nodes that let a bucket wait longer than their share of X, and nodes whose file has other settings."""
    lines = [
        f"  {p.node} let a bucket of {p.unit} wait for {seconds(p.waited_us)}, of {seconds(p.share_us)}"
        for p in report.promises
        if not p.kept
    ]
    differing = dict.fromkeys((p.node, p.differs, p.x_us) for p in report.promises if p.differs)
    lines += [f"  {n} announced X = {seconds(x)}, and config.yaml says: {differs}" for n, differs, x in differing]
    return lines[:_LINES]


def _lost(report: Report) -> list[str]:
    """Describes the longest time in which no node ran some partitions: the expected and the measured fidelity."""
    if not report.losses:
        return []
    worst = max(report.losses, key=lambda loss: loss.until_us - loss.from_us)
    lost, took = plural(len(worst.partitions), "partition"), seconds(worst.until_us - worst.from_us)
    parts = [f"  longest loss: nobody ran {lost} for {took}; expected fidelity (OF) {share(worst.fidelity)}"]
    for output in report.outputs:
        value = worst.measured.get(output.title)
        if output.accuracy is not None and value is not None and not measure_of(output.accuracy).startswith("error"):
            parts.append(f"{measure_of(output.accuracy)} of {output.title} {share(value)}")
    return [", ".join(parts)]
