"""Sources with pushed rows: tasks and commits are repeated, and each row is logged once (rules W1 and W2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

import numpy as np
import trio

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from replicas.client.push import Pusher
from replicas.connectors import Replay, open_reader
from replicas.simulation.world.clock import EPOCH_US, now_us
from replicas.simulation.world.cluster import SimCluster
from replicas.simulation.world.host import HOST
from replicas.simulation.world.producer import PUSHED, WRITER
from spe.errors import SpeError
from spe.log.pushed_batches import encode_part
from spe.plan.plan import Source
from spe.stream.batch import Batch, Rows
from spe.stream.names import StreamId

T = TypeVar("T")

#: Time spans of batches, share of the batches with a repeated task or commit, and patience.
_LENGTH_S: Final = (0.05, 0.2, 1.0)
_REPEATED: Final = 0.3
_PATIENCE_S: Final = 30.0
_AGAIN_S: Final = 0.5


class Writer:
    """Pushes the rows of one source, from the host of a client.

    Attributes:
      committed: committed rows, in order.
    """

    def __init__(self, cluster: SimCluster, stream: StreamId, draw: int) -> None:
        self.stream = stream
        self.committed: list[tuple[Any, ...]] = []
        self._cluster = cluster
        self._random = Random(draw)

    async def run(self) -> None:
        cluster, source = self._cluster, self._cluster.plan.sources[self.stream]
        host = f"client:{next(iter(cluster.directory.clients))}"
        HOST.set(host)
        pusher = Pusher(cluster.env(host), cluster.plan, cluster.directory, self.stream, WRITER, patience_s=_PATIENCE_S)
        for batch, rows in enumerate(self._batches(source)):
            due_s = (int(rows.time.max()) - EPOCH_US - now_us()) / 1e6
            await trio.sleep(max(0.0, due_s))
            data = encode_part([rows], source.schema)
            names = [await _insist(partial(pusher.stage, "query", batch, data)) for _ in range(self._times())]
            for _ in range(self._times()):
                await _insist(partial(pusher.commit, "query", batch, names[-1:]))
            await pusher.drop(names[:-1])
            self.committed += rows.take(rows.time.argsort(kind="stable")).to_tuples()
        await _insist(pusher.end)

    def _times(self) -> int:
        return 2 if self._random.random() < _REPEATED else 1

    def _batches(self, source: Source) -> Iterator[Rows]:
        """Yields the rows of each batch: those that come within a while."""
        reader = open_reader(replace(source, reader=source.reader[PUSHED]), EPOCH_US)
        assert isinstance(reader, Replay)
        for chunk in reader.chunks(0):
            assert chunk.events is not None
            due, start = np.maximum.accumulate(chunk.events), 0
            while start < len(due):
                until = due[start] + round(self._random.choice(_LENGTH_S) * 1e6)
                stop = int(due.searchsorted(until, side="right"))
                times = chunk.events[start:stop]
                yield Rows(times, times, chunk.slice(start, stop))
                start = stop

    def check(self, finished: bool, counters: Counters) -> Iterator[Finding]:
        """Checks that each committed row is in the log, once and in order."""
        elements = self._cluster.logged()[self.stream]
        logged = [row for e in elements if isinstance(e, Batch) for row in e.rows.to_tuples()]
        counters.add("pushed rows compared", len(logged))
        wanted = self.committed[: None if finished else len(logged)]
        if list(map(repr, logged[: len(wanted)])) != list(map(repr, wanted)) or (
            finished and len(logged) > len(wanted)
        ):
            what = f"{len(logged)} rows are logged, {len(self.committed)} were committed"
            at_us = self._cluster.history.end_us
            yield Finding("W3", "a committed row is logged once", at_us, f"source:{self.stream}", what)


async def _insist(request: Callable[[], Awaitable[T]]) -> T:
    """Repeats a request while the source runs with another plan, or does not answer."""
    while True:
        try:
            return await request()
        except SpeError:
            await trio.sleep(_AGAIN_S)


def random_pushes(random: Random, names: list[str]) -> dict[str, int]:
    """Returns the sources with pushed rows, each with a number from which its batches follow."""
    chosen = random.sample(names, random.randint(1, len(names)))
    return {name: random.randrange(1 << 30) for name in sorted(chosen)}


def writers_of(cluster: SimCluster, pushes: Mapping[str, int]) -> list[Writer]:
    return [Writer(cluster, StreamId(name), draw) for name, draw in pushes.items()]
