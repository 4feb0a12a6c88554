"""Producers of live input: they send generated rows whether or not they are taken (rule S7).

Untaken rows wait, as in a pipe; rows that were taken and not yet logged are lost when a source dies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final

import numpy as np

from replicas.connectors import Live, Replay, RowChunk, open_reader
from replicas.simulation.world.clock import EPOCH_US, now_us
from spe.plan.plan import Source, Watermark
from spe.runtime.env import Env
from spe.stream.times import MILLISECOND, SECOND

#: Key of the reader of a producer's rows, in a live source.
_ROWS: Final = "rows"
#: The writer of a pushed source, and key of the reader of its rows.
WRITER: Final = "writer"
PUSHED: Final = "pushed"
_PUSH_IDLE_US: Final = SECOND
_YEAR_US: Final = 365 * 86_400 * SECOND
#: How far event times are behind the clock.
_BEHIND_US: Final = (0, 0, 5 * SECOND, _YEAR_US, -2 * SECOND)
_IDLE_US: Final = (100 * MILLISECOND, 300 * MILLISECOND, SECOND)
_PAUSES_US: Final = (300 * MILLISECOND, SECOND, 3 * SECOND)


def live_source(source: Source, how: Mapping[str, Any]) -> Source:
    """Returns the source as a live one, whose rows happen once.

    Args:
      how: ``watermark``, ``idle_us``, ``idle_to_now`` of the source; and of its producer ``behind_us``: how far event
        times are behind the clock; ``pauses_us``: times without rows, from the beginning of the run on, and their
        lengths.
    """
    return replace(
        source,
        reader={"kind": "stdin", _ROWS: source.reader, "how": dict(how)},
        ahead_us=None,
        watermark=Watermark(how.get("watermark", "data")),
        idle_us=how.get("idle_us"),
        idle_to_now=bool(how.get("idle_to_now", False)),
    )


def pushed_source(source: Source) -> Source:
    """Returns the source as one with pushed rows (replicas.simulation.features.pushed_sources)."""
    return replace(
        source,
        reader={"kind": "push", "writers": (WRITER,), PUSHED: source.reader},
        time=source.time or next(a.name for a in source.schema if a.type == "timestamp"),
        ahead_us=None,
        watermark=Watermark.DATA,
        idle_us=_PUSH_IDLE_US,
        idle_to_now=False,
    )


def random_live(random: Random, names: list[str], seconds: int) -> dict[str, Any]:
    """Returns settings of live sources.  All are equally far behind the clock: otherwise they would not be in step
    (S5).
    """
    behind_us = random.choice(_BEHIND_US)
    return {
        name: {
            "watermark": random.choice(["data", "data", "data", "clock"]),
            "idle_us": random.choice(_IDLE_US),
            "idle_to_now": random.random() < 0.3,
            "behind_us": behind_us,
            "pauses_us": [
                [random.randrange(seconds * SECOND), random.choice(_PAUSES_US)] for _ in range(random.choice([0, 1, 2]))
            ],
        }
        for name in names
    }


class LiveProducer(Live):
    """The producer of one live source; made once in a run, read by each process of the source."""

    def __init__(self, source: Source) -> None:
        how = source.reader["how"]
        start_us = EPOCH_US - int(how.get("behind_us", 0))
        rows = open_reader(replace(source, reader=source.reader[_ROWS]), start_us)
        assert isinstance(rows, Replay)
        self._chunks: Iterator[RowChunk] = rows.chunks(0)
        self._start_us = start_us
        self._pauses = sorted((int(at), int(length)) for at, length in how.get("pauses_us", ()))
        self._chunk: RowChunk | None = None
        self._due = np.zeros(0, np.int64)
        self._at = 0

    async def read(self, env: Env, accept: Callable[[RowChunk], Awaitable[None]]) -> None:
        first = 0  # a reader counts its rows from its own start
        while self._more():
            now = now_us()
            if self._due[self._at] > now:
                await env.clock.sleep((int(self._due[self._at]) - now) / 1e6)
                continue
            stop = int(self._due.searchsorted(now, side="right"))
            chunk = self._taken(first, stop)
            first += len(chunk)
            await accept(chunk)

    def _more(self) -> bool:
        """Returns whether there is another row, which may not be due yet."""
        while self._at == len(self._due):
            self._chunk = next(self._chunks, None)
            if self._chunk is None:
                self._due = self._due[:0]
                self._at = 0
                return False
            assert self._chunk.events is not None  # generated rows have event times
            self._at = 0
            self._due = np.maximum.accumulate(self._chunk.events) - self._start_us
            for at, length in self._pauses:
                self._due[(self._due >= at) & (self._due < at + length)] = at + length
        return True

    def _taken(self, first: int, stop: int) -> RowChunk:
        chunk, start = self._chunk, self._at
        assert chunk is not None
        assert chunk.events is not None
        self._at = stop
        return RowChunk(first, stop - start, chunk.events[start:stop], chunk.slice(start, stop), [])


def producers_of(sources: Mapping[Any, Source]) -> dict[str, LiveProducer]:
    """Returns a producer for each source that :func:`live_source` has made."""
    return {str(name): LiveProducer(source) for name, source in sources.items() if _ROWS in source.reader}
