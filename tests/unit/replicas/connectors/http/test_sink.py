"""A client's results as webhooks: each request with a key that stays the same until it is answered."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

pytest.importorskip("h11", reason="HTTP is not tested: h11 is not installed")

from replicas.connectors.http.client import HttpClient, retry_after_s
from replicas.connectors.http.sink import HttpSink
from replicas.connectors.sink_registry import open_sink
from replicas.simulation.world.disk import SimDisk
from replicas.testing import PromiseBroken, check_sink
from spe.config import load_data
from spe.connectors.server import Url
from spe.errors import ConfigError, LinkBroken, LogError, ServerAway, SpeError
from spe.runtime.env import Env
from spe.runtime.network import TcpNetwork
from spe.stream.batch import Batch, Column, Element, RecDone, Rows, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState, StreamId
from spe.stream.schema import Schema
from tests.support.http_peers import Asked, ServedPeer, WebhookServer
from tests.support.slow_link import SlowLink, Turns
from tests.support.source_env import AtOnceCompute, source_env
from tests.unit.replicas.connectors.http.test_source import receiving

URL = "http://receiver:8000/results?key=1"
OUT = Channel(StreamId("out"), 0)
SCHEMA = Schema.of(n="int64!")


# --- exactly once ---


@pytest.mark.parametrize("mode", ["stable", "current", "corrections"])
def test_each_row_is_there_once_wherever_client_or_receiver_die(mode: str) -> None:
    sink = {"http": {"url": URL, "max_body": "400B"}, "mode": mode}
    check_sink(sink, lambda: WebhookServer(corrections=mode == "corrections"), most=2)


def test_a_receiver_that_does_not_keep_numbers_has_rows_twice() -> None:
    with pytest.raises(PromiseBroken, match=r"is there twice|two live rows"):
        check_sink({"http": {"url": URL}}, lambda: WebhookServer(keeps=False), most=6)


async def test_a_source_of_ours_is_a_receiver_that_keeps_numbers(autojump_clock: trio.testing.MockClock) -> None:
    """The answer to the second request is lost, and so is what the client remembers."""
    disk = SimDisk()
    schema, columns = {"ts": "timestamp!", "n": "int64!"}, {"ts": "_time"}
    async with receiving("127.0.0.1:8000", schema=schema, columns=columns) as one:

        async def connect(address: str, seconds: float) -> trio.abc.Stream:
            return one.stream()

        one.connect = connect  # type: ignore[method-assign]
        env = replace(source_env(disk), network=one)
        sink = await opened(sink_of(), env)
        await commit(sink, rows(0, 1, 2))
        one.syncs = False
        with pytest.raises(ServerAway):
            await commit(sink, rows(2, 3))
        one.reader.durable(one.chunks[-1].cursor)
        again = await opened(sink_of(), replace(env, storage=disk.restarted()))
        assert again.position(OUT) == 3
        assert one.rows == [1, 2, 3]


async def test_slow_receiver_gets_each_row_once_and_blocks_only_itself() -> None:
    """Each piece of a request or an answer waits until another client's request is answered.

    Requests are given up on the way, after more pieces each time, and sent again.
    """
    near, far, answered, given_up = WebhookServer("127.0.0.1:0"), WebhookServer("127.0.0.1:0"), Turns(), 0
    env = replace(source_env(), network=TcpNetwork(hello_s=600))  # nobody says hello

    async def send(sink: HttpSink) -> None:
        for n in itertools.count():
            await commit(sink, rows(n, n))
            answered.one_more()

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            ports = [(await nursery.start(one.serve, env.network)).rpartition(":")[2] for one in (near, far)]
            link = SlowLink(int(ports[1]), answered.next, piece_bytes=128)
            await nursery.start(link.serve)
            fast = await opened(sink_of(url=f"http://127.0.0.1:{ports[0]}"), env)
            nursery.start_soon(send, fast)
            slow = await opened(sink_of(url=f"http://127.0.0.1:{link.port}"), env)
            for n in range(6):
                slow.write(rows(n, n))
                with trio.CancelScope() as scope:
                    link.after(n + 1, scope.cancel)
                    await slow.commit(AtOnceCompute())
                given_up += scope.cancelled_caught
                while slow.position(OUT) <= n:
                    with suppress(ServerAway):
                        await slow.commit(AtOnceCompute())
            nursery.cancel_scope.cancel()
    for sink in (fast, slow):
        await sink.disconnect()
    assert [row["n"] for row in far.rows()] == list(range(6))
    assert given_up >= 3
    assert far.repeats
    assert [row["n"] for row in near.rows()][: answered.count] == list(range(answered.count))


# --- one sink, and a receiver whose answers a test gives ---


def sink_of(mode: str = "stable", channels: Mapping[Channel, Schema] | None = None, **keys: Any) -> HttpSink:
    config = {
        "sources": {"s": {"from": {"generator": {"name": "orders", "count": 1}}}},
        "query": {"q": {"filter": {"from": "s", "where": "true"}}},
        "outputs": ["q"],
        "clients": {"c": {"sinks": [{"http": {"url": URL, **keys}, "mode": mode}]}},
    }
    (spec,) = load_data(config, "the sink", ".").directory.clients["c"].sinks
    made = open_sink(spec, channels or {OUT: SCHEMA}, lambda folder: (SimDisk(), PurePosixPath(str(folder))))
    assert isinstance(made, HttpSink)
    return made


def rows(first: int, *numbers: int, kind: Kind = Kind.STABLE) -> Change:
    """Stable or tentative rows behind the id ``first``."""
    n = len(numbers)
    times = np.arange(n, dtype=np.int64)
    found = Rows(times, times, (Column(np.array(numbers, np.int64), None),))
    return change(Batch(kind, first, first + n, None, found))


def change(element: Element, channel: Channel = OUT) -> Change:
    return Change(channel, element, 0)


Answers = Callable[[ServedPeer, Asked], Awaitable[None]]


class Receiver:
    """A network with one server.

    Attributes:
      asked: what came.
      connections: that were opened.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.asked: list[Asked] = []
        self.answers: list[Answers] = []
        self.connections = 0
        self._nursery = nursery

    async def connect(self, address: str, seconds: float) -> trio.abc.Stream:
        assert address == "receiver:8000"
        ours, theirs = trio.testing.memory_stream_pair()
        self.connections += 1
        self._nursery.start_soon(self._serve, theirs)
        return ours

    async def _serve(self, stream: trio.abc.Stream) -> None:
        peer = ServedPeer(stream)
        try:
            while (asked := await peer.asked()) is not None:
                self.asked.append(asked)
                await (self.answers.pop(0) if self.answers else answer(200))(peer, asked)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    @property
    def keys(self) -> list[int]:
        return [int(a.headers["idempotency-key"].strip('"').rpartition(":")[2]) for a in self.asked]

    def lines(self) -> list[list[dict[str, Any]]]:
        return [[json.loads(line) for line in a.body.splitlines()] for a in self.asked]


def answer(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answers:
    async def give(peer: ServedPeer, asked: Asked) -> None:
        await peer.answer(status, body, headers)

    return give


async def hang_up(peer: ServedPeer, asked: Asked) -> None:
    await trio.aclose_forcefully(peer.stream)


async def never(peer: ServedPeer, asked: Asked) -> None:
    await trio.sleep_forever()


@asynccontextmanager
async def receiver(disk: SimDisk | None = None) -> AsyncIterator[tuple[Receiver, Env]]:
    async with trio.open_nursery() as nursery:
        one = Receiver(nursery)
        yield one, replace(source_env(disk), network=one)  # type: ignore[arg-type]
        nursery.cancel_scope.cancel()


async def opened(sink: HttpSink, env: Env) -> HttpSink:
    await sink.open(env, dict.fromkeys(sink.schemas, "query"))
    return sink


async def commit(sink: HttpSink, *changes: Change) -> None:
    for one in changes:
        sink.write(one)
    await sink.commit(AtOnceCompute())


async def test_a_request_has_rows_key_and_token(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    async with receiver() as (one, env):
        sink = await opened(sink_of(token={"env": "TOKEN"}, id="shop"), env)
        assert one.asked == []
        await commit(sink, rows(0, 7, 8))
        await commit(sink, rows(2, 9))
        assert one.lines()[0] == [
            {"_stream": "out", "_partition": 0, "_id": 1, "_time": "1970-01-01T00:00:00Z", "n": 7},
            {"_stream": "out", "_partition": 0, "_id": 2, "_time": "1970-01-01T00:00:00.000001Z", "n": 8},
        ]
        assert (one.asked[0].method, one.asked[0].target) == ("POST", "/results?key=1")
        headers = one.asked[0].headers
        assert headers["authorization"] == "Bearer s3cret"
        assert headers["host"] == "receiver:8000"
        assert headers["content-type"] == "application/x-ndjson"
        assert headers["idempotency-key"].startswith('"shop-')
        assert one.keys == [1, 2]
        assert one.connections == 1
        assert (sink.position(OUT), sink.name) == (3, "http http://receiver:8000/results, id shop")


async def test_row_withdrawn_in_same_request_is_not_sent(autojump_clock: trio.testing.MockClock) -> None:
    story = [
        rows(0, 1),
        rows(1, 2, kind=Kind.TENTATIVE),
        change(Undo(1)),
        rows(1, 3),
        change(RecDone(NodeState.STABLE)),
    ]
    kinds = {
        "current": [("insert", 1, False), ("undo", 1, None), ("insert", 2, False)],
        "corrections": [
            ("insert", 1, False), ("insert", 2, True), ("undo", 1, None), ("insert", 2, False), ("done", 2, None)
        ],
    }  # fmt: skip
    for mode, expected in kinds.items():
        async with receiver() as (one, env):
            await commit(await opened(sink_of(mode), env), *story)
            (lines,) = one.lines()
            assert [(row["_kind"], row["_id"], row.get("_tentative")) for row in lines] == expected


async def test_large_results_are_several_requests(autojump_clock: trio.testing.MockClock) -> None:
    async with receiver() as (one, env):
        sink = await opened(sink_of(max_body="300B"), env)
        one.answers = [answer(200), answer(503), answer(200)]
        with pytest.raises(ServerAway):
            await commit(sink, rows(0, *range(10)))
        assert sink.position(OUT) == 0
        await commit(sink)
        assert one.keys == [1, 2, 2, 3, 4]
        assert all(len(asked.body) <= 300 for asked in one.asked)
        assert one.asked[1].body == one.asked[2].body
        assert [r["n"] for i in (0, 1, 3, 4) for r in one.lines()[i]] == list(range(10))
        assert sink.position(OUT) == 10


async def test_an_answer_that_is_lost_is_asked_for_with_the_same_key(autojump_clock: trio.testing.MockClock) -> None:
    """1. hung up; 2. hung up on a connection that was used before: tried anew at once; 3. no answer for long."""
    async with receiver() as (one, env):
        sink = await opened(sink_of(timeout="4s"), env)
        one.answers = [hang_up]
        with pytest.raises(ServerAway):
            await commit(sink, rows(0, 1))
        await commit(sink, rows(1, 2))
        assert one.keys == [1, 1, 2]
        one.answers = [hang_up]
        await commit(sink, rows(2, 3))
        assert one.keys[3:] == [3, 3]
        one.answers, begun = [never], trio.current_time()
        with pytest.raises(ServerAway, match="no answer within 4 s"):
            await commit(sink, rows(3, 4))
        assert trio.current_time() - begun == pytest.approx(4)
        await commit(sink)
        assert one.keys[5:] == [4, 4]
        assert one.asked[5].body == one.asked[6].body


async def test_a_client_that_starts_again_sends_the_same_bytes(autojump_clock: trio.testing.MockClock) -> None:
    disk = SimDisk()
    async with receiver(disk) as (one, env):
        sink = await opened(sink_of("current"), env)
        await commit(sink, rows(0, 1))
        one.answers = [hang_up, hang_up]
        with pytest.raises(ServerAway):
            await commit(sink, rows(1, 2), rows(2, 3, kind=Kind.TENTATIVE))
        before = one.asked[-1]
    async with receiver(disk := disk.restarted()) as (one, env):
        again = await opened(sink_of("current"), env)
        assert one.asked[0].body == before.body
        assert one.asked[0].headers["idempotency-key"] == before.headers["idempotency-key"]
        assert again.reached(OUT) == again.position(OUT) == 2
        assert [(row["_kind"], row["_id"]) for row in one.lines()[1]] == [("undo", 2)]
        assert one.keys == [2, 3]
        with pytest.raises(LogError, match="lock is held by another process"):
            await opened(sink_of("current"), env)
        await opened(sink_of("current", id="other"), env)
    async with receiver(disk.restarted()) as (one, env):
        with pytest.raises(SpeError, match="was written in the mode current; the configuration has stable"):
            await opened(sink_of(), env)


async def test_another_storage_is_another_sender(autojump_clock: trio.testing.MockClock) -> None:
    senders = set()
    for seed in (1, 2):
        async with receiver() as (one, env):
            env.random.seed(seed)
            await commit(await opened(sink_of(), env), rows(0, 1))
            senders.add(one.asked[0].headers["idempotency-key"])
    assert len(senders) == 2


async def test_a_damaged_outbox_is_named(autojump_clock: trio.testing.MockClock) -> None:
    disk = SimDisk()
    async with receiver(disk) as (_, env):
        await opened(sink_of(), env)
        (path,) = [p for p in disk.files if p.name == "outbox"]
        for data in (b"", b"\x93", b"\x80", b"\x81\xa7version\x01"):
            disk = disk.restarted()
            await disk.write_atomic(path, data)
            with pytest.raises(SpeError, match=f"{path} is no outbox of a sink"):
                await opened(sink_of(), replace(env, storage=disk))


async def test_a_full_disk_is_waited_for_and_nothing_is_sent(autojump_clock: trio.testing.MockClock) -> None:
    disk = SimDisk()
    async with receiver(disk) as (one, env):
        sink = await opened(sink_of(), env)
        disk.space_left = 10
        with pytest.raises(ServerAway, match="outbox cannot be written: No space left on device"):
            await commit(sink, rows(0, 1))
        assert one.asked == []
        disk.space_left = None
        await commit(sink)
        assert one.keys == [1]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503, 599])
async def test_temporary_error_is_retried_when_receiver_says(
    status: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with receiver() as (one, env):
        sink = await opened(sink_of(), env)
        one.answers = [answer(status, b"later", {"Retry-After": "20"})]
        with pytest.raises(ServerAway, match=f"{status}: later"):
            await commit(sink, rows(0, 1))
        with pytest.raises(ServerAway, match="asks to wait 20 s"):
            await commit(sink)
        await trio.sleep(20)
        await commit(sink)
        assert one.keys == [1, 1]


@pytest.mark.parametrize(
    ("status", "headers", "why"),
    [
        (400, {}, r"^http http://receiver:8000/results refuses request spe-\w+:1: 400: row 1: no$"),
        (401, {}, "401: row 1: no"),
        (404, {}, "404"),
        (413, {}, "413"),
        (302, {"Location": "http://other/?key=2"}, "expected its own URL, not one that leads to http://other/$"),
    ],
)
async def test_permanent_refusal_ends_the_client(
    status: int, headers: Mapping[str, str], why: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with receiver() as (one, env):
        sink = await opened(sink_of(), env)
        one.answers = [answer(status, b"row 1:\n  no" + b"\n" * 200_000, headers)]
        with pytest.raises(SpeError, match=why) as raised:
            await commit(sink, rows(0, 1))
        assert not isinstance(raised.value, ServerAway)


async def test_answers_that_never_end_take_neither_time_nor_memory(autojump_clock: trio.testing.MockClock) -> None:
    async def endless(peer: ServedPeer, asked: Asked) -> None:
        await peer.begin(200)
        while True:
            await peer.data(b"x" * 1_000)
            await trio.sleep(0.1)

    async def head_only(peer: ServedPeer, asked: Asked) -> None:
        await peer.stream.send_all(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000)

    async with receiver() as (one, env):
        sink = await opened(sink_of(), env)
        one.answers = [endless, head_only]
        await commit(sink, rows(0, 1))
        assert trio.current_time() < 2
        with pytest.raises(ServerAway, match=r"no answer of HTTP/1\.1"):
            await commit(sink, rows(1, 2))


@pytest.mark.parametrize("said", [b"x", b""])
async def test_answer_with_broken_body_is_an_answer(said: bytes, autojump_clock: trio.testing.MockClock) -> None:
    async def broken(peer: ServedPeer, asked: Asked) -> None:
        await peer.stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + said)
        await trio.aclose_forcefully(peer.stream)

    async with receiver() as (one, env):
        sink = await opened(sink_of(), env)
        one.answers = [broken]
        await commit(sink, rows(0, 1))
        await commit(sink, rows(1, 2))
        assert one.keys == [1, 2]


# --- the client ---


def test_retry_after_is_seconds_or_a_date() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    h11 = pytest.importorskip("h11")
    for text, seconds in [
        ("7", 7), ("100000", 300), ("-1", 0), ("soon", 0), ("", 0),
        (f"{now + timedelta(seconds=90):%a, %d %b %Y %H:%M:%S} GMT", 90),
        (f"{now - timedelta(seconds=90):%a, %d %b %Y %H:%M:%S} GMT", 0),
    ]:  # fmt: skip
        response = h11.Response(status_code=503, headers=[("Retry-After", text)])
        assert retry_after_s(response, int(now.timestamp() * 1e6)) == seconds


async def test_over_tls(autojump_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    """A server of another name, or of an authority that nobody knows, is not talked to."""
    context = server_context(tmp_path, "receiver")

    class Secure:
        async def connect(self, address: str, seconds: float) -> trio.abc.Stream:
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(self._serve, trio.SSLStream(theirs, context, server_side=True, https_compatible=True))
            return ours

        async def _serve(self, stream: trio.abc.Stream) -> None:
            with suppress(trio.BrokenResourceError):
                await WebhookServer().handle(stream)

    env = replace(source_env(), network=Secure())  # type: ignore[arg-type]
    ca = str(tmp_path / "ca.pem")
    async with trio.open_nursery() as nursery:
        client = HttpClient("it", Url.parse("https://receiver/"), ca=ca)
        await client.connect(env)
        response = await client.ask("POST", [(b"Idempotency-Key", b"a:1")], b'{"_partition": 0, "_id": 1}')
        assert response.status_code == 200
        for url, file in (("https://other/", ca), ("https://receiver/", None)):
            with pytest.raises(LinkBroken, match=r"no TLS with .*certificate verify failed"):
                await HttpClient("it", Url.parse(url), ca=file).connect(env)
        nursery.cancel_scope.cancel()
    with pytest.raises(SpeError, match="has no certificates"):
        HttpClient("it", Url.parse("https://receiver/"), ca=str(tmp_path / "none"))


def server_context(folder: Path, host: str) -> Any:
    """A server's, with a certificate that signs itself, in ca.pem."""
    import ssl

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context


# --- configuration ---


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"url": "receiver"}, "expected http://HOST"),
        ({"id": "a b"}, "expected at most 40 letters, digits"),
        ({"max_body": "1GiB"}, "expected at most 8 MiB"),
        ({"timeout": "0s"}, "expected a duration above zero"),
        ({"token": "s3cret"}, "expected {env: NAME} or {file: PATH}"),
    ],
)
def test_wrong_configuration_is_refused_without_secrets(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        sink_of(**keys)
    assert why in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_an_attribute_must_not_have_a_name_that_is_written() -> None:
    with pytest.raises(ConfigError, match="attribute '_stream' has a name that the sink uses itself"):
        sink_of(channels={OUT: Schema.of(_stream="int64")})
