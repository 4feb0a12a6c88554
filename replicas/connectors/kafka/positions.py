"""The topic of positions: the newest message of a sink's id is its position.  All functions block."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from replicas.connectors.kafka.client import REQUEST_S, Codes, admin, library
from spe.errors import ServerAway, SpeError

#: All positions are in one partition, which is read backwards in pieces of so many messages, and then larger ones.
PARTITION: Final = 0
_PIECE: Final = 500
_LARGER: Final = 8
_SETTINGS: Final[Mapping[str, Any]] = {
    "group.id": "tentative-spe",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 50,
}


def topic_for_positions(producer: Any, common: Mapping[str, Any], topic: str, codes: Codes) -> None:
    """Makes the topic if it is missing.  Raises SpeError, KafkaException."""
    error = producer.list_topics(topic, timeout=REQUEST_S).topics[topic].error
    if error is None:
        return
    kafka = library()
    if error.code() not in codes.missing:
        raise kafka.KafkaException(error)
    from confluent_kafka.cimpl import NewTopic

    wanted = NewTopic(topic, num_partitions=1, replication_factor=-1, config={"cleanup.policy": "compact"})
    asking = admin(common)  # without a reference it ends, and its request with it
    try:
        asking.create_topics([wanted], request_timeout=REQUEST_S)[topic].result()
    except kafka.KafkaException as failed:
        raised = failed.args[0]
        if codes.is_away(raised):
            raise
        if raised.code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            raise SpeError(f"topic {topic} cannot be made: {raised.str()}; make it, compacted") from None


def read_position(common: Mapping[str, Any], topic: str, key: str) -> bytes:
    """Returns the newest committed message of a key; b"" if there is none.

    Reads everything that is in the topic now, even if other transactions are open for a while.

    Raises:
      ServerAway: it could not be read to its end.
      KafkaException: an error of the client.
    """
    kafka = library()
    at = kafka.TopicPartition(topic, PARTITION)
    # For readers of committed messages the end is before the first open transaction; messages may exist after it.
    everything = kafka.Consumer({**_SETTINGS, **common, "isolation.level": "read_uncommitted"})
    committed = kafka.Consumer({**_SETTINGS, **common, "isolation.level": "read_committed"})
    try:
        low, end = everything.get_watermark_offsets(at, timeout=REQUEST_S)
        size, first = _PIECE, end
        while first > low:
            first, stop = max(low, first - size), first
            value = _newest(kafka, committed, topic, key.encode(), first, stop)
            if value is not None:
                return value
            size *= _LARGER
        return b""
    finally:
        everything.close()
        committed.close()


def _newest(kafka: Any, consumer: Any, topic: str, key: bytes, first: int, stop: int) -> bytes | None:
    """Returns the newest message of a key among the offsets first … stop − 1."""
    consumer.assign([kafka.TopicPartition(topic, PARTITION, first)])
    newest, reached, until_s = None, first, time.monotonic() + REQUEST_S
    while reached < stop:
        if time.monotonic() > until_s:
            raise ServerAway(f"topic {topic} cannot be read to its end: it stands at offset {reached} of {stop}")
        for message in consumer.consume(1_000, 0.2):
            error = message.error()
            if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:
                raise kafka.KafkaException(error)
            if error is None and message.offset() < stop and message.key() == key:
                newest = message.value()
            reached = max(reached, message.offset() + (error is None))
    return newest
