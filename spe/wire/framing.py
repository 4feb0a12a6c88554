"""Frames: how a byte stream is cut into typed pieces, each bounded before memory is spent on it.

A frame is an 8-byte header, ``<HBBI``: magic, type, zero, length of the body; then the body; then zeros up to a
multiple of 8.  So every body starts at a multiple of 8 of the byte stream, and columns in it can be used in place.
"""

from __future__ import annotations

import enum
import struct
from typing import Any, Final, NamedTuple, Union

from spe.errors import LocalProtocolError, RemoteProtocolError

#: What a body is: ``bytes``, or a read-only view of what was received.
Buffer = Union[bytes, memoryview]  # noqa: UP007 - used at run time by type aliases elsewhere

#: Before authentication nobody may make us keep more than this (as nested msgpack: 5 MiB of objects).
UNAUTHENTICATED_BYTES: Final = 64 << 10
#: A control message is a small flat msgpack value; what unpacking it costs is some 70 times its size.
CONTROL_BYTES: Final = 256 << 10
#: The same of a status, which has an entry for each replica or channel; accepted by those who ask for one only.
STATUS_BYTES: Final = 4 << 20
#: A frame with tuples, unless the configuration says otherwise.
FRAME_BYTES: Final = 16 << 20
#: Boundary, undo and rec_done have bodies of fixed size, all below this.
MARK_BYTES: Final = 32

HEADER_BYTES: Final = 8
MAGIC: Final = 0xDC5B
_HEADER: Final = struct.Struct("<HBBI")
_ZEROS: Final = tuple(bytes(n) for n in range(8))


class FrameType(enum.IntEnum):
    """What a body holds."""

    CONTROL = 1
    BATCH = 2
    BOUNDARY = 3
    UNDO = 4
    REC_DONE = 5
    STRINGS = 6


_MARKS: Final = frozenset({FrameType.BOUNDARY, FrameType.UNDO, FrameType.REC_DONE})
#: Bounds of their own that types have, by type byte.
_OWN_BOUNDS: Final = tuple(
    (int(t), MARK_BYTES if t in _MARKS else CONTROL_BYTES if t is FrameType.CONTROL else None) for t in FrameType
)
#: By type byte; None where there is no such type.
_TYPES: Final[tuple[Any, ...]] = tuple({int(t): t for t in FrameType}.get(n) for n in range(256))


class Frame(NamedTuple):
    """One received frame.

    Attributes:
      body: may share memory with other frames of the same chunk; never written to.
      keep: what refers to the body may stay.  Else it would keep a chunk alive that is much larger, or lies where
        columns cannot be used in place: who keeps it copies it first.
    """

    type: FrameType
    body: Buffer
    keep: bool = True


def frame(type_: FrameType, body: bytes) -> bytes:
    """A whole frame in one piece."""
    length = len(body)
    return _HEADER.pack(MAGIC, type_, 0, length) + body + _ZEROS[-length & 7]


class FrameReader:
    """Cuts a byte stream into frames, however it arrives.

    A length beyond the limit is refused as soon as its header is here; a frame that arrives in pieces takes no more
    memory than four times what has come of it.  One that lies whole in one chunk is a view of it; one that lies in two
    is copied once.

    Args:
      limit: largest body accepted.  May be raised at any time (:attr:`limit`), and is, once the peer is known.
    """

    __slots__ = ("_bounds", "_header_known", "_limit", "_need", "_offset", "_partial")

    def __init__(self, limit: int = UNAUTHENTICATED_BYTES) -> None:
        #: What is here of a frame that is not whole; a view, while it is all in one chunk and the better part of it.
        self._partial: bytearray | memoryview = bytearray()
        #: Size that ``_partial`` must reach before there is something to do.
        self._need = HEADER_BYTES
        self._header_known = False
        #: Bytes of the stream before ``_partial``: where we are, for error messages.
        self._offset = 0
        self._bounds: list[int] = []
        self.limit = limit

    @property
    def limit(self) -> int:
        """Largest body accepted, bytes; types with a smaller bound of their own keep it."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._bounds = bounds = [-1] * 256
        for type_, own in _OWN_BOUNDS:
            bounds[type_] = limit if own is None or limit < own else own

    def allow_status(self) -> None:
        """A status may come, as an answer: until the limit is set anew, a control message may be as large as that."""
        self._bounds[FrameType.CONTROL] = STATUS_BYTES

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """All frames that are complete with ``data``.

        Raises:
          RemoteProtocolError: no frame starts where one must, or it is larger than its type or the limit allows.
            The stream is lost from there on.
        """
        frames: list[Frame] = []
        if type(data) is not bytes:  # frames are views of it, so it must not change later
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
            # Frame(…) without a Python call, of which there would be one for each frame.
            frames.append(new(Frame, (types[type_], view[start:stop], not at & 7 and 4 * length >= end)))
            at = following
        if at < end:
            rest = view[at:]
            self._partial = rest if 4 * len(rest) >= end else bytearray(rest)  # as with Frame.keep
        self._offset += at
        return frames

    def finish(self) -> None:
        """The stream has ended.

        Raises:
          RemoteProtocolError: it ended inside a frame.
        """
        if self._partial:
            raise RemoteProtocolError(
                f"the stream ended inside a frame at byte {self._offset}: {len(self._partial)} of {self._need} bytes"
            )

    def _continue(self, data: bytes, frames: list[Frame]) -> int:
        """Adds to the incomplete frame; returns how much of ``data`` belonged to it."""
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
        # What follows in ``data`` is counted by feed() from its own ``at``; only what came before is behind us here.
        self._offset += self._need - at
        self._partial = bytearray()
        self._need = HEADER_BYTES
        self._header_known = False
        return at

    def _add(self, piece: memoryview) -> None:
        """To what is here.  Two pieces that make a frame are copied once; with more, each is when it comes."""
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
    """Raises LocalProtocolError when a body that we are about to send is beyond what a peer accepts."""
    if length > limit:
        raise LocalProtocolError(f"a {type_.name} frame of {length} bytes; at most {limit} may be sent")
