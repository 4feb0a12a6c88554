"""Bad bytes give elements, "not yet", or RemoteProtocolError, nothing else, and take little memory."""

from __future__ import annotations

import os
import tracemalloc
import zlib
from collections.abc import Callable
from random import Random

import msgpack
import pytest

from spe.errors import RemoteProtocolError
from spe.status import plain
from spe.stream.batch import Batch, Boundary, Rows, Undo
from spe.stream.names import Kind, NodeState
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.wire.codec import ElementDecoder, ElementEncoder
from spe.wire.framing import CONTROL_BYTES, UNAUTHENTICATED_BYTES, Frame, FrameReader, FrameType, frame
from spe.wire.greeting import check_hello
from spe.wire.messages.commands import Status
from spe.wire.messages.connection import PROTOCOL, Hello, Welcome
from spe.wire.messages.feeds import (
    Ack,
    Announced,
    Announcement,
    Heartbeat,
    HeartbeatAnswer,
    Held,
    Load,
    OutputStatus,
    Subscribe,
)
from spe.wire.messages.message import HELLO_VALUES_MAX, decode_message
from spe.wire.state import decode_state, encode_state
from tests.support.statuses import a_node, a_replica

SCHEMA = Schema.of(word="string", n="int64", x="float64!", on="bool")
#: Inputs in all; more by hand: ``FUZZ=10000000 pytest tests/property/test_wire_fuzz.py``.
INPUTS = int(os.environ.get("FUZZ", "200000"))


def control_stream() -> bytes:
    output = OutputStatus("out", 0, NodeState.STABLE, False, 9, 100, 120, 1, 0.5)
    messages = [
        Hello(1, 2, "demo", "client", "client:c", 2, "f00d", "secret"),
        Subscribe("out", 0, "client:c", "main", 4, 50, True, 60, 0, 1, ""),
        Heartbeat(1, 2, 100_000, (Ack("out", 0, "client:c", 4),)),
        HeartbeatAnswer(1, 7, (output, output), (Held("u1", 0, 2),), (Load("u1", 0, 0.25, 3e6, 1e5, 1e3, 2e6),)),
        Announced([Announcement("n1", "u1", 3, 17, 2_000_000, 1_000_000, 0.9, "process", "delay", "undo", 1_234)]),
        Status(a_node("n1", a_replica(counters={"s1.late": 3}))),
    ]
    return b"".join(m.encode() for m in messages)


def element_stream() -> bytes:
    rows = Rows.from_tuples(SCHEMA, [1, 2, 3], [("a", 1, 0.5, True), (None, None, 1.5, None), ("b", 3, 2.5, False)])
    batch = Batch(Kind.STABLE, 3, 6, None, rows)
    return ElementEncoder(SCHEMA).encode_many([batch, Boundary(Kind.STABLE, 4, 6), batch.after(4), Undo(6)])


def receive(pieces: list[bytes]) -> int:
    """Receives both kinds of frames; returns how many it decoded before the end or an error."""
    reader, decoder, understood = FrameReader(), ElementDecoder(SCHEMA, StringPool()), 0
    try:
        for piece in pieces:
            for found in reader.feed(piece):
                if found.type is FrameType.CONTROL:
                    decode_message(found.body)
                else:
                    decoder.decode(found)
                understood += 1
    except RemoteProtocolError:
        pass
    return understood


def mutated(data: bytes, random: Random) -> bytes:
    """``data`` with one to four bytes changed, removed, doubled or cut off."""
    out = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(out))
        match random.randrange(5):
            case 0:
                out[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
            case 1:
                out[at] ^= 1 << random.randrange(8)
            case 2:
                del out[at : at + random.randint(1, 8)]
            case 3:
                out[at:at] = out[at : at + random.randint(1, 16)]
            case _:
                del out[at + 1 :]
        if not out:
            return b""
    return bytes(out)


@pytest.mark.parametrize("make", [control_stream, element_stream])
def test_mutated_streams_are_decoded_or_refused(make: Callable[[], bytes]) -> None:
    data, random = make(), Random(20)
    whole = receive([data])
    assert whole >= 5
    counts = {receive([mutated(data, random)]) for _ in range(INPUTS // 5)}
    assert {0, whole} <= counts, "mutations should hit the first frame at times, and sometimes nothing that matters"


@pytest.mark.parametrize("make", [control_stream, element_stream])
def test_a_mutated_stream_is_decoded_the_same_byte_by_byte(make: Callable[[], bytes]) -> None:
    data, random = make(), Random(21)
    for _ in range(60):
        bad = mutated(data, random)
        # A chunk is refused as a whole, so fewer frames may be decoded, but never more.
        assert receive([bad]) <= receive([bad[i : i + 1] for i in range(len(bad))])


def test_mutated_bodies_with_good_headers_are_decoded_or_refused() -> None:
    """Most random damage is refused at a frame header; here the header is intact."""
    frames = FrameReader().feed(control_stream() + element_stream())
    random, refused, count = Random(22), 0, 2 * INPUTS // 5
    for _ in range(count):
        kind, body, _ = random.choice(frames)
        bad = Frame(kind, mutated(bytes(body), random))
        try:
            if kind is FrameType.CONTROL:
                decode_message(bad.body)
            else:
                ElementDecoder(SCHEMA, StringPool()).decode(bad)
        except RemoteProtocolError:
            refused += 1
    assert 0 < refused < count


def test_mutated_states_with_valid_checksums_decode_or_fail() -> None:
    rows = Rows.from_tuples(SCHEMA, [1, 2], [("a", 1, 0.5, True), (None, None, 1.5, None)])
    data, random, refused = encode_state({"rows": rows, "list": [1, (2.5, None)], "b": b"x"}), Random(23), 0
    header, body = data[:24], data[24:]
    for _ in range(INPUTS // 10):
        bad = mutated(body, random)
        try:
            decode_state(header[:8] + zlib.crc32(bad).to_bytes(4, "little") + header[12:] + bad)
        except RemoteProtocolError:
            refused += 1
    assert 0 < refused < INPUTS // 10


def test_mutated_hellos_are_answered_or_refused() -> None:
    """A damaged hello is accepted only if cluster, token and plan are intact."""
    hello = Hello(*PROTOCOL, "demo", "client", "client:c", 2, "f00d", "secret")
    body, random, welcome = FrameReader().feed(hello.encode())[0].body, Random(25), 0
    for _ in range(INPUTS // 10):
        try:
            found = decode_message(mutated(bytes(body), random))
        except RemoteProtocolError:
            continue
        if isinstance(found, Hello):
            answer = check_hello(found, cluster="demo", fingerprint="f00d", token="secret", name="n1", incarnation=1)
            if isinstance(answer, Welcome):
                welcome += 1
                assert (found.cluster, found.token) == ("demo", "secret")
                assert found.lowest <= PROTOCOL.lowest <= PROTOCOL.highest <= found.highest
    assert welcome > 0


def test_random_bytes_are_refused() -> None:
    random = Random(24)
    for _ in range(500):
        with pytest.raises(RemoteProtocolError):
            FrameReader().feed(random.randbytes(random.randint(8, 200)))


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\xff\xff\xff\xff" + b"\x90" * 60_000,  # an array of 4 Gi entries
        b"\xdf\xff\xff\xff\xff" + b"\x80" * 60_000,
        b"\xdb\xff\xff\xff\xff" + b"x" * 60_000,
        b"\x91" * 65_000,  # nested as deep as it gets
        b"\xdc\x0f\xff" + b"\x80" * 4_095,
        b"\xdc\x0f\xff" + (b"\xdc\x00\x0f" + b"\x80" * 15) * 3_000,
        b"\xdc\x0f\xff" * 20_000,  # lists in lists, for each of which 32 KiB would be taken
        b"\xdc\x0f\xff" * 500,
    ],
)
def test_a_memory_bomb_before_the_hello_takes_little_memory(bomb: bytes) -> None:
    """Its cost is computed before anything is built."""
    data = frame(FrameType.CONTROL, bomb[: UNAUTHENTICATED_BYTES - 8])
    tracemalloc.start()
    try:
        (found,) = FrameReader().feed(data)
        with pytest.raises(RemoteProtocolError):
            decode_message(found.body, HELLO_VALUES_MAX)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "fill",
    [
        b"\x80" * 4_095,
        b"\x90" * 4_095,
        b"\xa2ab" * 4_095,
        (b"\xdc\x0f\xff" + b"\x80" * 4_095) * 60,
        b"\xdc\x0f\xff" * 80_000,
    ],
)
def test_a_memory_bomb_takes_no_more_than_the_largest_message(fill: bytes) -> None:
    assert_cheap((b"\x92\x12\x81\xa1k\xdc\x0f\xff" + (fill * 60 if len(fill) < 20_000 else fill))[:CONTROL_BYTES])


@pytest.mark.parametrize("entry", [{}, 0, [], {"unit": 1}], ids=str)
def test_status_of_bad_entries_costs_at_most_largest_message(entry: object) -> None:
    """Each entry has two dozen mistakes; the first one is reported."""
    data = plain(a_node("n1")) | {"replicas": [entry] * 4_000, "standbys": [entry] * 4_000}
    assert_cheap(msgpack.packb([Status.TAG, data]))


def assert_cheap(body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decode_message(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_an_announced_frame_that_does_not_come_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        reader = FrameReader(1 << 30)
        reader.feed(b"\x5b\xdc\x02\x00\x00\x00\x00\x3f")  # a BATCH of 1,008 MiB
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
