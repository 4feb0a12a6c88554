"""The durable log: acknowledged records are readable, or their damage is reported."""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import trio
import trio.testing

from replicas.simulation.world.disk import SimDisk
from spe.errors import LogCorrupt, LogError, LogFull
from spe.log import Position, SegmentedLog, read_log
from spe.log.format import HEADER_BYTES, Segment
from spe.log.marks import read_mark
from spe.log.recovery import live_segments
from spe.runtime.storage import DiskStorage
from tests.support.disks import during, only_synced

LOG = PurePosixPath("log")


async def opened(storage: SimDisk, segment_bytes: int = 1 << 20) -> tuple[SegmentedLog, list[bytes]]:
    """An open log and the bodies that it recovered."""
    bodies: list[bytes] = []
    log = await SegmentedLog.open(storage, LOG, lambda r: bodies.append(r.body), segment_bytes=segment_bytes)
    return log, bodies


async def written(bodies: list[bytes], segment_bytes: int = 1 << 20) -> SimDisk:
    """A disk with a log in which each body was acknowledged on its own."""
    storage = SimDisk()
    log, _ = await opened(storage, segment_bytes)
    for body in bodies:
        log.append(body)
        await log.sync()
    return storage


def segments(storage: SimDisk) -> list[PurePosixPath]:
    return sorted(p for p in storage.files if p.suffix == ".seg")


BODIES = [b"first", b"", b"third " * 5]


async def test_an_empty_folder_is_an_empty_log() -> None:
    log, bodies = await opened(SimDisk())
    assert (bodies, log.last_sequence, log.synced_sequence, log.epoch) == ([], 0, 0, 1)


async def test_records_are_recovered_in_order_with_their_positions() -> None:
    storage = await written(BODIES, segment_bytes=60)
    assert len(segments(storage)) > 1

    log, bodies = await opened(storage.restarted())
    assert bodies == BODIES
    assert [r.body for r in read_log(storage, LOG)] == BODIES
    found = [log.read(r.position, 1)[0][0] for r in read_log(storage, LOG)]
    assert found == list(read_log(storage, LOG))


async def test_segments_are_read_back_in_bounded_steps() -> None:
    storage = SimDisk()
    log, _ = await opened(storage, segment_bytes=100)
    first = log.append(b"0" * 40)
    for i in range(1, 20):
        log.append(str(i % 10).encode() * 40)
        await log.sync()
    at, bodies, steps = first, [], 0
    while at.sequence <= log.synced_sequence:
        records, at = log.read(at, 200)
        bodies += [r.body[:1] for r in records]
        steps += 1
    assert b"".join(bodies) == b"01234567890123456789"
    assert steps >= 7
    assert log.read(at, 200) == ([], at)


async def test_a_record_longer_than_the_read_limit_is_read_whole() -> None:
    log, _ = await opened(SimDisk())
    at = log.append(b"x" * 5000)
    await log.sync()
    records, _ = log.read(at, 16)
    assert [r.body for r in records] == [b"x" * 5000]


async def test_unsynced_records_are_neither_acknowledged_nor_served() -> None:
    storage = SimDisk()
    log, _ = await opened(storage)
    log.append(b"a")
    await log.sync()
    at = log.append(b"b")
    assert (log.last_sequence, log.synced_sequence) == (2, 1)
    assert log.read(at, 100) == ([], at)
    assert [r.body for r in read_log(storage, LOG)] == [b"a"]


async def test_a_sync_acknowledges_only_records_before_it() -> None:
    storage = SimDisk()
    log, _ = await opened(storage)
    log.append(b"before")
    async with during(log.sync, storage):
        log.append(b"during")
    assert log.synced_sequence == 1
    assert await log.sync() == 2


async def test_the_mark_is_written_after_the_records_are_synced() -> None:
    """If power fails between the two syncs, the mark is the old one, and nothing was acknowledged."""
    storage = SimDisk()
    log, _ = await opened(storage)
    log.append(b"a")
    await log.sync()
    log.append(b"b")
    storage.sync_gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.sync)
        await trio.testing.wait_all_tasks_blocked()
        mark = read_mark(storage, LOG)
        assert mark is not None
        assert mark.sequence == 1
        nursery.cancel_scope.cancel()
    assert log.synced_sequence == 1


async def test_record_beyond_mark_survives_end_of_process() -> None:
    storage = await written([b"a"])
    log, _ = await opened(storage := storage.restarted())
    log.append(b"b")

    again, bodies = await opened(storage.restarted())
    assert bodies == [b"a", b"b"]
    assert again.synced_sequence == 2


async def test_a_torn_tail_is_removed_and_the_log_continues() -> None:
    storage = SimDisk()
    log, _ = await opened(storage)
    log.append(b"kept")
    await log.sync()
    log.append(b"torn")
    storage = storage.power_loss(lambda _path, synced, written: written[: len(synced) + 7])

    log, bodies = await opened(storage)
    assert bodies == [b"kept"]
    log.append(b"next")
    await log.sync()
    assert (await opened(storage.restarted()))[1] == [b"kept", b"next"]


async def test_blocks_of_a_tail_may_reach_the_disk_in_any_order() -> None:
    """A whole record after a hole was not acknowledged either, so both are removed."""
    storage = SimDisk()
    log, _ = await opened(storage)
    log.append(b"kept")
    await log.sync()
    hole = log.append(b"lost").offset
    behind = log.append(b"whole").offset

    def remains(path: PurePosixPath, synced: bytes, written: bytes) -> bytes:
        return synced if path.suffix != ".seg" else written[:hole] + bytes(behind - hole) + written[behind:]

    assert (await opened(storage.power_loss(remains)))[1] == [b"kept"]


async def test_damage_before_the_mark_names_segment_and_offset() -> None:
    storage = await written(BODIES)
    (path,) = segments(storage)
    third = list(read_log(storage, LOG))[2].position.offset
    data = bytearray(storage.read(path))
    data[third + 20] ^= 1
    storage = storage.with_file(path, bytes(data))
    with pytest.raises(LogCorrupt, match=f"{path} at offset {third}: the checksum does not match"):
        await opened(storage)
    with pytest.raises(LogCorrupt, match=f"{path} at offset {third}"):
        list(read_log(storage, LOG))


async def test_a_log_shorter_than_its_mark_is_corrupt() -> None:
    storage = await written(BODIES)
    (path,) = segments(storage)
    end = list(read_log(storage, LOG))[2].position.offset
    with pytest.raises(LogCorrupt, match=f"offset {end}: the segment ends; records up to 3 were acknowledged"):
        await opened(storage.with_file(path, storage.read(path)[:end]))


async def test_any_missing_segment_is_corruption() -> None:
    storage = await written([b"x" * 50] * 4, segment_bytes=60)
    assert len(segments(storage)) == 4
    for path in segments(storage):
        damaged = storage.restarted()
        damaged.remove(path)
        with pytest.raises(LogCorrupt):
            await opened(damaged)


async def test_segments_without_a_mark_are_corrupt() -> None:
    storage = await written(BODIES)
    for name in ("mark.0", "mark.1"):
        storage.remove(LOG / name)
    with pytest.raises(LogCorrupt, match="no readable synced mark"):
        await opened(storage.restarted())


async def test_later_damage_is_named_and_never_served() -> None:
    storage = SimDisk()
    log, _ = await opened(storage)
    at = log.append(b"payload")
    await log.sync()
    storage.files[segments(storage)[0]].written[-1] ^= 4
    with pytest.raises(LogCorrupt, match=f"at offset {at.offset}"):
        log.read(at, 100)


async def test_a_full_disk_removes_the_partial_record_only() -> None:
    storage = SimDisk()
    log, _ = await opened(storage)
    at = log.append(b"fits")
    await log.sync()
    size = len(storage.read(segments(storage)[0]))
    storage.space_left = 10
    with pytest.raises(LogFull, match="record 2"):
        log.append(b"does not fit")
    assert len(storage.read(segments(storage)[0])) == size

    assert [r.body for r in log.read(at, 100)[0]] == [b"fits"]
    storage.space_left = None
    log.append(b"does not fit")
    await log.sync()
    assert (await opened(storage.restarted()))[1] == [b"fits", b"does not fit"]


async def test_records_before_a_full_disk_can_still_be_acknowledged() -> None:
    storage = SimDisk()
    log, _ = await opened(storage)
    log.append(b"a")
    storage.space_left = 30
    with pytest.raises(LogFull):
        log.append(b"b" * 40)
    assert await log.sync() == 1


class NoWayBack(SimDisk):
    """While it is ``stuck``, an append writes some bytes and is refused, and these cannot be taken back."""

    stuck = False

    def open(self, path: PurePosixPath) -> Any:
        file, torn = super().open(path), False
        append, truncate = file.append, file.truncate

        def appending(*parts: bytes | memoryview) -> None:
            nonlocal torn
            if torn := self.stuck:
                append(parts[0][:7])
                raise OSError(errno.ENOSPC, "No space left on device")
            append(*parts)

        def truncating(size: int) -> None:
            nonlocal torn
            if torn:
                torn = False  # it can be emptied later
                raise OSError(errno.EIO, "Input/output error")
            truncate(size)

        file.append, file.truncate = appending, truncating  # type: ignore[method-assign]
        return file


async def test_nothing_follows_a_torn_record_that_stays() -> None:
    storage = NoWayBack()
    log, _ = await opened(storage)
    log.append(b"fits")
    await log.sync()
    log.append(b"not synced")
    storage.stuck = True
    with pytest.raises(LogError, match="record 3 is torn, read-only from here on") as caught:
        log.append(b"does not fit")
    assert not isinstance(caught.value, LogFull), "it is not to be tried again"
    storage.stuck = False
    with pytest.raises(LogError, match="is torn"):
        log.append(b"next")
    with pytest.raises(LogError, match="is torn"):
        await log.sync()
    again, bodies = await opened(storage.restarted())
    assert bodies == [b"fits", b"not synced"]
    assert again.append(b"next").sequence == 3


@pytest.mark.parametrize("before", range(5))
async def test_torn_mark_hides_no_later_mark(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is the only good one lost: with every number of marks in the file, none of them included."""
    monkeypatch.setattr("spe.log.marks._SLOTS_MAX", 3)
    storage = NoWayBack()
    log, _ = await opened(storage)
    bodies = [b"%d" % n for n in range(before + 1)]
    for body in bodies[:-1]:
        log.append(body)
        await log.sync()
    log.append(bodies[-1])
    storage.stuck = True
    for _ in range(3):
        with pytest.raises(LogFull, match="refused a mark"):
            await log.sync()
        mark = read_mark(storage, LOG)
        assert mark is not None
        assert mark.sequence == before
    storage.stuck = False
    assert await log.sync() == before + 1
    assert read_mark(storage, LOG) == (1, before + 1)
    assert (await opened(only_synced(storage)))[1] == bodies


async def test_a_full_disk_at_a_new_segment_leaves_a_usable_log() -> None:
    storage = await written([b"x" * 50], segment_bytes=60)
    log, _ = await opened(storage := storage.restarted())
    storage.space_left = 3
    with pytest.raises(LogFull):
        log.append(b"y")
    assert (await opened(storage.restarted()))[1] == [b"x" * 50]


async def test_sync_error_makes_log_read_only_without_retry() -> None:
    storage = SimDisk()
    log, _ = await opened(storage)
    at = log.append(b"safe")
    await log.sync()
    log.append(b"unsafe")
    storage.sync_fails = True
    with pytest.raises(LogError, match="a sync failed"):
        await log.sync()

    storage.sync_fails = False
    asked = storage.syncs
    with pytest.raises(LogError):
        await log.sync()
    with pytest.raises(LogError):
        log.append(b"more")
    assert (storage.syncs, log.synced_sequence) == (asked, 1)
    assert [r.body for r in log.read(at, 100)[0]] == [b"safe"]


async def test_a_tail_after_a_failed_sync_is_written_again() -> None:
    """The kernel may mark such pages clean; only bytes written again are certainly synced.

    1. a sync fails, the process ends, the page cache still shows the record
    2. the next writer acknowledges it
    3. power fails, and the old segment loses what the failed sync gave up; the record is still there
    """
    storage = SimDisk()
    log, _ = await opened(storage)
    log.append(b"a")
    await log.sync()
    log.append(b"b")
    (old,) = segments(storage)
    synced = storage.files[old].synced
    storage = storage.restarted()
    await opened(storage)

    storage = storage.power_loss(lambda path, kept, _written: synced if path == old else kept)
    assert (await opened(storage))[1] == [b"a", b"b"]


async def test_a_second_writer_is_refused() -> None:
    storage = await written([b"a"])
    with pytest.raises(LogError, match="held by another process"):
        await opened(storage)


async def test_epoch_stops_a_writer_whose_lock_failed() -> None:
    """Records of the old writer are never acknowledged, and do not damage the log of the new one."""
    storage = SimDisk()
    old, _ = await opened(storage)
    old.append(b"a")
    await old.sync()
    storage.locks.clear()  # a file system on which locks do not hold
    new, bodies = await opened(storage)
    assert (bodies, new.epoch) == ([b"a"], 2)

    old.append(b"from the old")
    with pytest.raises(LogError, match="writer 2 has taken over from writer 1"):
        await old.sync()
    new.append(b"b")
    await new.sync()
    assert (await opened(storage.restarted()))[1] == [b"a", b"b"]


async def test_a_stale_segment_after_a_power_failure_is_ignored() -> None:
    """The removal of a file may be lost; the epoch in its name tells which segment counts."""
    storage = SimDisk()
    log, _ = await opened(storage)
    log.append(b"unacknowledged")
    (stale,) = segments(storage)
    torn = storage.read(stale)[:-1]
    storage = storage.with_file(stale, torn)
    log, _ = await opened(storage)
    assert segments(storage) == []
    for body in (b"a", b"b"):
        log.append(body)
        await log.sync()
    storage.open(stale).append(torn)
    assert (await opened(storage.restarted()))[1] == [b"a", b"b"]


def test_a_newer_writer_replaces_later_records_of_an_older_one() -> None:
    first, second, third = Segment(1, 1), Segment(5, 2), Segment(9, 2)
    stale = [Segment(5, 1), Segment(7, 1), Segment(9, 1)]
    names = [s.name for s in (*stale, third, second, first)]
    assert live_segments([*names, "mark.0", "lock", "schema.json", "5.seg"]) == [first, second, third]


async def test_records_after_a_hole_do_not_move_up() -> None:
    """Two failures: the marks are back at record 1, and record 2 is damaged.  Records 3 and 4 must not move up."""
    storage = await written([b"1" * 50, b"2" * 50, b"3" * 50, b"4" * 50], segment_bytes=60)
    slot = len(storage.read(LOG / "mark.1")) // 5
    storage = storage.with_file(LOG / "mark.1", storage.read(LOG / "mark.1")[: 2 * slot])
    second = segments(storage)[1]
    data = bytearray(storage.read(second))
    data[-1] ^= 1
    assert (await opened(storage.with_file(second, bytes(data))))[1] == [b"1" * 50]


async def test_a_segment_is_closed_only_when_all_of_it_is_synced() -> None:
    """A record appended during the last sync of a segment is synced with the next group."""
    storage = SimDisk()
    log, _ = await opened(storage, segment_bytes=60)
    log.append(b"fills the segment" * 5)
    async with during(log.sync, storage):
        log.append(b"during")
    log.append(b"after")
    assert await log.sync() == 3
    left = only_synced(storage)
    assert (await opened(left))[1][1:] == [b"during", b"after"]


async def test_segments_end_despite_appends_during_each_sync() -> None:
    """A steady load.  None is closed before it is synced; and what was acknowledged survives a loss of power."""
    storage, count = SimDisk(), 0
    log, _ = await opened(storage, segment_bytes=100)

    def append() -> None:
        nonlocal count
        count += 1
        log.append(b"%06d" % count + bytes(30))

    append()
    for _ in range(20):
        async with during(log.sync, storage):
            for _ in range(4):
                append()
        assert log.last_sequence == log.synced_sequence + 4
        for (segment, size), (after, _) in pairwise(log.closed()):
            assert after.first <= log.synced_sequence + 1
            file = storage.files[LOG / segment.name]
            assert size == file.synced_size == len(file.written)
        acknowledged = [b"%06d" % n for n in range(1, log.synced_sequence + 1)]
        left = only_synced(storage)
        again, bodies = await opened(left)
        assert [body[:6] for body in bodies][: len(acknowledged)] == acknowledged
        again.close()
        whole = (await opened(storage.restarted()))[1]
        assert [body[:6] for body in whole] == [b"%06d" % n for n in range(1, count + 1)]
    assert len(log.closed()) > 20
    assert max(len(storage.read(path)) for path in segments(storage)) < 200
    at, read = Position(1, 1, HEADER_BYTES), []
    while at.sequence <= log.synced_sequence:
        records, at = log.read(at, 200)
        read += [r.body[:6] for r in records]
    assert read == acknowledged
    assert log.nbytes == sum(len(storage.read(path)) for path in segments(storage))
    assert log.open_first == log.closed()[-1][0].first + 2
    log.close()


async def test_a_full_disk_at_the_next_segment_keeps_the_one_before() -> None:
    storage = SimDisk()
    log, _ = await opened(storage, segment_bytes=60)
    log.append(b"x" * 50)
    for space in (3, 30):  # of the header; of the record behind it
        storage.space_left = space
        with pytest.raises(LogFull):
            log.append(b"y" * 50)
    assert log.closed() == []
    storage.space_left = None
    log.append(b"y" * 50)
    log.append(b"z")
    assert await log.sync() == 3
    left = only_synced(storage)
    assert (await opened(left))[1] == [b"x" * 50, b"y" * 50, b"z"]


async def refused_during_a_sync(storage: SimDisk) -> SegmentedLog:
    """A log whose first segment is full, and whose next one was refused its first record while that was synced."""
    log, _ = await opened(storage, segment_bytes=60)
    log.append(b"x" * 50)
    async with during(log.sync, storage):
        storage.space_left = 30
        with pytest.raises(LogFull):
            log.append(b"y" * 50)
        storage.space_left = None
    assert (log.closed(), log.open_first) == ([], 1)
    return log


async def test_full_disk_at_next_segment_keeps_the_previous_one() -> None:
    storage = SimDisk()
    log = await refused_during_a_sync(storage)
    log.append(b"y" * 50)
    assert await log.sync() == 2
    assert [segment.first for segment, _ in log.closed()] == [1, 2]
    left = only_synced(storage)
    assert (await opened(left))[1] == [b"x" * 50, b"y" * 50]


async def test_left_segment_is_closed_although_nothing_follows() -> None:
    storage = SimDisk()
    log = await refused_during_a_sync(storage)
    assert await log.sync() == 1
    assert [segment.first for segment, _ in log.closed()] == [1]
    left = only_synced(storage)
    assert (await opened(left))[1] == [b"x" * 50]


async def test_marks_stay_in_two_small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spe.log.marks._SLOTS_MAX", 3)
    storage = SimDisk()
    log, _ = await opened(storage)
    for i in range(20):
        log.append(b"")
        await log.sync()
        mark = read_mark(storage, LOG)
        assert mark is not None
        assert mark == (1, i + 1)
    assert max(len(storage.read(LOG / f"mark.{i}")) for i in (0, 1)) <= 60


async def test_position_at_segment_end_continues_in_next_segment() -> None:
    log, _ = await opened(SimDisk(), segment_bytes=60)
    at = log.append(b"x" * 60)
    await log.sync()
    _, end = log.read(at, 1000)
    assert log.append(b"next") == Position(2, 2, 28)
    await log.sync()
    assert [r.body for r in log.read(end, 1000)[0]] == [b"next"]


async def test_the_log_works_on_a_real_disk(tmp_path: Path) -> None:
    """Locks, syncs and segments of the operating system; the lock goes with the process, here with its storage."""
    storage = DiskStorage(tmp_path)
    log = await SegmentedLog.open(storage, LOG, segment_bytes=100)
    for body in BODIES * 5:
        log.append(body)
        await log.sync()
    with pytest.raises(LogError, match="in use by process"):
        await SegmentedLog.open(DiskStorage(tmp_path), LOG)
    assert [r.body for r in read_log(DiskStorage(tmp_path), LOG)] == BODIES * 5
    records, _ = log.read(Position(1, 1, HEADER_BYTES), 30)
    assert [r.body for r in records] == BODIES[:1]
    log.close()


async def test_record_beyond_bound_is_refused_before_writing() -> None:
    log, _ = await opened(SimDisk())
    with pytest.raises(LogError, match="at most"):
        log.append(bytes((64 << 20) + 1))
