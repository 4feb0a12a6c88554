"""Copies of segments, made before these are deleted (rule E3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Protocol

from spe.errors import SpeError
from spe.runtime.env import Compute


class Archive(Protocol):
    """Files below one place: a part of ``spe.runtime.env.Storage``."""

    def list(self, folder: PurePosixPath) -> list[str]: ...

    def exists(self, path: PurePosixPath) -> bool: ...

    def read(self, path: PurePosixPath) -> bytes: ...

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        """Writes a file; it is on the disk, or acknowledged by a server, on return.  Raises OSError."""
        ...


#: Opens an archive named in the configuration.
OpenArchive = Callable[[str], Archive]


class ArchiveCopies:
    """Copies files to an archive, which is opened at the first copy.

    Args:
      place: name in the configuration; "": there is none, and nothing is copied.
    """

    def __init__(self, place: str, open_archive: OpenArchive, compute: Compute) -> None:
        self._place = place
        self._open_archive = open_archive
        self._compute = compute
        self._archive: Archive | None = None

    async def keep(self, path: PurePosixPath, data: bytes) -> None:
        """Works as :func:`keep_copy`."""
        if self._place:
            if self._archive is None:
                self._archive = await self._compute.run(lambda: self._open_archive(self._place))
            await keep_copy(self._archive, path, data, self._compute)


async def keep_copy(archive: Archive, path: PurePosixPath, data: bytes, compute: Compute) -> None:
    """Ensures that a file in an archive exists and is equal: written if missing, then read back.

    A torn copy, left by a crash, is replaced; any other difference means that the place is in use by others.

    Raises:
      OSError: it cannot be reached, or is full.
      SpeError: the place is in use, or the file read back differs.
    """
    stored = await compute.run(lambda: archive.read(path) if archive.exists(path) else None)
    if stored == data:
        return
    if stored is not None and not data.startswith(stored):
        raise SpeError(f"archive: {path} holds something else; give each run an archive of its own")
    await archive.write_atomic(path, data)
    if await compute.run(lambda: archive.read(path)) != data:
        raise SpeError(f"archive: {path} was written and reads differently")


def open_archive(place: str) -> Archive:
    """Opens the archive of ``retain: {archive: …}``: a folder, ``file:///…``, or a URL of an object store.

    Raises:
      SpeError: the store of the URL is unknown, or its package is missing.
    """
    from spe.runtime.storage import DiskStorage

    if "://" not in place:
        return DiskStorage(Path(place))
    if place.startswith("file://"):
        return DiskStorage(Path(place.removeprefix("file://")))
    from spe.runtime.object_storage import ObjectStorage

    return ObjectStorage.open(place)
