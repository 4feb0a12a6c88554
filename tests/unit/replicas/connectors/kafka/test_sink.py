"""A Kafka sink: each row once by the rules of transactions, in a model; and as librdkafka sends it, to its broker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import trio

pytest.importorskip("confluent_kafka", reason="Kafka is not tested: confluent-kafka is not installed")

import trio.lowlevel
from confluent_kafka import KafkaError

from examples.servers.topics import Topics
from replicas.connectors.kafka.positions import read_position
from replicas.connectors.kafka.sink import KafkaSink
from replicas.connectors.server_sink import NOTHING_KEPT
from replicas.testing import check_sink
from spe.connectors.declaration import CORRECTIONS, STABLE
from spe.errors import ConfigError, ServerAway, SpeError
from spe.runtime.production import ThreadCompute
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from tests.support import fake_kafka
from tests.support.fake_kafka import SERVERS, FakeKafka
from tests.support.source_env import source_env
from tests.support.streams import PAYLOAD, parse

ONE, TWO = Channel(StreamId("q"), 0), Channel(StreamId("q"), 1)
SCHEMAS = {ONE: PAYLOAD, TWO: PAYLOAD}
QUERIES = dict.fromkeys(SCHEMAS, "q1")
COMPUTE = ThreadCompute()
ENTRY = {"kafka": {"servers": SERVERS, "topic": "out"}}


def cluster(failing: float = 0.0, seed: int = 0) -> FakeKafka:
    return FakeKafka({"out": 2, "spe-positions": 1}, failing, seed)


def sink(mode: str = STABLE, servers: Sequence[str] = (SERVERS,), **more: Any) -> KafkaSink:
    options = {"servers": list(servers), "topic": "out", "positions": "spe-positions", **more}
    made_sink = KafkaSink(SCHEMAS, mode, options)
    made_sink.name = "kafka out"
    return made_sink


async def opened(opened_sink: KafkaSink, seed: int = 0) -> KafkaSink:
    env = source_env()
    env.random.seed(seed)
    with trio.fail_after(30):
        while True:
            try:
                await opened_sink.open(env, QUERIES)
                return opened_sink
            except ServerAway:  # a broker that has just started loads its transactions first
                await trio.sleep(0.1)


def feed(opened_sink: KafkaSink, text: str, channel: Channel = ONE, position: int = 0) -> None:
    for element in parse(text, PAYLOAD, position=position):
        opened_sink.write(Change(channel, element, 0))


@pytest.mark.parametrize("failing", [0.0, 0.1])
@pytest.mark.parametrize("mode", [STABLE, CORRECTIONS])
def test_kafka_sink_keeps_guarantees_despite_kills_and_failures(
    mode: str, failing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[FakeKafka] = []

    def server() -> FakeKafka:
        made.append(cluster(failing, len(made)))
        fake_kafka.use(monkeypatch, made[-1])
        return made[-1]

    plays = check_sink({**ENTRY, "mode": mode}, server, most=12, seed=3)
    assert plays == 26
    assert (sum(opened_sink.aborted for opened_sink in made) > 0) == (failing > 0)


async def test_stable_rows_name_their_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kafka.use(monkeypatch, there := cluster())
    opened_sink = await opened(sink())
    feed(opened_sink, "S1/5a S2/6b B10(2) T/12c U(2) S3/12d")
    feed(opened_sink, "S1/5x", TWO)
    await opened_sink.commit(COMPUTE)
    assert [(r["_partition"], r["_id"]) for r in there.rows(partition=0)] == [(0, 1), (0, 2), (0, 3)]
    assert [(r["_partition"], r["_id"]) for r in there.rows(partition=1)] == [(1, 1)]
    assert all("_kind" not in r and r["_time"].endswith("Z") for r in there.rows())
    assert (opened_sink.position(ONE), opened_sink.position(TWO)) == (3, 1)


async def test_forgotten_position_sends_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent stays in the topic; a client that still runs ends."""
    fake_kafka.use(monkeypatch, there := cluster())
    running = await opened(sink(), 1)
    feed(running, "S1/5a S2/6b")
    await running.commit(COMPUTE)
    assert await sink().forget(source_env()) == "its position is removed; rows that were sent stay"
    assert await sink().forget(source_env()) == NOTHING_KEPT
    feed(running, "S3/7c", position=2)
    with pytest.raises(SpeError, match="another process writes to it since"):
        await running.commit(COMPUTE)
    again = await opened(sink(), 2)
    assert again.reached(ONE) == 0
    feed(again, "S1/8x")
    await again.commit(COMPUTE)
    assert [r["_id"] for r in there.rows(partition=0)] == [1, 2, 1]


async def test_each_topic_partition_has_whole_history_of_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kafka.use(monkeypatch, there := cluster())
    name = PAYLOAD.names[0]
    opened_sink = await opened(sink(CORRECTIONS, key=(name,)))
    feed(
        opened_sink,
        "S1/5a S2/5b S3/5c B10(3) " + " ".join(f"T/12{c}" for c in "abcdefgh") + " b20 U(3) S4/12e B20(4) R+",
    )
    await opened_sink.commit(COMPUTE)
    kept: list[int] = []
    for partition in range(2):
        held: list[dict[str, Any]] = []
        stored = [json.loads(s.value or b"") for _, s in there.readable("out", partition)[0]]
        assert {r["_kind"] for r in stored} == {"insert", "undo", "done"}
        for row in stored:
            held = [r for r in held if r["_id"] <= row["_id"]] if row["_kind"] == "undo" else held
            held += [row] if row["_kind"] == "insert" else []
        kept += [r["_id"] for r in held]
        keys = {s.key: json.loads(s.value or b"")[name] for _, s in there.readable("out", partition)[0] if s.key}
        assert all(key == value.encode() for key, value in keys.items())
    assert sorted(kept) == [1, 2, 3, 4]


async def test_withdrawal_reaches_partitions_added_since(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kafka.use(monkeypatch, there := cluster())
    opened_sink = await opened(sink(CORRECTIONS, key=(PAYLOAD.names[0],)))
    there.partitions["out"] = 3
    there.logs["out", 2] = []
    feed(opened_sink, " ".join(f"T/12{c}" for c in "abcdefgh"))
    await opened_sink.commit(COMPUTE)
    feed(opened_sink, "U(0) S1/12e B20(1) R+")
    await opened_sink.commit(COMPUTE)
    kinds = [[json.loads(s.value or b"")["_kind"] for _, s in there.readable("out", p)[0]] for p in range(3)]
    assert all("insert" in each and "undo" in each for each in kinds)


async def test_latest_process_continues_and_earlier_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kafka.use(monkeypatch, there := cluster())
    first = await opened(sink(), 1)
    feed(first, "S1/5a")
    await first.commit(COMPUTE)
    feed(first, "S1/5a S2/6b", position=0)
    second = await opened(sink(), 2)
    with pytest.raises(SpeError, match="kafka out: another process writes to it since; this one ends"):
        await first.commit(COMPUTE)
    feed(second, "S2/6b", position=1)
    while second.position(ONE) < 2:  # the first one took the id over once more, to see what had become of it
        try:
            await second.commit(COMPUTE)
        except ServerAway:
            await trio.lowlevel.checkpoint()
    assert [r["_id"] for r in there.rows()] == [1, 2]


async def test_position_behind_open_foreign_transaction_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of what is committed see nothing behind it, and an older position would bring rows twice."""
    fake_kafka.use(monkeypatch, there := cluster())
    opened_sink = await opened(sink())
    feed(opened_sink, "S1/5a")
    await opened_sink.commit(COMPUTE)
    log = there.logs["spe-positions", 0]
    log.insert(1, fake_kafka.Stored(b"other", b"", fake_kafka.Transaction()))
    monkeypatch.setattr("replicas.connectors.kafka.positions.REQUEST_S", 0.05)
    with pytest.raises(ServerAway, match="topic spe-positions cannot be read to its end: it stands at offset 1 of"):
        await sink().load(source_env())
    log[1].transaction.state = "aborted"
    assert json.loads(await sink().load(source_env()))["channels"]["q/0"]["id"] == 1


async def test_newest_position_of_an_id_is_located_far_back(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kafka.use(monkeypatch, there := cluster())
    done = fake_kafka.Transaction()
    done.state = "committed"
    keys = [b"mine", b"mine", *[b"other"] * 9_000]
    there.logs["spe-positions", 0] += [fake_kafka.Stored(k, str(i).encode(), done) for i, k in enumerate(keys)]
    assert read_position({}, "spe-positions", "mine") == b"1"
    assert read_position({}, "spe-positions", "nobody") == b""


@pytest.mark.parametrize(
    ("code", "said", "away"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "give the user the right", False),
        (KafkaError._MSG_TIMED_OUT, "does not answer", True),
        (KafkaError.INVALID_RECORD, "kafka out: played", False),
    ],
)
async def test_aborted_transaction_is_retried_where_that_helps(
    code: int, said: str, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_kafka.use(monkeypatch, cluster())
    opened_sink = await opened(sink())
    monkeypatch.setattr(
        fake_kafka.FakeProducer, "_abort", lambda self: fake_kafka.broken(code, txn_requires_abort=True)
    )
    monkeypatch.setattr(FakeKafka, "fails", lambda self: True)
    with pytest.raises(SpeError, match=said) as caught:
        await opened_sink.store(opened_sink._state or b"", b"{}", [])
    assert isinstance(caught.value, ServerAway) == away


@pytest.mark.parametrize("code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED])
async def test_abandoned_transaction_is_aborted(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else readers of what is committed would get nothing behind it, from anybody, until it times out."""
    fake_kafka.use(monkeypatch, there := cluster())
    opened_sink = await opened(sink())

    def refuses(self: Any, topic: str, value: bytes, **more: Any) -> None:
        raise fake_kafka.broken(code, txn_requires_abort=code != KafkaError.MSG_SIZE_TOO_LARGE)

    monkeypatch.setattr(fake_kafka.FakeProducer, "produce", refuses)
    feed(opened_sink, "S1/5a")
    with pytest.raises(SpeError) as caught:
        await opened_sink.commit(COMPUTE)
    assert not isinstance(caught.value, ServerAway)
    assert there.open == {}


def test_several_streams_and_keys_that_do_not_fit_are_refused() -> None:
    schemas = {ONE: PAYLOAD, Channel(StreamId("r"), 0): PAYLOAD}
    options = {"servers": ["a:1"], "topic": "out", "positions": "p", "key": ("nothing",)}
    with pytest.raises(ConfigError, match=r"2 streams would go to 'out'; expected \{stream\} in topic") as caught:
        KafkaSink(schemas, STABLE, options)
    assert "kafka.key: stream 'q' has no attribute 'nothing'" in str(caught.value)
    KafkaSink(schemas, STABLE, {**options, "topic": "out-{stream}", "key": None})


# --- librdkafka, with its mock and with brokers ---


async def test_librdkafka_sends_rows_and_position_and_resumes(broker: Topics) -> None:
    options = {"servers": broker.servers, "id": "restart", "topic": "restarted"}
    broker.make("restarted")
    opened_sink = await opened(sink(**options))
    feed(opened_sink, "S1/5a S2/6b")
    feed(opened_sink, "S1/5x", TWO)
    await opened_sink.commit(COMPUTE)
    await opened_sink.disconnect()
    again = await opened(sink(**options))
    assert (again.reached(ONE), again.reached(TWO)) == (2, 1)
    feed(again, "S1/5a S2/6b S3/7c")
    await again.commit(COMPUTE)
    await again.disconnect()
    read = await trio.to_thread.run_sync(broker.read, "restarted", 3)
    assert [json.loads(m.value())["_id"] for m in read] == [1, 2, 3]
    (other,) = await trio.to_thread.run_sync(broker.read, "restarted", 1, 1)
    assert json.loads(other.value())["_partition"] == 1


async def test_brokers_that_hang_are_waited_for(broker: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicas.connectors.kafka.sink.REQUEST_S", 1.0)
    monkeypatch.setattr("replicas.connectors.kafka.positions.REQUEST_S", 1.0)
    broker.make("hangs")
    opened_sink = await opened(sink(servers=broker.servers, id="hangs", topic="hangs"))
    feed(opened_sink, "S1/5a")
    with broker.stopped():
        for _ in range(2):
            with pytest.raises(ServerAway):
                await opened_sink.commit(COMPUTE)
    with trio.fail_after(20):
        while opened_sink.position(ONE) < 1:
            try:
                await opened_sink.commit(COMPUTE)
            except ServerAway:
                await trio.sleep(0.1)
    await opened_sink.disconnect()


async def test_missing_topic_is_reported(broker: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kafka.use(monkeypatch, cluster())
    with pytest.raises(SpeError, match="kafka out: there is no topic 'nowhere'; make it, or correct topic"):
        await sink(topic="nowhere").load(source_env())


async def test_a_row_that_is_too_large_is_named(broker: Topics) -> None:
    broker.make("large")
    opened_sink = await opened(sink(servers=broker.servers, id="large", topic="large"))
    feed(opened_sink, "S1/5a S2/6" + "b" * 2_000_000)
    with pytest.raises(SpeError, match=r"row 2 has 20\d{5} bytes as a message"):
        await opened_sink.commit(COMPUTE)
    await opened_sink.disconnect()
