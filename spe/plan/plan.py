"""The physical plan: units, partitions, channels.  Plain data; ``spe.plan.deploy`` derives it.

It says what ids depend on, and never changes while a cluster runs; who runs what, and where, is said by the directory
(``spe.plan.directory``, rule D1).

A *unit* is the set of operators of a fragment that are reached by the same fragment inputs (rule U1).  It has
one SUnion, one state, one checkpoint, and is what is partitioned and replicated.  A *channel* is what one partition
of a unit (or a source) makes of one stream; ids count per channel.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from spe.connectors import READERS
from spe.connectors.declaration import Reader
from spe.connectors.installed_connectors import READERS_GROUP, loaded
from spe.query.query import Query, QueryOperator
from spe.stream.hashing import HASH_VERSION
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import StreamId, UnitId
from spe.stream.schema import Schema
from spe.wire.framing import FRAME_BYTES


class Partitioning(enum.StrEnum):
    """How the partitions of an operator feed those of the next one (PPA section II)."""

    ONE_TO_ONE = "one-to-one"
    SPLIT = "split"
    MERGE = "merge"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class InputStream:
    """A stream that a unit reads from outside.

    Attributes:
      producers: upstream partitions; each is an input of the unit's SUnion, in order.
      key: attributes whose hash picks the substream of each of the unit's partitions; None: all get everything
        (the unit has one partition).
      aligned: the stream is divided by the same values already.
    """

    stream: StreamId
    schema: Schema
    producers: int
    key: tuple[str, ...] | None
    aligned: bool = False

    def upstream(self, partition: int, partitions: int) -> range:
        """Producers that can have something for one of the unit's partitions.

        Where the stream is divided by the same values already, these are the ones with the same hashes.
        """
        if not self.aligned:
            return range(self.producers)
        first = partition * self.producers // partitions
        return range(first, ((partition + 1) * self.producers - 1) // partitions + 1)

    def partitioning(self, partitions: int) -> Partitioning:
        """What that is for a unit of so many partitions; where neither count divides the other it is called full."""
        if self.aligned and partitions == self.producers:
            return Partitioning.ONE_TO_ONE
        if self.aligned and self.producers % partitions == 0:
            return Partitioning.MERGE
        if self.aligned and partitions % self.producers == 0:
            return Partitioning.SPLIT
        return Partitioning.FULL


@dataclass(frozen=True, slots=True)
class Unit:
    """Operators that share one SUnion, one state and one checkpoint.

    Attributes:
      inputs: in configuration order; SUnion's input index counts (stream, producer) pairs in this order.
      operators: in topological order.
      outputs: streams that leave the unit, each through an SOutput.
    """

    id: UnitId
    fragment: str
    inputs: tuple[InputStream, ...]
    operators: tuple[QueryOperator, ...]
    outputs: tuple[StreamId, ...]
    partitions: int

    def channels_in(self, partition: int) -> tuple[Channel, ...]:
        """Inputs of a partition's SUnion, in index order."""
        return tuple(Channel(i.stream, p) for i in self.inputs for p in i.upstream(partition, self.partitions))


class Watermark(enum.StrEnum):
    """What lets time pass in a live source (docs/explanation/live.md)."""

    DATA = "data"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True)
class Retain:
    """How long a log is kept; what is beyond is deleted as soon as nobody needs it (rules E1 to E6).

    Attributes:
      for_us: a segment is due when all of it lies this far behind the newest tuple (of a recording: was received so
        long ago); None: age does not matter.
      size_bytes: the oldest segment is due while the log is larger; None: size does not matter.
      archive: where a copy goes first; "": nowhere.
      unproved: also what ``spe report --follow`` has not proved is deleted, though there is no archive.
    """

    for_us: int | None = None
    size_bytes: int | None = None
    archive: str = ""
    unproved: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A source proxy: one process, one durable log, one stream.

    Attributes:
      boundary_us: a boundary at least every this much tuple time.
      disorder_us: how far event times may lie behind the largest before them.
      ahead_us: refuse event times further ahead of the proxy's clock (None: never; replayed data is in the past).
      time: attribute that holds the event time; None: time of arrival.
      reader: where tuples come from: ``{"kind": "csv", "path": …, …}``; see spe.connectors.
      replay: pace of finite inputs: ``{"speed": 1.0 | None, "rate": float | None, "max": bool}``.
      on_malformed: "skip" (counted, kept aside with its line number) or "stop".
      disorder_given: somebody has said how far, rather than nobody having thought of it.
      watermark: what lets time pass in a live source (rule S7); a replay knows its next row.
      idle_us: of a live source by data: silence after which time passes by the clock; None: never.
      idle_to_now: and then it is that of the clock, rather than going on from where it stood.
      retain: how long the log is kept; None: for ever.
      late: where late rows go as well, as ``ClientSettings.sinks`` has it; None: nowhere.
      rejected: the same of rows that cannot be taken.
    """

    stream: StreamId
    schema: Schema
    boundary_us: int
    disorder_us: int
    ahead_us: int | None
    time: str | None
    reader: Mapping[str, Any]
    replay: Mapping[str, Any]
    on_malformed: str
    disorder_given: bool = True
    watermark: Watermark = Watermark.CLOCK
    idle_us: int | None = None
    idle_to_now: bool = False
    retain: Retain | None = None
    late: Mapping[str, Any] | None = None
    rejected: Mapping[str, Any] | None = None

    @property
    def live(self) -> bool:
        """Rows happen once, and nobody knows the next one."""
        return (declared := self._declared) is not None and declared.live

    @property
    def stored(self) -> bool:
        """A live source first reads rows that were there before it, which may take long."""
        return (declared := self._declared) is not None and declared.stored(self.reader)

    @property
    def _declared(self) -> Reader | None:
        kind = str(self.reader.get("kind"))
        declared = READERS.get(kind) or loaded(READERS_GROUP, kind)  # a configuration that names it has loaded it
        return declared if isinstance(declared, Reader) else None

    @property
    def writers(self) -> tuple[str, ...]:
        """Names of the processes that may push rows into it."""
        return tuple(f"writer:{name}" for name in self.reader.get("writers", ()))


@dataclass(frozen=True, slots=True)
class AccuracyChoice:
    """What a report measures of the tentative tuples of an output; None: what follows from its operator.

    Attributes:
      key: attributes that make a tentative tuple and a true one the same result.
      measures: overlap, topk, precision, recall, exact.
      errors: numeric attributes whose relative error is measured.
      window_us: results are taken together by so much tuple time; 0: by equal times.
    """

    key: tuple[str, ...] | None = None
    measures: tuple[str, ...] | None = None
    errors: tuple[str, ...] | None = None
    window_us: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds.  Everything that can grow has one.  Bytes of tuples are those that ``Rows.nbytes`` counts, texts and all.

    Attributes:
      output_bytes: stable elements kept per output channel for consumers that may still ask.
      suffix_bytes: tentative suffix kept per output channel; beyond it the oldest part goes, counted (V6).
      input_bytes: stable tuples kept per SUnion for redo; at half of it a reconciliation is asked for (R2).
      frame_bytes: largest frame accepted after authentication.
      slice_rows: rows per input that a replica works on before it lets others go first: large enough to be efficient,
        small enough to yield within 20 ms (R6).
      tail_bytes: acknowledged elements kept per output of the query (A2), at most a quarter of ``output_bytes``.
      spill_bytes: spill files per process, for what of the logs and of the redo data memory has no room for; 0: none.
    """

    output_bytes: int = 256 << 20
    suffix_bytes: int = 64 << 20
    input_bytes: int = 256 << 20
    frame_bytes: int = FRAME_BYTES
    spill_bytes: int = 4 << 30
    slice_rows: int = 20_000
    tail_bytes: int = 1 << 20

    def tail(self, is_output: bool) -> int:
        """Bytes of acknowledged elements that the log of a stream keeps."""
        return min(self.tail_bytes, self.output_bytes // 4) if is_output else 0


#: Heartbeats missed in a row before a process counts as gone (F3).
MISSES: Final = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """Periods of the protocol, microseconds of wall time.

    Attributes:
      tick_us: how often deadlines are judged.
      heartbeat_us: how often upstream replicas are asked for their states; more than 3 misses are a failure (F3).
      request_us: how often a partner is asked for leave to reconcile.
      connect_us: longest time to open a connection.
    """

    tick_us: int = 10_000
    heartbeat_us: int = 100_000
    request_us: int = 500_000
    connect_us: int = 600_000

    def gone_us(self, period_us: int | None = None) -> int:
        """After so long without news a process counts as gone: more than three misses, and a connection (F3).

        Args:
          period_us: how often it sends news, where it is not ``heartbeat_us``: its timing may differ from ours.
        """
        return (MISSES + 1) * (self.heartbeat_us if period_us is None else period_us) + self.connect_us


@dataclass(frozen=True, slots=True)
class Security:
    """Who is let in.

    Attributes:
      certificates: folder of the cluster's certificates (spe.runtime.tls); None: no TLS.
      insecure: processes may listen beyond their own machine without TLS.
    """

    certificates: str | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where a process serves its metrics and health.

    Attributes:
      port: of every process; 0: any that is free.
      bind: address of the machine.
    """

    port: int = 9464
    bind: str = "127.0.0.1"

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"[{self.bind}]:{self.port}" if ":" in self.bind else f"{self.bind}:{self.port}"


@dataclass(frozen=True)
class Plan:
    """What all processes of a cluster have in common, wherever they run.

    What ids depend on is in the fingerprint; the rest are settings of the cluster.

    Attributes:
      cluster: name that every hello must carry.
      bucket_us: width d of SUnion's buckets, tuple time.
      units: in topological order.
      accuracy: by output, where the configuration says it; only reports look at it.
      metrics: None: processes serve none unless they are told to.
    """

    cluster: str
    query: Query
    bucket_us: int
    units: tuple[Unit, ...]
    sources: Mapping[StreamId, Source]
    timing: Timing = Timing()
    limits: Limits = Limits()
    security: Security = Security()
    accuracy: Mapping[StreamId, AccuracyChoice] = field(default_factory=dict)
    metrics: MetricsSettings | None = None

    @cached_property
    def unit(self) -> Mapping[UnitId, Unit]:
        return {u.id: u for u in self.units}

    @cached_property
    def writers(self) -> frozenset[str]:
        """Names of the processes that push rows into some source."""
        return frozenset(name for source in self.sources.values() for name in source.writers)

    @cached_property
    def producer(self) -> Mapping[StreamId, Unit]:
        """The unit that makes a stream (sources are not in it)."""
        return {s: u for u in self.units for s in u.outputs}

    @cached_property
    def _readers(self) -> Mapping[Channel, list[PartitionId]]:
        """Partitions that read each channel."""
        found: dict[Channel, list[PartitionId]] = {}
        for unit in self.units:
            for partition in range(unit.partitions):
                for channel in unit.channels_in(partition):
                    found.setdefault(channel, []).append(PartitionId(unit.id, partition))
        return found

    def readers_of(self, channel: Channel) -> Sequence[PartitionId]:
        """Partitions that read a channel."""
        return self._readers.get(channel, ())

    def maker_of(self, channel: Channel) -> PartitionId:
        """The partition that makes a channel (sources' are not made by one)."""
        return PartitionId(self.producer[channel.stream].id, channel.partition)

    def partitions_of(self, stream: StreamId) -> int:
        return 1 if stream in self.sources else self.producer[stream].partitions

    def key_columns(self, unit: str, stream: str) -> tuple[int, ...] | None:
        """Columns of ``stream`` whose hash divides it over the partitions of ``unit``; None: it is not divided.

        Raises KeyError when the unit does not read the stream.
        """
        inputs = {i.stream: i for i in self.unit[UnitId(unit)].inputs}
        one = inputs[StreamId(stream)]
        return None if one.key is None else tuple(one.schema.index(name) for name in one.key)

    def boundary_us(self, stream: StreamId) -> int:
        """Largest boundary interval among the sources that a stream comes from, tuple time."""
        if stream in self.sources:
            return self.sources[stream].boundary_us
        return max((self.boundary_us(i.stream) for i in self.producer[stream].inputs), default=0)

    @cached_property
    def fingerprint(self) -> str:
        """What must be equal on both sides of a connection for ids to mean the same (rule U11)."""
        what = {
            "sources": {s: schema.to_wire() for s, schema in self.query.sources.items()},
            "operators": [o.state_described() for o in self.query.operators],
            "units": [
                [u.id, u.partitions, [[i.stream, i.producers, i.key, i.aligned] for i in u.inputs], list(u.outputs)]
                for u in self.units
            ],
            "bucket_us": self.bucket_us,
            "hash": HASH_VERSION,
        }
        text = json.dumps(what, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
