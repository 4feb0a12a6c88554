"""Spill files: pieces come back as they were or not at all, space comes back, and a bad disk is said once."""

from __future__ import annotations

import errno
from pathlib import PurePosixPath

import pytest

from replicas.simulation.disk import SimDisk
from spe.runtime.spill import RETRY_US, SEGMENT_BYTES, Handle, Shelf, SpillDamaged, SpillFolder
from spe.stream.batch import Batch, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema

FOLDER = PurePosixPath("spill/n1")
SCHEMA = Schema.of(n="int64", s="string")


def batch(first: int, count: int = 3) -> Batch:
    ids = range(first + 1, first + count + 1)
    rows = Rows.from_tuples(SCHEMA, [10 * i for i in ids], [(i, None if i % 3 else f"text {i}") for i in ids])
    return Batch(Kind.STABLE, first, first + count, None, rows)


class World:
    def __init__(self, limit: int = 1 << 30) -> None:
        self.storage = SimDisk()
        self.storage.open(FOLDER / "00000009.spill").append(b"of an earlier process")
        self.now = 0
        self.told: list[str] = []
        self.folder = SpillFolder(self.storage, FOLDER, limit, now=lambda: self.now, told=self.told.append)
        self.shelf: Shelf = self.folder.shelf(SCHEMA)

    def write(self, one: Batch) -> Handle:
        handle = self.shelf.write(one)
        assert handle is not None
        return handle

    def files(self) -> list[str]:
        return self.storage.list(FOLDER)


def test_what_was_written_comes_back_and_what_an_earlier_process_left_is_gone() -> None:
    world = World()
    assert world.files() == []
    made = [batch(0), batch(3, 1), batch(4, 5)]
    handles = [world.write(b) for b in made]
    for one, handle in reversed(list(zip(made, handles, strict=True))):
        back = world.shelf.read(handle)
        assert (back.from_id, back.upto_id, back.ids) == (one.from_id, one.upto_id, None)
        assert back.rows.time.tolist() == one.rows.time.tolist()
        assert back.rows.to_tuples() == one.rows.to_tuples()


def test_a_file_goes_with_its_last_piece() -> None:
    world = World()
    count = 100_000
    first, second = world.write(batch(0, count)), world.write(batch(count, count))
    while world.shelf.write(batch(0, count)) is not None and len(world.files()) < 2:
        assert world.folder.used < 2 * SEGMENT_BYTES
    used = world.folder.used
    world.shelf.forget(first)
    assert world.folder.used == used
    world.shelf.forget(second)
    assert len(world.files()) == 2
    world.shelf.close()
    assert (world.files(), world.folder.used) == ([], 0)


def test_pieces_that_are_forgotten_at_once_leave_nothing() -> None:
    world = World()
    for at in range(3):
        world.shelf.forget(world.write(batch(at)))
    assert (world.files(), world.folder.used) == ([], 0)


@pytest.mark.parametrize("bit", [0, 77, 300, -1])
def test_a_flipped_bit_is_found(bit: int) -> None:
    world = World()
    handle = world.write(batch(0, 20))
    file = world.storage.files[FOLDER / world.files()[0]].written
    file[bit // 8 if bit >= 0 else -1] ^= 1 << (bit % 8)
    with pytest.raises(SpillDamaged, match="segment 1, offset 0"):
        world.shelf.read(handle)
    assert world.folder.statistics()["spill_damaged"] == 1


def test_a_piece_that_is_cut_off_is_found() -> None:
    world = World()
    handle = world.write(batch(0, 20))
    del world.storage.files[FOLDER / world.files()[0]].written[-1:]
    with pytest.raises(SpillDamaged):
        world.shelf.read(handle)


def test_at_the_limit_writing_is_refused_said_once_and_goes_on_when_room_comes() -> None:
    world = World(limit=1_000)
    handles = []
    while (handle := world.shelf.write(batch(0))) is not None:
        handles.append(handle)
    assert world.shelf.write(batch(0)) is None
    assert world.told == ["1000 bytes are in use, which is the limit"]
    assert world.folder.refused == 2
    for handle in handles:
        world.shelf.forget(handle)
    assert world.shelf.write(batch(0)) is not None
    assert world.told[1:] == [""]


def test_a_full_disk_is_said_once_left_alone_for_a_while_and_loses_nothing() -> None:
    world = World()
    kept = world.write(batch(0))
    world.storage.space_left = 10
    assert world.shelf.write(batch(3)) is None
    world.storage.space_left = None
    assert world.shelf.write(batch(3)) is None  # not asked again yet
    assert world.told == ["No space left on device"]
    world.now += RETRY_US
    again = world.write(batch(3))
    assert world.told == ["No space left on device", ""]
    assert world.shelf.read(kept).upto_id == 3
    assert world.shelf.read(again).upto_id == 6


def test_a_file_that_cannot_be_removed_is_left_for_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    handle = world.write(batch(0))

    def refused(path: PurePosixPath) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(world.storage, "remove", refused)
    world.shelf.forget(handle)
    world.write(batch(3))
    world.shelf.close()
    assert world.folder.used == 0
    assert len(world.files()) == 2
    monkeypatch.undo()
    SpillFolder(world.storage, FOLDER, 1_000, now=lambda: 0, told=world.told.append)
    assert world.files() == []
