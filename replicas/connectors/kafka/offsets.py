"""Partitions that a source reads, and their offsets: in the cursor, and at the brokers.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgpack
import numpy as np

from spe.errors import SpeError
from spe.stream.batch import Int64Array

#: Offset of a partition that is not read.
UNREAD: Final = -1


class Partition(NamedTuple):
    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class Kept(NamedTuple):
    """Offsets of a partition at its broker: first … end − 1."""

    first: int
    end: int


class Gone(NamedTuple):
    """Messages that were removed before they were read."""

    partition: Partition
    first: int
    until: int

    def __str__(self) -> str:
        count = self.until - self.first
        return f"{self.partition}: {count:,} messages from offset {self.first} on were removed before they were read"


class Offsets(NamedTuple):
    """Offsets at the end of a source's log.

    Attributes:
      cluster: the id of the cluster; "" if brokers have none.
      topics: by name, the offset of the next message per partition; UNREAD: none was read.
      ids: by name, the id of the topic; a topic that is deleted and made again has another one.
    """

    cluster: str = ""
    topics: Mapping[str, Sequence[int]] = {}
    ids: Mapping[str, str] = {}

    @classmethod
    def decode(cls, cursor: bytes) -> Offsets:
        """Decodes a cursor.  Raises SpeError: another reader made it."""
        if not cursor:
            return cls()
        try:
            cluster, topics, *ids = msgpack.unpackb(cursor)  # an earlier cursor has no ids
            offsets = {str(topic): list(map(int, offsets)) for topic, offsets in topics.items()}
            return cls(str(cluster), offsets, dict(*ids))
        except Exception as error:  # the decoder may raise any error for invalid bytes
            raise SpeError(f"the source's log ends with a position that is none of Kafka: {error}") from error

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb((self.cluster, {t: list(o) for t, o in self.topics.items()}, self.ids))
        return packed

    def of(self, partition: Partition) -> int | None:
        """Returns the next offset of a partition; None: it was never read."""
        known = self.topics.get(partition.topic, ())
        offset = known[partition.number] if partition.number < len(known) else UNREAD
        return None if offset == UNREAD else offset

    def knows(self, topic: str) -> bool:
        return topic in self.topics

    def moved(self, partitions: Sequence[Partition], next_offset: Int64Array) -> Offsets:
        """Returns the offsets with new ones for some partitions; topics that are no longer read keep theirs."""
        topics = {topic: list(offsets) for topic, offsets in self.topics.items()}
        for (topic, number), offset in zip(partitions, next_offset.tolist()):
            offsets = topics.setdefault(topic, [])
            offsets += [UNREAD] * (number + 1 - len(offsets))
            offsets[number] = offset
        return self._replace(topics=topics)


def chosen(topics: Sequence[str], counts: Mapping[str, int], wanted: Sequence[int] | None) -> list[Partition]:
    """Returns the partitions to read, of topics with these counts.  Raises SpeError: a requested one is missing."""
    partitions = []
    for topic in topics:
        numbers = range(counts[topic]) if wanted is None else sorted(wanted)
        if missing := [n for n in numbers if n >= counts[topic]]:
            raise SpeError(
                f"topic {topic} has no partition {', '.join(map(str, missing))}; it has {counts[topic]}, from 0"
            )
        partitions += [Partition(topic, number) for number in numbers]
    return partitions


def check_counts(offsets: Offsets, counts: Mapping[str, int]) -> None:
    """Raises SpeError: a topic has fewer partitions than before."""
    for topic, known in offsets.topics.items():
        if topic in counts and len(known) > counts[topic]:
            raise SpeError(
                f"topic {topic} has {counts[topic]} partitions, and had {len(known)}: it was deleted and made again. "
                "Give the source another name, or remove its log and those of its consumers"
            )


def check_ids(known: Mapping[str, str], ids: Mapping[str, str]) -> Mapping[str, str]:
    """Returns all ids of topics that are known now.  Raises SpeError: a topic has another id than before."""
    for topic, number in ids.items():
        if known.get(topic, number) != number:
            raise SpeError(
                f"topic {topic} was deleted and made again: its id is {number}, and was {known[topic]}; offsets "
                "mean other messages there. Give the source another name, or remove its log and those of its consumers"
            )
    return {**known, **ids}


def check_cluster(offsets: Offsets, cluster: str) -> None:
    """Raises SpeError: the cluster is another one than before."""
    if offsets.cluster and cluster and offsets.cluster != cluster:
        raise SpeError(
            f"cluster {cluster} answers, and the source's log was read from cluster {offsets.cluster}: offsets mean "
            "other messages there. Correct servers, or give the source another name"
        )


def gone(partition: Partition, next_offset: int, extent: Kept) -> Gone | None:
    """Returns the messages that were removed before they were read; None if there are none.

    Raises:
      SpeError: the topic ends before the last message read.
    """
    if next_offset > extent.end:
        raise SpeError(
            f"{partition} ends at offset {extent.end}, and the source has read it up to {next_offset}: the topic was "
            "deleted and made again, or its brokers lost messages. Give the source another name, or remove its log and "
            "those of its consumers"
        )
    return Gone(partition, next_offset, extent.first) if next_offset < extent.first else None


def array(offsets: Sequence[int]) -> Int64Array:
    return np.array(offsets, np.int64)
