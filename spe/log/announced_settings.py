"""A client's record of the X, α, policies and waits that nodes announced, with the times of receipt.

The segments are those of ``spe.log.recording``, in a folder next to the folders of the channels.
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
from spe.wire.messages.feeds import Announcement, announcements

#: Folder of the announcements, below a client's.
ANNOUNCED: Final = "announced"
_ARRIVED: Final = struct.Struct("<q")


class RecordedAnnouncement(NamedTuple):
    """An announcement; ``arrived_us`` is the wall time of its receipt, microseconds since the epoch."""

    arrived_us: int
    announcement: Announcement


def announced_folder(folder: PurePosixPath) -> PurePosixPath:
    """Returns the folder of announcements below a client's folder."""
    return folder / ANNOUNCED


def encode_announced(arrived_us: int, announcement: Announcement) -> bytes:
    """Returns the body of a record."""
    return _ARRIVED.pack(arrived_us) + bytes(msgpack.packb(list(announcement), use_bin_type=True))


def read_announced(storage: Storage, folder: PurePosixPath) -> Iterator[RecordedAnnouncement]:
    """Reads announcements in order of receipt; none if the folder does not exist.

    Args:
      folder: the client's :func:`announced_folder`.

    Raises:
      LogCorrupt: damage anywhere but at the end of a session.
    """
    for record in read_segments(storage, folder):
        try:
            (arrived_us,) = _ARRIVED.unpack_from(record.body)
            (announcement,) = announcements([msgpack.unpackb(record.body[_ARRIVED.size :], raw=False)])
        except Exception as error:  # msgpack raises half a dozen unrelated types
            raise LogCorrupt(f"{folder}: record {record.position.sequence} is no announcement: {error}") from error
        yield RecordedAnnouncement(arrived_us, announcement)
