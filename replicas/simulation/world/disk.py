"""A simulated disk: storage in memory that fails on demand, as a disk may.

A file has bytes that are written and bytes that are synced.  :meth:`SimDisk.power_loss` keeps the synced ones
and, of the rest, whatever the test says.
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
    """What a power loss leaves of a file: any part of what was not synced, its last bytes perhaps garbage."""
    tail = written[len(synced) :]
    kept = tail[: random.randint(0, len(tail))]
    if kept and random.random() < 0.3:
        cut = random.randint(0, len(kept) - 1)
        kept = kept[:cut] + random.randbytes(len(kept) - cut)
    return synced + kept


class _File:
    """Contents shared by every handle on a path."""

    def __init__(self, contents: bytes = b"", synced_size: int | None = None) -> None:
        self.written = bytearray(contents)
        #: So many bytes are on disk whatever happens.
        self.synced_size = len(contents) if synced_size is None else synced_size
        #: So many bytes were written when the last sync began.
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
        file.untouched_size = len(file.written)  # this sync does not cover what is appended meanwhile
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
        self._file.synced_size = min(self._file.synced_size, size)  # what is written there next is not synced
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
      sync_s: how long a sync takes.
      lies: a sync returns, and nothing is safer than it was; of what is written so a power loss leaves any part.
      syncs: how many syncs were asked for.
      honest: it never lied, and no bit of it was flipped.
      ended: the process that used it has ended, and leaves what it has written.
      removed: what the files held that were removed, for whoever judges the run; None: that is not kept.
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
        #: Bits that were turned: file, byte, bit.
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
        """The same disk after the process ended: everything written is there, locks are free, faults are mended."""
        other = SimDisk()
        for path, file in self.files.items():
            other.files[path] = _File(bytes(file.written), file.synced_size)  # the rest is in the page cache still
        other.honest, other.removed, other.flipped = self.honest, self.removed, self.flipped
        return other

    def power_loss(self, remains: Callable[[PurePosixPath, bytes, bytes], bytes]) -> SimDisk:
        """The disk after the power failed: ``remains(path, synced, written)`` says what each file holds."""
        return self._copy(lambda path, file: remains(path, file.synced, bytes(file.written)))

    def with_file(self, path: PurePosixPath, data: bytes) -> SimDisk:
        """The same disk after a restart, with other bytes in one file."""
        return self._copy(lambda p, file: data if p == path else bytes(file.written))

    def _copy(self, contents: Callable[[PurePosixPath, _File], bytes]) -> SimDisk:
        other = SimDisk()
        for path, file in self.files.items():
            other.files[path] = _File(contents(path, file))
        other.honest, other.removed = self.honest, self.removed
        return other

    def stall(self, stalled: bool) -> None:
        """From now on syncs wait, or go on."""
        if stalled and self.sync_gate is None:
            self.sync_gate = trio.Event()
        elif not stalled and self.sync_gate is not None:
            self.sync_gate.set()
            self.sync_gate = None

    async def moving(self) -> None:
        """What a sync takes, and whether it works."""
        if self.sync_s:
            await trio.sleep(self.sync_s)
        if self.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        if self.sync_gate is not None:
            await self.sync_gate.wait()

    def flip(self, random: Random, folder: PurePosixPath) -> PurePosixPath | None:
        """Turns one bit of one file below a folder; which file, or None where there is none with bytes in it."""
        found = sorted(p for p, f in self.files.items() if f.written and folder in p.parents)
        if not found:
            return None
        self.honest = False
        path = random.choice(found)
        at = random.randrange(len(self.files[path].written))
        self.flipped.append((path, at, 1 << random.randrange(8)))
        self.files[path].written[at] ^= self.flipped[-1][2]
        return path

    def mended(self) -> SimDisk:
        """A copy on which no bit was turned."""
        if not self.flipped:
            return self
        other = self.restarted()
        for path, at, bit in self.flipped:
            if path in other.files and at < len(other.files[path].written):
                other.files[path].written[at] ^= bit
        return other


class SimPartFiles:
    """The files of Parquet parts, as ``replicas.connectors.files.part_files`` has them on a real disk."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def make_folder(self, folder: Path) -> None:
        """Folders are made by their files."""

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
        """Nothing is held."""

    def sync_folder(self, folder: Path) -> None:
        """A name is durable at once."""

    def _check(self) -> None:
        if self._disk.ended:
            raise OSError(errno.EIO, "the process has ended")
