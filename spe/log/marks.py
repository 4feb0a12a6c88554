"""The synced mark: how far the log was on disk when it was last acknowledged, and who the writer is.

A flip in the last record looks like a torn write; only a mark kept elsewhere can tell a record that was acknowledged
from one that never was.  Order of writing: records, sync, mark, sync, acknowledge.  So the mark never claims more
than what is synced, and nothing acknowledged lies beyond it.

A mark is a small checksummed slot, appended to one of two files in turn.  A torn slot leaves the one before it; when
a file is full the *other* one is emptied and begun, so a valid mark exists at every moment.
"""

from __future__ import annotations

import struct
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from spe.checksum import crc32
from spe.errors import LogError, LogFull
from spe.log.format import is_torn, write_whole
from spe.runtime.env import AppendFile, Storage

_SLOT: Final = struct.Struct("<QQI")
_NAMES: Final = ("mark.0", "mark.1")
#: Slots per file.  Large enough that emptying a file is rare, small enough to read at once.
_SLOTS_MAX: Final = 2048


class Mark(NamedTuple):
    """Everything up to record ``sequence`` is synced; ``epoch`` counts the writers so far.  Grows as a pair."""

    epoch: int
    sequence: int


def _encode(mark: Mark) -> bytes:
    body = _SLOT.pack(mark.epoch, mark.sequence, 0)[:-4]
    return body + struct.pack("<I", crc32(body))


def _decode(data: bytes) -> list[Mark]:
    """All valid slots; a damaged one is passed over."""
    marks = []
    for at in range(0, len(data) - _SLOT.size + 1, _SLOT.size):
        epoch, sequence, crc = _SLOT.unpack_from(data, at)
        if crc == crc32(data[at : at + _SLOT.size - 4]):
            marks.append(Mark(epoch, sequence))
    return marks


def read_mark(storage: Storage, folder: PurePosixPath) -> Mark | None:
    """The newest valid mark; None when there is none."""
    return max(_read_files(storage, folder), default=None)


def _read_files(storage: Storage, folder: PurePosixPath) -> list[Mark]:
    return [m for name in _NAMES if storage.exists(folder / name) for m in _decode(storage.read(folder / name))]


class Marks:
    """The writer's side."""

    def __init__(self, storage: Storage, folder: PurePosixPath) -> None:
        found = [_decode(storage.read(folder / n)) if storage.exists(folder / n) else [] for n in _NAMES]
        newest = [max(f, default=Mark(0, 0)) for f in found]
        self._files: list[AppendFile] = [storage.open(folder / n) for n in _NAMES]
        self._storage = storage
        self._folder = folder
        #: The newest valid mark at open; (0, 0) when there is none.
        self.last = max(newest)
        self._current = newest.index(self.last)
        #: The file with the last mark that was synced: never the next one to be emptied.
        self._holds = self._current
        self._full = True  # this file may end in a torn slot, so the first write goes to the other

    async def write(self, mark: Mark) -> None:
        """Appends a mark and syncs it.

        Raises:
          LogFull: there is no room for it; it can be written again later.
          LogError: a newer writer has taken the log over.
          OSError: from the disk; the mark is then not acknowledged and the log must not be written any more.
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
                if size == 0:  # the last mark is in the other one, so it is this one that is emptied, again
                    self._current = 1 - self._current
            raise LogFull(f"log {self._folder}: the disk refused a mark: {error}") from error
        await file.sync()
        self._full = file.size() >= _SLOTS_MAX * _SLOT.size
        self.last, self._holds = mark, self._current

    def reopen(self) -> None:
        """After a failure, as a file whose sync failed is not used again.  Raises OSError; it may be tried again.

        The next mark goes to the file without the last synced one.
        """
        for index, name in enumerate(_NAMES):
            self._files[index].close()
            self._files[index] = self._storage.open(self._folder / name)
        self._current, self._full = self._holds, True

    def _check_fence(self, epoch: int) -> None:
        """A newer writer begins with a slot at the start of one of the files.

        The lock keeps writers apart; this is for file systems on which locks do not hold.
        """
        for file in self._files:
            first = _decode(file.read(0, _SLOT.size))
            if first and first[0].epoch > epoch:
                raise LogError(f"log {self._folder}: writer {first[0].epoch} has taken over from writer {epoch}")

    def close(self) -> None:
        for file in self._files:
            file.close()
