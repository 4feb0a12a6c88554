"""Spill files: pieces are read back unchanged or not at all, space is freed, and a bad disk is logged once."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from replicas.simulation.world.disk import SimDisk
from spe.runtime import spill
from spe.runtime.production import SystemClock, ThreadCompute
from spe.runtime.spill import RETRY_US, SEGMENT_BYTES, Handle, Shelf, SpillDamaged, SpillFolder, SpillNotLoaded
from spe.stream.batch import Batch, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from tests.support.spilling import Directly, Spilling, drive, read_back

FOLDER = PurePosixPath("spill/n1")
SCHEMA = Schema.of(n="int64", s="string")


def batch(first: int, count: int = 3) -> Batch:
    ids = range(first + 1, first + count + 1)
    rows = Rows.from_tuples(SCHEMA, [10 * i for i in ids], [(i, None if i % 3 else f"text {i}") for i in ids])
    return Batch(Kind.STABLE, first, first + count, None, rows)


class World(Spilling):
    def __init__(self, limit: int = 1 << 30) -> None:
        super().__init__(FOLDER, limit)
        self.storage.open(FOLDER / "00000009.spill").append(b"of an earlier process")
        drive(self.folder.clear())
        self.shelf: Shelf = super().shelf(SCHEMA)

    def write(self, one: Batch) -> Handle:
        handle = self.shelf.write(one)
        assert handle is not None
        self.settle()
        return handle

    def forget(self, *handles: Handle) -> None:
        for handle in handles:
            self.shelf.forget(handle)
        self.settle()


def test_pieces_are_read_back_and_old_files_removed() -> None:
    world = World()
    assert world.files() == []
    made = [batch(0), batch(3, 1), batch(4, 5)]
    handles = [world.write(b) for b in made]
    for one, handle in reversed(list(zip(made, handles, strict=True))):
        back = read_back(world.shelf, handle)
        assert (back.from_id, back.upto_id, back.ids) == (one.from_id, one.upto_id, None)
        assert back.rows.time.tolist() == one.rows.time.tolist()
        assert back.rows.to_tuples() == one.rows.to_tuples()


def test_a_file_is_removed_with_its_last_piece() -> None:
    world = World()
    count = 100_000
    first, second = world.write(batch(0, count)), world.write(batch(count, count))
    while world.write(batch(0, count)) and len(world.files()) < 2:
        assert world.folder.used < 2 * SEGMENT_BYTES
    used = world.folder.used
    world.forget(first)
    assert world.folder.used == used
    world.forget(second)
    assert len(world.files()) == 2
    world.shelf.close()
    world.settle()
    assert (world.files(), world.folder.used) == ([], 0)


def test_pieces_forgotten_at_once_leave_no_files() -> None:
    world = World()
    for at in range(3):
        world.forget(world.write(batch(at)))
    assert (world.files(), world.folder.used) == ([], 0)


@pytest.mark.parametrize("bit", [0, 77, 300, -1])
def test_flipped_bit_is_detected(bit: int) -> None:
    world = World()
    handle = world.write(batch(0, 20))
    file = world.contents()
    file[bit // 8 if bit >= 0 else -1] ^= 1 << (bit % 8)
    with pytest.raises(SpillDamaged, match="segment 1, offset 0"):
        read_back(world.shelf, handle)
    assert world.folder.status().damaged == 1


def test_truncated_piece_is_detected() -> None:
    world = World()
    handle = world.write(batch(0, 20))
    del world.contents()[-1:]
    with pytest.raises(SpillDamaged):
        read_back(world.shelf, handle)


def test_at_the_limit_writes_are_refused_until_there_is_room() -> None:
    world = World(limit=1_000)
    handles = []
    while (handle := world.shelf.write(batch(0))) is not None:
        handles.append(handle)
    assert world.shelf.write(batch(0)) is None
    assert world.told == ["1000 bytes are in use, which is the limit"]
    assert world.folder.refused == 2
    world.settle()
    assert world.rooms == 0
    world.forget(*handles)
    assert world.rooms == 1, "who was refused is told"
    world.write(batch(0))
    assert world.told[1:] == [""]


def test_full_disk_is_logged_once_retried_and_loses_nothing() -> None:
    world = World()
    kept = world.write(batch(0))
    world.storage.space_left = 10
    waiting = world.write(batch(3))
    world.storage.space_left = None
    assert world.shelf.write(batch(6)) is None  # the disk is not tried again yet
    world.settle()
    assert world.told == ["No space left on device"]
    assert world.shelf.read(waiting).upto_id == 6  # the piece is still in memory
    assert world.rooms == 0
    world.now += RETRY_US
    world.settle()
    assert world.rooms == 1, "who was refused meanwhile is told"
    again = world.write(batch(6))
    assert world.told == ["No space left on device", ""]
    assert [read_back(world.shelf, h).upto_id for h in (kept, waiting, again)] == [3, 6, 9]


def test_refused_writer_hears_when_waiting_pieces_are_forgotten() -> None:
    world = World(limit=1_000)
    handles = []
    while (handle := world.shelf.write(batch(0))) is not None:
        handles.append(handle)
    for one in handles:
        world.shelf.forget(one)
    world.settle()
    assert (world.rooms, world.folder.used) == (1, 0)


@pytest.mark.parametrize("first", ["refused", "forgotten"])
async def test_full_disk_is_retried_though_nothing_waits(first: str, autojump_clock: MockClock) -> None:
    told = trio.Event()

    class Clock(SystemClock):
        def monotonic_us(self) -> int:
            return round(trio.current_time() * 1e6)

    disk = SimDisk()
    folder = SpillFolder(disk, Directly(), Clock(), FOLDER, 1 << 30, report=lambda why: None, room=told.set)
    shelf = folder.shelf(SCHEMA)
    disk.space_left = 10
    async with trio.open_nursery() as nursery:
        await nursery.start(folder.run)
        handle = shelf.write(batch(0))
        assert handle is not None
        await trio.sleep(1)
        if first == "forgotten":
            shelf.forget(handle)
            await trio.sleep(1)
        assert shelf.write(batch(3)) is None
        if first == "refused":
            shelf.forget(handle)
        with trio.fail_after(RETRY_US / 1e6):
            await told.wait()
        nursery.cancel_scope.cancel()


def test_a_piece_is_in_memory_until_it_is_written() -> None:
    world = World()
    handle = world.shelf.write(batch(0))
    assert handle is not None
    assert world.files() == []
    assert world.shelf.read(handle).upto_id == 3
    world.settle()
    with pytest.raises(SpillNotLoaded):
        world.shelf.read(handle)


def test_a_loaded_piece_stays_until_all_readers_release_it() -> None:
    world = World()
    handle = world.write(batch(0))
    with pytest.raises(SpillNotLoaded) as first:
        world.shelf.read(handle)
    with pytest.raises(SpillNotLoaded) as second:
        world.shelf.read(handle)
    for one in (first, second):
        drive(one.value.load())
    first.value.release()
    assert world.shelf.read(handle).upto_id == 3
    second.value.release()
    with pytest.raises(SpillNotLoaded):
        world.shelf.read(handle)


def test_few_pieces_wait_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a slow disk the owner keeps further pieces, and is told when there is room."""
    monkeypatch.setattr(spill, "QUEUE_BYTES", 1_000)
    world = World()
    handles = []
    while (handle := world.shelf.write(batch(0))) is not None:
        handles.append(handle)
    assert sum(h.length for h in handles) <= 1_000
    assert (world.told, world.folder.refused, world.rooms) == ([], 0, 0)
    world.settle()
    assert world.rooms == 1
    assert world.shelf.write(batch(0)) is not None


def test_pieces_forgotten_before_their_write_leave_no_files() -> None:
    world = World()
    handles = [world.shelf.write(batch(at)) for at in range(3)]
    assert handles[0] is not None
    world.forget(handles[0])
    assert len(world.files()) == 1
    assert world.shelf.write(batch(9)) is not None
    world.shelf.close()
    world.settle()
    assert (world.files(), world.folder.used) == ([], 0)


class Threaded(SimDisk):
    """A disk that fails if the event loop uses it."""

    loop = 0

    def open(self, path: PurePosixPath) -> Any:
        return _ThreadedFile(self, super().open(path))

    def list(self, folder: PurePosixPath) -> list[str]:
        self.check()
        return super().list(folder)

    def remove(self, path: PurePosixPath) -> None:
        self.check()
        super().remove(path)

    def check(self) -> None:
        assert threading.get_ident() != self.loop


class _ThreadedFile:
    def __init__(self, disk: Threaded, file: Any) -> None:
        disk.check()
        self._disk, self._file = disk, file

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def checked(*args: Any) -> Any:
            self._disk.check()
            return getattr(self._file, name)(*args)

        return checked


async def test_files_are_touched_in_threads_only() -> None:
    disk = Threaded()
    disk.loop = threading.get_ident()
    clock = SystemClock()
    folder = SpillFolder(disk, ThreadCompute(), clock, FOLDER, 1 << 30, report=[].append, room=lambda: None)
    shelf = folder.shelf(SCHEMA)
    async with trio.open_nursery() as nursery:
        await nursery.start(folder.run)
        handles = [shelf.write(batch(at * 3)) for at in range(5)]
        while folder.written < 5:
            await trio.lowlevel.checkpoint()
        for handle in handles:
            assert handle is not None
            with pytest.raises(SpillNotLoaded) as piece:
                shelf.read(handle)
            await piece.value.load()
            assert len(shelf.read(handle)) == 3
            piece.value.release()
        shelf.close()
        while disk.files:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


def test_unremovable_file_stays_until_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    handle = world.write(batch(0))

    def refused(path: PurePosixPath) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(world.storage, "remove", refused)
    world.forget(handle)
    world.write(batch(3))
    world.shelf.close()
    world.settle()
    assert world.folder.used == 0
    assert len(world.files()) == 2
    monkeypatch.undo()
    drive(world.open(1_000).clear())
    assert world.files() == []
