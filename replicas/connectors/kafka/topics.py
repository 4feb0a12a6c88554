"""Asks brokers for the partitions of topics, and for their offsets.  All functions block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from replicas.connectors.kafka.client import Codes, in_words, library
from replicas.connectors.kafka.offsets import (
    Gone,
    Kept,
    Offsets,
    Partition,
    array,
    check_cluster,
    check_counts,
    check_ids,
    chosen,
    gone,
)
from spe.errors import SpeError

#: Longest time for one answer, and for ids of topics, which a cluster need not have.
ANSWER_S: Final = 2.0
ID_S: Final = 1.0
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"


class TopicMissing(SpeError):
    """There is no such topic, or this broker does not know it yet."""


class Topics:
    """Asks brokers with a consumer.

    Args:
      reader: options, as declared in ``spe.connectors.kafka``.
      where: the brokers, for messages.
    """

    def __init__(self, reader: Mapping[str, Any], where: str) -> None:
        self.names: list[str] = list(reader["topics"])
        self.wanted: Sequence[int] | None = reader.get("partitions")
        self._start: str | int = reader.get("start", "earliest")
        self.until: Sequence[int] | None = reader.get("until")
        self._skip_gone = reader.get("gone", "stop") == "skip"
        self._where = where

    def use(self, consumer: Any, admin: Any) -> None:
        self._consumer, self._admin = consumer, admin
        self._kafka, self._codes = library(), Codes()

    def begin(self, offsets: Offsets) -> tuple[Offsets, list[Partition], list[Gone]]:
        """Returns the offset at which each partition continues, and the messages that are skipped.

        Raises:
          TopicMissing: a topic does not exist.
          ServerAway: ask again later.
          SpeError: permanent.
        """
        offsets, partitions = self.partitions(offsets)
        offsets = offsets._replace(ids=check_ids(offsets.ids, self.ids()))
        places, skipped = [], []
        for partition in partitions:
            known = offsets.of(partition)
            place = self.first(partition, offsets) if known is None else known
            lost = self.lost(partition, place)
            if lost is not None:
                skipped.append(lost)
                place = lost.until
            places.append(place)
        return offsets.moved(partitions, array(places)), partitions, skipped

    def partitions(self, offsets: Offsets) -> tuple[Offsets, list[Partition]]:
        """Returns the partitions to read, and the offsets with the id of the cluster.  Raises as :meth:`begin`."""
        counts: dict[str, int] = {}
        for topic in self.names:
            metadata = self._asked(lambda name: self._consumer.list_topics(name, timeout=ANSWER_S), topic)
            cluster = metadata.cluster_id or ""
            check_cluster(offsets, cluster)
            offsets = offsets._replace(cluster=offsets.cluster or cluster)
            error = metadata.topics[topic].error
            if error is not None and error.code() in self._codes.missing:
                raise TopicMissing(f"{self._where} has no topic {topic!r}; make it, or correct topics")
            if error is not None:
                raise in_words(error, f"{self._where}, topic {topic}", self._codes)
            counts[topic] = len(metadata.topics[topic].partitions)
        check_counts(offsets, counts)
        if self.until is not None and len(self.until) != counts[self.names[0]]:
            count = counts[self.names[0]]
            raise SpeError(f"topic {self.names[0]} has {count} partitions; expected {count} offsets in until")
        return offsets, chosen(self.names, counts, self.wanted)

    def ids(self) -> dict[str, str]:
        """Returns the ids of topics, as far as brokers say them: old ones have none, nor has a cluster without a
        controller.
        """
        ids = {}
        asked = self._admin.describe_topics(self._kafka.TopicCollection(self.names), request_timeout=ID_S)
        for name, answer in asked.items():
            with suppress(self._kafka.KafkaException):
                ids[name] = str(answer.result().topic_id)
        return {name: number for name, number in ids.items() if number != _NO_ID}

    def first(self, partition: Partition, offsets: Offsets) -> int:
        """Returns the first offset of a partition that was never read; a new one of a topic in use is read from its
        first.
        """
        extent = self.extent(partition)
        if offsets.knows(partition.topic) or self._start == "earliest":
            return extent.first
        if self._start == "latest":
            return extent.end
        at = self._kafka.TopicPartition(*partition, int(self._start) // 1000)
        (result,) = self._asked(lambda timed: self._consumer.offsets_for_times([timed], timeout=ANSWER_S), at)
        if result.error is not None:
            raise in_words(result.error, f"{self._where}, {partition}", self._codes)
        return int(result.offset) if result.offset >= 0 else extent.end  # no message is so late

    def lost(self, partition: Partition, offset: int) -> Gone | None:
        """Returns the messages that were removed before they were read, if they may be skipped.  Raises SpeError
        otherwise.
        """
        lost = gone(partition, offset, self.extent(partition))
        if lost is not None and not self._skip_gone:
            raise SpeError(
                f"{self._where}: {lost}. With gone: skip the source goes on at offset {lost.until} without them"
            )
        return lost

    def extent(self, partition: Partition) -> Kept:
        at = self._kafka.TopicPartition(*partition)
        return Kept(*self._asked(lambda question: self._consumer.get_watermark_offsets(question, timeout=ANSWER_S), at))

    def _asked(self, question: Any, subject: Any) -> Any:
        try:
            return question(subject)
        except self._kafka.KafkaException as error:
            raise in_words(error.args[0], self._where, self._codes) from error
