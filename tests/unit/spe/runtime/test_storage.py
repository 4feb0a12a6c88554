"""Files on disk: written atomically, below one root, for one process at a time."""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath

import pytest
import trio

from spe.errors import LogError
from spe.runtime.disk_trouble import is_full
from spe.runtime.storage import DiskStorage

FILE = PurePosixPath("unit/0/log")


@pytest.fixture
def storage(tmp_path: Path) -> DiskStorage:
    return DiskStorage(tmp_path / "root")


async def test_appended_bytes_can_be_read_at_any_offset(storage: DiskStorage) -> None:
    file = storage.open(FILE)
    file.append(b"hello ")
    file.append(b"world")
    await file.sync()
    assert file.size() == 11
    assert file.read(6, 5) == b"world"
    assert file.read(6, 100) == b"world"
    assert file.read(100, 5) == b""
    file.close()


@pytest.mark.parametrize("most", [1, 4, 5, 6, 11, 100])
async def test_parts_are_appended_in_order_despite_short_writes(
    storage: DiskStorage, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    def writev(descriptor: int, parts: list[bytes | memoryview]) -> int:
        return os.write(descriptor, b"".join(parts)[:most])

    monkeypatch.setattr(os, "writev", writev)
    file = storage.open(FILE)
    file.append(b"hell", memoryview(b"o"), b"", memoryview(b" world"), b"")
    file.append()
    assert file.read(0, 100) == b"hello world"
    file.close()


async def test_any_number_of_parts_is_appended(storage: DiskStorage) -> None:
    """The system takes 1,024 at once."""
    file = storage.open(FILE)
    file.append(*(b"%04d" % part for part in range(3_000)))
    assert file.read(0, 20_000) == b"".join(b"%04d" % part for part in range(3_000))
    file.close()


async def test_an_existing_file_is_continued(storage: DiskStorage) -> None:
    first = storage.open(FILE)
    first.append(b"one")
    first.close()
    again = storage.open(FILE)
    again.append(b"two")
    assert again.read(0, 10) == b"onetwo"
    again.truncate(2)
    again.append(b"!")
    assert again.read(0, 10) == b"on!"
    again.close()
    again.close()


async def test_folders_are_created_and_listed_in_order(storage: DiskStorage) -> None:
    assert storage.list(PurePosixPath("unit")) == []
    for name in ("b", "a", "c/d"):
        storage.open(PurePosixPath("unit") / name).close()
    assert storage.list(PurePosixPath("unit")) == ["a", "b", "c"]
    assert storage.exists(PurePosixPath("unit/c/d"))
    storage.remove(PurePosixPath("unit/a"))
    assert not storage.exists(PurePosixPath("unit/a"))


async def test_an_atomic_write_replaces_the_whole_file(storage: DiskStorage) -> None:
    await storage.write_atomic(FILE, b"old and long")
    await storage.write_atomic(FILE, b"new")
    assert storage.read(FILE) == b"new"
    assert storage.list(FILE.parent) == ["log"]


async def test_atomic_writes_at_the_same_time_do_not_mix(storage: DiskStorage) -> None:
    versions = [bytes([n]) * 10_000 for n in range(5)]
    async with trio.open_nursery() as nursery:
        for data in versions:
            nursery.start_soon(storage.write_atomic, FILE, data)
    assert storage.read(FILE) in versions


async def test_a_failed_atomic_write_leaves_the_old_file_only(
    storage: DiskStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await storage.write_atomic(FILE, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        await storage.write_atomic(FILE, b"new")
    assert storage.read(FILE) == b"old"
    assert os.listdir(tmp_path / "root/unit/0") == ["log"]


async def test_remains_of_an_atomic_write_are_not_listed(storage: DiskStorage, tmp_path: Path) -> None:
    await storage.write_atomic(FILE, b"old")
    (tmp_path / "root/unit/0/.aside-log").write_bytes(b"half of n")
    assert storage.list(FILE.parent) == ["log"]
    await storage.write_atomic(FILE, b"new")
    assert os.listdir(tmp_path / "root/unit/0") == ["log"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_after_a_failed_sync_the_file_accepts_no_writes(
    storage: DiskStorage, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The kernel may have dropped what it could not write, and a second sync would succeed.

    Even if the sync failed for lack of space, waiting for space is wrong.
    """
    file = storage.open(FILE)
    file.append(b"data")

    def broken(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match=os.strerror(number)) as first:
        await file.sync()
    monkeypatch.undo()
    with pytest.raises(OSError, match=os.strerror(number)) as second:
        await file.sync()
    assert not is_full(first.value)
    assert not is_full(second.value)
    with pytest.raises(OSError, match="a sync failed"):
        file.append(b"more")
    with pytest.raises(OSError, match="a sync failed"):
        file.truncate(0)
    with pytest.raises(OSError, match="a sync failed"):
        await file.sync()
    assert file.read(0, 4) == b"data"
    file.close()


async def test_a_full_disk_is_an_error_of_append(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    (tmp_path / "full").symlink_to("/dev/full")
    file = storage.open(PurePosixPath("full"))
    with pytest.raises(OSError, match="No space left on device"):
        file.append(b"x")
    file.close()


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "a/../../outside"])
async def test_no_path_leads_out_of_the_root(storage: DiskStorage, path: str) -> None:
    with pytest.raises(ValueError, match="expected a path below the storage root"):
        storage.open(PurePosixPath(path))


async def test_lock_is_exclusive_until_released_and_names_holder(storage: DiskStorage, tmp_path: Path) -> None:
    storage.lock(PurePosixPath("source/lock"))
    with pytest.raises(LogError, match=rf"source/lock is in use by process {os.getpid()} on "):
        DiskStorage(tmp_path / "root").lock(PurePosixPath("source/lock"))
    storage.lock(PurePosixPath("source/other"))
    storage.unlock(PurePosixPath("source/lock"))
    DiskStorage(tmp_path / "root").lock(PurePosixPath("source/lock"))


def test_a_lock_is_taken_on_a_full_disk(storage: DiskStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    storage.lock(PurePosixPath("source/lock"))
    with pytest.raises(LogError, match="is in use by another process"):
        DiskStorage(tmp_path / "root").lock(PurePosixPath("source/lock"))


def test_files_are_for_their_owner_and_group_only(storage: DiskStorage, tmp_path: Path) -> None:
    storage.open(FILE).close()
    storage.lock(PurePosixPath("unit/lock"))
    for path in (tmp_path / "root").rglob("*"):
        assert path.stat().st_mode & 0o007 == 0, path


def test_a_lock_that_is_a_symbolic_link_is_refused(storage: DiskStorage, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("not a lock")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "lock").symlink_to(target)
    with pytest.raises(LogError, match="lock is a symbolic link; expected a lock file of our own"):
        storage.lock(PurePosixPath("lock"))
    assert target.read_text() == "not a lock"
