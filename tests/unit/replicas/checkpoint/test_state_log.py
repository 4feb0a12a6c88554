"""A replica's state in its log: what it goes on from after a crash, and what upstream may forget meanwhile."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter
from pathlib import PurePosixPath
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
import trio

from operators.footprints import UNWRITTEN
from operators.fragment import Fragment
from operators.fragment_log import FragmentLog
from operators.steps import finished
from replicas.checkpoint.extent import Extent, counted
from replicas.checkpoint.log import COPIES, CheckpointLog, LogKind
from replicas.checkpoint.state_log import StableSlice, StateLog, read_state
from replicas.simulation.world.disk import SimDisk, torn
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.custom import CustomSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.windows import CountWindow, SlidingWindow
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME
from tests.support.logged import digest, given, unit_of
from tests.support.long_forms import long_but
from tests.support.operators import Tuple, tuples

T = TypeVar("T")
LOG = PurePosixPath("log")
SCHEMA = Schema.of(key="string", value="int64!")
IN, OTHER = StreamId("in"), StreamId("other")
CALLS = {"n": AggregateCall("count"), "sum": AggregateCall("sum", "value"), "last": AggregateCall("last", "value")}
UNIT = unit_of(
    {
        "threes": AggregateSpec(IN, CountWindow(3), {"key": "key"}, CALLS),
        "sliding": AggregateSpec(OTHER, SlidingWindow(30, 10), {"key": "key"}, CALLS),
        "pairs": JoinSpec(IN, OTHER, JoinKind.LEFT, (("key", "key"),), None, -7, 9),
        "places": CustomSpec((OTHER,), "tests.support.operators_for_tests:Places", {}),
    },
    {"in": SCHEMA, "other": SCHEMA},
)


class Here:
    """Computes in the task that asks, after others had their turn."""

    async def run(self, function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return function()

    async def turn(self) -> None:
        await trio.lowlevel.checkpoint()


class Replica:
    """One that logs each slice, on a disk that forgets what is not synced."""

    def __init__(self, ports: list[list[Tuple]], segment_bytes: int = 1 << 20) -> None:
        self.ports = ports
        self.disk = SimDisk()
        self.segment_bytes = segment_bytes
        self.fragment = Fragment(UNIT)
        self.operators = FragmentLog(UNIT, self.fragment)
        self.end = BEFORE_TIME
        #: (slice end, what it released) of all slices.
        self.released: list[tuple[int, Any]] = []
        #: All that was ever acknowledged upstream.
        self.acknowledged = [0, 0]
        self.digests: dict[int, Any] = {}
        self.begins: list[int] = []
        self.log: CheckpointLog
        self.state: StateLog

    async def start(self) -> None:
        """Goes on from the log, with input from T on."""
        self.log = await CheckpointLog.open(self.disk, LOG, segment_bytes=self.segment_bytes)
        self.state = StateLog(self.log, Here())
        self.fragment = Fragment(UNIT)
        self.operators = FragmentLog(UNIT, self.fragment)
        state = await read_state(self.log, Here())
        if state is None:
            assert self.acknowledged == [0, 0], "upstream has everything"
            self.end, self.released = BEFORE_TIME, []
            return
        assert all(a <= p for a, p in zip(self.acknowledged, state.positions[state.begin])), "upstream has what follows"
        finished(self.operators.reconstruct(state.commit, state.start, state.begin, state.slices))
        given(self.fragment, UNIT, self.ports, state.begin, state.end)
        self.operators.replayed(state.commit, state.end)
        assert digest(self.fragment) == self.digests[state.end]
        self.released = [replica for replica in self.released if replica[0] <= state.end]
        read = [replica for _, part in state.released for replica in part]
        assert read == [list(replica) for replica in self.released][len(self.released) - len(read) :]
        await self.state.goes_on(state, finished(self.operators.live()))
        self.end = state.end
        self.begins.append(state.begin)

    async def slice(self, end: int, below: int = UNWRITTEN, most: int = 0, asked_from: int = 1 << 60) -> bool:
        """One slice; returns whether it is in the log."""
        out = [[list(row) for _, row in rows] for rows in given(self.fragment, UNIT, self.ports, self.end, end)]
        self.end = end
        made = finished(self.operators.slice_log(end, below, most))
        self.digests[end] = digest(self.fragment)
        self.released.append((end, out))
        all_asked = [[e, o] for e, o in self.released if e >= asked_from or e == end]
        written = await self.state.write(
            StableSlice(
                end,
                made,
                finished(self.operators.live()) if made.whole else None,
                [bisect_left(port, end, key=itemgetter(0)) for port in self.ports],
                sum(bisect_left(port, end, key=itemgetter(0)) for port in self.ports),
                [{"end": end}],
                all_asked if made.complete else all_asked[-1:],
                asked_from,
            )
        )
        if not written:
            self.operators.forget()
        return written

    async def sync(self) -> None:
        await self.state.sync()
        if (durable := self.state.acknowledged()) is not None:
            assert all(a <= b for a, b in zip(self.acknowledged, durable)), "it never goes back"
            self.acknowledged = durable

    async def crash(self, disk: SimDisk | None = None) -> None:
        self.log.close()
        self.disk = self.disk.restarted() if disk is None else disk
        await self.start()


async def replica_with(text: str, other: str = "", segment_bytes: int = 1 << 20) -> Replica:
    made = Replica([tuples(SCHEMA, text), tuples(SCHEMA, other)], segment_bytes)
    await made.start()
    return made


TRACE_11 = "1 a 5\n4 b 2\n12 a 1\n15 c 4\n21 a 7\n26 b 3"


async def test_upstream_may_forget_state_in_both_copies() -> None:
    """Positions 2, 4, 6 at the commits; a is closed, b and c are from 10 and 20."""
    replica = await replica_with(TRACE_11)
    for end in (10, 20):
        await replica.slice(end)
        await replica.sync()
    assert replica.acknowledged == [2, 0]
    await replica.slice(30)
    assert replica.acknowledged == [2, 0]
    await replica.sync()
    assert replica.acknowledged == [2, 0]
    await replica.crash()
    assert (replica.end, replica.begins) == (30, [10])


async def test_unsynced_state_is_recomputed() -> None:
    replica = await replica_with(TRACE_11)
    await replica.slice(10)
    await replica.sync()
    await replica.slice(20)
    replica.log.close()
    await replica.crash(replica.disk.power_loss(lambda path, synced, written: synced))
    assert replica.end == 10
    assert await replica.slice(25)
    await replica.sync()
    await replica.crash()
    assert (replica.end, replica.begins) == (25, [10, 10])


async def test_full_state_is_written_after_refused_slice() -> None:
    """Until it is, the log ends before, and upstream keeps what follows."""
    replica = await replica_with(TRACE_11)
    await replica.slice(10)
    await replica.sync()
    replica.disk.space_left = 30
    with patch.object(replica.operators, "forget"):
        assert not await replica.slice(20)
        assert replica.state.lacks
        replica.disk.space_left = None
        assert not await replica.slice(22)
    replica.operators.forget()
    assert await replica.slice(30, asked_from=20)
    await replica.sync()
    assert replica.acknowledged == [6, 0]
    await replica.crash()
    assert (replica.end, replica.begins) == (30, [30])


async def test_footprints_are_counted_off_the_event_loop() -> None:
    """A million of them take 50 ms; after a load, and where an operator was brought back."""
    replica = await replica_with(TRACE_11)
    await replica.slice(10)
    computing: list[bool] = []

    class Elsewhere(Here):
        async def run(self, function: Callable[[], T]) -> T:
            computing.append(True)
            try:
                return await super().run(function)
            finally:
                computing.pop()

    def seen(*given: Any) -> Any:
        assert computing
        return counted(*given)

    replica.state._compute = Elsewhere()
    replica.operators._recounts = True
    with patch("replicas.checkpoint.state_log.counted", side_effect=seen) as calls:
        await replica.slice(20)
        state = await read_state(replica.log, Here())
        assert state is not None
        await replica.state.goes_on(state, finished(replica.operators.live()))
    assert calls.call_count == 2
    assert replica.state.extent.counts() == {10: (3, 3), 20: (1, 1)}


async def test_a_large_state_goes_to_the_log_in_several_records() -> None:
    """One of more than RECORD_BYTES_MAX would be acknowledged, and could never be read."""
    with patch("replicas.checkpoint.state_log.PART_BYTES", 100):
        replica = await replica_with(TRACE_11, TRACE_11)
        for end in (10, 20):
            await replica.slice(end)
        await replica.sync()
        assert all(len(r.payload) <= 100 for r in replica.log.read(1) if r.kind is not LogKind.COMMIT)
        await replica.crash()
    assert replica.end == 20


async def test_continued_slice_needs_its_earlier_records() -> None:
    """Where a full producer waits, more is written of the newest slice: one of three footprints, or all, but not the
    output that somebody may still ask for.
    """
    for most in (1, 3):
        replica = await replica_with("1 a 5\n2 b 1", segment_bytes=1)
        await replica.slice(10, asked_from=10)
        await replica.sync()
        await replica.slice(10, 10, most, asked_from=10)
        await replica.sync()
        await replica.crash()
        state = await read_state(replica.log, Here())
        assert state is not None
        assert [end for end, _ in state.released] == [10, 10]
        await replica.slice(20, 20, 3)
        await replica.sync()
        assert len(replica.log.commits) == 1, "nothing needs it any more"


async def test_output_that_may_be_asked_for_is_needed() -> None:
    """A2: all footprints were rewritten, and a consumer has not acknowledged the output of earlier slices."""
    replica = await replica_with(TRACE_11)
    for end, below in ((10, UNWRITTEN), (20, UNWRITTEN), (40, 40)):
        await replica.slice(end, below, 100, asked_from=10)
    assert replica.state.extent.needs() == 40
    assert replica.log.commits[-1].needs == replica.log.commits[0].first
    state = await read_state(replica.log, Here())
    assert state is not None
    assert [end for end, _ in state.released] == [10, 20, 40]


async def test_complete_slice_needs_no_earlier_records() -> None:
    replica = await replica_with(TRACE_11, segment_bytes=1)
    await replica.slice(10)
    await replica.sync()
    replica.operators.forget()
    await replica.slice(10)
    await replica.slice(20)
    await replica.sync()
    assert [commit.first for commit in replica.log.commits] == [4, 7]
    await replica.crash()
    assert replica.begins == [10]


async def test_recreated_replica_continues_from_unsynced_slices() -> None:
    """Of the replica before slices with an older T wait for a sync."""
    replica = await replica_with("1 a 5\n12 b 1\n21 a 7\n25 a 1")
    for end in (10, 20):
        await replica.slice(end)
    await replica.slice(30, 11)
    state = await read_state(replica.log, Here())
    assert state is not None
    assert state.begin > 10
    await replica.state.goes_on(state, finished(replica.operators.live()))
    await replica.sync()
    assert replica.acknowledged == [2, 0]


async def test_late_write_for_old_replica_is_not_taken_as_read() -> None:
    """Its records are in the log before the commit is known, and the commit before the next replica goes on."""
    replica = await replica_with("1 a 5\n12 b 1\n21 a 7\n25 a 1")
    for end in (10, 20, 30):
        await replica.slice(end)
    late = replica.log.commits.pop()
    state = await read_state(replica.log, Here())
    replica.log.commits.append(late)
    assert state is not None
    assert state.end == state.slices[-1].end == 20
    assert list(state.positions)[-1] == 20
    assert list(state.extent.ends)[-1] == 20
    replica.state.lacks = True
    assert not await replica.state.goes_on(state, finished(replica.operators.live()))
    assert replica.state.lacks, "a complete state is to follow"
    state = await read_state(replica.log, Here())
    assert state is not None
    assert await replica.state.goes_on(state, finished(replica.operators.live()))


async def test_either_copy_suffices_for_acknowledged_state() -> None:
    for copy in COPIES:
        replica = await replica_with(TRACE_11)
        for end in (10, 20, 30):
            await replica.slice(end)
        await replica.sync()
        replica.log.close()
        gone = replica.disk.restarted()
        for path in [p for p in gone.files if p.parent == LOG / copy]:
            gone.remove(path)
        await replica.crash(gone)
        assert replica.end == 30


async def test_after_the_loss_of_the_last_slice_upstream_still_has_all() -> None:
    """The newest slice moves T; until both copies have it, the T of the slice before counts."""
    replica = await replica_with("1 a 5\n12 b 1\n21 a 7\n25 a 1")
    await replica.slice(10)
    await replica.slice(20)
    await replica.sync()
    assert replica.acknowledged == [1, 0]
    await replica.slice(30, 11)  # a is closed, and what is from 10 written anew
    assert replica.acknowledged == [1, 0]
    replica.log.close()
    await replica.crash(replica.disk.power_loss(lambda path, synced, written: synced))
    assert (replica.end, replica.begins) == (20, [10])
    await replica.slice(30, 11)
    await replica.sync()
    assert replica.acknowledged == [2, 0]


@pytest.mark.parametrize("seed", long_but(range(12), range(30)))
async def test_random_crashes_refusals_and_rewriting(seed: int) -> None:
    """What is released in the end is what a run without a log or a crash releases, each once."""
    random = Random(seed)

    def stream() -> list[Tuple]:
        times = sorted(random.randrange(200) for _ in range(random.choice([20, 60])))
        return [(t, (random.choice(["a", "b", "c", None, f"k{t // 20}"]), random.randrange(9))) for t in times]

    replica = Replica([stream(), stream()], random.choice([1, 2000, 1 << 20]))
    await replica.start()
    end = 0
    while end < 230:
        end = max(replica.end, 0) + random.randrange(1, 20)
        known = list(replica.state.extent.counts()) or [0]
        replica.disk.space_left = random.choice([None, None, None, 20, 1500])
        asked = max(0, end - random.choice([10, 60]))
        slices = [e for e, _ in replica.released if e >= asked] or [end]
        await replica.slice(end, random.choice([UNWRITTEN, random.choice(known)]), random.randrange(6), slices[0])
        if random.randrange(2):
            replica.disk.space_left = None
            await replica.log.restore()
            await replica.sync()
        if random.randrange(4) == 0:
            replica.disk.space_left = None
            replica.log.close()
            await replica.crash(replica.disk.power_loss(lambda path, synced, written: torn(random, synced, written)))
            end = max(replica.end, 0)
    expected, ends = Fragment(UNIT), [BEFORE_TIME, *(e for e, _ in replica.released)]
    for (_, out), (begin, upto) in zip(replica.released, pairwise(ends), strict=True):
        assert out == [[list(row) for _, row in rows] for rows in given(expected, UNIT, replica.ports, begin, upto)]
    assert len(replica.log.commits) < 40, "the log is cut"


def test_extent_is_recounted_after_load() -> None:
    """After a load, only what is live counts (G7)."""
    extent = Extent()
    for end in (10, 20, 30):
        extent.commit(end, 5, end, 5)
    live = finished(FragmentLog(UNIT, Fragment(UNIT)).live())
    extent.recount(*counted(extent.ends, live))
    assert extent.counts() == {}
    assert extent.replay_from() == extent.needs() == 30
