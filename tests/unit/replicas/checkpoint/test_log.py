"""The checkpoint log on disk (G1, G5): what was held by both copies is read back, or its loss is told."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from random import Random
from threading import Event
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
import trio
import trio.testing

from replicas.checkpoint.log import COPIES, CheckpointLog, Commit, LogKind, LogReader
from replicas.checkpoint.log_records import Copies
from replicas.simulation.world.disk import SimDisk, torn
from spe.errors import LogCorrupt, LogError, LogFull
from spe.log.format import HEADER_BYTES, Segment, encode_header, encode_record
from spe.log.marks import read_mark
from spe.runtime.production import ThreadCompute
from spe.runtime.storage import DiskFile, DiskStorage

T = TypeVar("T")
LOG = PurePosixPath("log")
Slice = tuple[int, list[tuple[LogKind, bytes]], bytes]
SLICES: list[Slice] = [
    (10, [(LogKind.FOOTPRINTS, b"a(1,5) b(1,2)")], b"C10"),
    (20, [(LogKind.FOOTPRINTS, b"c(1,4)")], b"C20"),
    (30, [(LogKind.OUTPUT, b"R1/21a=13"), (LogKind.CLOSINGS, b"a")], b"C30"),
    (40, [], b"C40"),
]


def contents(log: LogReader, first: int = 1) -> list[Slice]:
    """Slices as they were written."""
    slices: list[Slice] = []
    found: list[tuple[LogKind, bytes]] = []
    for record in log.read(first):
        if record.kind == LogKind.COMMIT:
            slices.append((record.time, found, record.payload))
            found = []
        else:
            found.append((record.kind, record.payload))
    assert not found
    return slices


async def written(slices: list[Slice] = SLICES, segment_bytes: int = 1 << 20, needs: int | None = 1) -> SimDisk:
    """A disk with a log of which each slice was synced on its own."""
    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG, segment_bytes=segment_bytes)
    for one in slices:
        log.write(*one, needs=needs)
        await log.sync()
    return storage


def segments(storage: SimDisk, copy: str) -> list[PurePosixPath]:
    return sorted(p for p in storage.files if p.parent == LOG / copy and p.suffix == ".seg")


def copies_are_equal(storage: SimDisk) -> bool:
    found = [{p.name: bytes(storage.files[p].written) for p in segments(storage, copy)} for copy in "01"]
    return found[0] == found[1]


@pytest.mark.parametrize("segment_bytes", [1, 100, 1 << 20])
async def test_slices_are_read_back_and_the_log_goes_on(segment_bytes: int) -> None:
    storage = (await written(SLICES[:2], segment_bytes)).restarted()
    log = await CheckpointLog.open(storage, LOG, segment_bytes=segment_bytes)
    assert contents(log) == SLICES[:2]
    for one in SLICES[2:]:
        log.write(*one, needs=1)
    assert await log.sync() == Commit(40, 8, 8, 1)
    log = await CheckpointLog.open(storage.restarted(), LOG)
    assert contents(log) == SLICES
    assert contents(log, 3) == SLICES[1:]
    assert copies_are_equal(storage)


async def test_index_from_time_to_records() -> None:
    log = await CheckpointLog.open((await written()).restarted(), LOG)
    assert [log.at(t) for t in (9, 10, 29, 30)] == [None, Commit(10, 1, 2, 1), Commit(20, 3, 4, 1), Commit(30, 5, 7, 1)]


async def test_data_after_last_commit_is_void_at_any_cut() -> None:
    """Torn in both copies, where nothing was synced (G1)."""
    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG)
    ends = [0]
    for one in SLICES:
        log.write(*one)
        ends.append(len(storage.files[segments(storage, "0")[0]].written))
    for size in range(ends[-1] + 1):
        left = storage.power_loss(lambda p, _s, w, size=size: w[:size] if p.suffix == ".seg" else w)  # type: ignore[misc]
        whole = SLICES[: sum(end <= size for end in ends[1:])]
        assert contents(await LogReader.open_to_read(left, LOG)) == whole
        opened = await CheckpointLog.open(left, LOG)
        assert contents(opened) == whole
        opened.write(50, [], b"C50")
        await opened.sync()
        assert contents(await CheckpointLog.open(left.restarted(), LOG))[-1] == (50, [], b"C50")


async def test_any_bit_flipped_in_one_copy_is_read_from_the_other() -> None:
    storage = await written(segment_bytes=100)
    random = Random(1)
    for path in (p for p in storage.files if p.suffix == ".seg"):
        data = bytes(storage.files[path].written)
        for at in range(len(data)):
            flipped = bytearray(data)
            flipped[at] ^= 1 << random.randrange(8)
            left = storage.with_file(path, bytes(flipped))
            assert contents(await CheckpointLog.open(left, LOG)) == SLICES
            assert copies_are_equal(left)


async def test_records_damaged_in_different_places_are_put_together() -> None:
    storage = await written()
    for copy, text in (("0", b"a(1,5)"), ("1", b"c(1,4)")):
        file = storage.files[segments(storage, copy)[0]]
        file.written[:] = file.written.replace(text, b"?" * len(text))
    assert contents(await CheckpointLog.open(storage.restarted(), LOG)) == SLICES


async def test_a_record_damaged_in_both_is_refused_by_number() -> None:
    storage = await written()
    for copy in "01":
        file = storage.files[segments(storage, copy)[0]]
        file.written[:] = file.written.replace(b"c(1,4)", b"c(1,5)")
    with pytest.raises(LogCorrupt, match="record 3 is damaged or missing in both copies; up to 8 were"):
        await CheckpointLog.open(storage.restarted(), LOG)


@pytest.mark.parametrize("copy", "01")
@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
async def test_lost_copy_is_restored(copy: str, segment_bytes: int) -> None:
    storage = (await written(segment_bytes=segment_bytes)).restarted()
    for path in [p for p in storage.files if LOG / copy in p.parents]:
        storage.remove(path)
    log = await CheckpointLog.open(storage, LOG)
    assert contents(log) == SLICES
    assert log.held_by_both == Commit(40, 8, 8, 1)
    assert copies_are_equal(storage)


async def test_segments_lost_in_both_are_refused() -> None:
    storage = (await written(segment_bytes=1)).restarted()
    first, second = (storage.restarted() for _ in range(2))
    for copy in "01":
        first.remove(segments(first, copy)[0])
        second.remove(segments(second, copy)[1])
        for path in segments(storage, copy):
            storage.remove(path)
    with pytest.raises(LogCorrupt, match="begins with record 3; record 1 is needed"):
        await CheckpointLog.open(first, LOG)
    with pytest.raises(LogCorrupt, match="record 3 is damaged or missing"):
        await CheckpointLog.open(second, LOG)
    with pytest.raises(LogCorrupt, match="all segments are gone"):
        await CheckpointLog.open(storage, LOG)


async def test_both_lost_with_their_marks_is_an_empty_log() -> None:
    """Nothing here can tell it from a new one: the caller has no state and does as A3 says."""
    assert contents(await CheckpointLog.open(SimDisk(), LOG)) == []


@pytest.mark.parametrize("restored", [False, True])
async def test_full_disk_takes_no_part_of_slice_and_log_continues(restored: bool) -> None:
    """Where one copy has no room, it has to be restored; where both have none, the next slice is simply written."""
    space = 0
    while True:
        storage = await written(SLICES[:2])
        log = await CheckpointLog.open(storage := storage.restarted(), LOG)
        storage.space_left = space
        try:
            log.write(*SLICES[2], needs=1)
        except LogFull:
            assert log.full
            assert log.faults == {}
            whole = SLICES[:2]
        else:
            assert bool(log.full) == bool(log.faults)
            whole = SLICES[:3]
        assert contents(log) == whole
        assert log.held_by_both == Commit(20, 3, 4, 1)
        assert contents(await CheckpointLog.open(storage.restarted(), LOG)) == whole
        done = not log.full
        storage.space_left = None
        if restored or log.faults:
            await log.restore()
            assert log.full == "", "nothing may follow that would say so"
        log.write(*SLICES[3], needs=1)
        assert not log.full
        assert (await log.sync()) == log.commits[-1]
        assert contents(await CheckpointLog.open(storage.restarted(), LOG)) == [*whole, SLICES[3]]
        assert copies_are_equal(storage)
        if done:
            break
        space += 7


async def test_mark_without_room_is_ignored_and_written_later() -> None:
    storage = await written(SLICES[:1])
    log = await CheckpointLog.open(storage := storage.restarted(), LOG)
    log.write(*SLICES[1], needs=1)
    storage.space_left = 0
    assert await log.sync() == Commit(10, 1, 2, 1)
    assert "refused a mark" in log.full
    assert log.faults == {}
    with pytest.raises(LogFull):
        log.write(*SLICES[2], needs=1)
    with pytest.raises(LogFull, match="cannot be restored"):
        await log.restore()
    storage.space_left = None
    assert await log.sync() == Commit(20, 3, 4, 1)
    assert log.full == "", "nothing may follow that would say so"
    left = storage.power_loss(lambda _p, synced, _w: synced)
    assert contents(await CheckpointLog.open(left, LOG)) == SLICES[:2]


@pytest.mark.parametrize("lost", ["", "0", "1"])
async def test_log_on_full_disk_is_readable_and_written_later(lost: str) -> None:
    storage = (await written(SLICES[:2])).restarted()
    for path in [p for p in storage.files if lost and LOG / lost in p.parents]:
        storage.remove(path)
    storage.space_left = 0
    log = await CheckpointLog.open(storage, LOG)
    assert contents(log) == SLICES[:2]
    assert log.held_by_both == (None if lost else Commit(20, 3, 4, 1))
    assert len(log.faults) == 2
    with pytest.raises(LogError, match="no copy can be written"):
        log.write(*SLICES[2])
    with pytest.raises(LogError, match="no copy can be written"):
        await log.restore()
    storage.space_left = None
    await log.restore()
    log.write(*SLICES[2], needs=1)
    assert await log.sync() == Commit(30, 5, 7, 1)
    assert contents(await CheckpointLog.open(storage.restarted(), LOG)) == SLICES[:3]
    assert copies_are_equal(storage)


@pytest.mark.parametrize("lost", ["", "0", "1"])
async def test_a_reader_changes_nothing_and_needs_no_lock(lost: str) -> None:
    storage = await written(segment_bytes=100)  # locked by its writer
    for path in [p for p in storage.files if lost and LOG / lost in p.parents]:
        storage.remove(path)
    storage.space_left = 0
    before = {path: bytes(file.written) for path, file in storage.files.items()}
    log = await LogReader.open_to_read(storage, LOG)
    assert contents(log) == SLICES
    assert log.at(25) == Commit(20, 3, 4, 1)
    assert {path: bytes(file.written) for path, file in storage.files.items()} == before
    with pytest.raises(LogError, match="held by another process"):
        await CheckpointLog.open(storage, LOG)


async def test_reader_refuses_same_damage_as_writer() -> None:
    storage = await written()
    for copy in "01":
        file = storage.files[segments(storage, copy)[0]]
        file.written[:] = file.written.replace(b"c(1,4)", b"c(1,5)")
    with pytest.raises(LogCorrupt, match="record 3 is damaged or missing in both copies; up to 8 were"):
        await LogReader.open_to_read(storage, LOG)


async def test_first_portion_refuses_later_damage_in_both_copies() -> None:
    """There was an empty portion before, of which who read a commit took the first record."""
    storage = await written(segment_bytes=1)
    log = await LogReader.open_to_read(storage, LOG)
    for copy in "01":
        file = storage.files[segments(storage, copy)[-1]]
        file.written[:] = file.written.replace(b"C40", b"C41")
    with log.reading(8) as portions, pytest.raises(LogCorrupt, match="record 8 is damaged or missing in both copies"):
        next(portions)


class OneUnreadable(SimDisk):
    """Whatever is asked of the folder of copy 0 fails."""

    def list(self, folder: PurePosixPath) -> list[str]:
        return super().list(self._good(folder))

    def read(self, path: PurePosixPath) -> bytes:
        return super().read(self._good(path))

    def open(self, path: PurePosixPath) -> Any:
        return super().open(self._good(path))

    @staticmethod
    def _good(path: PurePosixPath) -> PurePosixPath:
        if LOG / "0" in (path, *path.parents):
            raise OSError("a bad block")
        return path


async def test_a_copy_that_cannot_be_read_at_all_is_one_that_is_lost() -> None:
    storage = OneUnreadable()
    storage.files = (await written()).restarted().files
    log = await CheckpointLog.open(storage, LOG)
    assert contents(log) == SLICES
    assert log.faults == {"log/0": "a bad block"}
    log.write(50, [], b"C50", needs=1)
    await log.sync()
    assert contents(await LogReader.open_to_read(storage, LOG))[-1] == (50, [], b"C50")


class Portions:
    """Runs what it is given, and counts; storage may be read in it only.

    Implements spe.runtime.env.Compute.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.inside = False

    async def run(self, function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        self.runs, self.inside = self.runs + 1, True
        try:
            return function()
        finally:
            self.inside = False

    async def turn(self) -> None:
        await trio.lowlevel.checkpoint()


class Watched(SimDisk):
    """Knows how often each segment was read, and that this was in a portion."""

    def __init__(self, portions: Portions) -> None:
        super().__init__()
        self.portions = portions
        self.reads: dict[PurePosixPath, int] = {}

    def read(self, path: PurePosixPath) -> bytes:
        if path.suffix == ".seg":
            assert self.portions.inside
            self.reads[path] = self.reads.get(path, 0) + 1
        return super().read(path)


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
async def test_each_file_is_read_once_in_portions_off_the_event_loop(segment_bytes: int) -> None:
    storage = await written(segment_bytes=segment_bytes)
    watched = Watched(portions := Portions())
    watched.files = storage.restarted().files
    log = await CheckpointLog.open(watched, LOG, portions)
    count = len(segments(watched, "0"))
    assert portions.runs == 1 + count
    assert set(watched.reads.values()) == {1}
    with log.reading(1) as reading:
        found = []
        for _ in range(count):
            found += await portions.run(lambda: next(reading))
        assert await portions.run(lambda: next(reading, None)) is None
    assert [r.time for r in found if r.kind == LogKind.COMMIT] == [10, 20, 30, 40]
    assert sorted(watched.reads.values()) == [1] * count + [2] * count, "the second copy is not needed"
    watched.sync_fails = True
    log.write(50, [], b"C50", needs=1)
    with pytest.raises(LogError):
        await log.sync()
    watched.sync_fails = False
    await log.restore()
    assert log.held_by_both == Commit(50, 9, 9, 1)


async def test_only_damaged_parts_are_reread_and_repaired() -> None:
    storage = await written(segment_bytes=1)
    path = segments(storage, "1")[2]
    watched = Watched(portions := Portions())
    watched.files = storage.with_file(path, b"x" + bytes(storage.files[path].written[1:])).files
    await CheckpointLog.open(watched, LOG, portions)
    assert {p for p, count in watched.reads.items() if count > 1} == {path, LOG / "0" / path.name}
    assert copies_are_equal(watched)


async def test_records_being_read_are_not_cut_and_do_not_grow() -> None:
    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG, segment_bytes=1)
    for one in SLICES[:3]:
        log.write(*one, needs=1)
        await log.sync()
    with log.reading(3) as portions:
        first = next(portions)
        log.write(*SLICES[3])
        await log.sync()
        await log.cut()
        assert [r.sequence for portion in [first, *portions] for r in portion] == [3, 4, 5, 6, 7]
    assert [c.time for c in log.commits] == [20, 30, 40]
    await log.cut()
    assert [c.time for c in log.commits] == [40]


async def test_cut_records_are_not_read_while_files_are_removed() -> None:
    """They are removed in a thread: a reading that began meanwhile found a log that was damaged."""
    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG, segment_bytes=1)
    for one in SLICES[:3]:
        log.write(*one, needs=1)
        await log.sync()
    log.write(*SLICES[3])
    await log.sync()
    remove = storage.remove

    def removed(path: PurePosixPath) -> None:
        remove(path)
        assert contents(log, log.first_sequence) == contents(log, log.commits[0].first) == SLICES[3:]

    with patch.object(storage, "remove", removed):
        await log.cut()
    assert len(segments(storage, "0")) == 1


async def test_a_file_that_could_not_be_removed_goes_next_time() -> None:
    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG, segment_bytes=1)
    for one in SLICES:
        log.write(*one)
        await log.sync()
    with patch.object(storage, "remove", side_effect=OSError("read-only")), pytest.raises(OSError, match="read-only"):
        await log.cut()
    assert len(segments(storage, "0")) == 4
    await log.cut()
    assert len(segments(storage, "0")) == 1


async def test_visible_commit_can_be_read() -> None:
    """It is written in a thread, and others read meanwhile."""
    log = await CheckpointLog.open(SimDisk(), LOG)

    class Watched(list[Commit]):
        def append(self, commit: Commit) -> None:
            super().append(commit)
            assert [r.payload for r in log.read(commit.last)] == [b"C10"]

    log.commits = Watched()
    log.write(*SLICES[0])
    assert len(log.commits) == 1


async def test_write_during_sync_of_restore_is_refused() -> None:
    """The segment is left then: what came into it after the sync would count as synced, and not be."""
    storage = one_refuses(await written(SLICES[:1]))
    log = await CheckpointLog.open(storage, LOG)
    log.write(*SLICES[1], needs=1)
    storage.stall(True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.restore)
        await trio.testing.wait_all_tasks_blocked()
        with suppress(RuntimeError):
            log.write(*SLICES[2], needs=1)
        storage.stall(False)
    assert log.last_sequence == 4
    log.write(*SLICES[2], needs=1)
    await log.sync()
    left = storage.power_loss(lambda _p, synced, _w: synced)
    assert contents(await CheckpointLog.open(left, LOG)) == SLICES[:3]


async def test_a_log_in_files_is_read_in_threads_while_it_is_written(tmp_path: Path) -> None:
    compute = ThreadCompute()
    log = await CheckpointLog.open(DiskStorage(tmp_path), LOG, compute, segment_bytes=1)
    for one in SLICES[:2]:
        log.write(*one, needs=1)
        await log.sync()
    beside = await LogReader.open_to_read(DiskStorage(tmp_path), LOG, compute)
    with beside.reading(1) as portions:
        found = await compute.run(lambda: next(portions))
        log.write(*SLICES[2], needs=1)
        await log.sync()
        found += await compute.run(lambda: next(portions))
        assert await compute.run(lambda: next(portions, None)) is None
    assert [r.sequence for r in found] == [1, 2, 3, 4]
    log.close()

    moved = tmp_path / "moved"  # the lock is held as long as the process lives
    moved.mkdir()
    (tmp_path / LOG).rename(moved / LOG)
    (moved / LOG / "lock").unlink()
    for path in (moved / LOG / "1").iterdir():
        path.unlink()
    again = await CheckpointLog.open(DiskStorage(moved), LOG, compute)
    assert contents(again) == SLICES[:3]
    assert again.held_by_both == again.commits[-1]
    both = [{path.name: path.read_bytes() for path in (moved / LOG / name).glob("*.seg")} for name in COPIES]
    assert both[0] == both[1]
    assert len(both[0]) == 3
    again.close()


async def test_closing_log_waits_for_slice_in_writer_thread(tmp_path: Path) -> None:
    """Its files are not closed under it: their numbers could be those of others by then."""
    begun, goes_on = Event(), Event()
    append = DiskFile.append

    def slow(file: DiskFile, data: bytes) -> None:
        begun.set()
        assert goes_on.wait(10)
        append(file, data)

    compute = ThreadCompute()
    log = await CheckpointLog.open(DiskStorage(tmp_path), LOG, compute)
    log.write(*SLICES[0], needs=1)
    await log.sync()
    files = [copy.file for copy in log._written]
    with patch.object(DiskFile, "append", slow):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(compute.run, lambda: log.write(*SLICES[1], needs=1))
            await compute.run(lambda: begun.wait(10))
            log.close()
            goes_on.set()
    assert not log.faults
    for file in files:
        assert isinstance(file, DiskFile)
        assert file._descriptor == -1
    with pytest.raises(LogError, match="is not used any more"):
        log.write(*SLICES[2], needs=1)
    assert contents(await LogReader.open_to_read(DiskStorage(tmp_path), LOG)) == SLICES[:2]


async def test_a_record_of_an_unknown_kind_is_named() -> None:
    data = encode_header(Segment(1, 1)) + encode_record(1, b"\x09" + bytes(16))
    with pytest.raises(LogError, match="record 1 of a checkpoint log is of kind 9"):
        list(Copies(Segment(1, 1), None, lambda _: data).records())


async def test_nothing_is_written_while_a_copy_is_restored() -> None:
    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG)
    log.write(*SLICES[0])
    storage.sync_fails = True
    with pytest.raises(LogError):
        await log.sync()
    storage.sync_fails = False
    storage.stall(True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.restore)
        await trio.testing.wait_all_tasks_blocked()
        with suppress(RuntimeError):
            log.write(*SLICES[1])
        storage.stall(False)
    assert log.last_sequence == 2
    log.write(*SLICES[1])
    assert contents(log) == SLICES[:2]


async def test_a_commit_in_one_copy_only_does_not_count() -> None:
    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG)
    log.write(*SLICES[0], needs=1)
    held = await log.sync()
    log.write(*SLICES[1], needs=1)
    assert log.held_by_both == held
    storage.sync_fails = True
    with pytest.raises(LogError, match="no copy can be written"):
        await log.sync()
    assert log.held_by_both == held
    with pytest.raises(LogError, match="no copy can be written"):
        log.write(*SLICES[2])
    storage.sync_fails = False
    await log.restore()
    assert log.held_by_both == log.commits[-1] == Commit(20, 3, 4, 1)


class _OneSyncFails(SimDisk):
    """The sync of number ``fails`` from now on."""

    fails = 0

    async def moving(self) -> None:
        self.fails -= 1
        if self.fails == 0:
            raise OSError(errno.EIO, "Input/output error")
        await super().moving()


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("fails", [1, 2, 3, 4])
async def test_a_copy_is_restored_after_one_sync_that_failed(fails: int, emptied: bool) -> None:
    """Of its data, or of its mark, also the first one in a file that was emptied for it."""
    storage = _OneSyncFails()
    log = await CheckpointLog.open(storage, LOG)
    log.write(*SLICES[0], needs=1)
    await log.sync()
    with patch("spe.log.marks._SLOTS_MAX", 1 if emptied else 100):
        log.write(*SLICES[1], needs=1)
        await log.sync()
    log.write(*SLICES[2], needs=1)
    storage.fails = fails
    held = await log.sync()
    assert held == Commit(20, 3, 4, 1)
    await log.restore()
    assert log.held_by_both == log.commits[-1] == Commit(30, 5, 7, 1)
    assert not log.faults
    log.write(*SLICES[3], needs=1)
    assert await log.sync() == Commit(40, 8, 8, 1)
    left = storage.power_loss(lambda _p, synced, _w: synced)
    assert contents(await CheckpointLog.open(left, LOG)) == SLICES


async def test_restored_copy_keeps_synced_mark_until_next_one() -> None:
    """The mark that failed began an emptied file: the other one is not emptied, too."""
    storage = _OneSyncFails()
    log = await CheckpointLog.open(storage, LOG)
    log.write(*SLICES[0], needs=1)
    with patch("spe.log.marks._SLOTS_MAX", 1):
        await log.sync()
    log.write(*SLICES[1], needs=1)
    storage.fails = 2
    await log.sync()
    lost: list[SimDisk] = []
    moving = storage.moving

    async def cut() -> None:
        lost.append(storage.power_loss(lambda _p, synced, _w: synced))
        await moving()

    with patch.object(storage, "moving", cut):
        await log.restore()
    assert lost
    assert [m for disk in lost if (m := read_mark(disk, LOG / "0")) is None or m.sequence < 2] == []


async def test_a_restored_copy_is_not_taken_back_from_a_newer_writer() -> None:
    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG)
    log.write(*SLICES[0], needs=1)
    await log.sync()
    storage.locks.clear()  # of a file system on which they do not hold
    await CheckpointLog.open(storage, LOG)
    log.write(*SLICES[1], needs=1)
    with pytest.raises(LogError, match="no copy can be written"):
        await log.sync()
    with pytest.raises(LogError, match="writer 2 has taken over from writer 1"):
        await log.restore()


async def test_write_during_a_sync_does_not_count() -> None:
    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG)
    log.write(*SLICES[0], needs=1)
    storage.stall(True)
    found = []

    async def sync() -> None:
        found.append(await log.sync())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sync)
        await trio.testing.wait_all_tasks_blocked()
        log.write(*SLICES[1], needs=1)
        storage.stall(False)
    assert found == [Commit(10, 1, 2, 1)] == [log.held_by_both]


class OneRefuses(SimDisk):
    """Copy 1 cannot be opened for writing, nor replaced."""

    def open(self, path: PurePosixPath) -> Any:
        if path.parent == LOG / "1" and path.suffix == ".seg":
            raise OSError("broken")
        return super().open(path)

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        if path.parent == LOG / "1":
            raise OSError("broken")
        await super().write_atomic(path, data)


def one_refuses(storage: SimDisk) -> OneRefuses:
    broken = OneRefuses()
    broken.files = storage.restarted().files
    return broken


async def test_a_commit_in_one_copy_is_read_but_not_acknowledged() -> None:
    storage = one_refuses(await written(SLICES[:1]))
    log = await CheckpointLog.open(storage, LOG)
    log.write(*SLICES[1], needs=1)
    assert await log.sync() == log.held_by_both == Commit(10, 1, 2, 1)
    assert list(log.faults) == ["log/1"]
    left = storage.power_loss(lambda _p, synced, _w: synced)
    assert contents(await CheckpointLog.open(left, LOG)) == SLICES[:2]
    for file in storage.files.values():
        file.written[:] = file.written.replace(b"c(1,4)", b"c(1,5)")
    assert contents(await CheckpointLog.open(storage.restarted(), LOG)) == SLICES[:1], "nobody was promised more"


async def test_a_damaged_copy_that_cannot_be_mended_does_not_count() -> None:
    """G5: what only the other one has is not acknowledged."""
    storage = await written(SLICES[:2])
    file = storage.files[segments(storage, "1")[0]]
    file.written[:] = file.written.replace(b"a(1,5)", b"a(1,6)")
    log = await CheckpointLog.open(one_refuses(storage), LOG)
    assert contents(log) == SLICES[:2]
    assert list(log.faults) == ["log/1"]
    assert log.held_by_both is None


async def test_void_records_of_unrepaired_copy_do_not_return() -> None:
    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG)
    log.write(*SLICES[0], needs=1)
    await log.sync()
    log.write(40, [(LogKind.FOOTPRINTS, b"void"), (LogKind.OUTPUT, b"void")], b"")
    without_commit = storage.power_loss(lambda p, _s, w: w[:-40] if p.suffix == ".seg" and b"void" in w else w)
    storage = one_refuses(without_commit)
    log = await CheckpointLog.open(storage, LOG)
    assert contents(log) == SLICES[:1]
    for one in SLICES[1:]:
        log.write(*one, needs=1)
        await log.sync()
    log = await CheckpointLog.open(storage.restarted(), LOG)
    assert contents(log) == SLICES
    assert not log.faults


async def test_data_left_in_memory_by_failed_sync_is_synced_at_open() -> None:
    storage = await written(SLICES[:1])
    log = await CheckpointLog.open(storage := storage.restarted(), LOG)
    log.write(*SLICES[1], needs=1)
    storage.sync_fails = True
    with pytest.raises(LogError, match="no copy can be written"):
        await log.sync()
    storage = storage.restarted()
    log = await CheckpointLog.open(storage, LOG)
    assert log.held_by_both == Commit(20, 3, 4, 1)
    left = storage.power_loss(lambda _p, synced, _w: synced)
    assert contents(await CheckpointLog.open(left, LOG)) == SLICES[:2]


async def test_segments_below_needs_of_both_are_cut() -> None:
    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG, segment_bytes=1)
    for one in SLICES[:2]:
        log.write(*one, needs=1)
        await log.sync()
    await log.cut()
    assert contents(log) == SLICES[:2]
    log.write(*SLICES[2], needs=3)
    await log.cut()
    assert len(segments(storage, "0")) == 3, "the commit that allows it is not synced"
    await log.sync()
    await log.cut()
    assert contents(log, 3) == SLICES[1:3]
    assert [c.time for c in log.commits] == [20, 30]
    with pytest.raises(LogCorrupt, match="record 1 "):
        contents(log)
    assert contents(await CheckpointLog.open(storage.restarted(), LOG), 3) == SLICES[1:3]


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
async def test_bytes_are_those_of_one_copy(segment_bytes: int) -> None:
    def on_disk() -> int:
        return sum(len(storage.files[path].written) for path in segments(storage, "0"))

    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG, segment_bytes=segment_bytes)
    assert (log.kept_bytes, log.written_bytes) == (0, 0)
    for one in SLICES:
        log.write(*one)
        await log.sync()
    assert log.kept_bytes == on_disk()
    assert log.written_bytes == on_disk() - HEADER_BYTES * len(segments(storage, "0"))
    await log.cut()
    assert log.kept_bytes == on_disk()
    again = await CheckpointLog.open(storage := storage.restarted(), LOG)
    assert (again.kept_bytes, again.written_bytes) == (on_disk(), 0)


async def test_a_disk_that_lied_is_refused() -> None:
    """Its marks claim what did not reach it."""
    storage = SimDisk()
    log = await CheckpointLog.open(storage, LOG)
    storage.lies = True
    log.write(*SLICES[0])
    await log.sync()
    left = storage.power_loss(lambda p, synced, whole: whole if p.name.startswith("mark") else synced)
    with pytest.raises(LogCorrupt, match="up to 2 were acknowledged"):
        await CheckpointLog.open(left, LOG)


async def test_a_slice_comes_after_the_one_before() -> None:
    log = await CheckpointLog.open(await written(), LOG.parent / "other")
    log.write(*SLICES[1])
    with pytest.raises(LogError, match="slice 10 after slice 20"):
        log.write(*SLICES[0])


@pytest.mark.parametrize("seed", range(150))
async def test_random_crashes_damage_and_cuts(seed: int) -> None:
    """What both held is there after each crash, whole slices only, with at most one copy damaged meanwhile."""
    random = Random(seed)
    storage, written_all, held, needs, time = SimDisk(), [], 0, 1, 0
    sizes = random.choice([1, 200, 1 << 20])
    for _ in range(6):
        log = await CheckpointLog.open(storage, LOG, segment_bytes=sizes)
        first = max(needs, log.commits[0].first if log.commits else 1)
        found = contents(log, first) if log.commits else []
        assert held <= (found[-1][0] if found else 0)
        assert found == [s for s in written_all if found and found[0][0] <= s[0] <= found[-1][0]]
        written_all = [s for s in written_all if found and s[0] <= found[-1][0]]
        for _ in range(random.randint(0, 5)):
            time += random.randint(1, 9)
            payload = random.randbytes(random.randint(0, 40))
            one: Slice = (time, [(LogKind.FOOTPRINTS, payload)] * random.randint(0, 2), b"C")
            needs = max(needs, random.choice([1, log.last_sequence + 1]))
            while needs > 1 and needs not in {c.first for c in log.commits} | {log.last_sequence + 1}:
                needs += 1
            log.write(*one, needs=needs)
            written_all.append(one)
            if random.random() < 0.5:
                commit = await log.sync()
                held = commit.time if commit is not None else 0
                if random.random() < 0.5:
                    await log.cut()
        needs = log.held_by_both.needs if log.held_by_both is not None else 1
        storage = storage.power_loss(lambda _p, synced, all_: torn(random, synced, all_))
        if random.random() < 0.5:
            lost = LOG / random.choice("01")
            if random.random() < 0.3:
                for path in [p for p in storage.files if lost in p.parents]:
                    storage.remove(path)
            else:
                storage.flip(random, lost)


@pytest.mark.parametrize("seed", range(150))
async def test_random_refusals_for_want_of_room(seed: int) -> None:
    """A slice is in the log or refused, whatever the room; what both held outlives each crash."""
    random = Random(seed)
    storage, inside, held, time = SimDisk(), [], 0, 0
    for _ in range(5):
        storage.space_left = random.choice([None, 0, 20, 300])
        log = await CheckpointLog.open(storage, LOG, segment_bytes=random.choice([1, 200, 1 << 20]))
        found = contents(log)
        assert found == inside[: len(found)]
        assert held <= (found[-1][0] if found else 0)
        inside = found
        for _ in range(random.randint(0, 6)):
            storage.space_left = random.choice([None, None, 0, random.randint(0, 400)])
            time += 10
            one: Slice = (time, [(LogKind.FOOTPRINTS, random.randbytes(random.randint(0, 40)))], b"C")
            try:
                log.write(*one, needs=1)
                inside.append(one)
            except LogError:
                pass
            assert contents(log) == inside
            try:
                if random.random() < 0.6:
                    commit = await log.sync()
                    held = max(held, 0 if commit is None else commit.time)
                if random.random() < 0.3:
                    await log.restore()
            except LogError:
                pass
            assert contents(log) == inside
        held = max(held, log.held_by_both.time if log.held_by_both is not None else 0)
        storage = storage.power_loss(lambda _p, synced, all_: torn(random, synced, all_))


async def test_a_record_that_could_not_be_read_is_not_written() -> None:
    log = await CheckpointLog.open(SimDisk(), LOG)
    with patch("replicas.checkpoint.log_records.RECORD_BYTES_MAX", 100), pytest.raises(LogError, match="at most 100"):
        log.write(10, [(LogKind.FOOTPRINTS, bytes(100))], b"C10")
    assert (log.commits, log.last_sequence) == ([], 0)
