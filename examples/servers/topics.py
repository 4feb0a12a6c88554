"""Topics of brokers: messages sent, read and committed by the client library alone."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition


class Topics(ABC):
    """Attributes:
    servers: ``host:port`` of each broker.
    """

    servers: Sequence[str]

    @abstractmethod
    def make(self, topic: str) -> None:
        """Makes a topic."""

    @abstractmethod
    def stopped(self) -> AbstractContextManager[None]:
        """No broker answers, and all keep their connections."""

    @property
    def address(self) -> dict[str, Any]:
        return {"bootstrap.servers": ",".join(self.servers), "log_level": 0}

    def producer(self, **settings: Any) -> Producer:
        wanted = self.address | {"linger.ms": 1}
        return Producer({**wanted, **{name.replace("_", "."): value for name, value in settings.items()}})

    def send(self, topic: str, messages: list[dict[str, Any]]) -> None:
        """Each with the arguments of ``Producer.produce``; a value other than bytes becomes JSON."""
        producer = self.producer()
        for message in messages:
            value = message.get("value")
            encoded = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            producer.produce(topic, **{**message, "value": encoded})
            producer.poll(0)
        assert producer.flush(30) == 0

    def read(self, topic: str, count: int, partition: int = 0) -> list[Any]:
        """The first ``count`` messages of a partition; waits for them."""
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(topic, partition, 0)])
            messages: list[Any] = []
            while len(messages) < count:
                messages += [m for m in consumer.consume(count - len(messages), 1.0) if m.error() is None]
            return messages

    def read_all(self, topic: str, partition: int = 0) -> list[Any]:
        """All committed messages that a partition has now.  Ends of transactions have offsets, too."""
        with self._consumer(**{"enable.partition.eof": True, "auto.offset.reset": "error"}) as consumer:
            consumer.assign([TopicPartition(topic, partition, 0)])
            messages: list[Any] = []
            while True:
                for message in consumer.consume(1_000, 0.2):
                    if (error := message.error()) is None:
                        messages.append(message)
                        continue
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return messages

    def committed(self, group: str, topic: str, partition: int = 0) -> int:
        with self._consumer(**{"group.id": group}) as consumer:
            return int(consumer.committed([TopicPartition(topic, partition)], timeout=10)[0].offset)

    @contextmanager
    def _consumer(self, **settings: Any) -> Iterator[Consumer]:
        consumer = Consumer(self.address | {"group.id": "test"} | settings)
        try:
            yield consumer
        finally:
            consumer.close()
