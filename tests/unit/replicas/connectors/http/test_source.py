"""A source that takes POST requests: each row once, and bounds on whoever sends them."""

from __future__ import annotations

import io
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
import yaml

pytest.importorskip("h11", reason="HTTP is not tested: h11 is not installed")

from replicas.connectors import open_reader
from replicas.connectors.http import server as http_server
from replicas.connectors.http.senders import SENDERS_MAX, RequestKey, SenderNumbers
from replicas.connectors.http.server import Answer, RequestServer
from replicas.connectors.http.source import HttpReceiver
from replicas.connectors.reader import CHUNK_ROWS, RowChunk
from replicas.source.admission import Admission
from replicas.testing import check_reader
from spe.config import load_data
from spe.errors import ConfigError, SpeError
from spe.runtime.certificates import issue
from spe.runtime.network import TcpNetwork, parse_address
from spe.stream.names import StreamId
from spe.stream.times import parse_timestamp
from tests.support.http_peers import SCHEMA, Peer, Reply, Sender, row_of
from tests.support.schema_registry import registry, written
from tests.support.source_env import source_env

ROWS = [row_of(n) for n in range(7)]
GOOD = json.dumps(row_of(1)).encode()
KEY = {"Idempotency-Key": '"a:1"'}


def configured(reader: Any, schema: Any = SCHEMA, **options: Any) -> Any:
    source = {"schema": schema, "time": "ts", "from": {"http": reader, **options}}
    config = {"sources": {"s": source}, "query": {"q": {"filter": {"from": "s", "where": "true"}}}, "outputs": ["q"]}
    return load_data(config, "the source", ".").plan.sources[StreamId("s")]


class Receiving:
    """A receiver, its log as a list, and connections in memory.

    Attributes:
      chunks: in its log; synced by another task, unless ``syncs`` is not set.
      room: what a chunk waits for.
    """

    def __init__(self, reader: HttpReceiver, nursery: trio.Nursery) -> None:
        self.reader = reader
        self.chunks: list[RowChunk] = []
        self.syncs = True
        self.room = trio.Event()
        self.room.set()
        self._nursery = nursery

    async def accept(self, chunk: RowChunk) -> None:
        self.chunks.append(chunk)
        if self.syncs:
            self._nursery.start_soon(self._sync, chunk.cursor)
        await trio.lowlevel.checkpoint()
        await self.room.wait()

    async def _sync(self, cursor: bytes) -> None:
        for _ in range(3):  # the receiver goes on meanwhile
            await trio.lowlevel.checkpoint()
        self.reader.durable(cursor)

    async def connect(self, address: str, seconds: float) -> trio.abc.Stream:
        raise NotImplementedError

    async def serve(
        self,
        address: str,
        handler: Callable[[trio.abc.Stream], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str],
    ) -> None:
        self._handler = handler
        task_status.started(address)
        await trio.sleep_forever()

    def stream(self) -> trio.StapledStream[Any, Any]:
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._handler, theirs)
        return ours

    async def ask(self, body: bytes | None = GOOD, method: str = "POST", **headers: str) -> Reply:
        """One request on a connection of its own."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return await Peer(self.stream()).ask(method, given, body)

    async def raw(self, data: bytes) -> bytes:
        """All that is answered until the connection is closed."""
        stream = self.stream()
        await stream.send_all(data)
        return await read_all(stream)

    @property
    def rows(self) -> list[int]:
        return [n for chunk in self.chunks for n in chunk.columns[1].to_list()]


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    found = b""
    while data := await stream.receive_some(65_536):
        found += data
    return found


@asynccontextmanager
async def receiving(reader: Any = "127.0.0.1:0", cursor: bytes = b"", **options: Any) -> AsyncIterator[Receiving]:
    made = open_reader(configured(reader, **options))
    assert isinstance(made, HttpReceiver)
    made.cursor = cursor
    async with trio.open_nursery() as nursery:
        one = Receiving(made, nursery)
        nursery.start_soon(made.read, replace(source_env(), network=one), one.accept)
        await trio.testing.wait_all_tasks_blocked()
        yield one
        nursery.cancel_scope.cancel()


# --- exactly once ---


def test_each_row_is_there_once_wherever_source_or_sender_die() -> None:
    """Also if each request comes twice."""
    source = {"schema": SCHEMA, "time": "ts", "from": {"http": "127.0.0.1:9000"}}
    check_reader(source, ROWS, lambda: Sender("127.0.0.1:9000", ROWS, 2, twice=True), most=6)


async def test_the_answer_comes_after_the_sync(autojump_clock: trio.testing.MockClock) -> None:
    async with receiving() as one:
        one.syncs = False
        replies: list[Reply] = []

        async def ask() -> None:
            replies.append(await one.ask(**KEY))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(3)
            assert one.rows == [1]
            assert replies == []
            one.reader.durable(one.chunks[0].cursor)
        assert (replies[0].status, replies[0].body) == (200, {"rows": 1})


async def test_repeated_request_is_answered_but_not_taken_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with receiving() as one:
        assert (await one.ask(**KEY)).body == {"rows": 1}
        again = await one.ask(**KEY)
        assert (again.status, again.body) == (200, {"rows": 0, "repeated": True})
        assert (await one.ask(**{"Idempotency-Key": "a:2"})).body == {"rows": 1}
        assert (await one.ask(**KEY)).body == {"rows": 0, "repeated": True}
        cursor = one.chunks[-1].cursor
        assert len(one.chunks) == 2
    async with receiving(cursor=cursor) as one:  # started again
        one.reader.durable(cursor)
        assert (await one.ask(None, "GET")).body == {"last": {"a": 2}}
        assert (await one.ask(**{"Idempotency-Key": "a:2"})).body == {"rows": 0, "repeated": True}
        assert one.chunks == []


async def test_a_repeat_is_not_answered_before_the_first_one_is_synced(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with receiving() as one:
        one.syncs = False
        assert (await one.ask(**KEY)).status == 503
        assert (await one.ask(**KEY)).status == 503
        assert (await one.ask(None, "GET")).status == 503
        one.reader.durable(one.chunks[0].cursor)
        assert (await one.ask(**KEY)).body == {"rows": 0, "repeated": True}
        assert len(one.chunks) == 1


async def test_a_number_that_is_missing_and_another_body_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with receiving() as one:
        assert (await one.ask(**KEY)).status == 200
        gap = await one.ask(**{"Idempotency-Key": "a:3"})
        assert (gap.status, gap.body["expected"]) == (409, 2)
        assert (await one.ask(**{"Idempotency-Key": "b:2"})).status == 409
        other = await one.ask(b'{"ts": "2026-01-01", "n": 2}', **KEY)
        assert (other.status, other.body["expected"]) == (422, 2)
        for bad in ("7a1e", "a:0", "a:01", "a:-1", ":1", "a b:1", '"a:1', "a:" + "9" * 19, "x" * 65 + ":1"):
            reply = await one.ask(**{"Idempotency-Key": bad})
            assert reply.status in (400, 200 if bad == '"a:1' else 400), bad
        assert one.rows == [1]


async def test_senders_are_bounded_and_no_key_is_needed(autojump_clock: trio.testing.MockClock) -> None:
    positions = SenderNumbers()
    for n in range(SENDERS_MAX):
        positions.take(RequestKey("s" * 60 + str(n), 10**17), b"12345678", 1 << 50)
    cursor = positions.encode()
    assert len(cursor) < 32 << 10
    async with receiving(cursor=cursor) as one:
        one.reader.durable(cursor)
        assert (await one.ask(**KEY)).status == 403
        assert (await one.ask()).status == (await one.ask()).status == 200
        assert one.rows == [1, 1]


# --- rows ---


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"ts": "2026-01-01", "n": 1}\n\n{"ts": "2026-01-01", "n": 2}\r\n', "application/x-ndjson"),
        (b'{"ts": "2026-01-01", "n": 1}\n{"ts": "2026-01-01", "n": 2}', "application/json"),
        (b' [{"ts": "2026-01-01", "n": 1},\n {"ts": "2026-01-01", "n": 2}]', "application/json; charset=utf-8"),
        (b'\xef\xbb\xbf[{"ts": "2026-01-01", "n": 1}, {"ts": "2026-01-01", "n": 2}]', ""),
    ],
)
async def test_json_lines_and_arrays(body: bytes, kind: str, autojump_clock: trio.testing.MockClock) -> None:
    async with receiving() as one:
        assert (await one.ask(body, Content_Type=kind)).body == {"rows": 2}
        assert one.rows == [1, 2]
        assert (await one.ask(b'{"ts": "2026-01-01",\n "n": 3}', Content_Type="application/json")).body == {"rows": 1}
        assert (await one.ask(b"[]")).body == (await one.ask(b"")).body == {"rows": 0}
        assert (await one.ask(body, Content_Type="text/csv")).status == 415
        assert (await one.ask(body, Content_Encoding="gzip")).status == 415


async def test_lines_of_csv(autojump_clock: trio.testing.MockClock) -> None:
    async with receiving(format="csv", null="-") as one:
        assert (await one.ask(b"2026-01-01,1,a\n2026-01-01,2,-\n", Content_Type="text/csv")).body == {"rows": 2}
        assert one.chunks[0].columns[2].to_list() == ["a", None]
        assert (await one.ask(GOOD, Content_Type="application/json")).status == 415


@pytest.mark.parametrize("form", ["{}\n{}", "[{},{}]"])
async def test_a_bad_row_is_named_and_its_request_refused(form: str, autojump_clock: trio.testing.MockClock) -> None:
    body = form.replace("{}", "%s") % (json.dumps(row_of(1)), json.dumps({**row_of(2), "n": "two"}))
    async with receiving() as one:
        reply = await one.ask(body.encode(), **KEY)
        assert (reply.status, reply.body["rows"]) == (400, [{"row": 2, "reason": "n: expected int64, got 'two'"}])
        assert one.chunks == []
        assert (await one.ask(b"[1, ", **KEY)).status == (await one.ask(b"[" * 100_000, **KEY)).status == 400
        assert (await one.ask(b"[1]", **KEY)).body["rows"][0]["reason"] == "expected a JSON object, got int"
        assert (await one.ask(**KEY)).status == 200  # its number is free
    async with receiving({"listen": "127.0.0.1:0", "bad_rows": "pass"}) as one:
        reply = await one.ask(body.encode(), **KEY)
        assert (reply.status, reply.body["rows"], reply.body["left_out"][0]["row"]) == (200, 1, 2)
        assert [row.where for row in one.chunks[0].malformed] == ["request a:1, row 2"]
        assert one.chunks[0].where is not None
        assert one.chunks[0].where(0) == "request a:1, row 1"
        assert one.chunks[0].consumed(1) == 2


async def test_a_repeat_says_which_rows_were_left_out(autojump_clock: trio.testing.MockClock) -> None:
    """Also after a restart, and when the clock has reached the rows that were too far ahead of it."""
    reader = {"listen": "127.0.0.1:0", "bad_rows": "pass"}
    source = replace(configured(reader), ahead_us=1_000_000)
    clock = parse_timestamp("2026-01-01T12:00:00")
    admit = partial(Admission(source_env(), source, list).admit, ahead_us=source.ahead_us)
    bad = [{"row": 2, "reason": "n: expected int64, got 'two'"}]
    ahead = [{"row": 3, "reason": "ts: 2026-01-01T12:01:00 is too far ahead of the clock"}]
    rows = [row_of(1), {**row_of(2), "n": "two"}, {**row_of(3), "ts": "2026-01-01T12:01:00"}]
    cursor = b""
    for number, count, left_out in ((1, 2, bad), (2, 3, bad + ahead), (3, 1, None)):
        key, body = {"Idempotency-Key": f"a:{number}"}, json.dumps(rows[:count]).encode()
        async with receiving(reader, cursor=cursor) as one:
            one.reader.now_us, one.reader.admit = (lambda: clock), admit
            first = (await one.ask(body, **key)).body
            assert (first["rows"], first.get("left_out")) == (1, left_out)
            cursor = one.chunks[0].cursor
        async with receiving(reader, cursor=cursor) as one:
            one.reader.now_us, one.reader.admit = (lambda: clock + 3_600_000_000), admit
            one.reader.durable(cursor)
            repeat = (await one.ask(body, **key)).body
            assert (repeat["repeated"], repeat.get("left_out")) == (True, left_out)
            old = await one.ask(json.dumps(rows).encode(), **KEY)
            assert number == 1 or old.body == {"rows": 0, "repeated": True}


@pytest.mark.parametrize("form", ["%s\n%s\n%s", "[%s,%s,%s]"])
async def test_a_number_beyond_float64_is_a_bad_row(form: str, autojump_clock: trio.testing.MockClock) -> None:
    schema = {"ts": "timestamp!", "x": "float64!"}
    row = '{"ts": "2026-01-01", "x": %s}'
    async with receiving(schema=schema) as one:
        reply = await one.ask((form % (row % "1.5", row % "1e400", row % "Infinity")).encode())
        assert reply.body["rows"] == [{"row": 2, "reason": "x: 1e400 is beyond float64"}]
        assert (await one.ask((form % (row % "1.5", row % "1e300", row % "Infinity")).encode())).status == 200


@pytest.mark.parametrize("form", ["%s", "[%s]"])
async def test_rows_that_are_nested_deeply_are_bad_rows(form: str, autojump_clock: trio.testing.MockClock) -> None:
    """What can just be read cannot always be written into the answer."""
    async with receiving() as one:
        for depth in range(900, 1_000):
            body = form % ('{"n": ' + "[" * depth + "]" * depth + "}")
            assert (await one.ask(body.encode())).status == 400
        assert one.chunks == []


# --- bounds ---


async def test_a_sender_of_far_too_much_can_read_why() -> None:
    """It sends everything before it reads; over real sockets, where closing too early takes the answer away."""
    size = 24 << 20

    async def never(*post: Any) -> Answer:
        raise AssertionError

    server = RequestServer(never, never, token=None, max_body=40_000)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(TcpNetwork().serve, "127.0.0.1:0", server.attend)
            async with await trio.open_tcp_stream(*parse_address(address)) as stream:
                await stream.send_all(f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode())
                for _ in range(size >> 20):
                    await stream.send_all(bytes(1 << 20))
                answer = b"".join([data async for data in stream])
            nursery.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert f"a body of {size} bytes; expected at most 40000".encode() in answer


async def test_too_large_and_too_many(autojump_clock: trio.testing.MockClock) -> None:
    async with receiving({"listen": "127.0.0.1:0", "max_body": 40_000}) as one:
        assert (await one.ask(b"\n" * 40_001)).status == 413
        assert (await one.ask(b"{}\n" * (CHUNK_ROWS + 1))).status == 413
        assert (await one.ask(b"[" + b"0," * CHUNK_ROWS + b"0]")).status == 413
        huge = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 6_000 + b"\r\n\r\n"
        assert (await one.raw(huge)).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 "))
        assert one.chunks == []


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Transfer-Encoding: chunked", 411),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4", 411),
        ("Transfer-Encoding: xchunked", 501),
        ("Transfer-Encoding : chunked", 400),
        ("Content-Length: 4\r\nContent-Length: 5", 400),
        ("Content-Length: +4", 400),
        ("Content-Length: 4\r\nIdempotency-Key: a:1\r\nIdempotency-Key: a:2", 400),
        ("X: 1", 411),
        ("X: " + "y" * 20_000, 431),
        ("\r\n".join(f"X{n}: y" for n in range(3_000)), 431),
    ],
)
async def test_ambiguous_request_is_refused_and_closed(
    head: str, status: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Behind it stands another one, which must not be taken for a request of its own."""
    smuggled = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len(GOOD)}\r\n\r\n".encode() + GOOD
    async with receiving() as one:
        told = await one.raw(f"POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n".encode() + b"0\r\n\r\n" + smuggled)
        assert told.startswith(f"HTTP/1.1 {status} ".encode()), told
        assert told.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in told.lower()
        assert one.chunks == []


async def test_sender_without_token_is_refused(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    async with receiving({"listen": "0.0.0.0:0", "token": {"env": "TOKEN"}}) as one:
        for wrong in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "Basic s3cret"}):
            for method in ("GET", "POST"):
                reply = await one.ask(GOOD if method == "POST" else None, method, **wrong)
                assert (reply.status, reply.headers["connection"]) == (401, "close")
                assert "s3cret" not in str(reply)
        assert (await one.ask(Authorization="bearer  s3cret", Origin="https://a.example")).status == 200
        assert (await one.ask(None, "DELETE", Authorization="Bearer s3cret")).status == 405
    (tmp_path / "empty").write_text("\n")
    for place in ({"env": "NONE"}, {"file": str(tmp_path / "empty")}, {"file": str(tmp_path / "none")}):
        reader = open_reader(configured({"listen": "127.0.0.1:0", "token": place}))
        assert isinstance(reader, HttpReceiver)
        with pytest.raises(SpeError, match=r"http\.token"):
            await reader.read(source_env(), no_chunk)


async def no_chunk(chunk: RowChunk) -> None:
    raise AssertionError(chunk)


async def test_a_web_page_is_refused_where_there_is_no_token(autojump_clock: trio.testing.MockClock) -> None:
    async with receiving() as one:
        assert (await one.ask(Origin="http://127.0.0.1:9000")).status == 403
        assert one.chunks == []


async def test_slow_sender_is_disconnected(autojump_clock: trio.testing.MockClock) -> None:
    """1. no headers; 2. a header now and then; 3. a body that does not end; 4. a connection that is torn."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: a:1\r\nContent-Length: 70000\r\n\r\n"
    async with receiving() as one:
        silent = one.stream()
        assert await read_all(silent) == b""
        assert trio.current_time() == pytest.approx(http_server.HEAD_S)
        dripping, begun = one.stream(), trio.current_time()
        with suppress(trio.BrokenResourceError):
            for byte in head * 2:
                await dripping.send_all(bytes([byte]))
                await trio.sleep(0.1)
        assert trio.current_time() - begun < http_server.HEAD_S + 0.2
        stuck, begun = one.stream(), trio.current_time()
        await stuck.send_all(head + b"x")
        assert (await read_all(stuck)).startswith(b"HTTP/1.1 408 ")
        assert 12 < trio.current_time() - begun < 14
        torn = one.stream()
        await torn.send_all(head + b"x" * 60_000)
        await torn.send_eof()
        assert (await read_all(torn)).startswith(b"HTTP/1.1 400 ")
        assert one.chunks == []


async def test_bodies_in_memory_are_bounded(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "BODIES_BYTES_MAX", 100_000)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 80000\r\n\r\n"
    async with receiving() as one:
        slow = one.stream()
        await slow.send_all(head + b"\n" * 70_000)
        await trio.testing.wait_all_tasks_blocked()
        reply = await one.ask(b"\n" * 40_000)
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        await slow.send_all(b"\n" * 10_000)
        assert (await Peer(slow).reply()).status == 200
        assert (await one.ask(b"\n" * 90_000)).status == 200


async def test_connections_are_bounded(autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 2)
    async with receiving() as one:
        first, second = Peer(one.stream()), Peer(one.stream())
        assert (await first.ask("POST", body=GOOD)).status == (await second.ask("POST", body=GOOD)).status == 200
        assert (await one.ask()).status == 503
        await second.stream.aclose()
        assert (await one.ask()).status == 200
        assert (await first.ask("POST", body=GOOD)).status == 200


async def test_a_source_that_is_behind_says_so(autojump_clock: trio.testing.MockClock) -> None:
    async with receiving() as one:
        one.room = trio.Event()  # the disk is full
        assert (await one.ask(**KEY)).status == 200
        begun = trio.current_time()
        reply = await one.ask(**{"Idempotency-Key": "a:2"})
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert trio.current_time() - begun == pytest.approx(5)
        one.room.set()
        assert (await one.ask(**{"Idempotency-Key": "a:2"})).body == {"rows": 1}


async def test_requests_follow_each_other_on_one_connection(autojump_clock: trio.testing.MockClock) -> None:
    """Also without waiting for the answer; one that asks whether it should go on is told."""
    request = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len(GOOD)}\r\n\r\n".encode() + GOOD
    async with receiving() as one:
        told = await one.raw(request * 3)
        assert told.count(b"HTTP/1.1 200 ") == 3
        head, _, body = request.partition(b"\r\n\r\n")
        stream = one.stream()
        await stream.send_all(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert await stream.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.send_all(body)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        await stream.send_all(b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert (await read_all(stream)).endswith(b"\r\n\r\n")
        assert one.rows == [1] * 4


async def test_no_input_bytes_break_the_receiver(autojump_clock: trio.testing.MockClock) -> None:
    """Requests with bytes changed, doubled, cut and mixed: each connection ends, and the next one is served."""
    random = Random(7)
    begin = f"POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: a:1\r\nContent-Length: {len(GOOD)}\r\n\r\n".encode() + GOOD
    async with receiving() as one:
        for _ in range(150):
            data = bytearray(begin * random.randint(1, 2))
            for _ in range(random.randint(1, 8)):
                at = random.randrange(len(data))
                match random.randrange(4):
                    case 0:
                        data[at] = random.randrange(256)
                    case 1:
                        data[at:at] = bytes(random.choices(b"\r\n :,;0x\0\xff", k=random.randint(1, 5)))
                    case 2:
                        del data[at : at + random.randint(1, 9)]
                    case _:
                        data[at:at] = data[: random.randint(1, 60)]
            stream = one.stream()
            await stream.send_all(bytes(data))
            await stream.send_eof()
            told = await read_all(stream)
            assert not told or told.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")), told
            assert b"HTTP/1.1 500" not in told
        assert (await one.ask()).status == 200


async def certificate_of(one: Receiving, trusted: ssl.SSLContext) -> str:
    stream = trio.SSLStream(one.stream(), trusted, https_compatible=True)
    await stream.do_handshake()
    found = ssl.DER_cert_to_PEM_cert(stream.getpeercert(binary_form=True))
    await trio.aclose_forcefully(stream)
    return found


async def test_over_tls_with_a_certificate_that_is_renewed(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issue(tmp_path, "c", ["http"], 1, datetime.now(UTC))
    files = {"certificate": str(tmp_path / "http.pem"), "key": str(tmp_path / "http.key")}
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    trusted.check_hostname = False
    async with receiving({"listen": "127.0.0.1:0", **files}) as one:
        plain = await one.raw(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"HTTP" not in plain
        stream = trio.SSLStream(one.stream(), trusted, https_compatible=True)
        peer = Peer(stream)
        assert (await peer.ask("POST", body=GOOD)).status == (await peer.ask("POST", body=GOOD)).status == 200
        assert (await certificate_of(one, trusted)) == (old := (tmp_path / "http.pem").read_text())
        (tmp_path / "http.pem").write_text("half a file")
        await trio.sleep(6)
        assert (await certificate_of(one, trusted)) == old
        assert "the old certificate stays in use" in capsys.readouterr().err
        issue(tmp_path, "c", ["http"], 1, datetime.now(UTC), renew=True)
        await trio.sleep(6)
        assert (await certificate_of(one, trusted)) == (tmp_path / "http.pem").read_text() != old
    reader = open_reader(configured({"listen": "127.0.0.1:0", **files, "key": str(tmp_path / "ca.key")}))
    assert isinstance(reader, HttpReceiver)
    with pytest.raises(SpeError, match=r"http\.certificate: .* cannot be used"):
        await reader.read(source_env(), no_chunk)


# --- configuration ---

PAGE = (Path(__file__).parents[5] / "docs" / "how-to" / "http.md").read_text(encoding="utf-8")


async def test_the_first_example_of_the_page(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, command = (
        re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for kind in ("yaml", "sh")
    )
    (tmp_path / "orders").write_text("s3cret\n")
    source = yaml.safe_load(example[0].replace("/run/secrets", str(tmp_path)))["sources"]["orders"]
    headers = dict(h.split(": ") for h in re.findall(r"-H ['\"](.*?)['\"]", command[0].replace("$TOKEN", "s3cret")))
    (body,) = re.findall(r"--data-binary '(.*)'", command[0])
    async with receiving(source["from"]["http"], schema=source["schema"]) as one:
        assert (await Peer(one.stream()).ask("POST", headers, body.encode())).body == {"rows": 1}
        assert one.chunks[0].columns[2].to_list() == [9.5]


def test_all_examples_of_the_page_load_together() -> None:
    found = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)]
    whole = {"sources": {}, **{name: part for one in found for name, part in one.items() if name != "sources"}}
    for one in found:
        whole["sources"] |= one.get("sources", {})
    whole["query"] = {"totals": {"filter": {"from": "orders", "where": "price > 0"}},
                      "rest": {"filter": {"from": "prices", "where": "price > 0"}}}  # fmt: skip
    loaded = load_data({**whole, "outputs": ["totals", "rest"]}, "the page", ".")
    assert [s.reader["kind"] for s in loaded.plan.sources.values()] == ["http", "sse"]
    assert loaded.directory.clients["shop"].sinks[0]["kind"] == "http"


@pytest.mark.parametrize(
    ("reader", "options", "why"),
    [
        ("0.0.0.0:9000", {}, "0.0.0.0:9000 can be reached from other machines; expected a token"),
        ("127.evil.example:0", {}, "can be reached from other machines"),
        ({"listen": "[::]:0"}, {}, "can be reached from other machines"),
        ({"listen": "127.0.0.1:0", "token": "abc"}, {}, "expected {env: NAME} or {file: PATH}"),
        ({"listen": "127.0.0.1:0", "certificate": "a.pem"}, {}, "expected both certificate and key"),
        ({"listen": "127.0.0.1:0", "max_body": "9MiB"}, {}, "expected at most 8 MiB"),
        ("127.0.0.1:0", {"quote": "'"}, "does not go with format jsonl"),
        ("127.0.0.1:0", {"format": "csv", "columns": {"n": "x"}}, "there is no header for n: x"),
        ("127.0.0.1", {}, "expected host:port"),
    ],
)
def test_wrong_configuration_is_refused_without_secrets(reader: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=r".*") as raised:
        configured(reader, **options)
    assert why in str(raised.value)
    assert "abc" not in str(raised.value)


def test_paths_start_from_the_folder_of_the_data() -> None:
    made = configured({"listen": "127.0.0.1:0", "token": {"file": "t"}, "certificate": "c.pem", "key": "c.key"})
    assert made.reader["token"] == {"file": str(Path("t").absolute())}
    assert made.reader["certificate"] == str(Path("c.pem").absolute())


# --- Avro ---

_AVRO = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "ts", "type": "string"},
        {"name": "n", "type": "long"},
        {"name": "text", "type": ["null", "string"]},
    ],
}


def container(rows: list[Any], codec: str = "null") -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.writer(out, _AVRO, rows, codec)
    return out.getvalue()


async def test_a_body_may_be_a_container_of_avro() -> None:
    async with receiving(format="avro") as one:
        assert (await one.ask(container(ROWS), Content_Type="avro/binary")).body == {"rows": 7}
        assert one.rows == list(range(7))
        assert (await one.ask(container([]))).body == {"rows": 0}
        many = container([ROWS[0]] * (CHUNK_ROWS + 1))
        for body, status, why in (
            (container(ROWS)[:-20], 400, "the body: cannot be read: "),
            (container(ROWS, "deflate"), 400, "the body: it is compressed with deflate; expected one of: null"),
            (b"{}", 400, "the body: cannot be read: it is no Avro container file"),
            (many, 413, "8193 rows; expected at most 8192"),
        ):
            reply = await one.ask(body)
            assert (reply.status, reply.body["error"].startswith(why)) == (status, True), reply
        assert (await one.ask(b"{}", Content_Type="application/json")).status == 415
        assert one.rows == list(range(7))


async def test_a_body_may_be_a_message_of_avro(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(self: Any, address: str, seconds: float) -> trio.abc.Stream:
        host, _, port = address.rpartition(":")
        return await trio.open_tcp_stream(host, int(port))

    monkeypatch.setattr(Receiving, "connect", connect)
    async with registry() as there:
        there.add(3, _AVRO)
        keys = {"listen": "127.0.0.1:0", "avro": {"registry": f"http://{there.address}"}}
        async with receiving(keys, format="avro") as one:
            assert (await one.ask(written(_AVRO, ROWS[1], 3))).body == {"rows": 1}
            assert (await one.ask(container(ROWS[2:4]))).body == {"rows": 2}
            reply = await one.ask(written(_AVRO, ROWS[1], 4))
            assert (reply.status, reply.body["rows"][0]["reason"]) == (
                400,
                f"schema registry http://{there.address}/ has no schema 4",
            )
            there.answers["/schemas/ids/5"] = 503, {}
            reply = await one.ask(written(_AVRO, ROWS[1], 5))
            assert (reply.status, "503" in reply.body["error"], "503" in one.reader.away) == (503, True, True)
            there.add(5, _AVRO)
            assert (await one.ask(written(_AVRO, ROWS[4], 5))).body == {"rows": 1}
            assert one.reader.away == ""
            assert one.rows == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("keys", "options", "why"),
    [
        ({"avro": {}}, {"format": "avro"}, "expected {registry: URL} or {file: PATH}"),
        ({"avro": {"file": "a"}}, {}, "avro goes with format: avro"),
        ({}, {"format": "parquet"}, "http has no format parquet; expected one of: jsonl, csv, avro"),
        ({}, {"format": "avro", "null": "-"}, "null does not go with format avro"),
        ({"avro": {"registry": {"url": "http://u:p@h"}}}, {"format": "avro"}, "expected no user and password in a URL"),
        (
            {"avro": {"registry": {"url": "http://h", "user": {"env": "U"}}}},
            {"format": "avro"},
            "expected both user and",
        ),
    ],
)
def test_wrong_avro_options_are_reported(keys: Any, options: Any, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        configured({"listen": "127.0.0.1:0", **keys}, **options)
    assert why in str(error.value)


# --- the end ---


def test_a_stream_ends_behind_the_last_requests_wherever_we_die() -> None:
    reader = {"listen": "127.0.0.1:9000", "until": {"sender": 4}}
    source = {"schema": SCHEMA, "time": "ts", "from": {"http": reader}}
    check_reader(source, ROWS, lambda: Sender("127.0.0.1:9000", ROWS, 2, twice=True), most=6)


async def test_the_end_waits_for_all_senders_and_takes_nothing_more(autojump_clock: trio.testing.MockClock) -> None:
    reader = {"listen": "127.0.0.1:0", "until": {"a": 2, "b": 1}}
    made = open_reader(configured(reader))
    assert isinstance(made, HttpReceiver)
    ended = trio.Event()

    async def read(one: Receiving) -> None:
        await made.read(replace(source_env(), network=one), one.accept)
        ended.set()

    async with trio.open_nursery() as nursery:
        one = Receiving(made, nursery)
        nursery.start_soon(read, one)
        await trio.testing.wait_all_tasks_blocked()
        assert (await one.ask()).status == 403
        assert (await one.ask(**{"Idempotency-Key": "c:1"})).status == 403
        for key in ("a:1", "b:1"):
            assert (await one.ask(**{"Idempotency-Key": key})).status == 200
        late = await one.ask(**{"Idempotency-Key": "b:2"})
        assert (late.status, late.body["error"]) == (410, "b:2: the stream ends with number 1")
        await trio.sleep(60)
        assert not ended.is_set()
        assert (await one.ask(**{"Idempotency-Key": "a:2"})).status == 200
        await trio.sleep(4)
        assert (await one.ask(**{"Idempotency-Key": "a:2"})).body == {"rows": 0, "repeated": True}
        await ended.wait()
        nursery.cancel_scope.cancel()
    assert one.rows == [1, 1, 1]


@pytest.mark.parametrize("until", [{}, {"a b": 1}, {"a": 0}, {"a": True}, 7])
def test_invalid_end_is_reported(until: Any) -> None:
    with pytest.raises(ConfigError, match="expected a mapping of senders to the numbers of their last requests"):
        configured({"listen": "127.0.0.1:0", "until": until})
