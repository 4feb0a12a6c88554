"""The oldest segments of a log can be deleted, and a crash at any step loses nothing that was not released (E4)."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from replicas.simulation.world.disk import SimDisk
from spe.errors import LogCorrupt, LogFull
from spe.log import SegmentedLog, read_log
from spe.log.log_start import NAMES, WHOLE, KeptLog, LogCut, encode_kept, need_whole, read_kept
from tests.support.crashing_disk import Crashed, CrashingDisk
from tests.support.disks import during, only_synced

LOG = PurePosixPath("log")
BODIES = [f"record {n}".encode() for n in range(1, 13)]


async def opened(storage: SimDisk) -> tuple[SegmentedLog, list[bytes]]:
    bodies: list[bytes] = []
    log = await SegmentedLog.open(storage, LOG, lambda r: bodies.append(r.body), segment_bytes=100)
    return log, bodies


async def written() -> SimDisk:
    """A log of twelve records in several closed segments."""
    storage = SimDisk()
    log, _ = await opened(storage)
    for body in BODIES:
        log.append(body)
        await log.sync()
    log.close()
    return storage.restarted()


def kept_before(log: SegmentedLog, segment: int) -> KeptLog:
    """What releases everything before a segment of the log."""
    first = log.closed()[segment][0].first
    return KeptLog(first, 10 * first, 1000 * first, segment, 100 * segment)


async def test_released_segments_are_deleted_and_the_rest_continues() -> None:
    storage = await written()
    log, _ = await opened(storage)
    kept, before = kept_before(log, 2), log.nbytes
    await log.release(kept)
    assert log.nbytes < before
    log.append(b"more")
    await log.sync()
    log.close()

    again, bodies = await opened(storage.restarted())
    assert bodies == [*BODIES[kept.first - 1 :], b"more"]
    assert (again.kept, again.last_sequence) == (kept, len(BODIES) + 1)
    assert [r.body for r in read_log(storage, LOG)] == bodies
    with pytest.raises(LogCut, match=rf"begins behind id {kept.last_id}"):
        need_whole(storage, LOG)


@pytest.mark.parametrize("twice", [False, True], ids=["first", "second"])
async def test_log_begins_at_a_segment_after_crash_at_any_step(twice: bool) -> None:
    storage = await written()
    log, _ = await opened(storage)
    if twice:
        await log.release(kept_before(log, 1))
    log.close()
    storage, steps = storage.restarted(), 0
    while True:
        disk = CrashingDisk(storage.restarted())
        log, _ = await opened(disk)
        kept, before = kept_before(log, 2), log.kept
        disk.left = steps
        try:
            await log.release(kept)
        except Crashed:
            left = disk.died()
            expected = read_kept(left, LOG)
            assert expected in (before, kept)
            again, bodies = await opened(left)
            assert bodies == BODIES[expected.first - 1 :]
            files = [s.first for s, _ in again.closed()]
            names = [n for n in left.list(LOG) if n.endswith(".seg")]
            assert min(files) == expected.first
            assert min(int(n[:20]) for n in names) == expected.first, "what was released is removed"
            assert expected == WHOLE or all(left.read(LOG / n) == encode_kept(expected) for n in NAMES)
            steps += 1
            continue
        break
    assert steps == 2 + len([s for s, _ in (await opened(storage.restarted()))[0].closed() if s.first < kept.first])


async def test_single_damaged_copy_of_the_record_is_repaired() -> None:
    storage = await written()
    log, _ = await opened(storage)
    kept = kept_before(log, 2)
    await log.release(kept)
    log.close()
    for name in NAMES:
        data = storage.read(LOG / name)
        flipped = [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data))]
        for damaged in [*flipped, data[: len(data) // 2], b""]:
            disk = storage.with_file(LOG / name, damaged)
            assert read_kept(disk, LOG) == kept
            again, bodies = await opened(disk)
            assert bodies == BODIES[kept.first - 1 :]
            again.close()
            assert all(disk.read(LOG / n) == encode_kept(kept) for n in NAMES), "it is repaired"


async def test_log_without_beginning_and_record_is_damaged() -> None:
    storage = await written()
    log, _ = await opened(storage)
    await log.release(kept_before(log, 2))
    log.close()
    for name in NAMES:
        storage = storage.with_file(LOG / name, b"nonsense")
    with pytest.raises(LogCorrupt, match="the first segment is gone"):
        await opened(storage)
    with pytest.raises(LogCorrupt, match="the first segment is gone"):
        list(read_log(storage, LOG))


async def test_recorded_removal_is_completed_at_opening() -> None:
    storage = await written()
    log, _ = await opened(storage)
    kept = kept_before(log, 2)
    log.close()
    storage = storage.restarted()
    await storage.write_atomic(LOG / NAMES[0], encode_kept(kept))  # the machine died before the second file
    assert [r.body for r in read_log(storage, LOG)] == BODIES[kept.first - 1 :]
    _, bodies = await opened(storage)
    assert bodies == BODIES[kept.first - 1 :]
    assert not [n for n in storage.list(LOG) if n.endswith(".seg") and int(n[:20]) < kept.first]


async def test_only_whole_segments_are_released() -> None:
    log, _ = await opened(await written())
    with pytest.raises(ValueError, match="begins no segment"):
        await log.release(kept_before(log, 2)._replace(first=2))


async def test_a_segment_that_is_left_is_closed_only_when_it_is_synced() -> None:
    storage = SimDisk()
    log, _ = await opened(storage)
    log.append(b"one")
    log.leave()
    assert (log.open_first, log.closed()) == (1, []), "it is not synced"
    await log.sync()
    assert log.open_first is None
    log.append(b"two")
    assert (log.open_first, [s.first for s, _ in log.closed()]) == (2, [1])
    await log.sync()
    log.leave()
    assert (log.open_first, [s.first for s, _ in log.closed()]) == (None, [1, 2])


async def test_segment_is_left_despite_appends_during_each_sync() -> None:
    """A slow and steady stream; by its size none would end."""
    storage = SimDisk()
    log = await SegmentedLog.open(storage, LOG)
    log.append(BODIES[0])
    for body in BODIES[1:]:
        async with during(log.sync, storage):
            log.append(body)
        log.leave()
    assert [s.first for s, _ in log.closed()] == list(range(1, len(BODIES) - 1, 2))
    assert log.open_first == len(BODIES) - 1
    await log.release(kept_before(log, 2))
    await log.sync()
    left = only_synced(storage)
    assert (await opened(left))[1] == BODIES[log.kept.first - 1 :]


async def test_a_segment_without_a_record_is_not_left() -> None:
    """The disk had room for its header only, and refused the record."""
    storage = SimDisk()
    log, _ = await opened(storage)
    storage.space_left = 30
    with pytest.raises(LogFull):
        log.append(b"x" * 50)
    log.leave()
    assert log.closed() == []
    storage.space_left = None
    log.append(b"x" * 50)
    await log.sync()
    log.leave()
    assert [s.first for s, _ in log.closed()] == [1]
