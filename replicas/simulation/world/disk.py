"""A simulated disk: storage in memory that fails on demand.

A file has written bytes and synced bytes.  :meth:`SimDisk.power_loss` keeps the synced ones and, of the rest, what the
test chooses.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any

import trio

from spe.errors import LogError


def torn(random: Random, synced: bytes, written: bytes) -> bytes:
    """Returns a file after a power loss: it keeps any part of the unsynced bytes, with garbage at the end at times."""
    tail = written[len(synced) :]
    remaining = tail[: random.randint(0, len(tail))]
    if remaining and random.random() < 0.3:
        cut = random.randint(0, len(remaining) - 1)
        remaining = remaining[:cut] + random.randbytes(len(remaining) - cut)
    return synced + remaining


class _File:
    """Contents shared by all handles of a path."""

    def __init__(self, contents: bytes = b"", synced_size: int | None = None) -> None:
        self.written = bytearray(contents)
        #: Number of bytes that survive any failure.
        self.synced_size = len(contents) if synced_size is None else synced_size
        #: Number of bytes written when the last sync began.
        self.untouched_size = len(contents)

    @property
    def synced(self) -> bytes:
        return bytes(self.written[: self.synced_size])


class _AppendFile:
    def __init__(self, storage: SimDisk, file: _File) -> None:
        self._storage = storage
        self._file = file
        self._closed = False
        #: Its sync failed: it is not used again.
        self._failed = False

    def append(self, *parts: bytes | memoryview) -> None:
        assert not self._closed
        self._check()
        data = b"".join(parts)
        space = self._storage.space_left
        if space is not None and len(data) > space:
            self._file.written += data[:space]
            self._storage.space_left = 0
            raise OSError(errno.ENOSPC, "No space left on device")
        if space is not None:
            self._storage.space_left = space - len(data)
        self._file.written += data

    async def sync(self) -> None:
        self._check()
        file = self._file
        file.untouched_size = len(file.written)  # this sync does not cover later appends
        await trio.lowlevel.checkpoint()
        self._storage.syncs += 1
        try:
            await self._storage.moving()
        except OSError:
            self._failed = True
            raise
        if self._storage.lies:
            self._storage.honest = False
            return
        file.synced_size = max(file.synced_size, file.untouched_size)

    def read(self, offset: int, length: int) -> bytes:
        assert not self._closed
        return bytes(self._file.written[offset : offset + length])

    def size(self) -> int:
        return len(self._file.written)

    def truncate(self, size: int) -> None:
        self._check()
        freed = len(self._file.written) - size
        del self._file.written[size:]
        self._file.synced_size = min(self._file.synced_size, size)  # later bytes at these offsets are not synced
        self._file.untouched_size = min(self._file.untouched_size, size)
        if self._storage.space_left is not None:
            self._storage.space_left += freed

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._failed:
            raise OSError(errno.EIO, "Input/output error")


class SimDisk:
    """Implements spe.runtime.env.Storage.

    Attributes:
      space_left: bytes until the disk is full; None: never.
      sync_fails: every sync raises EIO from now on.
      sync_gate: a sync waits for this event before it counts, while appends go on.
      sync_s: duration of a sync.
      lies: a sync returns without effect; a power loss keeps any part of the bytes written so.
      syncs: number of requested syncs.
      honest: it never lied, and no bit of it was flipped.
      ended: the process that used it has ended, and leaves its written data.
      removed: contents of removed files, for checkers; None: not recorded.
    """

    def __init__(self) -> None:
        self.removed: dict[PurePosixPath, bytes] | None = None
        self.files: dict[PurePosixPath, _File] = {}
        self.locks: set[PurePosixPath] = set()
        self.space_left: int | None = None
        self.sync_fails = False
        self.sync_gate: trio.Event | None = None
        self.sync_s = 0.0
        self.lies = False
        self.syncs = 0
        self.honest = True
        self.ended = False
        #: Flipped bits: file, byte, bit.
        self.flipped: list[tuple[PurePosixPath, int, int]] = []
        self.part_files = SimPartFiles(self)

    def open(self, path: PurePosixPath) -> _AppendFile:
        return _AppendFile(self, self.files.setdefault(path, _File()))

    def exists(self, path: PurePosixPath) -> bool:
        return path in self.files

    def list(self, folder: PurePosixPath) -> list[str]:
        return sorted(p.name for p in self.files if p.parent == folder)

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if self.space_left is not None and len(data) > self.space_left:
            raise OSError(errno.ENOSPC, "No space left on device")
        await self.moving()
        if self.space_left is not None:
            self.space_left -= len(data) - self._size(path)
        self.honest = self.honest and not self.lies
        self.files[path] = _File(bytes(data), 0 if self.lies else None)

    def read(self, path: PurePosixPath) -> bytes:
        try:
            return bytes(self.files[path].written)
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path)) from None

    def remove(self, path: PurePosixPath) -> None:
        if path not in self.files:
            raise FileNotFoundError(str(path))
        if self.space_left is not None:
            self.space_left += self._size(path)
        if self.removed is not None:
            self.removed[path] = bytes(self.files[path].written)
        del self.files[path]

    def _size(self, path: PurePosixPath) -> int:
        return len(self.files[path].written) if path in self.files else 0

    def lock(self, path: PurePosixPath) -> None:
        if path in self.locks:
            raise LogError(f"{path} is held by another process")
        self.locks.add(path)

    def unlock(self, path: PurePosixPath) -> None:
        self.locks.remove(path)

    def restarted(self) -> SimDisk:
        """Returns the disk after the end of the process: written data exists, locks are free, faults are mended."""
        other = SimDisk()
        for path, file in self.files.items():
            other.files[path] = _File(bytes(file.written), file.synced_size)  # the rest is still in the page cache
        other.honest, other.removed, other.flipped = self.honest, self.removed, self.flipped
        return other

    def power_loss(self, remains: Callable[[PurePosixPath, bytes, bytes], bytes]) -> SimDisk:
        """Returns the disk after a power failure: ``remains(path, synced, written)`` returns the contents of each
        file.
        """
        return self._copy(lambda path, file: remains(path, file.synced, bytes(file.written)))

    def with_file(self, path: PurePosixPath, data: bytes) -> SimDisk:
        """Returns the disk after a restart, with other bytes in one file."""
        return self._copy(lambda p, file: data if p == path else bytes(file.written))

    def _copy(self, contents: Callable[[PurePosixPath, _File], bytes]) -> SimDisk:
        other = SimDisk()
        for path, file in self.files.items():
            other.files[path] = _File(contents(path, file))
        other.honest, other.removed = self.honest, self.removed
        return other

    def stall(self, stalled: bool) -> None:
        """Stalls syncs from now on, or lets them continue."""
        if stalled and self.sync_gate is None:
            self.sync_gate = trio.Event()
        elif not stalled and self.sync_gate is not None:
            self.sync_gate.set()
            self.sync_gate = None

    async def moving(self) -> None:
        """Waits for the duration of a sync; raises if it fails."""
        if self.sync_s:
            await trio.sleep(self.sync_s)
        if self.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        if self.sync_gate is not None:
            await self.sync_gate.wait()

    def flip(self, random: Random, folder: PurePosixPath) -> PurePosixPath | None:
        """Flips one bit of a file below a folder; returns the file, or None if there is none with bytes in it."""
        candidates = sorted(p for p, f in self.files.items() if f.written and folder in p.parents)
        if not candidates:
            return None
        self.honest = False
        path = random.choice(candidates)
        at = random.randrange(len(self.files[path].written))
        self.flipped.append((path, at, 1 << random.randrange(8)))
        self.files[path].written[at] ^= self.flipped[-1][2]
        return path

    def mended(self) -> SimDisk:
        """Returns a copy without flipped bits."""
        if not self.flipped:
            return self
        other = self.restarted()
        for path, at, bit in self.flipped:
            if path in other.files and at < len(other.files[path].written):
                other.files[path].written[at] ^= bit
        return other


class SimPartFiles:
    """Files of Parquet parts, with the interface of ``replicas.connectors.files.part_files``."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def make_folder(self, folder: Path) -> None:
        """Does nothing: folders are made by their files."""

    def names(self, folder: Path) -> list[str]:
        return self._disk.list(PurePosixPath(folder))

    def readable(self, path: Path) -> Any:
        return io.BytesIO(self._disk.read(PurePosixPath(path)))

    def remove(self, path: Path) -> None:
        self._disk.remove(PurePosixPath(path))

    def create(self, path: Path) -> Any:
        self._check()
        self._disk.open(PurePosixPath(path))
        return self._disk.files[PurePosixPath(path)]

    def write(self, file: _File, data: memoryview) -> int:
        self._check()
        space = self._disk.space_left
        taken = len(data) if space is None else min(space, len(data))
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        if space is not None:
            self._disk.space_left = space - taken
        file.written += data[:taken]
        return taken

    def sync(self, file: _File) -> None:
        self._check()
        self._disk.honest &= not self._disk.lies
        if not self._disk.lies:
            file.synced_size = len(file.written)

    def rename(self, path: Path, other: Path) -> None:
        self._check()
        self._disk.files[PurePosixPath(other)] = self._disk.files.pop(PurePosixPath(path))

    def close(self, file: _File) -> None:
        """Does nothing: no resource is held."""

    def sync_folder(self, folder: Path) -> None:
        """Does nothing: a name is durable at once."""

    def _check(self) -> None:
        if self._disk.ended:
            raise OSError(errno.EIO, "the process has ended")
