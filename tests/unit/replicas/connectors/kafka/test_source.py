"""A source of Kafka topics, with brokers and with librdkafka's mock: each message once, whatever ends or is away."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import PurePosixPath
from random import Random
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

pytest.importorskip("confluent_kafka", reason="Kafka is not tested: confluent-kafka is not installed")

from confluent_kafka import Consumer, KafkaError

from examples.servers.kafka import CLUSTER, KafkaCluster
from examples.servers.mock_kafka import PARTITIONS, brokers
from examples.servers.topics import Topics
from replicas.connectors import open_reader
from replicas.connectors.kafka import brokers as kafka_brokers
from replicas.connectors.kafka import merge as kafka_merge
from replicas.connectors.kafka import source as kafka_source
from replicas.connectors.kafka import topics as kafka_topics
from replicas.connectors.kafka.client import Codes, in_words, library, settings
from replicas.connectors.kafka.offsets import Gone, Kept, Offsets, Partition, check_counts, chosen, gone
from replicas.connectors.kafka.source import Accept, KafkaReader
from replicas.connectors.reader import RowChunk
from replicas.simulation.world.disk import SimDisk, torn
from replicas.source.proxy import SourceProxy
from spe.connectors.kafka import KAFKA
from spe.errors import ServerAway, SpeError
from spe.log import read_log
from spe.log.source_log import decode_source_batch, decode_source_state
from spe.plan.plan import Source, Watermark
from spe.runtime.env import Env
from spe.stream.batch import Batch, Element
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringPool
from tests.support.kafka_servers import running_cluster
from tests.support.schema_registry import Registry, record, written
from tests.support.source_env import source_env
from tests.unit.replicas.source.test_proxy import FOLDER, source

pytestmark = pytest.mark.servers

SCHEMA = Schema(
    (
        Attribute("ts", AttributeType.TIMESTAMP, False),
        Attribute("n", AttributeType.INT64, False),
        Attribute("where", AttributeType.STRING, True),
    )
)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """One for each test."""
    return "t" + str(abs(hash(request.node.nodeid)) % 10**9)


def options(broker: Topics, topic: str, **more: Any) -> dict[str, Any]:
    return {
        "kind": "kafka", "servers": broker.servers, "topics": [topic], "format": "jsonl", "timestamps": "us",
        "attributes": {"where": "key"}, **more,
    }  # fmt: skip


def kafka(broker: Topics, topic: str, more: dict[str, Any] | None = None, **changes: Any) -> Source:
    changes = {"schema": SCHEMA, "time": "ts", "watermark": Watermark.DATA, **changes}
    return source(options(broker, topic, **(more or {})), **changes)


def messages(count: int, first: int = 0, partitions: int = PARTITIONS) -> list[dict[str, Any]]:
    return [
        {"value": {"ts": n * 1000, "n": n}, "key": f"{n % partitions}", "partition": n % partitions}
        for n in range(first, first + count)
    ]


def logged(storage: SimDisk, schema: Schema = SCHEMA) -> list[int]:
    pool, found = StringPool(), []
    for one in read_log(storage, FOLDER):
        batch = decode_source_batch(one.body, schema, pool)
        found += [] if batch is None else batch.rows.columns[1].to_list()
    return found


async def until(holds: Callable[[], Any]) -> None:
    while True:
        if holds():
            return
        await trio.sleep(0.02)


class Running:
    """A source that takes in until its test has seen enough."""

    def __init__(self, of: Source, storage: SimDisk | None = None) -> None:
        self.of = of
        self.storage = storage or SimDisk()
        self.rows: list[int] = []
        self.told: list[str] = []

    async def until(
        self, *, rows: int = 0, row: int = -1, last_id: int = 0, fault: bool = False, seconds: float = 30
    ) -> SourceProxy:
        """Until so many rows have been published by it, or it stopped."""
        reader = open_reader(self.of)
        assert isinstance(reader, KafkaReader)
        self.reader = reader
        proxy = await SourceProxy.open(source_env(self.storage), self.of)
        self.proxy = proxy
        with trio.fail_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(proxy.run, self._published, self.told.append, reader))
                await until(
                    lambda: (
                        proxy.fault or 0 < rows <= len(self.rows) or row in self.rows or 0 < last_id <= proxy.last_id
                    )
                )
                nursery.cancel_scope.cancel()
        assert fault == (proxy.fault is not None), proxy.fault
        return proxy

    def _published(self, elements: list[Element]) -> None:
        for element in elements:
            if isinstance(element, Batch):
                self.rows += element.rows.columns[1].to_list()

    def again(self, of: Source | None = None) -> Running:
        return Running(of or self.of, self.storage.restarted())


async def test_a_backlog_of_all_partitions_comes_in_order_of_time(broker: Topics, topic: str) -> None:
    broker.send(topic, messages(2_000))
    run = Running(kafka(broker, topic))
    proxy = await run.until(rows=2_000)
    assert run.rows == list(range(2_000))
    assert proxy.status().late == 0
    assert Offsets.decode(run.reader._durable).topics == {topic: [500] * 4}


async def test_message_from_future_does_not_delay_later_messages(broker: Topics, topic: str) -> None:
    """It is refused, so the order of others must not be that of its time: all of its partition would be late."""
    broker.send(topic, [{"value": {"ts": 10**18, "n": -1}, "key": "1", "partition": 1}])
    broker.send(topic, messages(2_000))
    run = Running(kafka(broker, topic, ahead_us=3_600_000_000))
    proxy = await run.until(rows=2_000)
    assert run.rows == list(range(2_000))
    assert (proxy.status().refused_ahead, proxy.status().late) == (1, 0)


class Slow(KafkaReader):
    """With time to be killed between two chunks; it cancels ``scope`` after so many of them."""

    chunks = 0
    scope: trio.CancelScope

    async def read(self, env: Env, accept: Accept) -> None:
        async def slowly(chunk: RowChunk) -> None:
            await accept(chunk)
            await trio.sleep(0.005)
            self.chunks -= 1
            if not self.chunks:
                self.scope.cancel()

        await super().read(env, slowly)


@pytest.mark.parametrize("seed", range(3))
async def test_kafka_source_resumes_exactly_wherever_it_is_killed(
    seed: int, broker: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a power failure, and whatever the group has committed.

    Some kills come after a number of chunks: by time alone, a busy machine reads nothing or everything before them.
    """
    monkeypatch.setattr(kafka_merge, "CHUNK_ROWS", 20)
    random, storage, count, on_the_way = Random(seed), SimDisk(), 800, 0
    broker.send(topic, messages(count))
    of = kafka(broker, topic, {"group": f"g{seed}"})
    for kill in range(10):
        storage.sync_s = random.choice([0.0, 0.02])
        proxy = await SourceProxy.open(source_env(storage), of)
        reader = Slow(SCHEMA, "ts", of.reader)
        by_time = kill >= 4
        reader.chunks = 0 if by_time else random.randrange(2, 7)
        with trio.move_on_after(random.uniform(0.0, 0.4) if by_time else 30) as reader.scope:
            await proxy.run(reader=reader)
        on_the_way += 0 < proxy.last_id < count
        if random.random() < 0.3:
            storage = storage.power_loss(lambda _, synced, written: torn(random, synced, written))
        storage = storage.restarted()
    run = Running(of, storage)
    broker.send(topic, messages(1, count))
    await run.until(last_id=count + 1)
    assert on_the_way
    assert logged(run.storage.restarted()) == list(range(count + 1))


async def test_where_it_begins_is_fixed_before_the_first_message(broker: Topics, topic: str) -> None:
    broker.send(topic, messages(8))
    of = kafka(broker, topic, {"start": "latest"})
    run = Running(of)
    proxy = await SourceProxy.open(source_env(run.storage), of)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(proxy.run, reader=open_reader(of)))
            await until(lambda: list(read_log(run.storage, FOLDER)))
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    broker.send(topic, messages(4, 8))  # while it is down
    again = run.again()
    await again.until(rows=4)
    assert sorted(logged(again.storage.restarted())) == [8, 9, 10, 11]


async def test_group_offsets_are_committed_after_sync_and_never_read(broker: Topics, topic: str) -> None:
    broker.send(topic, messages(40))
    of = kafka(broker, topic, {"group": "lag"})
    run = Running(of)
    proxy = await SourceProxy.open(source_env(run.storage), of)
    run.storage.stall(True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(proxy.run, reader=open_reader(of)))
        with trio.fail_after(20):
            await until(lambda: proxy.consumed == 40)
            await trio.sleep(1.5)
            ask = partial(broker.committed, "lag", topic)
            assert await trio.to_thread.run_sync(ask) < 0  # nothing: the disk has not synced
            run.storage.stall(False)
            while await trio.to_thread.run_sync(ask) != 10:  # noqa: ASYNC110 - a broker tells nobody
                await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    new = Running(of)  # with an empty log it begins at the beginning, though the group is at the end
    await new.until(rows=40)
    assert len(new.rows) == 40


async def test_consumer_joining_the_group_takes_no_partition(broker: Topics, topic: str) -> None:
    broker.send(topic, messages(40))
    wanted = {"bootstrap.servers": ",".join(broker.servers), "group.id": "shared", "log_level": 0}
    other, got, over = Consumer(wanted), list[Any](), Event()
    other.subscribe([topic], on_assign=lambda _, partitions: got.extend(partitions))

    def join() -> None:
        while len(got) < PARTITIONS and not over.is_set():
            other.poll(0.05)
        broker.send(topic, messages(40, 40))
        while not over.wait(0.05):
            other.poll(0)
        other.close()

    run = Running(kafka(broker, topic, {"group": "shared"}))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, join)
        try:
            await run.until(rows=80)
        finally:
            over.set()
    assert sorted(run.rows) == list(range(80))
    assert len(got) == PARTITIONS


class CountedTopic:
    """A consumer of a topic of which somebody adds partitions; each has messages from offset 3 on."""

    def __init__(self) -> None:
        self.count = 1
        self.assigned: list[tuple[int, int]] = []

    def list_topics(self, name: str, timeout: float) -> Any:
        found = SimpleNamespace(error=None, partitions=dict.fromkeys(range(self.count)))
        return SimpleNamespace(cluster_id="one", topics={name: found})

    def get_watermark_offsets(self, at: Any, timeout: float) -> tuple[int, int]:
        return 3, 10

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.assigned += [(p.partition, p.offset) for p in partitions]


@pytest.mark.parametrize(("busy", "within_s"), [(True, kafka_brokers.LOOK_S), (False, kafka_brokers.SILENCE_S)])
async def test_new_partition_is_read_from_start_within_stated_time(
    autojump_clock: trio.testing.MockClock, busy: bool, within_s: float
) -> None:
    """Also where others give messages all the time, so that nobody asks whether brokers are there."""
    reader = KafkaReader(SCHEMA, "ts", {"servers": ["b:1"], "topics": ["t"], "format": "jsonl", "timestamps": "us"})
    topic, step_s = CountedTopic(), 0.125
    reader._env, reader._kafka, reader._consumer = source_env(), library(), topic
    brokers = reader._brokers
    brokers.use(reader._env)

    async def at_once(function: Callable[[], Any]) -> Any:
        """Not in a thread: virtual time would not wait for it."""
        await trio.lowlevel.checkpoint()
        return function()

    brokers.in_thread = at_once  # type: ignore[method-assign]
    reader._topics.use(topic, None)
    reader._topics.ids = dict  # type: ignore[method-assign]
    await reader._begin(Offsets.decode(b""))
    assert topic.assigned == [(0, 3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(brokers.watch, reader._current)
        for steps in (300, 300):  # it is added at different times since the last look
            topic.count += 1
            for step in range(steps):
                if len(topic.assigned) < topic.count:
                    took_s = step * step_s
                brokers.heard_s = trio.current_time() if busy else 0.0
                reader._mend()
                await trio.sleep(step_s)
            assert topic.assigned[-1] == (topic.count - 1, 3)
            assert took_s <= within_s + step_s
        nursery.cancel_scope.cancel()
    assert KAFKA.guarantees is not None
    assert "30 s" in KAFKA.guarantees.failures["a partition is idle, or new"]
    assert kafka_brokers.LOOK_S == 30


async def test_poison_messages_are_rejected_with_their_offset(broker: Topics, topic: str) -> None:
    broker.send(topic, [*messages(4), {"value": b"oops", "partition": 1}, {"value": None, "key": "k", "partition": 2}])
    broker.send(topic, messages(4, 4))
    run = Running(kafka(broker, topic))
    proxy = await run.until(rows=8)
    assert proxy.status().malformed == 2
    file = run.storage.read(PurePosixPath("malformed", "events.jsonl"))
    kept = [json.loads(line) for line in file.splitlines()]
    assert sorted((k["place"], k["text"]) for k in kept) == [
        (f"{topic}/1 offset 1", "oops"),
        (f"{topic}/2 offset 1", ""),
    ]

    stopped = Running(kafka(broker, topic, on_malformed="stop"))
    proxy = await stopped.until(fault=True)
    assert "offset 1: " in str(proxy.fault)
    again = stopped.again(kafka(broker, topic))
    await again.until(rows=8 - len(stopped.rows))
    assert sorted(logged(again.storage.restarted())) == list(range(8))


async def test_refused_messages_are_reported_by_partition_and_offset(broker: Topics, topic: str) -> None:
    """Those from the future as those that cannot be read."""
    late_us = 10**18
    broker.send(topic, messages(4))
    broker.send(topic, [{"value": {"ts": late_us, "n": 9}, "partition": 1}, {"value": b"oops", "partition": 1}])
    broker.send(topic, messages(4, 4))
    run = Running(kafka(broker, topic, rejected={"kind": "jsonl", "path": "aside", "mode": "stable"}, ahead_us=1))
    proxy = await run.until(rows=8)
    found = [row for one in await proxy.rejected_after(0) for row in one.rows.columns[0].to_list()]
    assert found == [f"{topic}/1 offset 1", f"{topic}/1 offset 2"]


async def test_a_topic_that_is_missing_stops_it(broker: Topics, topic: str) -> None:
    proxy = await Running(kafka(broker, topic)).until(fault=True)
    assert f"has no topic '{topic}'; make it, or correct topics" in str(proxy.fault)


async def test_a_partition_that_is_missing_stops_it(broker: Topics, topic: str) -> None:
    broker.send(topic, messages(1))
    proxy = await Running(kafka(broker, topic, {"partitions": [0, 4]})).until(fault=True)
    assert f"topic {topic} has no partition 4; it has 4, from 0" in str(proxy.fault)


async def test_only_the_partitions_that_are_asked_for_are_read(broker: Topics, topic: str) -> None:
    broker.send(topic, messages(40))
    run = Running(kafka(broker, topic, {"partitions": [3, 1]}))
    await run.until(rows=20)
    assert run.rows == [n for n in range(40) if n % 4 in (1, 3)]


async def test_messages_removed_before_reading_are_reported(
    broker: Topics, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.send(topic, messages(4))
    run = Running(kafka(broker, topic))
    await run.until(rows=4)
    large = [{"value": {"ts": n * 1000, "n": n, "x": "x" * 900_000}, "partition": 0} for n in range(4, 16)]
    broker.send(topic, large)
    if isinstance(broker, KafkaCluster):
        broker.remove(topic, 0, before=9)  # of its own accord the mock keeps some 5 MB of a partition
    stopped = run.again()
    proxy = await stopped.until(fault=True)
    assert f"{topic}/0: " in str(proxy.fault)
    assert "messages from offset 1 on were removed before they were read. With gone: skip" in str(proxy.fault)
    skipping = stopped.again(kafka(broker, topic, {"gone": "skip"}))
    broker.send(topic, messages(1, 16))
    await skipping.until(row=16)
    assert skipping.rows == list(range(skipping.rows[0], 17))
    assert "were removed before they were read; going on at offset" in capsys.readouterr().err


async def test_brokers_that_come_and_go_are_waited_for(topic: str) -> None:
    with brokers(1) as broker:
        broker.send(topic, messages(40))
        run = Running(kafka(broker, topic))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(run.until, rows=44))
            with trio.fail_after(30):
                await until(lambda: len(run.rows) == 40)
                broker.pause()
                await until(lambda: run.reader.away)
                assert "does not answer" in run.reader.away
                await trio.sleep(0.5)
                assert run.proxy.status().note.endswith("trying again")
                broker.resume()
                await trio.to_thread.run_sync(broker.send, topic, messages(4, 40))
        assert sorted(run.rows) == list(range(44))
        assert not run.reader.away
    dead = Running(kafka(broker, topic))  # brokers that are not there at all
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(dead.until, rows=1, seconds=60))
        with trio.fail_after(20):
            await until(lambda: dead.told)
        nursery.cancel_scope.cancel()
    assert "does not answer" in dead.told[0]


async def test_another_cluster_is_refused(broker: Topics, topic: str) -> None:
    broker.send(topic, messages(4))
    run = Running(kafka(broker, topic))
    await run.until(rows=4)
    with brokers() as other:
        other.send(topic, messages(4))
        proxy = await run.again(kafka(other, topic)).until(fault=True)
    name = CLUSTER if isinstance(broker, KafkaCluster) else "mockCluster"
    assert f"the source's log was read from cluster {name}" in str(proxy.fault)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_topic_that_is_made_again_is_refused(restarts: bool, topic: str) -> None:
    """It may have more messages than the source has read, so offsets do not tell."""
    with running_cluster() as cluster:
        cluster.send(topic, messages(8))
        run = Running(kafka(cluster, topic))

        def make_again() -> None:
            cluster.delete(topic)
            cluster.make(topic)
            cluster.send(topic, messages(40, 100))

        if restarts:
            await run.until(rows=8)
            make_again()
            proxy = await run.again().until(fault=True)
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(run.until, fault=True, rows=1_000))
                with trio.fail_after(30):
                    await until(lambda: len(run.rows) == 8)
                await trio.to_thread.run_sync(make_again)
            proxy = run.proxy
        assert "was deleted and made again" in str(proxy.fault)


async def test_an_id_that_comes_later_is_kept(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start no broker said it."""
    monkeypatch.setattr(kafka_brokers, "ID_S", 0.2)
    right, answers = kafka_topics.Topics.ids, count()
    monkeypatch.setattr(kafka_topics.Topics, "ids", lambda self: right(self) if next(answers) else {})
    with running_cluster() as cluster:
        cluster.send(topic, messages(4))
        run = Running(kafka(cluster, topic))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(run.until, rows=8))
            with trio.fail_after(30):
                await until(lambda: len(run.rows) == 4 and run.reader._brokers.ids)
            await trio.to_thread.run_sync(cluster.send, topic, messages(4, 4))
    *_, last = read_log(run.storage, FOLDER)
    assert topic in Offsets.decode(decode_source_state(last.body).cursor).ids


async def test_partitions_far_ahead_are_not_read_for_a_while(
    broker: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source, "WAITING_MAX", 50)
    late = [{"value": {"ts": n * 1000, "n": n}, "partition": n % 2} for n in range(1_000, 3_000)]
    early = [{"value": {"ts": n * 1000, "n": n}, "partition": 2 + n % 2} for n in range(1_000)]
    broker.send(topic, late)
    broker.send(topic, early)
    run = Running(kafka(broker, topic))
    proxy = await run.until(rows=3_000)
    assert run.rows == list(range(3_000))
    assert proxy.status().late == 0


async def test_partitions_ahead_in_turn_do_not_wait_for_each_other(
    broker: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the first is through, the second has nothing left that waits, and must be read though others wait."""
    monkeypatch.setattr(kafka_source, "CHUNK_ROWS", 20)
    monkeypatch.setattr(kafka_source, "WAITING_MAX", 50)
    for p in (3, 2, 1, 0):
        broker.send(topic, [{"value": {"ts": n * 1000, "n": n}, "partition": p} for n in range(p * 500, p * 500 + 500)])
    run = Running(kafka(broker, topic))
    await run.until(rows=2_000)
    assert run.rows == list(range(2_000))


async def test_kafka_source_ends_as_configured_over_restarts(broker: Topics, topic: str) -> None:
    broker.send(topic, messages(40))
    of = kafka(broker, topic, {"until": [10, 3, 0, 12]})
    run = Running(of)
    with trio.fail_after(20):
        proxy = await SourceProxy.open(source_env(run.storage), of)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(proxy.run, reader=open_reader(of)))
            await until(lambda: proxy.consumed == 23)
            nursery.cancel_scope.cancel()
        broker.send(topic, messages(12, 40))
        again = run.storage.restarted()
        proxy = await SourceProxy.open(source_env(again), of)
        await proxy.run(reader=open_reader(of))
    assert proxy.ended
    expected = [n for n in range(52) if n // 4 < (10, 3, 0, 12)[n % 4]]
    assert sorted(logged(again.restarted())) == expected
    wrong = await Running(kafka(broker, topic, {"until": [1]})).until(fault=True)
    assert f"topic {topic} has 4 partitions; expected 4 offsets in until" in str(wrong.fault)


async def test_several_topics_are_one_stream(broker: Topics, topic: str) -> None:
    broker.send(topic + "a", messages(20))
    broker.send(topic + "b", messages(20, 20))
    run = Running(kafka(broker, topic, {"topics": [topic + "a", topic + "b"], "attributes": {"where": "topic"}}))
    await run.until(rows=40)
    assert run.rows == list(range(40))


def test_secrets_are_read_when_they_are_used(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("geheim\n")
    monkeypatch.setenv("KAFKA_USER", "ann")
    security = {
        "protocol": "sasl_ssl", "mechanism": "PLAIN", "username": {"env": "KAFKA_USER"},
        "password": {"file": str(tmp_path / "password")},
    }  # fmt: skip
    found = settings({"servers": ["a:1", "b:2"], "security": security})
    assert (found["sasl.username"], found["sasl.password"]) == ("ann", "geheim")
    assert found["bootstrap.servers"] == "a:1,b:2"
    monkeypatch.delenv("KAFKA_USER")
    with pytest.raises(SpeError, match=r"kafka.security.username: the process has no environment variable KAFKA_USER"):
        settings({"servers": ["a:1"], "security": security})
    os.remove(tmp_path / "password")
    monkeypatch.setenv("KAFKA_USER", "ann")
    with pytest.raises(SpeError, match=r"kafka.security.password: .*password cannot be read"):
        settings({"servers": ["a:1"], "security": security})
    with pytest.raises(SpeError, match=r"kafka.security.ca: there is no file /nowhere/ca.pem"):
        settings({"servers": ["a:1"], "security": {"protocol": "ssl", "ca": "/nowhere/ca.pem"}})


@pytest.mark.parametrize(
    ("code", "away", "said"),
    [
        (KafkaError._AUTHENTICATION, False, "kafka at b:1 refuses us: .*; correct security"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, "kafka at b:1: .*; give the user the right"),
        (KafkaError._TRANSPORT, True, "kafka at b:1 does not answer"),
        (KafkaError.LEADER_NOT_AVAILABLE, True, "kafka at b:1 does not answer"),
        (KafkaError.OFFSET_NOT_AVAILABLE, True, "kafka at b:1 does not answer"),
        (KafkaError._UNKNOWN_PARTITION, True, "kafka at b:1 does not answer"),
        (KafkaError._DESTROY_BROKER, True, "kafka at b:1 does not answer"),
        (KafkaError.TOPIC_EXCEPTION, False, "kafka at b:1: "),
    ],
)
def test_errors_say_what_to_do(code: int, away: bool, said: str) -> None:
    found = in_words(KafkaError(code), "kafka at b:1", Codes())
    assert isinstance(found, ServerAway) == away
    with pytest.raises(SpeError, match=said):
        raise found


async def test_refused_credentials_stop_start_and_are_retried_later(broker: Topics, topic: str) -> None:
    broker.send(topic, messages(4))
    refused = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication failed")
    run = Running(kafka(broker, topic))
    await run.until(rows=4)
    run.reader._brokers.heard_error(refused)
    assert "refuses us" in run.reader.away
    never = KafkaReader(SCHEMA, "ts", options(broker, topic))
    never._brokers.use(source_env(SimDisk()))
    never._brokers.heard_error(refused)
    with pytest.raises(SpeError, match="refuses us: SASL authentication failed; correct security"):
        await never._brokers.in_thread(lambda: None)


def test_offsets_survive_as_bytes_and_others_are_refused() -> None:
    one = Offsets("c").moved([Partition("a", 1), Partition("b", 0)], kafka_source.array([5, 7]))
    assert one.topics == {"a": [-1, 5], "b": [7]}
    again = Offsets.decode(one.encode())
    assert again == one
    assert [again.of(Partition("a", n)) for n in range(3)] == [None, 5, None]
    for cursor in (b"17", b"\xc1", b"\x93\x02\xa1x\x80"):
        with pytest.raises(SpeError, match="a position that is none of Kafka"):
            Offsets.decode(cursor)


def test_removed_offsets_are_reported_and_impossible_refused() -> None:
    at = Partition("a", 0)
    assert gone(at, 5, Kept(5, 9)) is None
    assert gone(at, 9, Kept(9, 9)) is None
    assert gone(at, 3, Kept(5, 9)) == Gone(at, 3, 5)
    with pytest.raises(
        SpeError, match="a/0 ends at offset 9, and the source has read it up to 10: the topic was deleted"
    ):
        gone(at, 10, Kept(5, 9))
    with pytest.raises(SpeError, match="topic a has 1 partitions, and had 2: it was deleted and made again"):
        check_counts(Offsets("", {"a": [1, 2]}), {"a": 1})
    assert chosen(["a", "b"], {"a": 2, "b": 1}, None) == [("a", 0), ("a", 1), ("b", 0)]


# --- Avro ---


async def test_messages_of_avro_wait_for_their_schemas(broker: Topics, topic: str) -> None:
    """The registry is away at first; whatever came until then comes once, also over restarts."""
    schemas = {1: record(where=None, name=None), 2: record("millis", name=None, more="string")}
    sent = [
        {"value": written(schemas[1 + n % 2], {"ts": 1_000 * n, "n": n, "more": "x"}, 1 + n % 2), "partition": n % 2}
        for n in range(40)
    ]
    broker.send(topic, [{**one, "key": "k"} for one in sent])
    broker.send(topic, [{"value": struct.pack(">bI", 0, 99), "partition": 0}])
    there = Registry()
    async with trio.open_nursery() as nursery:
        await nursery.start(there.serve)
        nursery.cancel_scope.cancel()
    keys = {"registry": {"url": f"http://{there.address}"}}
    run = Running(kafka(broker, topic, {"format": "avro", "avro": keys}, disorder_us=10_000_000_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run.until, rows=40))
        await until(lambda: run.told)
        assert f"schema registry http://{there.address}/ does not answer" in run.told[0]
        await trio.sleep(1)  # the end of each partition comes meanwhile
        assert run.rows == []
        await nursery.start(there.serve, int(there.address.rpartition(":")[2]))
        for id_, schema in schemas.items():
            there.add(id_, schema)
        await until(lambda: len(run.rows) == 40)
        assert sorted(run.rows) == list(range(40))
        broker.send(topic, [{"value": written(schemas[1], {"ts": 1, "n": n}, 1)} for n in range(40, 50)])
        again = run.again()
        proxy = await again.until(rows=10)
        assert sorted(again.rows) == list(range(40, 50))
        assert sorted(logged(again.storage)) == list(range(50))
        assert (proxy.away, proxy.status().malformed) == ("", 0)
        nursery.cancel_scope.cancel()
    assert run.proxy.status().malformed == 1
