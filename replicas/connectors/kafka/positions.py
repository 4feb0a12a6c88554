"""The topic of positions: how far each sink is, the newest message of its id.  All of it blocks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from replicas.connectors.kafka.client import REQUEST_S, Codes, library
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
    """Makes it where it is missing.  Raises SpeError, KafkaException."""
    error = producer.list_topics(topic, timeout=REQUEST_S).topics[topic].error
    if error is None:
        return
    kafka = library()
    if error.code() not in codes.missing:
        raise kafka.KafkaException(error)
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    wanted = NewTopic(topic, num_partitions=1, replication_factor=-1, config={"cleanup.policy": "compact"})
    try:
        AdminClient(dict(common)).create_topics([wanted], request_timeout=REQUEST_S)[topic].result()
    except kafka.KafkaException as failed:
        raised = failed.args[0]
        if raised.code() in codes.away:
            raise
        if raised.code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            raise SpeError(f"topic {topic} cannot be made: {raised.str()}; make it, compacted") from None


def read_position(common: Mapping[str, Any], topic: str, key: str) -> bytes:
    """The newest committed message of a key; b"": there is none.

    Everything that is in the topic now is read, also if transactions of others are open for a while.

    Raises:
      ServerAway: it could not be read to its end.
      KafkaException: as the client says.
    """
    kafka = library()
    at = kafka.TopicPartition(topic, PARTITION)
    # The end for readers of what is committed lies before the first open transaction; what is there may lie behind.
    everything = kafka.Consumer({**_SETTINGS, **common, "isolation.level": "read_uncommitted"})
    committed = kafka.Consumer({**_SETTINGS, **common, "isolation.level": "read_committed"})
    try:
        low, end = everything.get_watermark_offsets(at, timeout=REQUEST_S)
        size, first = _PIECE, end
        while first > low:
            first, stop = max(low, first - size), first
            found = _newest(kafka, committed, topic, key.encode(), first, stop)
            if found is not None:
                return found
            size *= _LARGER
        return b""
    finally:
        everything.close()
        committed.close()


def _newest(kafka: Any, consumer: Any, topic: str, key: bytes, first: int, stop: int) -> bytes | None:
    """The newest message of a key among the offsets first … stop − 1."""
    consumer.assign([kafka.TopicPartition(topic, PARTITION, first)])
    found, reached, until_s = None, first, time.monotonic() + REQUEST_S
    while reached < stop:
        if time.monotonic() > until_s:
            raise ServerAway(f"topic {topic} cannot be read to its end: it stands at offset {reached} of {stop}")
        for message in consumer.consume(1_000, 0.2):
            error = message.error()
            if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:
                raise kafka.KafkaException(error)
            if error is None and message.offset() < stop and message.key() == key:
                found = message.value()
            reached = max(reached, message.offset() + (error is None))
    return found
