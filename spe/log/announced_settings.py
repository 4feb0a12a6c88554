"""What a client recorded of X, α, policies and waits: as nodes announced them, with the times of receipt.

Records of segments as in ``spe.log.recording``, in a folder beside those of the channels.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final, NamedTuple

import msgpack

from spe.errors import LogCorrupt
from spe.log.recording import read_segments
from spe.runtime.env import Storage
from spe.wire.messages import Announcement, announcements

#: Its folder, below a client's.
ANNOUNCED: Final = "announced"
_ARRIVED: Final = struct.Struct("<q")


class RecordedAnnouncement(NamedTuple):
    """Attributes: ``arrived_us``: wall time of receipt, microseconds since the epoch."""

    arrived_us: int
    said: Announcement


def announced_folder(folder: PurePosixPath) -> PurePosixPath:
    """Where announcements lie below a client's folder."""
    return folder / ANNOUNCED


def encode_announced(arrived_us: int, said: Announcement) -> bytes:
    """The body of a record."""
    return _ARRIVED.pack(arrived_us) + bytes(msgpack.packb(list(said), use_bin_type=True))


def read_announced(storage: Storage, folder: PurePosixPath) -> Iterator[RecordedAnnouncement]:
    """In order of receipt; nothing where nothing was recorded.

    Args:
      folder: :func:`announced_folder` of a client's.

    Raises:
      LogCorrupt: damage anywhere but at the end of a session.
    """
    for record in read_segments(storage, folder):
        try:
            (arrived_us,) = _ARRIVED.unpack_from(record.body)
            (said,) = announcements([msgpack.unpackb(record.body[_ARRIVED.size :], raw=False)])
        except Exception as error:  # msgpack raises half a dozen unrelated types
            raise LogCorrupt(f"{folder}: record {record.position.sequence} is no announcement: {error}") from error
        yield RecordedAnnouncement(arrived_us, said)
