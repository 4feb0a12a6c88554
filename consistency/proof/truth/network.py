"""The query network as frames: units and operators in topological order, from the plan that the engine ran."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from consistency.proof.recording import source_log
from consistency.proof.run import Run
from consistency.proof.source import last_state
from consistency.proof.truth.aggregate import aggregate
from consistency.proof.truth.join import join
from consistency.proof.truth.stream import (
    PARTITION,
    TIME,
    Stream,
    columns,
    ordered,
    padded,
    value,
)
from consistency.proof.truth.topk import topk
from consistency.proof.truth.user_code import custom, partition_number
from spe.errors import SpeError
from spe.expressions import spark_expression
from spe.plan.plan import InputStream, Plan, Unit
from spe.query.query import (
    AggregateSpec,
    CustomSpec,
    FilterSpec,
    JoinSpec,
    MapSpec,
    Operator,
    TopKSpec,
    UnionSpec,
    inputs_of,
)
from spe.stream.names import StreamId
from spe.stream.times import floor_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TO_TEXT: Final = re.compile(r"(?i)\bas\s+string\b")


class Network:
    """Streams of a run, made when they are asked for.

    Attributes:
      plan: what was run.
      frontier: how far each stream is known: what lies before it is stable.  END_OF_TIME for streams that ended.
    """

    def __init__(self, spark: SparkSession, run: Run) -> None:
        self._spark = spark
        self._run = run
        self.plan: Plan = run.plan
        self._made: dict[StreamId, Stream] = {}
        _check_java(spark, self.plan)
        reads = [s for o in self.plan.query.operators for s in inputs_of(o.spec)]
        self._read = set(reads)
        self._readers = Counter([*reads, *self.plan.query.outputs])
        self.frontier: dict[StreamId, int] = {s: last_state(run, s).bound_us for s in self.plan.sources}
        for unit in self.plan.units:
            end = floor_to(min(self.frontier[i.stream] for i in unit.inputs), self.plan.bucket_us)
            self.frontier |= dict.fromkeys(unit.outputs, end)

    def stream(self, name: StreamId) -> Stream:
        """A source, or what a unit releases."""
        if name not in self._made:
            if name in self.plan.sources:
                self._made[name] = self._source(name)
            else:
                self._run_unit(self.plan.producer[name])
        return self._made[name]

    def _source(self, name: StreamId) -> Stream:
        schema = self.plan.query.schema_of(name)
        log = source_log(self._spark, self._run, name)
        frame = log.select(
            F.lit(0).alias(PARTITION),
            F.col("_time_us").alias(TIME),
            *ordered([F.col("_id")]),
            *[f"`{n}`" for n in schema.names],
        )
        return self._kept(name, Stream(frame, schema, 1))

    def _kept(self, name: StreamId, stream: Stream) -> Stream:
        """A stream with several readers, kept on disk so that it is computed once; freed with the session's cache."""
        if self._readers[name] < 2:
            return stream
        return Stream(stream.frame.persist(StorageLevel.DISK_ONLY), stream.schema, stream.width)

    def _run_unit(self, unit: Unit) -> None:
        end = self.frontier[unit.outputs[0]]
        streams = {i.stream: self._entering(unit, i).before(end) for i in unit.inputs}
        for operator in unit.operators:
            made = self._operator(operator, streams, end).before(end)
            cheap = isinstance(operator.spec, FilterSpec | MapSpec | UnionSpec)  # cheaper to repeat than to keep
            streams[operator.name] = made if cheap else self._kept(operator.name, made)
        self._made |= {name: streams[name] for name in unit.outputs}

    def _entering(self, unit: Unit, one: InputStream) -> Stream:
        """An input as the unit's partitions get it: their share by hash, ties settled by upstream partition (U2)."""
        stream = self.stream(one.stream)
        frame, order = stream.frame, columns(stream.order)
        if one.producers > 1:
            order = [F.col(PARTITION), *order]
        number = F.lit(0)
        if one.key is not None and unit.partitions > 1:
            number = partition_number(list(one.key), stream.schema, unit.partitions)
        frame = frame.select(number.alias(PARTITION), TIME, *ordered(order), *stream.attributes)
        return Stream(frame, stream.schema, len(order))

    def _operator(self, operator: Operator, streams: dict[StreamId, Stream], end: int) -> Stream:
        spec, schema = operator.spec, operator.schema
        ports = [streams[name] for name in inputs_of(spec)]
        first = ports[0]
        if isinstance(spec, FilterSpec):
            return Stream(first.frame.where(F.expr(spark_expression(spec.where, first.schema))), schema, first.width)
        if isinstance(spec, MapSpec):
            kept = first.attributes if spec.keep else []
            made = [value(text, first.schema, name) for name, text in spec.columns.items()]
            return Stream(first.frame.select(PARTITION, *first.position, *kept, *made), schema, first.width)
        if isinstance(spec, UnionSpec):
            return _union(ports, operator)
        if isinstance(spec, AggregateSpec):
            return aggregate(spec, first, schema, exact=operator.name in self._read)
        if isinstance(spec, JoinSpec):
            return join(spec, ports[0], ports[1], schema)
        if isinstance(spec, TopKSpec):
            return topk(spec, first, schema)
        assert isinstance(spec, CustomSpec)
        return custom(operator, ports, end)


def _check_java(spark: SparkSession, plan: Plan) -> None:
    """Raises SpeError where this Java would write numbers in another way than the engine does."""
    jvm: Any = spark.sparkContext._jvm
    version = str(jvm.System.getProperty("java.specification.version"))
    if float(version) >= 19:
        return
    for operator in plan.query.operators:
        if _TO_TEXT.search(repr(operator.spec)):
            raise SpeError(
                f"Java {version} writes some doubles with more digits than the engine does, and {operator.name!r} "
                "makes strings by CAST; a Java from 21 on is needed: pip install 'tentative-spe[spark]' brings one"
            )


def _union(ports: list[Stream], operator: Operator) -> Stream:
    """Ties by port, then as they were."""
    width = 1 + max(port.width for port in ports)
    frame = None
    for at, port in enumerate(ports):
        order = ordered(padded([F.lit(at), *columns(port.order)], width))
        one = port.frame.select(PARTITION, TIME, *order, *port.attributes)
        frame = one if frame is None else frame.unionByName(one)
    assert frame is not None
    return Stream(frame, operator.schema, width)
