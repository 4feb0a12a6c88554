"""Disk faults inside a real process: wraps its Storage with a disk that can hang."""

from __future__ import annotations

from pathlib import PurePosixPath

import trio

from spe.runtime.env import AppendFile, Storage


class FaultyStorage:
    """Wraps ``inner`` with a disk that can hang: while it does, nothing becomes durable and nothing fails.

    Writes go to the kernel's buffers as always, so reads and appends continue.
    """

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self._moving = trio.Event()
        self._moving.set()

    def stall(self, stalled: bool) -> None:
        """Makes syncs wait from now on, or continue."""
        if stalled and self._moving.is_set():
            self._moving = trio.Event()
        elif not stalled:
            self._moving.set()

    async def wait_moving(self) -> None:
        while not self._moving.is_set():
            await self._moving.wait()

    def open(self, path: PurePosixPath) -> AppendFile:
        return _FaultyFile(self, self._inner.open(path))

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        await self.wait_moving()
        await self._inner.write_atomic(path, data)

    def exists(self, path: PurePosixPath) -> bool:
        return self._inner.exists(path)

    def list(self, folder: PurePosixPath) -> list[str]:
        return self._inner.list(folder)

    def read(self, path: PurePosixPath) -> bytes:
        return self._inner.read(path)

    def remove(self, path: PurePosixPath) -> None:
        self._inner.remove(path)

    def lock(self, path: PurePosixPath) -> None:
        self._inner.lock(path)

    def unlock(self, path: PurePosixPath) -> None:
        self._inner.unlock(path)


class _FaultyFile:
    def __init__(self, storage: FaultyStorage, inner: AppendFile) -> None:
        self._storage = storage
        self._inner = inner

    async def sync(self) -> None:
        await self._storage.wait_moving()
        await self._inner.sync()

    def append(self, *parts: bytes | memoryview) -> None:
        self._inner.append(*parts)

    def read(self, offset: int, length: int) -> bytes:
        return self._inner.read(offset, length)

    def size(self) -> int:
        return self._inner.size()

    def truncate(self, size: int) -> None:
        self._inner.truncate(size)

    def close(self) -> None:
        self._inner.close()
