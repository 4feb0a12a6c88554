"""The result of ``spe compare`` as data: ``comparison.json``.  Pure.

Every list has a bound that does not depend on the size of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from consistency.proof.report.model import ReportData, Verdict
from spe.descriptions import DescribedName

#: Changes when a field changes its meaning or is removed; new fields do not change it.
VERSION: Final = 1


class DifferenceKind(DescribedName):
    """Differences between rows of the two sides."""

    MISSING = "missing", "the other side has it, and the run has not"
    ADDED = "added", "the run has it, and the other side has not"
    DIFFERS = "differs", "both have a row with this key, with other values"


class RowDifference(ReportData):
    """One row; the side that has none is None."""

    kind: DifferenceKind
    run: dict[str, Any] | None
    other: dict[str, Any] | None


class WindowDifferences(ReportData):
    """Number of differences in one window, or at one time."""

    window: str
    missing: int
    added: int
    differs: int


class ComparedOutput(ReportData):
    """One output, compared with its expected rows.

    Attributes:
      client: its stable rows were compared.
      run, other: the two sides, as the user named them.
      key: attributes that make two rows the same result.
      apart: not compared: attributes, columns, the tuple time.
      until: tuple time before which rows were compared; "" : all.
      run_rows, other_rows: number of rows compared.
      columns: number of rows with one key, by the attribute in which they differ.
      by: what ``windows`` are: an attribute, or the tuple time; "": not known.
      windows: the first ones with a difference.
      rows: the first ones of each kind.
    """

    output: str
    client: str
    run: str
    other: str
    verdict: Verdict
    reasons: list[str]
    key: list[str]
    apart: list[str]
    until: str
    floats: str
    run_rows: int
    other_rows: int
    missing: int
    added: int
    differs: int
    columns: dict[str, int]
    by: str
    windows: list[WindowDifferences]
    rows: list[RowDifference]


class SideBySide(ReportData):
    """The whole result."""

    version: Literal[1] = VERSION
    verdict: Verdict
    outputs: list[ComparedOutput]


@dataclass(frozen=True)
class Wanted:
    """The user's choices for a comparison.

    Attributes:
      outputs: names; none: all that the run has.
      client: its recording is compared; "": the only client.
      key: attributes; none: those of the output's operator.
      ignored: attributes that are not compared.
      columns: of a table, by attribute, where the names differ.
      time: column of a table that has the tuple time; "": ``_time``, if there is one.
      format: of a table; "": by the names of its files.
      delimiter: of CSV.
      tolerance: share of the larger one by which floats may differ.
    """

    outputs: tuple[str, ...] = ()
    client: str = ""
    key: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    time: str = ""
    format: str = ""
    delimiter: str = ","
    tolerance: float = 0.0


def floats_text(tolerance: float) -> str:
    """Describes how floats were compared."""
    return "exactly" if not tolerance else f"within {tolerance:g} of the larger one"
