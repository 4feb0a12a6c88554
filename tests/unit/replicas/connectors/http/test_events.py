"""A source of server-sent events, which goes on behind the last one that its log has."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

pytest.importorskip("h11", reason="HTTP is not tested: h11 is not installed")

from replicas.connectors import open_reader
from replicas.connectors.formats.event_stream import EVENT_BYTES, EventParser, ServerEvent
from replicas.connectors.http.events import EventReader
from replicas.connectors.reader import RowChunk
from replicas.testing import check_reader
from spe.config import load_data
from spe.connectors.server import Url
from spe.errors import ConfigError, LinkBroken, SpeError
from spe.stream.names import StreamId
from tests.support.http_peers import SCHEMA, Asked, EventServer, ServedPeer, row_of
from tests.support.source_env import source_env

ROWS = [row_of(n) for n in range(7)]
URL = "http://events:8000/orders?of=all"
EVENTS = {"Content-Type": "text/event-stream"}


def configured(reader: Any, **options: Any) -> Any:
    source = {"schema": SCHEMA, "time": "ts", "from": {"sse": reader, **options}}
    config = {"sources": {"s": source}, "query": {"q": {"filter": {"from": "s", "where": "true"}}}, "outputs": ["q"]}
    return load_data(config, "the source", ".").plan.sources[StreamId("s")]


def event(n: int, *lines: str) -> bytes:
    return "\n".join([f"id: {n}", *lines, f"data: {json.dumps(row_of(n))}", "", ""]).encode()


Answers = Callable[[ServedPeer, Asked, int], Awaitable[None]]


class Reading:
    """A reader, and a server whose answers a test gives.

    Attributes:
      asked: what came, and when.
      refuses: connections that are refused, before others.
    """

    def __init__(self, answer: Answers, *, cursor: bytes = b"", refuses: int = 0, **keys: Any) -> None:
        made = open_reader(configured({"url": URL, **keys}))
        assert isinstance(made, EventReader)
        made.cursor = cursor
        self.reader = made
        self.chunks: list[RowChunk] = []
        self.asked: list[tuple[float, Asked]] = []
        self._answer = answer
        self.refuses = refuses
        self.aways: list[str] = []

    async def connect(self, address: str, seconds: float) -> trio.abc.Stream:
        assert address == "events:8000"
        self.aways.append(self.reader.away)
        if self.refuses:
            self.refuses -= 1
            raise LinkBroken("refused")
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, theirs)
        return ours

    async def _serve(self, stream: trio.abc.Stream) -> None:
        peer = ServedPeer(stream)
        try:
            asked = await peer.asked()
            assert asked is not None
            self.asked.append((trio.current_time(), asked))
            await self._answer(peer, asked, len(self.asked))
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def run(self) -> list[int]:
        """Until the stream ends; the rows."""
        async with trio.open_nursery() as self._nursery:
            await self.reader.read(replace(source_env(), network=self), self._accept)  # type: ignore[arg-type]
            self._nursery.cancel_scope.cancel()
        return self.rows

    async def _accept(self, chunk: RowChunk) -> None:
        self.chunks.append(chunk)
        await trio.lowlevel.checkpoint()

    @property
    def rows(self) -> list[int]:
        return [n for chunk in self.chunks for n in chunk.columns[1].to_list()]


async def stream_of(data: bytes, peer: ServedPeer, asked: Asked, n: int) -> None:
    """All of it over the first connection; then nothing more."""
    if n > 1:
        await peer.answer(204)
        return
    await peer.begin(200, EVENTS)
    await peer.data(data)
    await peer.end()


# --- exactly once ---


def test_each_event_is_there_once_wherever_source_or_server_die() -> None:
    source = {"schema": SCHEMA, "time": "ts", "from": {"sse": "http://events:8000"}}
    check_reader(source, ROWS, lambda: EventServer("events:8000", ROWS, 3), most=5)


async def test_reader_resumes_after_the_last_id(autojump_clock: trio.testing.MockClock) -> None:
    reading = Reading(partial(stream_of, event(1) + event(2)))
    assert await reading.run() == [1, 2]
    assert [a.headers.get("last-event-id") for _, a in reading.asked] == [None, "2"]
    assert reading.asked[0][1].target == "/orders?of=all"
    again = Reading(partial(stream_of, event(2) + event(3)), cursor=reading.chunks[-1].cursor)
    assert await again.run() == [3], "the one that is named comes once more, from a server that begins with it"
    assert again.asked[0][1].headers["last-event-id"] == "2"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (event(1) + b"data: {}\n\n", "an event without an id: after a reconnect rows would be missing or come twice"),
        (event(1) + b"id:\ndata: {}\n\n", "which no header can have"),
        (event(1) + b"id: a \ndata: {}\n\n", "which no header can have"),
        (event(1) + b"id: " + b"a" * 2_000 + b"\ndata: {}\n\n", "which no header can have"),
        (event(1) + event(1), "two events with the id b'1'; expected one id for each"),
    ],
)
async def test_unresumable_event_is_refused_after_resumable_ones(
    data: bytes, why: str, autojump_clock: trio.testing.MockClock
) -> None:
    reading = Reading(partial(stream_of, data))
    with pytest.raises(BaseExceptionGroup) as raised:
        await reading.run()
    assert raised.group_contains(SpeError, match=why)
    assert reading.rows == [1]


async def test_events_without_ids_are_accepted_if_configured(autojump_clock: trio.testing.MockClock) -> None:
    data = event(1) + b"data: " + json.dumps(row_of(2)).encode() + b"\n\n" + event(1)
    reading = Reading(partial(stream_of, data), ids="optional")
    assert await reading.run() == [1, 2, 1]
    assert all(chunk.cursor for chunk in reading.chunks)
    assert reading.asked[1][1].headers["last-event-id"] == "1"


# --- rows ---


async def test_types_of_events_and_rows_that_cannot_be_understood(autojump_clock: trio.testing.MockClock) -> None:
    data = (
        event(1, "event: add")
        + event(2, "event: other")
        + event(3)
        + b"id: 4\ndata: {\ndata: }\n\nid: 5\ndata: " + b"x" * (EVENT_BYTES + 10) + b"\n\n: nothing\n\nid: 6\n\n"
        + event(7, "event: add")
    )  # fmt: skip
    reading = Reading(partial(stream_of, data), events=["add", "message"])
    assert await reading.run() == [1, 3, 7]
    bad = [row for chunk in reading.chunks for row in chunk.malformed]
    assert [(row.where, row.reason) for row in bad] == [
        ("event 4", "ts: null, but the attribute is not nullable"),
        ("event 5", f"an event of more than {EVENT_BYTES} bytes"),
    ]
    assert sum(chunk.taken for chunk in reading.chunks) + 1 == 5
    places = [[chunk.where(n) for n in range(chunk.taken)] for chunk in reading.chunks if chunk.where is not None]
    assert [place for some in places for place in some] == [f"event {n}" for n in (1, 3, 4, 7)]


# --- trouble ---


async def test_reader_waits_as_server_asks_and_reports_absence(autojump_clock: trio.testing.MockClock) -> None:
    """1. refused twice; 2. 503 with Retry-After; 3. a stream with retry that ends; 4. silence; 5. 204."""

    async def answer(peer: ServedPeer, asked: Asked, n: int) -> None:
        match n:
            case 1:
                await peer.answer(503, b"later\nplease", {"Retry-After": "20"})
            case 2:
                await peer.begin(200, EVENTS)
                await peer.data(b"retry: 7000\n\n" + event(1))
                await peer.end()
            case 3:
                await peer.begin(200, EVENTS)
                await peer.data(event(2)[:-1])
                await trio.sleep_forever()
            case _:
                await peer.answer(204)

    reading = Reading(answer, refuses=2, silence="30s")
    assert await reading.run() == [1]
    times = [round(at, 2) for at, _ in reading.asked]
    assert times == [0.3, 20.3, 27.3, 64.3]
    said = "sse http://events:8000/orders does not answer: {}; trying again"
    refused = said.format("refused")
    assert reading.aways == ["", refused, refused, refused, said.format("it has ended the stream"),
                             said.format("nothing came for 30 s, not even a comment")]  # fmt: skip
    assert [a.headers.get("last-event-id") for _, a in reading.asked] == [None, None, "1", "1"]


@pytest.mark.parametrize(
    ("status", "headers", "why"),
    [
        (404, {}, "sse http://events:8000/orders refuses it: 404: no such thing"),
        (401, {}, "refuses it: 401: no such thing"),
        (302, {"Location": "http://other/x?key=1"}, "expected its own URL, not one that leads to http://other/x$"),
        (200, {"Content-Type": "text/html"}, "expected text/event-stream, got 'text/html'"),
        (200, {**EVENTS, "Content-Encoding": "gzip"}, "expected text/event-stream, got 'text/event-stream' gzip"),
    ],
)
async def test_permanent_error_stops_the_reader(
    status: int, headers: Mapping[str, str], why: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def answer(peer: ServedPeer, asked: Asked, n: int) -> None:
        await peer.answer(status, b"no such\n thing", headers)

    with pytest.raises(BaseExceptionGroup) as raised:
        await Reading(answer).run()
    assert raised.group_contains(SpeError, match=why)


async def test_no_http_at_all_is_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    async def answer(peer: ServedPeer, asked: Asked, n: int) -> None:
        if n == 1:
            await peer.stream.send_all(b"220 mail.example ESMTP\r\n")
        elif n == 2:
            await peer.stream.send_all(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000)
        else:
            await peer.answer(204)

    reading = Reading(answer)
    assert await reading.run() == []
    assert len(reading.asked) == 3


# --- the format ---


def test_events_are_the_same_however_the_stream_is_cut() -> None:
    data = (
        b"\xef\xbb\xbf: hello\r\n\r\nid: 1\r\ndata: a\r\rid:2\ndata:b\ndata:  c\n\n"
        b"retry: 250\nretry: x\nevent: add\ndata\n\nid: \0\ndata: \xc3\xa9\xff\n\nunknown: x\nid: 4\n\ndata: no end\n"
    )
    expected = [
        ServerEvent(b"1", "message", "a"),
        ServerEvent(b"2", "message", "b\n c"),
        ServerEvent(None, "add", ""),
        ServerEvent(None, "message", "é\udcff"),
    ]
    random = Random(3)
    for _ in range(300):
        parser, found, at = EventParser(), list[ServerEvent](), 0
        while at < len(data):
            size = random.choice([1, 1, 2, 3, 20])
            found += parser.feed(data[at : at + size])
            at += size
        assert found == expected
        assert parser.retry_ms == 250


def test_memory_is_bounded_by_the_longest_event() -> None:
    parser = EventParser()
    for line in (b"data: ", b"id: ", b": ", b""):
        parser.feed(line)
        for _ in range(20):
            assert parser.feed(b"x" * 65_536) == []
            assert len(parser._rest) <= EVENT_BYTES + 65_536
        parser.feed(b"\n")
    assert parser.feed(b"id: 3\n\n") == [ServerEvent(b"3", "message", None)]
    for _ in range(70):
        parser.feed(b"data\ndata: y\n" * 6_000)
    assert sum(map(len, parser._data)) <= EVENT_BYTES
    assert parser.feed(b"\n")[0].data is None
    assert parser.feed(b"data: z\n\n") == [ServerEvent(None, "message", "z")]


# --- configuration ---


@pytest.mark.parametrize(
    ("reader", "why"),
    [
        ("events:8000", "expected http://HOST[:PORT]/PATH or https://…, got 'events:8000'"),
        ("ftp://events", "expected http://HOST"),
        ("http://events:99999/", "expected http://HOST"),
        ("http://events/a#b", "expected http://HOST"),
        ("http://events/a b", "other characters than those of ASCII are written as %XX"),
        ("http://events/\r\nX: y", "other characters than those of ASCII are written as %XX"),
        ("http://me:s3cret@events/", "expected no user and password in a URL"),
        ({"url": "http://events/", "token": "s3cret"}, "expected {env: NAME} or {file: PATH}"),
        ({"url": "http://events/", "ca": "ca.pem"}, "ca goes with https://"),
        ({"url": "http://events/", "ids": "none"}, "ids"),
    ],
)
def test_wrong_configuration_is_refused_without_secrets(reader: Any, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured(reader)
    assert why in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "url", "authority", "shown"),
    [
        ("https://a", Url(True, "a", 443, "/"), "a", "https://a/"),
        ("http://a:81/b?key=1", Url(False, "a", 81, "/b?key=1"), "a:81", "http://a:81/b"),
        ("HTTP://[::1]:80/?x", Url(False, "[::1]", 80, "/?x"), "[::1]", "http://[::1]/"),
    ],
)
def test_parts_of_a_url(text: str, url: Url, authority: str, shown: str) -> None:
    assert (Url.parse(text), url.authority, str(url)) == (url, authority, shown)
