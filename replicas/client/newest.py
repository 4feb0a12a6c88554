"""The newest results of each output as texts, for views of a running cluster.  Pure; takes every change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from spe.status import NewestStatus, ResultStatus
from spe.stream.batch import Batch, Rows, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import AttributeType, Schema
from spe.stream.times import format_timestamp

#: Limits on the status: rows per output, outputs, columns per row, and characters per value.
ROWS_KEPT: Final = 5
OUTPUTS_SHOWN: Final = 8
COLUMNS_SHOWN: Final = 12
TEXT_SHOWN: Final = 40


class NewestRows:
    """Holds references to the last rows of each output, in order of arrival; formats them on request.

    Args:
      schemas: schemas of the outputs; only the first few outputs are shown.
    """

    def __init__(self, schemas: Mapping[StreamId, Schema]) -> None:
        self._schemas = dict(list(schemas.items())[:OUTPUTS_SHOWN])
        #: Channel, whether tentative, rows.
        self._ends: dict[StreamId, deque[tuple[Channel, bool, Rows]]] = {
            s: deque(maxlen=ROWS_KEPT) for s in self._schemas
        }

    def apply(self, change: Change) -> None:
        """Takes the next change."""
        channel, element = change.channel, change.element
        if (ends := self._ends.get(channel.stream)) is None:
            return
        if isinstance(element, Undo):
            left = [end for end in ends if end[0] != channel or not end[1]]
            ends.clear()
            ends.extend(left)
        elif isinstance(element, Batch) and len(element):
            ends.append((channel, element.kind is not Kind.STABLE, element.rows))

    def status(self) -> tuple[NewestStatus, ...]:
        """Returns the last rows of each output that has rows."""
        return tuple(
            NewestStatus(
                stream=stream,
                columns=tuple(schema.names[:COLUMNS_SHOWN]),
                rows=tuple(self._rows(stream, schema)),
            )
            for stream, schema in self._schemas.items()
            if self._ends[stream]
        )

    def _rows(self, stream: StreamId, schema: Schema) -> list[ResultStatus]:
        texts = [_TEXTS.get(a.type, str) for a in schema][:COLUMNS_SHOWN]
        rows: list[ResultStatus] = []
        for _, kind, part in reversed(self._ends[stream]):
            if len(rows) == ROWS_KEPT:
                break
            last = part.slice(max(0, len(part) - ROWS_KEPT + len(rows)), len(part)).to_tuples()
            cells = [tuple(map(_short, texts, row)) for row in last]
            rows = [*(ResultStatus(tentative=kind, values=cell) for cell in cells), *rows]
        return rows


def _short(text: Callable[[Any], str], value: Any) -> str:
    """Formats a value as one short line of printable characters."""
    if value is None:
        return "null"
    shown = text(value)
    cut = shown if len(shown) <= TEXT_SHOWN else f"{shown[: TEXT_SHOWN - 1]}…"
    return "".join(c if c.isprintable() else "·" for c in cut)


_TEXTS: Final[Mapping[AttributeType, Callable[[Any], str]]] = {
    AttributeType.BOOL: lambda value: str(value).lower(),
    AttributeType.FLOAT64: lambda value: f"{value:.10g}",
    AttributeType.TIMESTAMP: format_timestamp,
}
