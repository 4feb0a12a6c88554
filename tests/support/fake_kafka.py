"""A model of Kafka's transactions, in place of the client library: fencing, aborts, and what readers may see.

librdkafka's mock has none of these.  Calls fail at random, before or after they have done what they say.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from replicas.connectors.kafka import client as kafka_client
from replicas.connectors.kafka import positions as kafka_positions
from replicas.connectors.kafka import sink as kafka_sink

SERVERS = "fake:9092"


class Transaction:
    """Attributes:
    state: open, committed or aborted.
    """

    def __init__(self) -> None:
        self.state = "open"


class Stored(NamedTuple):
    """A message, or where ``key`` and ``value`` are None a mark of a transaction's end, which has an offset, too."""

    key: bytes | None
    value: bytes | None
    transaction: Transaction


class FakeKafka:
    """A cluster that survives its clients.

    Args:
      partitions: by topic.
      failing: share of calls that fail.
    """

    def __init__(self, partitions: Mapping[str, int], failing: float = 0.0, seed: int = 0) -> None:
        self.logs: dict[tuple[str, int], list[Stored]] = {
            (topic, p): [] for topic, count in partitions.items() for p in range(count)
        }
        self.partitions = dict(partitions)
        self.failing = failing
        self._random = Random(seed)
        #: Of each transactional id: its producer's epoch, and the transaction that is open.
        self.epochs: dict[str, int] = {}
        self.open: dict[str, Transaction] = {}
        self.aborted = 0

    def fails(self) -> bool:
        return self._random.random() < self.failing

    def end(self, name: str, state: str) -> None:
        """Ends the transaction of an id, if it has one."""
        transaction = self.open.pop(name, None)
        if transaction is None:
            return
        self.aborted += state == "aborted"
        transaction.state = state
        for log in self.logs.values():
            if any(one.transaction is transaction for one in log):
                log.append(Stored(None, None, transaction))

    def readable(self, topic: str, partition: int) -> tuple[list[tuple[int, Stored]], int]:
        """What a reader of what is committed gets, and the offset up to which that is known."""
        log = self.logs[topic, partition]
        end = next((i for i, one in enumerate(log) if one.transaction.state == "open"), len(log))
        seen = [(i, one) for i, one in enumerate(log[:end]) if one.transaction.state == "committed"]
        return [(i, one) for i, one in seen if one.value is not None], end

    def rows(self, topic: str = "out", partition: int | None = None) -> list[dict[str, Any]]:
        """What stands in a topic for readers of what is committed."""
        numbers = range(self.partitions[topic]) if partition is None else [partition]
        found = [json.loads(one.value or b"") for p in numbers for _, one in self.readable(topic, p)[0]]
        return [row for row in found if row.get("_kind") != "done"]


def broken(code: int, **more: bool) -> KafkaException:
    return KafkaException(KafkaError(code, "played", **more))


class FakeProducer:
    """As ``confluent_kafka.Producer``, as far as a sink uses it."""

    def __init__(self, cluster: FakeKafka, conf: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._name = str(conf["transactional.id"])
        self._epoch = -1
        self._broken = False

    def list_topics(self, topic: str, timeout: float) -> Any:
        if self._cluster.fails():
            raise broken(KafkaError._TRANSPORT)
        count = self._cluster.partitions.get(topic)
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART) if count is None else None
        return SimpleNamespace(
            topics={topic: SimpleNamespace(error=error, partitions=dict.fromkeys(range(count or 0)))}
        )

    def init_transactions(self, timeout: float) -> None:
        cluster = self._cluster
        if cluster.fails():
            raise broken(KafkaError._TIMED_OUT, retriable=True)
        cluster.end(self._name, "aborted")
        self._epoch = cluster.epochs[self._name] = cluster.epochs.get(self._name, 0) + 1
        if cluster.fails():
            raise broken(KafkaError._TIMED_OUT, retriable=True)

    def _check(self) -> None:
        if self._cluster.epochs.get(self._name) != self._epoch:
            raise broken(KafkaError._FENCED, fatal=True)
        assert not self._broken, "a producer that failed is used again"

    def begin_transaction(self) -> None:
        self._check()
        assert self._name not in self._cluster.open, "begun twice"
        self._cluster.open[self._name] = Transaction()

    def produce(self, topic: str, value: bytes, key: bytes | None, partition: int | None = None) -> None:
        self._check()
        if self._cluster.fails() and self._cluster.fails():
            raise self._abort()
        count = self._cluster.partitions[topic]
        chosen = zlib.crc32(key or b"") % count if partition is None else partition
        self._cluster.logs[topic, chosen].append(Stored(key, value, self._cluster.open[self._name]))

    def poll(self, timeout: float) -> int:
        return 0

    def _abort(self) -> KafkaException:
        self._broken = True
        return broken(KafkaError._MSG_TIMED_OUT, txn_requires_abort=True)

    def abort_transaction(self, timeout: float) -> None:
        self._cluster.end(self._name, "aborted")

    def commit_transaction(self, timeout: float) -> None:
        self._check()
        if self._cluster.fails():
            raise self._abort()
        if self._cluster.fails():  # the request is lost: it stays open
            self._broken = True
            raise broken(KafkaError._TIMED_OUT, retriable=True)
        self._cluster.end(self._name, "committed")
        if self._cluster.fails():  # the answer is
            self._broken = True
            raise broken(KafkaError._TIMED_OUT, retriable=True)


class FakeMessage(NamedTuple):
    at: int
    stored: Stored | None

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self.stored is None else None

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return None if self.stored is None else self.stored.key

    def value(self) -> bytes | None:
        return None if self.stored is None else self.stored.value


class FakeConsumer:
    """As ``confluent_kafka.Consumer``, as far as a sink uses it."""

    def __init__(self, cluster: FakeKafka, conf: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._committed = conf["isolation.level"] == "read_committed"

    def get_watermark_offsets(self, at: TopicPartition, timeout: float) -> tuple[int, int]:
        if self._cluster.fails():
            raise broken(KafkaError._TRANSPORT)
        log = self._cluster.logs[at.topic, at.partition]
        return 0, self._cluster.readable(at.topic, at.partition)[1] if self._committed else len(log)

    def assign(self, partitions: list[TopicPartition]) -> None:
        (self._at,) = partitions
        self._next = self._at.offset

    def consume(self, count: int, timeout: float) -> list[FakeMessage]:
        assert self._committed
        found, end = self._cluster.readable(self._at.topic, self._at.partition)
        left = [FakeMessage(i, one) for i, one in found if i >= self._next]
        self._next = end
        return [*left, FakeMessage(end, None)]

    def close(self) -> None:
        pass


def use(monkeypatch: pytest.MonkeyPatch, cluster: FakeKafka) -> None:
    """From now on it is the client library."""
    library = SimpleNamespace(
        Producer=lambda conf: FakeProducer(cluster, conf),
        Consumer=lambda conf: FakeConsumer(cluster, conf),
        KafkaError=KafkaError,
        KafkaException=KafkaException,
        TopicPartition=TopicPartition,
    )
    for module in (kafka_client, kafka_positions, kafka_sink):
        monkeypatch.setattr(module, "library", lambda: library)
