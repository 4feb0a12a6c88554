"""The verdict on two sides, and its text.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from consistency.proof.report.model import Verdict
from consistency.proof.report.words import count, plural
from consistency.proof.two_runs.model import ComparedOutput, DifferenceKind, RowDifference

#: Maximum number of windows, and of rows of each kind, in the terminal.
_WINDOWS: Final = 5
_ROWS: Final = 3


@dataclass(frozen=True)
class Found:
    """Facts that the verdict depends on.

    Attributes:
      unfinished: sides that may get more rows.
      until: tuple time before which rows were compared; "": all.
    """

    run_rows: int
    other_rows: int
    missing: int
    added: int
    differs: int
    unfinished: list[str]
    until: str


def decide_side_by_side(facts: Found) -> tuple[Verdict, list[str]]:
    """Returns the verdict and its reasons; none for CONSISTENT."""
    wrong = [
        f"{plural(n, 'row')} {kind}"
        for kind, n in (
            (DifferenceKind.MISSING, facts.missing),
            (DifferenceKind.ADDED, facts.added),
            (DifferenceKind.DIFFERS, facts.differs),
        )
        if n
    ]
    if wrong:
        return Verdict.INCONSISTENT, [text.replace("rows differs", "rows differ") for text in wrong]
    if facts.unfinished:
        sides = " and ".join(facts.unfinished)
        return Verdict.UNKNOWN, [f"compared until {facts.until} only: {sides} may have more to come"]
    if not facts.run_rows and not facts.other_rows:
        return Verdict.UNKNOWN, ["neither side has a row: there is nothing to compare"]
    return Verdict.CONSISTENT, []


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns INCONSISTENT if one verdict is, else UNKNOWN if one is."""
    each = set(verdicts)
    return next((v for v in (Verdict.INCONSISTENT, Verdict.UNKNOWN) if v in each), Verdict.CONSISTENT)


def text(output: ComparedOutput) -> list[str]:
    """Returns the lines of the terminal."""
    same = output.run_rows - output.added - output.differs
    lines = [
        f"{output.verdict}  {output.output}: {plural(same, 'row')} equal; {output.run} ({output.client}) has "
        f"{count(output.run_rows)}, {output.other} {count(output.other_rows)}",
        f"  compared by {', '.join(output.key)}; floats {output.floats}"
        + (f"; until {output.until}" if output.until else ""),
    ]
    if output.apart:
        lines.append(f"  not compared: {', '.join(output.apart)}")
    lines += [f"  {reason}" for reason in output.reasons]
    if output.columns:
        lines.append("  differing: " + ", ".join(f"{name} in {plural(n, 'row')}" for name, n in output.columns.items()))
    for w in output.windows[:_WINDOWS]:
        parts = [f"{count(n)} {k}" for k, n in (("missing", w.missing), ("added", w.added), ("differ", w.differs)) if n]
        lines.append(f"  {output.by} {w.window}: {', '.join(parts)}")
    if len(output.windows) > _WINDOWS:
        lines.append("  …")
    shown: dict[DifferenceKind, int] = {}
    for row in output.rows:
        shown[row.kind] = shown.get(row.kind, 0) + 1
        if shown[row.kind] <= _ROWS:
            lines.append(f"    {_described(row, output.key)}")
    return lines


def _described(row: RowDifference, key: list[str]) -> str:
    if row.run is None or row.other is None:
        return f"{row.kind}: {_values(row.run or row.other or {})}"
    which = _values({name: row.run[name] for name in key if name in row.run})
    other = row.other
    unlike = [f"{n} {_text(v)}, other {_text(other[n])}" for n, v in row.run.items() if n not in key and v != other[n]]
    return f"{row.kind}: {which}: {'; '.join(unlike)}"


def _values(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in row.items())


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
