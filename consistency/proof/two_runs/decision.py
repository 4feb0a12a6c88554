"""The verdict on two sides, and what is printed of them.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from consistency.proof.report.model import Verdict
from consistency.proof.report.words import count, plural
from consistency.proof.two_runs.model import ComparedOutput, DifferenceKind, RowDifference

#: Windows, and rows of each kind, that the terminal shows.
_WINDOWS: Final = 5
_ROWS: Final = 3


@dataclass(frozen=True)
class Found:
    """What a verdict depends on.

    Attributes:
      unfinished: sides of which more may come.
      until: tuple time before which rows were compared; "": all.
    """

    run_rows: int
    other_rows: int
    missing: int
    added: int
    differs: int
    unfinished: list[str]
    until: str


def decide_side_by_side(found: Found) -> tuple[Verdict, list[str]]:
    """The verdict and its reasons; none for CONSISTENT."""
    wrong = [
        f"{plural(n, 'row')} {kind}"
        for kind, n in (
            (DifferenceKind.MISSING, found.missing),
            (DifferenceKind.ADDED, found.added),
            (DifferenceKind.DIFFERS, found.differs),
        )
        if n
    ]
    if wrong:
        return Verdict.INCONSISTENT, [text.replace("rows differs", "rows differ") for text in wrong]
    if found.unfinished:
        said = " and ".join(found.unfinished)
        return Verdict.UNKNOWN, [f"compared until {found.until} only: {said} may have more to come"]
    if not found.run_rows and not found.other_rows:
        return Verdict.UNKNOWN, ["neither side has a row: there is nothing to compare"]
    return Verdict.CONSISTENT, []


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """INCONSISTENT if one is, else UNKNOWN if one is."""
    each = set(verdicts)
    return next((v for v in (Verdict.INCONSISTENT, Verdict.UNKNOWN) if v in each), Verdict.CONSISTENT)


def text(one: ComparedOutput) -> list[str]:
    """What is printed."""
    same = one.run_rows - one.added - one.differs
    lines = [
        f"{one.verdict}  {one.output}: {plural(same, 'row')} equal; {one.run} ({one.client}) has "
        f"{count(one.run_rows)}, {one.other} {count(one.other_rows)}",
        f"  compared by {', '.join(one.key)}; floats {one.floats}" + (f"; until {one.until}" if one.until else ""),
    ]
    if one.apart:
        lines.append(f"  not compared: {', '.join(one.apart)}")
    lines += [f"  {reason}" for reason in one.reasons]
    if one.columns:
        lines.append("  differing: " + ", ".join(f"{name} in {plural(n, 'row')}" for name, n in one.columns.items()))
    for w in one.windows[:_WINDOWS]:
        parts = [f"{count(n)} {k}" for k, n in (("missing", w.missing), ("added", w.added), ("differ", w.differs)) if n]
        lines.append(f"  {one.by} {w.window}: {', '.join(parts)}")
    if len(one.windows) > _WINDOWS:
        lines.append("  …")
    shown: dict[DifferenceKind, int] = {}
    for row in one.rows:
        shown[row.kind] = shown.get(row.kind, 0) + 1
        if shown[row.kind] <= _ROWS:
            lines.append(f"    {_said(row, one.key)}")
    return lines


def _said(row: RowDifference, key: list[str]) -> str:
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
