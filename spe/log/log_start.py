"""The start of a log whose oldest segments were deleted: a small record, in two files (rule E4).

Order of writing: archive, both files, then the removal of segments.  So a record never releases a needed segment,
and segments that a crash leaves before the start are removed when the log is opened.  If one file is damaged, the
other is used.
"""

from __future__ import annotations

import json
import zlib
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from spe.errors import LogCorrupt, SpeError, other_version
from spe.runtime.env import Storage
from spe.stream.times import BEFORE_TIME, format_timestamp

#: The files, each with the whole record.
NAMES: Final = ("kept.0", "kept.1")
START_VERSION: Final = 1


class LogCut(SpeError):
    """The needed beginning of a log was deleted by ``retain``."""


class KeptLog(NamedTuple):
    """The start of a log.

    Attributes:
      first: number of its first record; 1: nothing was deleted.
      last_id: id of the last tuple before it.
      until_us: the log is whole from this tuple time on; BEFORE_TIME if nothing was deleted.
      segments, bytes: deleted so far.
      archive: place of a copy of the deleted segments; "" if there is none.
    """

    first: int = 1
    last_id: int = 0
    until_us: int = BEFORE_TIME
    segments: int = 0
    bytes: int = 0
    archive: str = ""

    def text(self, folder: object) -> str:
        """Describes the deleted part for users."""
        there = f"; a copy is in {self.archive}" if self.archive else ""
        when = "" if self.until_us <= BEFORE_TIME else f", {format_timestamp(self.until_us)}"
        return f"{folder}: the log begins behind id {self.last_id}{when}: `retain` deleted what came before{there}"


WHOLE: Final = KeptLog()


def read_kept(storage: Storage, folder: PurePosixPath) -> KeptLog:
    """Reads the newest record that is not damaged; WHOLE if there is none.  Raises LogCorrupt: another version."""
    return max((record for record in _records(storage, folder) if record is not None), default=WHOLE)


def need_whole(storage: Storage, folder: PurePosixPath) -> None:
    """Raises LogCut if the beginning of the log is gone."""
    if (start := read_kept(storage, folder)).first > 1:
        raise LogCut(start.text(folder))


def need_judged(storage: Storage, folder: PurePosixPath, name: object) -> None:
    """Raises LogCut if the beginning of a log or a recording is gone, so that the run cannot be judged.

    Args:
      name: name of the folder, for users.
    """
    if (start := read_kept(storage, folder)).first > 1:
        how = "spe restore brings it back" if start.archive else "spe report --follow proves what is left"
        raise LogCut(f"{start.text(name)}. What was deleted cannot be judged any more; {how}")


async def write_kept(storage: Storage, folder: PurePosixPath, start: KeptLog) -> None:
    """Writes a record into both files.  Raises OSError; the segments before it must then not be removed."""
    data = encode_kept(start)
    for name in NAMES:
        await storage.write_atomic(folder / name, data)


async def repair_kept(storage: Storage, folder: PurePosixPath) -> None:
    """Makes both files equal if one is behind or damaged.  Raises OSError."""
    records = _records(storage, folder)
    newest = max((record for record in records if record is not None), default=WHOLE)
    if newest.first > 1 and any(record != newest for record in records):
        await write_kept(storage, folder, newest)


def encode_kept(start: KeptLog) -> bytes:
    """Encodes a record as a line of JSON and its checksum."""
    body = json.dumps({"version": START_VERSION, **start._asdict()}, sort_keys=True).encode()
    return body + b"\n%08x\n" % zlib.crc32(body)


def _records(storage: Storage, folder: PurePosixPath) -> list[KeptLog | None]:
    paths = [folder / name for name in NAMES]
    return [_decode(storage.read(path), path) if storage.exists(path) else None for path in paths]


def _decode(data: bytes, path: PurePosixPath) -> KeptLog | None:
    body, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % zlib.crc32(body):
        return None
    record = json.loads(body)
    if why := other_version(path, record.pop("version", None), START_VERSION):
        raise LogCorrupt(why)
    return KeptLog(**record)
