"""Rows given to a simulated source, in place of its configured input: plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from replicas.connectors import Replay, RowChunk
from replicas.connectors.reader import CHUNK_ROWS
from spe.plan.plan import Source, Watermark
from spe.plan.timing import speed_of
from spe.stream.batch import Rows
from spe.stream.schema import Schema

#: Kind of the reader of given rows, and key of its rows.
_GIVEN: Final = "given"


class GivenRows(Replay):
    """A reader of given rows.

    Args:
      rows: event time in microseconds, then the value of each attribute, in order of arrival.
    """

    def __init__(self, schema: Schema, rows: Sequence[Sequence[Any]]) -> None:
        self._schema = schema
        self._rows = rows

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        for first in range(skip, len(self._rows), CHUNK_ROWS):
            taken = self._rows[first : first + CHUNK_ROWS]
            events = [row[0] for row in taken]
            columns = Rows.from_tuples(self._schema, events, [row[1:] for row in taken]).columns
            yield RowChunk(first, len(taken), np.array(events, np.int64), columns, [])


def with_rows(source: Source, replayed: Mapping[str, Any]) -> Source:
    """Returns the source with given rows, which it replays at its own pace.

    Args:
      given: ``rows`` for :class:`GivenRows`, and ``origin_us``: event time at which the replay begins.
    """
    speed = speed_of(source)
    by_speed = speed is not None and speed < math.inf
    replay = {"speed": speed, "origin_us": replayed["origin_us"]} if by_speed else dict(source.replay)
    return replace(
        source,
        reader={"kind": _GIVEN, _GIVEN: replayed["rows"]},
        replay=replay,
        ahead_us=None,
        watermark=Watermark.CLOCK,
        idle_us=None,
        idle_to_now=False,
    )


def givers_of(sources: Mapping[Any, Source]) -> dict[str, GivenRows]:
    """Returns a reader for each source that :func:`with_rows` has made."""
    return {
        str(name): GivenRows(source.schema, source.reader[_GIVEN])
        for name, source in sources.items()
        if _GIVEN in source.reader
    }
