"""Rows and results rejected by operators with ``on_error: skip`` or ``on_late: reject`` (rule U15).

A *rejected row* is a row that the operator could not process, or that missed a window; a *rejected result* is a result
that it could not make, or that is too large.  Each kind has a counter in the operator's state, so the n-th rejection of
a kind is the same row on every replica, and after every restart and redo.
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

#: Most characters of a text, which is a value or a reason.
TEXT_KEPT: Final = 1024

#: Errors of the machine, not of a row: they may not occur on another replica.
NOT_THE_ROWS: Final = (MemoryError, RecursionError, OSError, ImportError)


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejected row or result.

    Attributes:
      operator: the rejecting operator.
      result: True: a result that the operator could not make; False: a row that it could not process, or that missed
        windows.
      number: counts the rejections of this operator and kind from 1.
      input: channel that the row came from, with ``id`` its id there, or stream made inside the unit; None for a
        result.
      time: tuple time, microseconds.
      values: JSON values by attribute; long texts are cut.
      reason: the reason.
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
    """A row that an operator could not process, or that missed windows.

    Has its place among the rows of a port, and the reason, whose text may be made on demand.
    """

    port: int
    row: int
    reason: str | Callable[[], str]

    def why(self) -> str:
        return self.reason if isinstance(self.reason, str) else self.reason()


@dataclass(slots=True)
class Refusals:
    """Collects the rows and results that an operator rejects in a slice.

    Attributes:
      rows: rejected rows of the current input.
      results: numbers of rejected results among the next released rows, and the reasons.
    """

    rows: list[RejectedRow] = field(default_factory=list)
    results: dict[int, str] = field(default_factory=dict)

    def counted_from(self, first: int) -> None:
        """Converts numbers in the stream to numbers in this portion, whose first row has the number ``first``."""
        for rejected in self.rows:
            rejected.row -= first


def reason_of(error: BaseException) -> str:
    """Formats an exception of user code, shortened."""
    try:
        text = str(error)
    except Exception:  # also user code
        text = "(cannot be shown)"
    return shortened(f"{type(error).__name__}: {text}")


def shortened(text: str) -> str:
    """Cuts a text to TEXT_KEPT characters, and adds its length."""
    return text if len(text) <= TEXT_KEPT else f"{text[:TEXT_KEPT]}… ({len(text):,} characters)"


def shown(rows: Rows, schema: Schema, row: int) -> dict[str, Any]:
    """Returns the values of a row for JSON."""
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
