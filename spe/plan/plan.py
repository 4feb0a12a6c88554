"""The physical plan: units, partitions, channels.  Plain data; ``spe.plan.deploy`` derives it.

Ids depend on the plan, so it never changes while a cluster runs; the directory assigns partitions to nodes
(``spe.plan.directory``, rule U11).

A *unit* is the set of operators of a fragment that are reached by the same fragment inputs (rule U1).  It has
one SUnion, one state and one checkpoint; units are partitioned and replicated.  A *channel* is the part of a stream
that one partition of a unit (or a source) makes; ids count per channel.
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
        """Producers that can have tuples for one of the unit's partitions.

        If the stream is aligned, these are the producers with the same hashes.
        """
        if not self.aligned:
            return range(self.producers)
        first = partition * self.producers // partitions
        return range(first, ((partition + 1) * self.producers - 1) // partitions + 1)

    def partitioning(self, partitions: int) -> Partitioning:
        """Classifies the input of a unit with so many partitions; FULL if neither count divides the other."""
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
    """The clock of a live source (docs/explanation/live.md)."""

    DATA = "data"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True)
class Retain:
    """How long a log is kept; older segments are deleted as soon as no process needs them (rules E1 to E4).

    Attributes:
      for_us: a segment is due when all of it lies this far behind the newest tuple (of a recording: was received so
        long ago); None: age does not matter.
      size_bytes: the oldest segment is due while the log is larger; None: size does not matter.
      archive: folder or URL to which segments are copied first; "": no copy.
      unproved: delete segments that ``spe report --follow`` has not proved, even without an archive.
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
      disorder_us: how far an event time may lie behind the largest one before it.
      ahead_us: refuse event times further ahead of the proxy's clock (None: never; replayed data is in the past).
      time: attribute that holds the event time; None: time of arrival.
      reader: where tuples come from: ``{"kind": "csv", "path": …, …}``; see spe.connectors.
      replay: pace of finite inputs: ``{"speed": 1.0 | None, "rate": float | None, "max": bool}``.
      on_malformed: "skip" (counted, stored with its line number) or "stop".
      disorder_given: the configuration states the disorder; False: it is the default.
      watermark: the clock of a live source (rule S7); a replay knows its next row.
      idle_us: for a live source by data, silence after which its time follows the clock; None: never.
      idle_to_now: its time then jumps to the clock, rather than going on from where it stood.
      retain: how long the log is kept; None: for ever.
      late: sink for a copy of late rows, as in ``ClientSettings.sinks``; None: no sink.
      rejected: sink for rows that cannot be taken, in the same form.
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
        """Are rows read as they occur, so that the next one is unknown?"""
        return (declared := self._declared) is not None and declared.live

    @property
    def stored(self) -> bool:
        """Does a live source first read rows that existed before it, which may take long?"""
        return (declared := self._declared) is not None and declared.stored(self.reader)

    @property
    def _declared(self) -> Reader | None:
        kind = str(self.reader.get("kind"))
        declared = READERS.get(kind) or loaded(READERS_GROUP, kind)  # loaded with the configuration that names it
        return declared if isinstance(declared, Reader) else None

    @property
    def writers(self) -> tuple[str, ...]:
        """Names of the processes that may push rows into the source."""
        return tuple(f"writer:{name}" for name in self.reader.get("writers", ()))


@dataclass(frozen=True, slots=True)
class AccuracyChoice:
    """Measures of the tentative tuples of an output for a report; None: chosen by its operator.

    Attributes:
      key: attributes that make a tentative tuple and a true one the same result.
      measures: overlap, topk, precision, recall, exact.
      errors: numeric attributes whose relative error is measured.
      window_us: results are grouped by windows of so much tuple time; 0: by equal times.
    """

    key: tuple[str, ...] | None = None
    measures: tuple[str, ...] | None = None
    errors: tuple[str, ...] | None = None
    window_us: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of everything that can grow.  Bytes of tuples are counted by ``Rows.nbytes``, texts included.

    Attributes:
      output_bytes: stable elements kept per output channel for consumers that may still request them.
      suffix_bytes: tentative suffix kept per output channel; beyond it the oldest part is deleted and counted (V6).
      input_bytes: stable tuples kept per SUnion for redo; at half of it the replica requests a reconciliation (R2).
      frame_bytes: largest frame accepted after authentication.
      slice_rows: rows per input that a replica processes before it yields: large enough to be efficient, small
        enough to yield within 20 ms (R6).
      tail_bytes: acknowledged elements kept per output of the query (A2), at most a quarter of ``output_bytes``.
      spill_bytes: spill files per process, for parts of the logs and of the redo data beyond these limits; 0: none.
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
      tick_us: how often deadlines are checked.
      heartbeat_us: how often upstream replicas are asked for their states; more than 3 misses are a failure (F3).
      request_us: how often a replica requests a partner's permission to reconcile.
      connect_us: longest time to open a connection.
    """

    tick_us: int = 10_000
    heartbeat_us: int = 100_000
    request_us: int = 500_000
    connect_us: int = 600_000

    def gone_us(self, period_us: int | None = None) -> int:
        """Silence after which a process counts as gone: more than three misses, and the time to connect (F3).

        Args:
          period_us: interval of its heartbeats if not ``heartbeat_us``: its timing may differ from ours.
        """
        return (MISSES + 1) * (self.heartbeat_us if period_us is None else period_us) + self.connect_us


@dataclass(frozen=True, slots=True)
class Security:
    """How processes authenticate each other.

    Attributes:
      certificates: folder of the cluster's certificates (spe.runtime.tls); None: no TLS.
      insecure: processes may listen beyond their own machine without TLS.
    """

    certificates: str | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Address at which a process serves its metrics and health.

    Attributes:
      port: port of every process; 0: any free one.
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
    """The part of a deployment that is the same in all processes of a cluster.

    The fingerprint covers what ids depend on; the rest are settings of the cluster.

    Attributes:
      cluster: name that every hello must carry.
      bucket_us: width d of SUnion's buckets, tuple time.
      units: in topological order.
      accuracy: by output, if configured; only reports use it.
      metrics: None: processes serve metrics only if their command line asks for it.
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
        """Names of the processes that push rows into sources."""
        return frozenset(name for source in self.sources.values() for name in source.writers)

    @cached_property
    def producer(self) -> Mapping[StreamId, Unit]:
        """The unit that makes each stream; sources are not included."""
        return {s: u for u in self.units for s in u.outputs}

    @cached_property
    def _readers(self) -> Mapping[Channel, list[PartitionId]]:
        """Partitions that read each channel."""
        readers: dict[Channel, list[PartitionId]] = {}
        for unit in self.units:
            for partition in range(unit.partitions):
                for channel in unit.channels_in(partition):
                    readers.setdefault(channel, []).append(PartitionId(unit.id, partition))
        return readers

    def readers_of(self, channel: Channel) -> Sequence[PartitionId]:
        """Partitions that read a channel."""
        return self._readers.get(channel, ())

    def maker_of(self, channel: Channel) -> PartitionId:
        """The partition that makes a channel, which must not be a source's."""
        return PartitionId(self.producer[channel.stream].id, channel.partition)

    def partitions_of(self, stream: StreamId) -> int:
        return 1 if stream in self.sources else self.producer[stream].partitions

    def key_columns(self, unit: str, stream: str) -> tuple[int, ...] | None:
        """Columns of ``stream`` whose hash divides it over the partitions of ``unit``; None: it is not divided.

        Raises KeyError when the unit does not read the stream.
        """
        inputs = {i.stream: i for i in self.unit[UnitId(unit)].inputs}
        stream_input = inputs[StreamId(stream)]
        return None if stream_input.key is None else tuple(stream_input.schema.index(name) for name in stream_input.key)

    def boundary_us(self, stream: StreamId) -> int:
        """Largest boundary interval among the sources that a stream comes from, tuple time."""
        if stream in self.sources:
            return self.sources[stream].boundary_us
        return max((self.boundary_us(i.stream) for i in self.producer[stream].inputs), default=0)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the parts that must be equal on both sides of a connection for ids to mean the same (rule U11)."""
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
