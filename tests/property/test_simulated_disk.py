"""A simulated disk against a model: a restarted process finds what it wrote, and synced bytes survive power losses."""

from __future__ import annotations

import errno
from pathlib import PurePosixPath
from random import Random

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.disk import SimDisk, torn
from spe.errors import LogError
from tests.support.distribution import Situations

PATHS = st.sampled_from([PurePosixPath("a"), PurePosixPath("folder/b")])
DATA = st.binary(min_size=1, max_size=40)


class DiskMachine(RuleBasedStateMachine):
    """Appends, syncs, cuts, kills and power losses, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.written: dict[PurePosixPath, bytes] = {}
        self.synced: dict[PurePosixPath, bytes] = {}
        self.met = dict.fromkeys(["the power takes something", "a file is cut in a sync", "a kill keeps all"], False)

    @rule(path=PATHS, data=DATA)
    def append(self, path: PurePosixPath, data: bytes) -> None:
        self.disk.open(path).append(data)
        self.written[path] = self.written.get(path, b"") + data

    @rule(path=PATHS, meanwhile=DATA, at=st.integers(0, 60), cuts=st.booleans())
    def sync(self, path: PurePosixPath, meanwhile: bytes, at: int, cuts: bool) -> None:
        """A slow sync, during which a file is truncated and appended to."""
        before = self.written.get(path, b"")
        self.met["a file is cut in a sync"] |= cuts and at < len(before)
        kept = before[:at] if cuts else before

        async def both() -> None:
            file = self.disk.open(path)
            self.disk.sync_s = 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(file.sync)
                await trio.sleep(0.5)
                if cuts:
                    file.truncate(len(kept))
                file.append(meanwhile)

        trio.run(both, clock=JumpClock())
        self.written[path] = kept + meanwhile
        self.synced[path] = kept

    @rule(path=PATHS, size=st.integers(0, 60))
    def truncate(self, path: PurePosixPath, size: int) -> None:
        data = self.written.setdefault(path, b"")[:size]
        self.disk.open(path).truncate(len(data))
        self.written[path] = data
        self.synced[path] = self.synced.get(path, b"")[:size]

    @rule(path=PATHS, data=DATA)
    def replace(self, path: PurePosixPath, data: bytes) -> None:
        trio.run(self.disk.write_atomic, path, data, clock=JumpClock())
        self.written[path] = self.synced[path] = data

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.restarted()
        self.met["a kill keeps all"] |= self.written != self.synced

    @rule(seed=st.integers(0, 1000))
    def lose_power(self, seed: int) -> None:
        random = Random(seed)
        self.disk = self.disk.power_loss(lambda _path, synced, written: torn(random, synced, written))
        for path, file in self.disk.files.items():
            left = bytes(file.written)
            assert left.startswith(self.synced.get(path, b""))
            assert len(left) <= len(self.written[path])
            self.met["the power takes something"] |= len(left) < len(self.written[path])
            self.written[path] = self.synced[path] = left

    @invariant()
    def what_was_written_is_there(self) -> None:
        for path, data in self.written.items():
            assert self.disk.read(path) == data
            assert self.disk.files[path].synced == self.synced.get(path, b"")

    def teardown(self) -> None:
        DISKS.example(self.met)


DISKS = Situations({"the power takes something": 0.04, "a file is cut in a sync": 0.06, "a kill keeps all": 0.07})


@DISKS.required
def test_a_disk_keeps_synced_bytes() -> None:
    run_state_machine_as_test(DiskMachine, settings=settings(max_examples=100, stateful_step_count=20))


def test_a_torn_file_may_end_anywhere_or_in_garbage() -> None:
    left = [torn(Random(seed), b"synced", b"synced" + b"x" * 20) for seed in range(300)]
    assert {len(data) for data in left} == set(range(6, 27))
    assert all(data.startswith(b"synced") for data in left)
    assert 30 < sum(data.strip(b"x") != b"synced" for data in left) < 150


def test_a_full_disk_accepts_a_part_and_reuses_freed_space() -> None:
    disk = SimDisk()
    file = disk.open(PurePosixPath("a"))
    disk.space_left = 10
    with pytest.raises(OSError, match="No space") as raised:
        file.append(bytes(12))
    assert raised.value.errno == errno.ENOSPC
    assert file.size() == 10
    with pytest.raises(OSError, match="No space"):
        trio.run(disk.write_atomic, PurePosixPath("b"), b"x", clock=JumpClock())
    file.truncate(4)
    trio.run(disk.write_atomic, PurePosixPath("b"), b"12345", clock=JumpClock())
    assert disk.space_left == 1
    disk.remove(PurePosixPath("b"))
    assert disk.space_left == 6


def test_a_flip_changes_one_bit_of_one_file() -> None:
    disk = SimDisk()
    disk.open(PurePosixPath("a")).append(b"hello")
    disk.open(PurePosixPath("empty"))
    before = {path: bytes(file.written) for path, file in disk.files.items()}
    assert disk.flip(Random(1), PurePosixPath(".")) == PurePosixPath("a")
    flipped = [x ^ y for x, y in zip(before[PurePosixPath("a")], disk.read(PurePosixPath("a")), strict=True)]
    assert sum(x.bit_count() for x in flipped) == 1
    assert SimDisk().flip(Random(1), PurePosixPath(".")) is None


def test_failed_sync_keeps_nothing_and_locks_end_with_process() -> None:
    disk = SimDisk()
    file = disk.open(PurePosixPath("a"))
    file.append(b"x")
    disk.sync_fails = True
    with pytest.raises(OSError, match="Input/output"):
        trio.run(file.sync, clock=JumpClock())
    assert disk.files[PurePosixPath("a")].synced == b""
    disk.lock(PurePosixPath("lock"))
    with pytest.raises(LogError):
        disk.lock(PurePosixPath("lock"))
    disk.restarted().lock(PurePosixPath("lock"))
    disk.unlock(PurePosixPath("lock"))
    disk.lock(PurePosixPath("lock"))
