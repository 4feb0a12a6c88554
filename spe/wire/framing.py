"""Frames: typed pieces of a byte stream, each bounded before memory is allocated for it.

A frame is an 8-byte header, ``<HBBI``: magic, type, zero, length of the body; then the body; then zeros up to a
multiple of 8.  So every body starts at a multiple of 8 in the stream, and its columns can be used in place.
"""

from __future__ import annotations

import enum
import struct
from typing import Any, Final, NamedTuple, Union

from spe.errors import LocalProtocolError, RemoteProtocolError

#: A body: ``bytes``, or a read-only view of received bytes.
Buffer = Union[bytes, memoryview]  # noqa: UP007 - used at run time by type aliases elsewhere

#: Largest body before authentication (as nested msgpack: 5 MiB of objects).
UNAUTHENTICATED_BYTES: Final = 64 << 10
#: Largest control message, a small flat msgpack value; unpacking costs some 70 times its size.
CONTROL_BYTES: Final = 256 << 10
#: Largest status, which has an entry for each replica or channel; accepted only as an answer to a request.
STATUS_BYTES: Final = 4 << 20
#: Default of the largest frame with tuples.
FRAME_BYTES: Final = 16 << 20
#: Limit of boundary, undo and rec_done, which have bodies of fixed size.
MARK_BYTES: Final = 32

HEADER_BYTES: Final = 8
MAGIC: Final = 0xDC5B
_HEADER: Final = struct.Struct("<HBBI")
_ZEROS: Final = tuple(bytes(n) for n in range(8))


class FrameType(enum.IntEnum):
    """Type of a body."""

    CONTROL = 1
    BATCH = 2
    BOUNDARY = 3
    UNDO = 4
    REC_DONE = 5
    STRINGS = 6


_MARKS: Final = frozenset({FrameType.BOUNDARY, FrameType.UNDO, FrameType.REC_DONE})
#: Specific limits of types, by type byte.
_OWN_BOUNDS: Final = tuple(
    (int(t), MARK_BYTES if t in _MARKS else CONTROL_BYTES if t is FrameType.CONTROL else None) for t in FrameType
)
#: Types by type byte; None for unused bytes.
_TYPES: Final[tuple[Any, ...]] = tuple({int(t): t for t in FrameType}.get(n) for n in range(256))


class Frame(NamedTuple):
    """A received frame.

    Attributes:
      body: may share memory with other frames of the same chunk; never written to.
      keep: references to the body may be kept.  Otherwise copy it first: it is in a much larger chunk, or not aligned
        for columns.
    """

    type: FrameType
    body: Buffer
    keep: bool = True


def frame(type_: FrameType, body: bytes) -> bytes:
    """Returns a whole frame in one piece."""
    length = len(body)
    return _HEADER.pack(MAGIC, type_, 0, length) + body + _ZEROS[-length & 7]


class FrameReader:
    """Cuts a byte stream, in chunks of any size, into frames.

    A length beyond the limit is refused as soon as its header is complete; a frame that arrives in pieces takes no more
    memory than four times the received part.  A frame in one chunk is a view of it; a frame in two chunks is copied
    once.

    Args:
      limit: largest body accepted; to be raised once the peer is known (:attr:`limit`).
    """

    __slots__ = ("_bounds", "_header_known", "_limit", "_need", "_offset", "_partial")

    def __init__(self, limit: int = UNAUTHENTICATED_BYTES) -> None:
        #: Received part of an incomplete frame; a view while it is in one chunk, and a large part of the chunk.
        self._partial: bytearray | memoryview = bytearray()
        #: Size of ``_partial`` at which processing continues.
        self._need = HEADER_BYTES
        self._header_known = False
        #: Bytes of the stream before ``_partial``, for error messages.
        self._offset = 0
        self._bounds: list[int] = []
        self.limit = limit

    @property
    def limit(self) -> int:
        """Largest body accepted, bytes; types with a smaller specific limit keep it."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._bounds = bounds = [-1] * 256
        for type_, own in _OWN_BOUNDS:
            bounds[type_] = limit if own is None or limit < own else own

    def allow_status(self) -> None:
        """Allows control messages of the size of a status, until the limit is set again."""
        self._bounds[FrameType.CONTROL] = STATUS_BYTES

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Returns all frames that ``data`` completes.

        Raises:
          RemoteProtocolError: the bytes are no frame, or the frame is larger than its type or the limit allows.
            The rest of the stream is unusable.
        """
        frames: list[Frame] = []
        if type(data) is not bytes:  # frames are views of the data, so it must not change later
            data = bytes(data)
        at, end = 0, len(data)
        if self._partial:
            at = self._continue(data, frames)
            if self._partial:
                return frames
        view = memoryview(data)
        bounds, unpack, new, types = self._bounds, _HEADER.unpack_from, tuple.__new__, _TYPES
        while end - at >= HEADER_BYTES:
            magic, type_, zero, length = unpack(data, at)
            if magic != MAGIC or zero or length > bounds[type_]:
                raise self._refusal(magic, type_, zero, length, self._offset + at)
            start = at + HEADER_BYTES
            stop = start + length
            following = stop + (-length & 7)
            if following > end:
                self._need = following - at
                self._header_known = True
                break
            # Frame(…) without a Python call per frame.
            frames.append(new(Frame, (types[type_], view[start:stop], not at & 7 and 4 * length >= end)))
            at = following
        if at < end:
            rest = view[at:]
            self._partial = rest if 4 * len(rest) >= end else bytearray(rest)  # as with Frame.keep
        self._offset += at
        return frames

    def finish(self) -> None:
        """Checks the end of the stream.

        Raises:
          RemoteProtocolError: it ended inside a frame.
        """
        if self._partial:
            raise RemoteProtocolError(
                f"the stream ended inside a frame at byte {self._offset}: {len(self._partial)} of {self._need} bytes"
            )

    def _continue(self, data: bytes, frames: list[Frame]) -> int:
        """Adds to the incomplete frame; returns the number of bytes of ``data`` in it."""
        view, at = memoryview(data), 0
        while True:
            missing = self._need - len(self._partial)
            if missing:
                self._add(view[at : at + missing])
                at += missing
                if len(self._partial) < self._need:
                    return len(data)
            if self._header_known:
                break
            magic, type_, zero, length = _HEADER.unpack_from(self._partial)
            if magic != MAGIC or zero or length > self._bounds[type_]:
                raise self._refusal(magic, type_, zero, length, self._offset)
            self._need = HEADER_BYTES + length + (-length & 7)
            self._header_known = True
        _, type_, _, length = _HEADER.unpack_from(self._partial)
        body = memoryview(self._partial).toreadonly()[HEADER_BYTES : HEADER_BYTES + length]
        frames.append(Frame(FrameType(type_), body))
        # feed() counts the rest of ``data`` from its own ``at``; only the bytes before it are counted here.
        self._offset += self._need - at
        self._partial = bytearray()
        self._need = HEADER_BYTES
        self._header_known = False
        return at

    def _add(self, piece: memoryview) -> None:
        """Appends to the partial frame.  Two pieces are copied once; further pieces are copied as they come."""
        if isinstance(self._partial, bytearray):
            self._partial += piece
        else:
            self._partial = bytearray().join((self._partial, piece))

    def _refusal(self, magic: int, type_: int, zero: int, length: int, offset: int) -> RemoteProtocolError:
        known = _TYPES[type_]
        if magic != MAGIC or zero or known is None:
            what = f"no frame header: magic {magic:#06x}, type {type_}, reserved byte {zero}"
        else:
            what = f"a {known.name} frame of {length} bytes; at most {self._bounds[type_]} are accepted here"
        return RemoteProtocolError(f"at byte {offset} of the stream: {what}")


def check_length(type_: FrameType, length: int, limit: int) -> None:
    """Raises LocalProtocolError if a body is larger than peers accept."""
    if length > limit:
        raise LocalProtocolError(f"a {type_.name} frame of {length} bytes; at most {limit} may be sent")
