"""What brokers say of topics: which partitions there are, and from where to where these go.  All of it blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    chosen,
    gone,
)
from spe.errors import SpeError

#: Longest time for one answer.
ANSWER_S: Final = 2.0


class TopicMissing(SpeError):
    """There is no such topic, or this broker does not know it yet."""


class Topics:
    """Asks with a consumer.

    Args:
      reader: options, as ``spe.connectors.kafka`` declares them.
      where: the brokers, in words.
    """

    def __init__(self, reader: Mapping[str, Any], where: str) -> None:
        self.names: list[str] = list(reader["topics"])
        self.wanted: Sequence[int] | None = reader.get("partitions")
        self._start: str | int = reader.get("start", "earliest")
        self.until: Sequence[int] | None = reader.get("until")
        self._skip_gone = reader.get("gone", "stop") == "skip"
        self._where = where

    def use(self, consumer: Any) -> None:
        self._consumer = consumer
        self._kafka, self._codes = library(), Codes()

    def begin(self, offsets: Offsets) -> tuple[Offsets, list[Partition], list[Gone]]:
        """Where each partition goes on, and what was skipped for that.

        Raises:
          TopicMissing: a topic is not there.
          ServerAway: to be asked again later.
          SpeError: for good.
        """
        offsets, partitions = self.partitions(offsets)
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
        """Those to read, and the offsets with the id of the cluster.  Raises as :meth:`begin`."""
        counts: dict[str, int] = {}
        for topic in self.names:
            found = self._asked(lambda name: self._consumer.list_topics(name, timeout=ANSWER_S), topic)
            cluster = found.cluster_id or ""
            check_cluster(offsets, cluster)
            offsets = offsets._replace(cluster=offsets.cluster or cluster)
            error = found.topics[topic].error
            if error is not None and error.code() in self._codes.missing:
                raise TopicMissing(f"{self._where} has no topic {topic!r}; make it, or correct topics")
            if error is not None:
                raise in_words(error, f"{self._where}, topic {topic}", self._codes)
            counts[topic] = len(found.topics[topic].partitions)
        check_counts(offsets, counts)
        if self.until is not None and len(self.until) != counts[self.names[0]]:
            count = counts[self.names[0]]
            raise SpeError(f"topic {self.names[0]} has {count} partitions; expected {count} offsets in until")
        return offsets, chosen(self.names, counts, self.wanted)

    def first(self, partition: Partition, offsets: Offsets) -> int:
        """Where a partition begins that was never read: one that is new in a topic that we read, from its first."""
        extent = self.extent(partition)
        if offsets.knows(partition.topic) or self._start == "earliest":
            return extent.first
        if self._start == "latest":
            return extent.end
        at = self._kafka.TopicPartition(*partition, int(self._start) // 1000)
        (found,) = self._asked(lambda one: self._consumer.offsets_for_times([one], timeout=ANSWER_S), at)
        if found.error is not None:
            raise in_words(found.error, f"{self._where}, {partition}", self._codes)
        return int(found.offset) if found.offset >= 0 else extent.end  # no message is so late

    def lost(self, partition: Partition, offset: int) -> Gone | None:
        """What was removed before it was read, where it may be skipped.  Raises SpeError where it may not."""
        lost = gone(partition, offset, self.extent(partition))
        if lost is not None and not self._skip_gone:
            raise SpeError(
                f"{self._where}: {lost}. With gone: skip the source goes on at offset {lost.until} without them"
            )
        return lost

    def extent(self, partition: Partition) -> Kept:
        at = self._kafka.TopicPartition(*partition)
        return Kept(*self._asked(lambda one: self._consumer.get_watermark_offsets(one, timeout=ANSWER_S), at))

    def _asked(self, question: Any, of: Any) -> Any:
        try:
            return question(of)
        except self._kafka.KafkaException as error:
            raise in_words(error.args[0], self._where, self._codes) from error
