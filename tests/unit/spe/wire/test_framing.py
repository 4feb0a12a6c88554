"""Frames do not depend on the pieces in which bytes arrive, and announced lengths are bounded."""

from __future__ import annotations

import struct
import sys
from itertools import combinations, pairwise

import numpy as np
import pytest

from spe.errors import LocalProtocolError, RemoteProtocolError
from spe.wire.framing import (
    CONTROL_BYTES,
    HEADER_BYTES,
    MAGIC,
    UNAUTHENTICATED_BYTES,
    FrameReader,
    FrameType,
    check_length,
    frame,
)

STREAM = [
    (FrameType.CONTROL, b""),
    (FrameType.CONTROL, b"a"),
    (FrameType.BATCH, bytes(range(256)) * 20),
    (FrameType.UNDO, b"12345678"),
    (FrameType.BATCH, b"x" * 15),
]
DATA = b"".join(frame(t, b) for t, b in STREAM)


def header(type_: int, length: int, magic: int = MAGIC, zero: int = 0) -> bytes:
    return struct.pack("<HBBI", magic, type_, zero, length)


def frames_of(*pieces: bytes, limit: int = 1 << 20) -> list[tuple[FrameType, bytes]]:
    reader = FrameReader(limit)
    found = [(f.type, bytes(f.body)) for piece in pieces for f in reader.feed(piece)]
    reader.finish()
    return found


def test_a_frame_is_header_body_and_padding_to_eight() -> None:
    assert frame(FrameType.UNDO, b"abc") == header(FrameType.UNDO, 3) + b"abc" + bytes(5)


def test_all_frames_in_one_piece_are_read() -> None:
    assert frames_of(DATA) == STREAM


def test_frames_that_arrive_one_byte_at_a_time_are_the_same() -> None:
    assert frames_of(*[DATA[i : i + 1] for i in range(len(DATA))]) == STREAM


def test_frames_cut_anywhere_in_two_are_the_same() -> None:
    for cut in range(len(DATA)):
        assert frames_of(DATA[:cut], DATA[cut:]) == STREAM


def test_frames_cut_anywhere_in_three_are_the_same() -> None:
    cuts = [*range(0, 40), *range(40, len(DATA), 211)]
    for first, second in combinations(cuts, 2):
        assert frames_of(DATA[:first], DATA[first:second], DATA[second:]) == STREAM


def test_an_unfinished_frame_is_an_error_only_at_the_end() -> None:
    reader = FrameReader()
    assert [(f.type, bytes(f.body)) for f in reader.feed(DATA[:HEADER_BYTES])] == [(FrameType.CONTROL, b"")]
    assert reader.feed(DATA[HEADER_BYTES : HEADER_BYTES + 9]) == []
    with pytest.raises(RemoteProtocolError, match=r"ended inside a frame at byte 8: 9 of 16 bytes"):
        reader.finish()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"GET / HTTP/1.1\r\n", "no frame header: magic 0x4547"),
        (header(99, 0), "type 99"),
        (header(0, 0), "type 0"),
        (header(FrameType.BATCH, 0, zero=1), "reserved byte 1"),
        (header(FrameType.BATCH, UNAUTHENTICATED_BYTES + 1), f"at most {UNAUTHENTICATED_BYTES}"),
        (header(FrameType.BATCH, 2**32 - 1), "a BATCH frame of 4294967295 bytes"),
        (header(FrameType.UNDO, 1000), "a UNDO frame of 1000 bytes; at most 32"),
    ],
)
@pytest.mark.parametrize("step", [1, 5, 18, 1000])
def test_nonsense_and_memory_bombs_are_refused_at_the_header(data: bytes, what: str, step: int) -> None:
    """The error names the byte of the stream, before anything of the announced length arrives."""
    good = frame(FrameType.UNDO, b"12345678")
    stream = good + data
    with pytest.raises(RemoteProtocolError, match=f"at byte {len(good)} of the stream: .*{what}"):
        frames_of(*[stream[at : at + step] for at in range(0, len(stream), step)], limit=UNAUTHENTICATED_BYTES)


def test_the_limit_can_be_raised_once_the_peer_is_known() -> None:
    large = frame(FrameType.BATCH, bytes(UNAUTHENTICATED_BYTES + 8))
    reader = FrameReader()
    reader.limit = 1 << 20
    assert len(reader.feed(large)) == 1


def test_control_frames_have_their_own_bound() -> None:
    """Unpacking a msgpack body can take many times its size."""
    reader = FrameReader(1 << 30)
    with pytest.raises(RemoteProtocolError, match="a CONTROL frame"):
        reader.feed(header(FrameType.CONTROL, CONTROL_BYTES + 1))


def test_small_and_unaligned_frames_are_copied() -> None:
    small, large = frame(FrameType.BATCH, b"small!!!"), frame(FrameType.BATCH, bytes(4096))
    assert [f.keep for f in FrameReader().feed(small + large)] == [False, True]
    reader = FrameReader()
    assert [f.keep for f in reader.feed(large[:5])] == []
    assert [f.keep for f in reader.feed(large[5:] + large)] == [True, False]


@pytest.mark.parametrize("ends", [(3_000,), (3_000, 3_500), (3_000, 3_007, 3_008)])
def test_a_large_frame_in_pieces_is_aligned(ends: tuple[int, ...]) -> None:
    """Also one whose first piece is unaligned at the end of a chunk."""
    before, body = frame(FrameType.UNDO, b"12345678"), bytes(range(256)) * 20
    stream, reader = before + frame(FrameType.BATCH, body), FrameReader()
    found = [f for start, end in pairwise((0, *ends, len(stream))) for f in reader.feed(stream[start:end])]
    assert [bytes(f.body) for f in found] == [b"12345678", body]
    assert found[1].keep
    assert np.frombuffer(found[1].body, np.int64).ctypes.data % 8 == 0


def test_chunk_is_retained_only_for_its_larger_part() -> None:
    """So that a few bytes of a frame do not keep half a megabyte alive."""
    large = frame(FrameType.BATCH, bytes(4096))
    for chunk, kept in ((large + large[:20], False), (large + large[:2_000], True)):
        before = sys.getrefcount(chunk)
        reader = FrameReader()
        reader.feed(chunk)
        assert (sys.getrefcount(chunk) > before) == kept
        (found,) = reader.feed(large[len(chunk) - len(large) :])
        assert bytes(found.body) == bytes(4096)
        assert sys.getrefcount(chunk) == before


def test_bodies_are_read_only() -> None:
    data = bytearray(frame(FrameType.BATCH, bytes(64)))
    whole = FrameReader().feed(data)
    pieces = FrameReader()
    pieces.feed(data[:20])
    for f in [*whole, *pieces.feed(data[20:])]:
        assert memoryview(f.body).readonly
    data[HEADER_BYTES] = 1
    assert bytes(whole[0].body) == bytes(64)


def test_frames_that_no_peer_accepts_are_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="a BATCH frame of 101 bytes; at most 100"):
        check_length(FrameType.BATCH, 101, 100)
