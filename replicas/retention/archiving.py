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
        """On the disk, or in the hands of a server that says so, when this returns.  Raises OSError."""
        ...


#: From a place as the configuration names it.
OpenArchive = Callable[[str], Archive]


class ArchiveCopies:
    """Copies in an archive, which is opened for the first one.

    Args:
      place: as the configuration names it; "": there is none, and nothing is copied.
    """

    def __init__(self, place: str, open_archive: OpenArchive, compute: Compute) -> None:
        self._place = place
        self._open_archive = open_archive
        self._compute = compute
        self._archive: Archive | None = None

    async def keep(self, path: PurePosixPath, data: bytes) -> None:
        """As :func:`keep_copy`."""
        if self._place:
            if self._archive is None:
                self._archive = await self._compute.run(lambda: self._open_archive(self._place))
            await keep_copy(self._archive, path, data, self._compute)


async def keep_copy(archive: Archive, path: PurePosixPath, data: bytes, compute: Compute) -> None:
    """Makes sure that a file in an archive is there and equal: written where it is not, then read back.

    A torn copy, which a crash left, is replaced; anything else that differs is somebody else's.

    Raises:
      OSError: it cannot be reached, or is full.
      SpeError: the place is taken, or what is read back differs.
    """
    found = await compute.run(lambda: archive.read(path) if archive.exists(path) else None)
    if found == data:
        return
    if found is not None and not data.startswith(found):
        raise SpeError(f"archive: {path} holds something else; give each run an archive of its own")
    await archive.write_atomic(path, data)
    if await compute.run(lambda: archive.read(path)) != data:
        raise SpeError(f"archive: {path} was written and reads differently")


def open_archive(place: str) -> Archive:
    """Opens what ``retain: {archive: …}`` names: a folder, ``file:///…``, or a URL of an object store.

    Raises:
      SpeError: the URL is of no store that is known, or its package is missing.
    """
    from spe.runtime.storage import DiskStorage

    if "://" not in place:
        return DiskStorage(Path(place))
    if place.startswith("file://"):
        return DiskStorage(Path(place.removeprefix("file://")))
    from spe.runtime.object_storage import ObjectStorage

    return ObjectStorage.open(place)
