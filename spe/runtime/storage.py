"""Durable files below one root, on disk."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

import trio

from spe.errors import LogError
from spe.runtime.disk_trouble import sync_failed

#: Prefix of temporary files of atomic writes; a crash may leave one.  Never listed, overwritten by the next write.
_ASIDE: Final = ".aside-"
#: Data is for its owner and group only.
_FILE_MODE: Final = 0o640
_FOLDER_MODE: Final = 0o750
#: Most parts of one write call: UIO_MAXIOV of Linux, and of macOS.
_PARTS_MAX: Final = 1_024


class DiskFile:
    """An open file of a :class:`DiskStorage`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE)
        self._failed: OSError | None = None

    def append(self, *parts: bytes | memoryview) -> None:
        self._check()
        rest = list(parts)
        while rest:
            written = os.writev(self._descriptor, rest[:_PARTS_MAX])
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if written:
                rest[0] = memoryview(rest[0])[written:]

    async def sync(self) -> None:
        """Syncs the file.  After a failed sync the kernel may have dropped unwritten data, so the file is unusable.

        Raises:
          OSError: permanent (``sync_failed``), even if the disk was full.
        """
        self._check()
        try:
            await trio.to_thread.run_sync(os.fdatasync, self._descriptor)
        except OSError as e:
            self._failed = e
            raise sync_failed(e, self._path) from e

    def read(self, offset: int, length: int) -> bytes:
        """Reads at an offset; returns fewer bytes only at the end of the file."""
        data = os.pread(self._descriptor, length, offset)
        while (
            data and len(data) < length and (more := os.pread(self._descriptor, length - len(data), offset + len(data)))
        ):
            data += more
        return data

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        self._check()
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _check(self) -> None:
        if self._failed is not None:
            raise sync_failed(self._failed, self._path)


class DiskStorage:
    """The Storage for production.  All paths are relative to ``root`` and stay below it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._locks: dict[PurePosixPath, int] = {}
        #: Atomic writes are few and large; one disk does them one after the other anyway.
        self._writing = trio.Lock()

    def open(self, path: PurePosixPath) -> DiskFile:
        target = self._path(path)
        new = not target.exists()
        if new:
            self._make_folders(target.parent)
        file = DiskFile(target)
        if new:
            sync_folder(target.parent)
        return file

    def exists(self, path: PurePosixPath) -> bool:
        return self._path(path).exists()

    def list(self, folder: PurePosixPath) -> list[str]:
        try:
            names = os.listdir(self._path(folder))
        except FileNotFoundError:
            return []
        return sorted(n for n in names if not n.startswith(_ASIDE))

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        target = self._path(path)
        async with self._writing:
            await trio.to_thread.run_sync(self._replace, target, data)

    def read(self, path: PurePosixPath) -> bytes:
        return self._path(path).read_bytes()

    def remove(self, path: PurePosixPath) -> None:
        self._path(path).unlink()

    def lock(self, path: PurePosixPath) -> None:
        target = self._path(path)
        self._make_folders(target.parent)
        try:
            descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise LogError(f"{target} is a symbolic link; expected a lock file of our own") from None
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise LogError(f"{target} is in use by {holder}") from None
        self._locks[path] = descriptor  # the kernel releases the lock when the process ends, however it ends
        with suppress(OSError):  # a full disk has no room for the name; the lock holds without it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def unlock(self, path: PurePosixPath) -> None:
        os.close(self._locks.pop(path))

    def _path(self, path: PurePosixPath) -> Path:
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"expected a path below the storage root, got {str(path)!r}")
        return self._root / path

    def _make_folders(self, folder: Path) -> None:
        """Creates missing folders from the top, so that each new name is durable."""
        if not folder.exists():
            self._make_folders(folder.parent)
            folder.mkdir(_FOLDER_MODE, exist_ok=True)
            sync_folder(folder.parent)

    def _replace(self, target: Path, data: bytes | bytearray | memoryview) -> None:
        self._make_folders(target.parent)
        aside = target.with_name(_ASIDE + target.name)
        try:
            with open(aside, "wb", opener=_private) as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            os.replace(aside, target)
        except OSError:
            aside.unlink(missing_ok=True)  # frees the space: the disk may be full
            raise
        sync_folder(target.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)


def in_folder(folder: Path) -> tuple[DiskStorage, PurePosixPath]:
    """Returns a storage with this folder as its root, and the path of the folder in it."""
    return DiskStorage(folder), PurePosixPath()


def sync_folder(folder: Path) -> None:
    """Syncs a folder: a rename is durable only after that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
