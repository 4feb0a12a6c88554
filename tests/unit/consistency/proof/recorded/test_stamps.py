"""Stamps of a source's log, recomputed segment by segment and compared with those of the real writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from replicas.source.stamping import Stamper
from spe.log.recovery import live_segments
from spe.log.segmented import SegmentedLog
from spe.log.source_log import SourceState, encode_source_record, source_folder
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch, Column, Int64Array, Rows
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema

pytest.importorskip("pyspark", reason="needs the extra spark")
from consistency.proof.recorded.records import Stretch, Table, whole
from consistency.proof.recorded.stamps import Stamping, judged, summary

A = StreamId("a")
SCHEMA = Schema.of(n="int64", ts="timestamp!")
DISORDER_US = 30


def arrivals(random: Random, count: int) -> list[Int64Array]:
    """Event times out of order, some late beyond the disorder, in chunks."""
    now, chunks = 1000, []
    while count > 0:
        chunk = []
        for _ in range(random.choice([1, 2, 7])):
            now += random.choice([0, 1, 5, 40])
            chunk.append(now - random.choice([0, 0, 10, 29, 31, 90]))
        chunks.append(np.array(chunk, np.int64))
        count -= len(chunk)
    return chunks


Change = Callable[[Int64Array], Int64Array]


async def findings(
    path: Path, how: Stamping, chunks: list[Int64Array], *, leases: bool = False, change: Change = lambda time: time
) -> list[str]:
    return judged(await parts_of(path, how, chunks, leases=leases, change=change), how)


async def parts_of(
    path: Path, how: Stamping, chunks: list[Int64Array], *, leases: bool = False, change: Change = lambda time: time
) -> list[dict[str, int]]:
    """Of a log that the real stamper fills, in segments of some records; ``change`` of all its times."""
    stamper = Stamper(disorder_us=DISORDER_US, boundary_us=20)
    log = await SegmentedLog.open(DiskStorage(path), source_folder(A), segment_bytes=600)
    total = 0
    for at, events in enumerate(chunks):
        batch = stamper.stamp(events, (Column(np.arange(len(events))), Column(events)))
        if leases and at % 3 == 0:
            stamper.lease(int(events.max()) + 70)
        time = change(batch.rows.time.copy()) if total else batch.rows.time
        total += len(events)
        batch = Batch(Kind.STABLE, batch.from_id, batch.upto_id, None, Rows(time, time, batch.rows.columns))
        state = SourceState(stamper.last_id, stamper.max_event_us, stamper.lease_us, stamper.bound_us)
        log.append(encode_source_record(state, batch, SCHEMA))
        await log.sync()
    log.close()
    folder = path / source_folder(A)
    segments = live_segments([p.name for p in folder.iterdir()])
    assert len(segments) > 4
    table = Table(True, SCHEMA, (str(folder),))
    ends = [*[s.first - 1 for s in segments[1:]], len(chunks)]
    parts = [summary(table, Stretch(0, s, *whole(s), end), how) for s, end in zip(segments, ends)]
    assert sum(part["tuples"] or 0 for part in parts) == total
    return parts  # type: ignore[return-value]


REPLAYED = Stamping(1, DISORDER_US, promises=False)
LIVE = Stamping(1, DISORDER_US, promises=True)


@pytest.mark.parametrize("seed", range(5))
async def test_stamps_of_the_engine_follow_the_rule(tmp_path: Path, seed: int) -> None:
    assert await findings(tmp_path, REPLAYED, arrivals(Random(seed), 200)) == []


@pytest.mark.parametrize("seed", range(5))
async def test_a_live_source_keeps_its_promises(tmp_path: Path, seed: int) -> None:
    chunks = arrivals(Random(seed), 200)
    assert await findings(tmp_path / "live", LIVE, chunks, leases=True) == []
    assert await findings(tmp_path / "replayed", REPLAYED, chunks, leases=True) != []


def once(at: int, by: int) -> Change:
    """One time is another."""
    seen = 0

    def change(time: Int64Array) -> Int64Array:
        nonlocal seen
        if seen <= at < seen + len(time):
            time[at - seen] += by
        seen += len(time)
        return time

    return change


@pytest.mark.parametrize("by", [-1, 1, -40, 40])
@pytest.mark.parametrize("seed", range(8))
async def test_single_wrong_time_is_detected(tmp_path: Path, seed: int, by: int) -> None:
    """Also at the beginning of a segment, where earlier segments decide."""
    random = Random(f"{seed} {by}")
    (found,) = await findings(tmp_path, REPLAYED, arrivals(random, 150), change=once(random.randrange(140), by))
    assert found.startswith("tuple ")


async def test_disorder_other_than_configured_is_detected(tmp_path: Path) -> None:
    other = Stamping(1, DISORDER_US - 1, promises=False)
    (found,) = await findings(tmp_path, other, arrivals(Random(1), 200))
    assert found.startswith("tuple ")
    assert "by its event time, those before it and the disorder it is" in found


async def test_times_of_arrival_may_not_decrease(tmp_path: Path) -> None:
    by_arrival = Stamping(None, 0, promises=True)
    rising = [np.arange(at * 10, at * 10 + 5) for at in range(40)]
    assert await findings(tmp_path / "good", by_arrival, rising) == []
    assert await findings(tmp_path / "bad", by_arrival, rising, change=once(100, -60)) != []


@pytest.mark.parametrize("leases", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_deleted_rows_excuse_no_more_than_they_can(tmp_path: Path, seed: int, leases: bool) -> None:
    """Without the first segments a right log stays right, and no time beyond theirs may be another."""
    how, chunks, random = LIVE if leases else REPLAYED, arrivals(Random(seed), 150), Random(seed)
    times: list[int] = []
    right = await parts_of(tmp_path / "right", how, chunks, leases=leases, change=noted(times))
    found = 0
    for at in random.sample(range(30, len(times)), 6):
        by = random.choice([-40, -1, 1, 40])
        forged = await parts_of(tmp_path / f"forged{at}", how, chunks, leases=leases, change=once(at, by))
        for gone in range(1, len(right) - 1):
            most = max(max(one["peak"], one["promise"]) for one in right[:gone])
            assert judged(right[gone:], how, most=most) == []
            if forged[gone:] != right[gone:] and max(times[at], times[at] + by) > most:
                found += 1
                assert judged(forged[gone:], how, most=most)
    assert found > 10


def noted(times: list[int]) -> Change:
    def change(time: Int64Array) -> Int64Array:
        times.extend(time.tolist())
        return time

    return change


def test_deleted_rows_give_one_number() -> None:
    """Not two, none beyond all that was deleted, and nothing lies below it."""
    nothing = dict.fromkeys(("below", "below_id", "below_time", "below_expected"), 0)

    def one(lowest: int, *above: int) -> dict[str, int]:
        extremes = {
            "least_time": min(above, default=0),
            "most_time": max(above, default=0),
            "least_id": 7,
            "most_id": 8,
        }
        return {
            **nothing,
            **extremes,
            **{"tuples": 3, "peak": 90, "promise": 0, "above": len(above), "lowest_id": 9, "lowest_time": lowest},
        }

    assert judged([one(70, 70, 70)], REPLAYED, most=75) == []
    assert judged([one(70, 70)], REPLAYED, most=69)
    assert judged([one(70, 70, 71)], REPLAYED, most=75)
    assert judged([one(69, 70)], REPLAYED, most=75)
    assert judged([one(70, 70)], REPLAYED)
    assert judged([one(95), one(70, 70)], REPLAYED, most=75) == []
    assert judged([one(95), one(59)], REPLAYED, most=75)


@pytest.mark.parametrize("shift", [0, -1_000, -1_200])
async def test_least_and_largest_times_also_around_the_epoch(tmp_path: Path, shift: int) -> None:
    chunks = [chunk + shift for chunk in arrivals(Random(3), 200)]
    times: list[int] = []

    def noted(time: Int64Array) -> Int64Array:
        times.extend(time.tolist())
        return time

    how = Stamping(1, DISORDER_US, promises=False)
    parts = await parts_of(tmp_path, how, chunks, change=noted)
    seen = -len(chunks[0])  # the first times are not shown
    for part in parts:
        here = times[max(0, seen) : seen + part["tuples"]]
        if seen >= 0:
            assert (part["lowest_time"], part["highest_time"]) == (min(here), max(here))
        seen += part["tuples"]
    assert seen == len(times)
