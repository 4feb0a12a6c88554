"""The query network as frames: the operators of the user's file, in the units that the engine ran."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from consistency.proof.reading import (
    AggregateEntry,
    FilterEntry,
    JoinEntry,
    MapEntry,
    MergeEntry,
    OperatorEntry,
    Reading,
    TopKEntry,
)
from consistency.proof.recording import source_log
from consistency.proof.run import Run
from consistency.proof.source import last_state
from consistency.proof.truth.aggregate import aggregate
from consistency.proof.truth.join import join
from consistency.proof.truth.stream import (
    PARTITION,
    TIME,
    TruthStream,
    columns,
    expression,
    ordered,
    padded,
    quoted,
    values,
    without_large_rows,
)
from consistency.proof.truth.topk import topk
from consistency.proof.truth.user_code import custom, partition_number
from spe.errors import SpeError
from spe.plan.plan import InputStream, Plan, Unit
from spe.stream.names import StreamId
from spe.stream.times import floor_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TO_TEXT: Final = re.compile(r"(?i)\bas\s+string\b")


class TruthNetwork:
    """Streams of a run, made when they are asked for.

    Attributes:
      plan: what was run; operators come from ``reading``, what is said there of the same names.
      frontier: how far each stream is known: what lies before it is stable.  END_OF_TIME for streams that ended.

    Raises:
      SpeError: the Java is too old for this query; a source's log is missing.
    """

    def __init__(self, spark: SparkSession, run: Run) -> None:
        self._spark = spark
        self._run = run
        self.plan: Plan = run.plan
        self.reading: Reading = run.reading
        self._made: dict[StreamId, TruthStream] = {}
        _check_java(spark, self.reading)
        reads = [s for o in self.reading.operators.values() for s in o.inputs]
        self._read = set(reads)
        self._readers = Counter([*reads, *self.plan.query.outputs])
        self.frontier: dict[StreamId, int] = {s: last_state(run, s).bound_us for s in self.plan.sources}
        for unit in self.plan.units:
            end = floor_to(min(self.frontier[i.stream] for i in unit.inputs), self.reading.bucket_us)
            self.frontier |= dict.fromkeys(unit.outputs, end)

    def stream(self, name: StreamId) -> TruthStream:
        """A source, or what a unit releases."""
        if name not in self._made:
            if name in self.plan.sources:
                self._made[name] = self._source(name)
            else:
                self._run_unit(self.plan.producer[name])
        return self._made[name]

    def _source(self, name: StreamId) -> TruthStream:
        log = source_log(self._spark, self._run, name)
        frame = log.select(
            F.lit(0).alias(PARTITION),
            F.col("_time_us").alias(TIME),
            *ordered([F.col("_id")]),
            *[quoted(n) for n in self.plan.query.schema_of(name).names],
        )
        return self._kept(name, TruthStream(frame, 1))

    def _kept(self, name: StreamId, stream: TruthStream) -> TruthStream:
        """A stream with several readers, kept on disk so that it is computed once; freed with the session's cache."""
        if self._readers[name] < 2:
            return stream
        return TruthStream(stream.frame.persist(StorageLevel.DISK_ONLY), stream.width)

    def _run_unit(self, unit: Unit) -> None:
        end = self.frontier[unit.outputs[0]]
        streams = {str(i.stream): self._entering(unit, i).before(end) for i in unit.inputs}
        for name in (operator.name for operator in unit.operators):
            spec = self._said(name)
            made = self._operator(name, spec, streams, end).before(end)
            if isinstance(spec, MapEntry | AggregateEntry | JoinEntry) and spec.skip:
                made = without_large_rows(made)
            cheap = isinstance(spec, FilterEntry | MapEntry | MergeEntry)  # cheaper to repeat than to keep
            streams[name] = made if cheap else self._kept(name, made)
        self._made |= {name: streams[name] for name in unit.outputs}

    def _said(self, name: StreamId) -> OperatorEntry:
        if name not in self.reading.operators:
            raise SpeError(f"operator {name!r} was run, and the configuration has no such operator")
        return self.reading.operators[name]

    def _entering(self, unit: Unit, one: InputStream) -> TruthStream:
        """An input as the unit's partitions get it: their share by hash, ties settled by upstream partition (U2)."""
        stream = self.stream(one.stream)
        frame, order = stream.frame, columns(stream.order)
        if one.producers > 1:
            order = [F.col(PARTITION), *order]
        number = F.lit(0)
        if one.key is not None and unit.partitions > 1:
            number = partition_number(one.key, stream, unit.partitions)
        frame = frame.select(number.alias(PARTITION), TIME, *ordered(order), *stream.attributes)
        return TruthStream(frame, len(order))

    def _operator(self, name: StreamId, spec: OperatorEntry, streams: dict[str, TruthStream], end: int) -> TruthStream:
        ports = [streams[one] for one in spec.inputs]
        first = ports[0]
        if isinstance(spec, FilterEntry):
            return TruthStream(first.frame.where(expression(first.frame, spec.where)), first.width)
        if isinstance(spec, MapEntry):
            kept = first.attributes if spec.keep else []
            made = values(first.frame, spec.columns)
            return TruthStream(first.frame.select(PARTITION, *first.position, *kept, *made), first.width)
        if isinstance(spec, MergeEntry):
            return _union(ports)
        if isinstance(spec, AggregateEntry):
            return aggregate(spec, first, exact=name in self._read)
        if isinstance(spec, JoinEntry):
            return join(spec, ports[0], ports[1])
        if isinstance(spec, TopKEntry):
            return topk(spec, first)
        return custom(next(o for o in self.plan.query.operators if o.name == name), ports, end)


def _check_java(spark: SparkSession, reading: Reading) -> None:
    """Raises SpeError where this Java would write numbers in another way than the engine does."""
    jvm: Any = spark.sparkContext._jvm
    version = str(jvm.System.getProperty("java.specification.version"))
    if float(version) >= 19:
        return
    for name, operator in reading.operators.items():
        if _TO_TEXT.search(repr(operator)):
            raise SpeError(
                f"Java {version} writes some doubles with more digits than the engine does, and {name!r} "
                "makes strings by CAST; a Java from 21 on is needed: pip install 'tentative-spe[spark]' brings one"
            )


def _union(ports: list[TruthStream]) -> TruthStream:
    """Ties by port, then as they were."""
    width = 1 + max(port.width for port in ports)
    frame = None
    for at, port in enumerate(ports):
        order = ordered(padded([F.lit(at), *columns(port.order)], width))
        one = port.frame.select(PARTITION, TIME, *order, *port.attributes)
        frame = one if frame is None else frame.unionByName(one)
    assert frame is not None
    return TruthStream(frame, width)
