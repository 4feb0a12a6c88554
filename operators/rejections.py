"""Rows that an operator with ``on_error: skip`` or ``on_late: reject`` goes on without (rule U15).

A *rejected row* is one that the operator could not take in, or that missed a window; a *rejected result* one that it
could not make, or made too large.  Each kind is counted by itself in the operator's state, so the n-th one of a kind is
the same row on every replica, and after every restart and redo.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spe.stream.batch import Column, Rows
from spe.stream.names import StreamId
from spe.stream.schema import AttributeType, Schema
from spe.stream.times import iso_timestamp

#: Characters that are kept of a text, which is a value or a reason.
TEXT_KEPT: Final = 1024

#: Errors of the machine, not of a row: another replica might not have them.
NOT_THE_ROWS: Final = (MemoryError, RecursionError, OSError, ImportError)


@dataclass(frozen=True, slots=True)
class Rejection:
    """One row that an operator goes on without.

    Attributes:
      operator: whose ``on_error`` or ``on_late`` says so.
      result: the operator could not make it; else it could not take it in, or not in all its windows.
      number: counts the rejections of this operator and kind from 1.
      input: what it came from: a channel, with ``id`` its id there, or a stream that is made inside the unit; None for
        a result.
      time: tuple time, microseconds.
      values: by attribute, as JSON has them; long texts are cut.
      reason: why.
    """

    operator: StreamId
    result: bool
    number: int
    input: str | None
    id: int | None
    time: int
    values: Mapping[str, Any]
    reason: str


@dataclass(slots=True)
class RejectedRow:
    """A row that an operator could not take in, or not in all windows.

    It says where it stands among the rows of a port, and why, which may be put into words only when somebody asks.
    """

    port: int
    row: int
    reason: str | Callable[[], str]

    def why(self) -> str:
        return self.reason if isinstance(self.reason, str) else self.reason()


@dataclass(slots=True)
class Refusals:
    """The rows and results that an operator leaves out of a slice.

    Attributes:
      rows: those that it could not take in, of the rows that it is being given.
      results: of the rows that it releases next, the numbers of those that it could not make, and why.
    """

    rows: list[RejectedRow] = field(default_factory=list)
    results: dict[int, str] = field(default_factory=dict)

    def counted_from(self, first: int) -> None:
        """Turns numbers in the stream into numbers in this portion, whose first row has the number ``first``."""
        for one in self.rows:
            one.row -= first


def reason_of(error: BaseException) -> str:
    """What a user's code raised, in short."""
    try:
        text = str(error)
    except Exception:  # a user's code, too
        text = "(cannot be shown)"
    return shortened(f"{type(error).__name__}: {text}")


def shortened(text: str) -> str:
    """At most TEXT_KEPT characters, and how many there were."""
    return text if len(text) <= TEXT_KEPT else f"{text[:TEXT_KEPT]}… ({len(text):,} characters)"


def shown(rows: Rows, schema: Schema, row: int) -> dict[str, Any]:
    """The values of one row, as JSON has them."""
    return {a.name: _shown(c, a.type, row) for a, c in zip(schema, rows.columns, strict=True)}


def _shown(column: Column, type_: AttributeType, row: int) -> Any:
    if column.valid is not None and not column.valid[row]:
        return None
    value: Any = column.values[row].item()
    if column.dictionary is not None:
        return shortened(column.dictionary.strings[value])
    if type_ is AttributeType.TIMESTAMP:
        return iso_timestamp(value)
    if type_ is AttributeType.FLOAT64 and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
