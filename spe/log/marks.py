"""The synced mark: the end of the acknowledged part of a log, and its writer.

A flipped bit in the last record looks like a torn write; only a mark in another file can distinguish an acknowledged
record from others.  Order of writing: records, sync, mark, sync, acknowledge.  So everything up to the mark is synced,
and everything acknowledged is before the mark.

A mark is a small checksummed slot, appended to one of two files in turn.  A torn slot does not affect the slots before
it; when a file is full the *other* one is emptied and filled, so a valid mark always exists.
"""

from __future__ import annotations

import struct
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from spe.checksum import crc32
from spe.errors import LogCorrupt, LogError, LogFull, other_version
from spe.log.format import is_torn, write_whole
from spe.runtime.env import AppendFile, Storage

MARK_VERSION: Final = 1
#: Version, epoch, sequence and CRC-32: the first and the last are there in each version.
_SLOT: Final = struct.Struct("<IIQI")
_NAMES: Final = ("mark.0", "mark.1")
#: Slots per file.  Large enough that emptying a file is rare, small enough to read at once.
_SLOTS_MAX: Final = 2048


class Mark(NamedTuple):
    """Everything up to record ``sequence`` is synced; ``epoch`` counts the writers so far.  Marks grow as pairs."""

    epoch: int
    sequence: int


def _encode(mark: Mark) -> bytes:
    body = _SLOT.pack(MARK_VERSION, mark.epoch, mark.sequence, 0)[:-4]
    return body + struct.pack("<I", crc32(body))


def _decode(data: bytes, path: PurePosixPath) -> list[Mark]:
    """Decodes all valid slots; damaged ones are skipped.  Raises LogCorrupt: one is of another version."""
    marks = []
    for at in range(0, len(data) - _SLOT.size + 1, _SLOT.size):
        version, epoch, sequence, crc = _SLOT.unpack_from(data, at)
        if crc == crc32(data[at : at + _SLOT.size - 4]):
            if why := other_version(path, version, MARK_VERSION):
                raise LogCorrupt(why)
            marks.append(Mark(epoch, sequence))
    return marks


def read_mark(storage: Storage, folder: PurePosixPath) -> Mark | None:
    """Reads the newest valid mark; None if there is none."""
    return max(_read_files(storage, folder), default=None)


def _read_files(storage: Storage, folder: PurePosixPath) -> list[Mark]:
    paths = [folder / name for name in _NAMES]
    return [mark for path in paths if storage.exists(path) for mark in _decode(storage.read(path), path)]


class Marks:
    """Writes the marks of a log."""

    def __init__(self, storage: Storage, folder: PurePosixPath) -> None:
        paths = [folder / name for name in _NAMES]
        slots = [_decode(storage.read(path), path) if storage.exists(path) else [] for path in paths]
        newest = [max(f, default=Mark(0, 0)) for f in slots]
        self._files: list[AppendFile] = [storage.open(folder / n) for n in _NAMES]
        self._storage = storage
        self._folder = folder
        #: The newest valid mark; (0, 0) if there is none.
        self.last = max(newest)
        self._current = newest.index(self.last)
        #: The file with the last synced mark, which must not be emptied.
        self._holds = self._current
        self._full = True  # this file may end in a torn slot, so the first write goes to the other

    async def write(self, mark: Mark) -> None:
        """Appends a mark and syncs it.

        Raises:
          LogFull: the disk has no room; the mark can be written again later.
          LogError: a newer writer has taken the log over.
          OSError: the disk failed; the mark is not acknowledged and the log must not be written any more.
        """
        self._check_fence(mark.epoch)
        if self._full:
            self._current = 1 - self._current
            self._files[self._current].truncate(0)
            self._full = False
        file = self._files[self._current]
        size = file.size()
        try:
            write_whole(file, _encode(mark))
        except OSError as error:
            if is_torn(file, size):  # no slot behind it would be found
                self._full = True
                if size == 0:  # the last mark is in the other file, so this one is emptied again
                    self._current = 1 - self._current
            raise LogFull(f"log {self._folder}: the disk refused a mark: {error}") from error
        await file.sync()
        self._full = file.size() >= _SLOTS_MAX * _SLOT.size
        self.last, self._holds = mark, self._current

    def reopen(self) -> None:
        """Reopens the files after a failed sync.  Raises OSError; it may be called again.

        The next mark goes to the file without the last synced one.
        """
        for index, name in enumerate(_NAMES):
            self._files[index].close()
            self._files[index] = self._storage.open(self._folder / name)
        self._current, self._full = self._holds, True

    def _check_fence(self, epoch: int) -> None:
        """Raises LogError if a newer writer has begun: its first slot is at the start of one of the files.

        The lock keeps writers apart; this is for file systems on which locks do not hold.
        """
        for file in self._files:
            first = _decode(file.read(0, _SLOT.size), self._folder)
            if first and first[0].epoch > epoch:
                raise LogError(f"log {self._folder}: writer {first[0].epoch} has taken over from writer {epoch}")

    def close(self) -> None:
        for file in self._files:
            file.close()
