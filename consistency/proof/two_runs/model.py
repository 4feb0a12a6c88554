"""What ``spe compare`` finds, as data: ``comparison.json``.  Pure.

Every list has a bound that does not depend on the size of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from consistency.proof.report.model import Verdict
from spe.descriptions import DescribedName

#: Changes when a field means something else or is gone; new fields do not change it.
VERSION: Final = 1


class DifferenceKind(DescribedName):
    """How a row of the one side and those of the other differ."""

    MISSING = "missing", "the other side has it, and the run has not"
    ADDED = "added", "the run has it, and the other side has not"
    DIFFERS = "differs", "both have a row with this key, with other values"


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RowDifference(_Data):
    """One row; the side that has none is None."""

    kind: DifferenceKind
    run: dict[str, Any] | None
    other: dict[str, Any] | None


class WindowDifferences(_Data):
    """How many rows of one window, or of one time, differ."""

    window: str
    missing: int
    added: int
    differs: int


class ComparedOutput(_Data):
    """One output, beside what it is to be.

    Attributes:
      client: whose stable rows were compared.
      run, other: the two sides, as they were named.
      key: attributes that make two rows the same result.
      apart: what was not compared: attributes, columns, the tuple time.
      until: tuple time before which rows were compared; "" : all.
      run_rows, other_rows: how many were compared.
      columns: attributes in which rows with one key differ, and in how many.
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


class SideBySide(_Data):
    """Everything that was found."""

    version: Literal[1] = VERSION
    verdict: Verdict
    outputs: list[ComparedOutput]


@dataclass(frozen=True)
class Wanted:
    """What is to be compared, and how.

    Attributes:
      outputs: names; none: all that the run has.
      client: whose recording counts; "": the only one there is.
      key: attributes; none: those of the output's operator.
      ignored: attributes that are not compared.
      columns: of a table, by attribute, where the names differ.
      time: column of a table that has the tuple time; "": ``_time``, if there is one.
      format: of a table; "": by the names of its files.
      delimiter: of CSV.
      tolerance: by what share of the larger one floats may differ.
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
    """How floats were compared."""
    return "exactly" if not tolerance else f"within {tolerance:g} of the larger one"
