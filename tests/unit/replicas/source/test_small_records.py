"""A log of small records is read in short steps, and each record is decoded once for all that read it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio.testing

from replicas.connectors import Live, RowChunk
from replicas.simulation.world.disk import SimDisk
from replicas.source import history
from replicas.source.history import PIECE_BATCHES, READ_NS
from replicas.source.proxy import SourceProxy
from spe.runtime.env import Env
from spe.stream.batch import Batch, Column
from tests.support.source_env import source_env
from tests.unit.replicas.source.test_cursors import Accept
from tests.unit.replicas.source.test_proxy import EVENTS, source

ROWS = 1_000


class OneByOne(Live):
    async def read(self, env: Env, accept: Accept) -> None:
        for n in range(ROWS):
            ts = Column(np.array([n]))
            await accept(RowChunk(n, 1, ts.values, (ts, Column.from_list([f"r{n}"], EVENTS["name"].type)), []))


class Counted:
    """A source whose tuples are in its log, or in memory; each record takes a millisecond to decode.

    Attributes:
      decoded: records, so far.
    """

    def __init__(self, proxy: SourceProxy, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proxy = proxy
        self.decoded = 0
        decode = history.decode_source_batch

        def counted(*given: Any) -> Any:
            self.decoded += 1
            return decode(*given)

        monkeypatch.setattr(history, "decode_source_batch", counted)
        monkeypatch.setattr(clock, "step_ns", lambda: 0)
        proxy._writer.history._step_ns = lambda: self.decoded * READ_NS // 10

    def pull(self, after_id: int, limit_bytes: int = 512 << 10) -> list[Batch]:
        return [e for e in self.proxy.read_from(after_id, 0, limit_bytes) if isinstance(e, Batch)]


async def made(monkeypatch: pytest.MonkeyPatch, tail_bytes: int) -> Counted:
    env = source_env(SimDisk())
    proxy = await SourceProxy.open(env, source({"kind": "stdin"}), tail_bytes=tail_bytes)
    await proxy.run(reader=OneByOne())
    assert proxy.last_id == ROWS
    return Counted(proxy, env.clock, monkeypatch)


def names(batches: list[Batch]) -> list[Any]:
    return [name for batch in batches for name in batch.rows.columns[1].to_list()]


async def test_a_pull_decodes_no_more_than_its_time(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    one = await made(monkeypatch, 0)
    got: list[Batch] = []
    while len(names(got)) < ROWS:
        before = one.decoded
        pulled = one.pull(got[-1].upto_id if got else 0)
        assert 0 < one.decoded - before <= 10
        assert len(pulled) == 1, "small records are one batch"
        got += pulled
    assert names(got) == [f"r{n}" for n in range(ROWS)]


@pytest.mark.parametrize("begins", [[0, 0, 0, 0], [0, 3, 500, 17]])
async def test_records_are_decoded_once_for_all_readers(
    begins: list[int], monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    one = await made(monkeypatch, 0)
    got: list[list[Batch]] = [[] for _ in begins]
    for _ in range(2 * ROWS):
        for begin, batches in zip(begins, got):
            at = batches[-1].upto_id if batches else begin
            if at < ROWS:
                batches += one.pull(at)
    assert [names(batches) for batches in got] == [[f"r{n}" for n in range(begin, ROWS)] for begin in begins]
    assert one.decoded <= 1.2 * ROWS


async def test_small_batches_in_memory_are_joined_once(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    one = await made(monkeypatch, 1 << 20)
    first = one.pull(0)
    assert names(first) == [f"r{n}" for n in range(ROWS)]
    assert len(first) <= -(-ROWS // PIECE_BATCHES) + 1
    again = one.pull(0)
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert names(one.pull(777)) == [f"r{n}" for n in range(777, ROWS)]
    assert one.decoded == 0
