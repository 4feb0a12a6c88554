"""Brokers of librdkafka's mock cluster in a process of their own, which can be paused and killed.

They keep everything in memory, and of each partition about 5 MB.  The mock makes a topic, of four partitions, when
somebody writes to it; it has no time index, no rights, and no aborted transactions: their messages are delivered.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

_PROGRAM = """
import sys
from confluent_kafka import Producer
brokers = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": int(sys.argv[1]), "log_level": 0})
found = brokers.list_topics(timeout=30).brokers.values()
print(",".join(f"{b.host}:{b.port}" for b in found), flush=True)
while sys.stdin.read(1):
    pass
"""
#: Partitions that the mock gives to a topic.
PARTITIONS = 4


class Brokers:
    """Attributes:
    servers: ``host:port`` of each.
    """

    def __init__(self, count: int = 1) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.servers = self._process.stdout.readline().strip().split(",")
        assert self.servers[0], "the mock did not start"

    def producer(self, **more: Any) -> Producer:
        wanted = {"bootstrap.servers": ",".join(self.servers), "linger.ms": 1, "log_level": 0}
        return Producer({**wanted, **{k.replace("_", "."): v for k, v in more.items()}})

    def make(self, topic: str) -> None:
        """As soon as a producer asks for it, it is there."""
        self.producer().list_topics(topic, timeout=30)

    def send(self, topic: str, messages: list[dict[str, Any]]) -> None:
        """Each with the arguments of ``Producer.produce``; a value that is no bytes becomes JSON."""
        producer = self.producer()
        for message in messages:
            value = message.get("value")
            encoded = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            producer.produce(topic, **{**message, "value": encoded})
            producer.poll(0)
        assert producer.flush(30) == 0

    def read(self, topic: str, count: int, partition: int = 0) -> list[Any]:
        """So many messages of a partition, from its beginning."""
        consumer = Consumer({"bootstrap.servers": ",".join(self.servers), "group.id": "test", "log_level": 0})
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            found: list[Any] = []
            while len(found) < count:
                found += [m for m in consumer.consume(count - len(found), 1.0) if m.error() is None]
            return found
        finally:
            consumer.close()

    def read_all(self, topic: str, partition: int = 0) -> list[Any]:
        """All messages of a partition that are there now; ends of transactions have offsets, too."""
        wanted = {"bootstrap.servers": ",".join(self.servers), "group.id": "test", "log_level": 0}
        consumer = Consumer({**wanted, "enable.partition.eof": True, "auto.offset.reset": "error"})
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            found: list[Any] = []
            while True:
                for message in consumer.consume(1_000, 0.2):
                    if (error := message.error()) is None:
                        found.append(message)
                        continue
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return found
        finally:
            consumer.close()

    def committed(self, group: str, topic: str, partition: int = 0) -> int:
        consumer = Consumer({"bootstrap.servers": ",".join(self.servers), "group.id": group, "log_level": 0})
        try:
            return int(consumer.committed([TopicPartition(topic, partition)], timeout=10)[0].offset)
        finally:
            consumer.close()

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """They do not answer, and keep their connections."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def brokers(count: int = 1) -> Iterator[Brokers]:
    running = Brokers(count)
    try:
        yield running
    finally:
        running.end()
