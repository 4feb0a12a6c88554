"""Where a log begins whose oldest segments were deleted: a small record, in two files (rule E4).

Order of writing: archive, both files, then the removal of segments.  So a record never names a segment that is needed,
and what a crash leaves before it is removed when the log is opened again.  One damaged file leaves the other.
"""

from __future__ import annotations

import json
import zlib
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from spe.errors import SpeError
from spe.runtime.env import Storage
from spe.stream.times import BEFORE_TIME, format_timestamp

#: The files, each with the whole record.
NAMES: Final = ("kept.0", "kept.1")


class LogCut(SpeError):
    """The beginning of a log was deleted by ``retain``, and is needed here."""


class KeptLog(NamedTuple):
    """Where a log begins.

    Attributes:
      first: number of its first record; 1: nothing was deleted.
      last_id: of the last tuple before it.
      until_us: the log is whole from this tuple time on; BEFORE_TIME where nothing was deleted.
      segments, bytes: deleted so far.
      archive: where a copy of these is; "" where there is none.
    """

    first: int = 1
    last_id: int = 0
    until_us: int = BEFORE_TIME
    segments: int = 0
    bytes: int = 0
    archive: str = ""

    def text(self, folder: object) -> str:
        """What was deleted, for people."""
        there = f"; a copy is in {self.archive}" if self.archive else ""
        when = "" if self.until_us <= BEFORE_TIME else f", {format_timestamp(self.until_us)}"
        return f"{folder}: the log begins behind id {self.last_id}{when}: `retain` deleted what came before{there}"


WHOLE: Final = KeptLog()


def read_kept(storage: Storage, folder: PurePosixPath) -> KeptLog:
    """The newest record that is not damaged; WHOLE where there is none."""
    return max((one for one in _records(storage, folder) if one is not None), default=WHOLE)


def need_whole(storage: Storage, folder: PurePosixPath) -> None:
    """Raises LogCut for a log whose beginning is gone."""
    if (kept := read_kept(storage, folder)).first > 1:
        raise LogCut(kept.text(folder))


def need_judged(storage: Storage, folder: PurePosixPath, name: object) -> None:
    """Raises LogCut for a log or a recording whose beginning is gone, so that the run cannot be judged.

    Args:
      name: of the folder, for people.
    """
    if (kept := read_kept(storage, folder)).first > 1:
        how = "spe restore brings it back" if kept.archive else "spe report --follow proves what is left"
        raise LogCut(f"{kept.text(name)}. What was deleted cannot be judged any more; {how}")


async def write_kept(storage: Storage, folder: PurePosixPath, kept: KeptLog) -> None:
    """Writes a record into both files.  Raises OSError; then what it releases must not be removed."""
    data = encode_kept(kept)
    for name in NAMES:
        await storage.write_atomic(folder / name, data)


async def repair_kept(storage: Storage, folder: PurePosixPath) -> None:
    """Makes both files say the same, where one is behind or damaged.  Raises OSError."""
    found = _records(storage, folder)
    newest = max((one for one in found if one is not None), default=WHOLE)
    if newest.first > 1 and any(one != newest for one in found):
        await write_kept(storage, folder, newest)


def encode_kept(kept: KeptLog) -> bytes:
    """A line of JSON and its checksum."""
    body = json.dumps(kept._asdict(), sort_keys=True).encode()
    return body + b"\n%08x\n" % zlib.crc32(body)


def _records(storage: Storage, folder: PurePosixPath) -> list[KeptLog | None]:
    return [_decode(storage.read(folder / n)) if storage.exists(folder / n) else None for n in NAMES]


def _decode(data: bytes) -> KeptLog | None:
    body, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % zlib.crc32(body):
        return None
    try:
        return KeptLog(**json.loads(body))
    except (ValueError, TypeError):  # of another version
        return None
