"""The longest single step of a source that several consumers read, of a log of small records (rule B8)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import numpy as np
import trio

from replicas.connectors import Live, RowChunk
from replicas.producer.feed import PULL_BYTES
from replicas.source.history import TAIL_BYTES
from replicas.source.process import Division, SourceSubscription
from replicas.source.proxy import SourceProxy
from spe.plan.plan import Source
from spe.runtime.env import Env
from spe.runtime.production import production_env
from spe.stream.batch import Batch, Boundary, Column
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME
from spe.wire.codec import ElementEncoder

RECORDS: Final = 30_000
FEEDS: Final = 4
SCHEMA: Final = Schema.of(ts="timestamp!", key="int64!", value="float64!")


class _Single(Live):
    """One row at a time."""

    async def read(self, env: Env, accept: Callable[[RowChunk], Awaitable[None]]) -> None:
        for n in range(RECORDS):
            columns = (Column(np.array([n])), Column(np.array([n % 100])), Column(np.array([n / 7])))
            await accept(RowChunk(n, 1, columns[0].values, columns, []))


def source_steps(add: Callable[[str, float], float]) -> None:
    """Plays all feeds to their ends; ``add`` takes the kind of a step and when it began."""
    for kind, tail_bytes in (("a feed reads the log", 0), ("a feed reads memory", TAIL_BYTES)):
        with tempfile.TemporaryDirectory() as folder:
            trio.run(_play, Path(folder), tail_bytes, lambda began, kind=kind: add(kind, began))


async def _play(folder: Path, tail_bytes: int, add: Callable[[float], float]) -> None:
    source = Source(StreamId("s"), SCHEMA, 100_000, 0, None, "ts", {"kind": "stdin"}, {}, "skip")
    proxy = await SourceProxy.open(production_env(folder), source, tail_bytes=tail_bytes)
    await proxy.run(reader=_Single())
    cursors = [SourceSubscription(proxy, Division(), 0, BEFORE_TIME, None) for _ in range(FEEDS)]
    feeds = [(cursor, ElementEncoder(SCHEMA, 1 << 24)) for cursor in cursors]
    while feeds:
        for feed in list(feeds):
            began = time.thread_time()
            for element in (elements := feed[0].pull(PULL_BYTES)):
                assert isinstance(element, Batch | Boundary)
                b"".join(feed[1].encode(element))
            if not elements:
                feeds.remove(feed)
            add(began)
    proxy.close()
