"""The query network as frames: the operators of the user's file, in the units that the engine ran."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from consistency.proof.comparing.merging import Merge, depth, edges
from consistency.proof.recorded.query_file import (
    AggregateEntry,
    CountEntry,
    CustomEntry,
    FilterEntry,
    JoinEntry,
    MapEntry,
    MergeEntry,
    OperatorEntry,
    Reading,
    RejectedEntry,
    TopKEntry,
)
from consistency.proof.recorded.recording import source_log
from consistency.proof.recorded.records import Stretch, TimedStretch
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.table_source import last_state, segment_times, source_table
from consistency.proof.storage.arrow import spark_schema
from consistency.proof.storage.files import tasks_for
from consistency.proof.storage.tables import on_disk
from consistency.proof.truth.aggregate import aggregate, open_rows
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
from spe.plan.timing import origins
from spe.query.query import QueryOperator
from spe.stream.names import StreamId
from spe.stream.times import floor_to

#: Maximum number of logs that a task merges; it has as many segments of each in memory.
_LOGS: Final = 8
_DEPTH: Final = 3
_TO_TEXT: Final = re.compile(r"(?i)\bas\s+string\b")


@dataclass(frozen=True)
class TimeRange:
    """A range of tuple time whose truth is computed.

    Attributes:
      since_us, until_us: its beginning and its end; END_OF_TIME: no end.
      frontier: tuple time up to which each source's log is to be trusted.
      lookback_us: by stream, how much earlier it is needed (``consistency.proof.follow.margins``).
      read: by source, the part of its log that holds that time.
      open_rows: by operator with count windows, the rows of its open windows, lookback_us before the range.
    """

    since_us: int
    until_us: int
    frontier: Mapping[StreamId, int]
    lookback_us: Mapping[StreamId, int]
    read: Mapping[StreamId, Sequence[Stretch]]
    open_rows: Mapping[StreamId, DataFrame]

    def begin(self, stream: StreamId) -> int:
        return self.since_us - self.lookback_us[stream]


#: Returns the segments of a source's log that have tuples, in order.
Segments = Callable[[StreamId], Sequence[TimedStretch]]


class TruthNetwork:
    """Streams of a run, computed on demand.

    Args:
      segments: used to read sources in the order of a union; None: that is not done.

    Attributes:
      plan: the executed plan; operators come from ``reading``, where they have the same names.
      frontier: tuple time up to which each stream is stable.  END_OF_TIME for streams that ended.
      part: the range; None: of all time.
      open: of a range, by operator with count windows: their rows in windows that are open lookback_us before its
        end; of the streams that were computed.

    Raises:
      SpeError: the Java is too old for this query; a source's log is missing.
    """

    def __init__(
        self, spark: SparkSession, run: Run, segments: Segments | None = None, part: TimeRange | None = None
    ) -> None:
        self._spark = spark
        self._run = run
        self._segments = segments
        self.plan: Plan = run.plan
        self.reading: Reading = run.reading
        self.part = part
        self.open: dict[StreamId, DataFrame] = {}
        self._made: dict[StreamId, TruthStream] = {}
        self._edges: dict[StreamId, list[int]] = {}
        _check_java(spark, self.reading)
        reads = [s for o in self.reading.operators.values() for s in o.inputs]
        self._read = set(reads)
        self._readers = Counter([*reads, *self.plan.query.outputs])
        states = {s: last_state(run, s) for s in self.plan.sources} if part is None else {}
        #: Larger than any id in its log; in a run that goes on the log may grow until it is read.
        self._ids = {} if run.going_on else {s: state.last_id + 1 for s, state in states.items()}
        self.frontier: dict[StreamId, int] = (
            {s: state.bound_us for s, state in states.items()} if part is None else dict(part.frontier)
        )
        for unit in self.plan.units:
            end = floor_to(min(self.frontier[i.stream] for i in unit.inputs), self.reading.bucket_us)
            self.frontier |= dict.fromkeys(unit.outputs, end)

    def stream(self, name: StreamId) -> TruthStream:
        """Returns a source's stream, or the output of a unit."""
        if name not in self._made:
            if name in self.plan.sources:
                self._made[name] = self._source(name)
            else:
                self._run_unit(self.plan.producer[name])
        return self._made[name]

    def edges(self, name: StreamId) -> list[int]:
        """Returns times that cut a stream into parts about as large as a segment of a log, or larger.

        None if they are unknown without computing it: where it is small, or is not a merge of logs that were cut short.
        """
        if name not in self._edges:
            self._edges[name] = [] if self.part is not None or not self._is_cheap(name) else self._made_edges(name)
        return self._edges[name]

    def _made_edges(self, name: StreamId) -> list[int]:
        begins = sorted(t for s in origins(self.plan, name) for t in segment_times(self._run, s.stream))
        tasks = 2 * self._spark.sparkContext.defaultParallelism
        edges = sorted({begins[len(begins) * i // tasks] for i in range(1, tasks)}) if len(begins) >= tasks else []
        return edges if len(edges) == tasks - 1 else []

    def _is_cheap(self, name: StreamId) -> bool:
        if name in self.plan.sources:
            return True
        spec = self._entry(name)
        return type(spec) in _CHEAP and all(self._is_cheap(StreamId(input_)) for input_ in spec.inputs)

    def _source(self, name: StreamId) -> TruthStream:
        if name not in self.plan.query.outputs and (read := self._merged(name, [name])) is not None:
            return self._stored(name, read)
        log = source_log(self._spark, self._run, name, None if self.part is None else self.part.read[name])
        frame = log.select(
            F.lit(0).alias(PARTITION),
            F.col("_time_us").alias(TIME),
            *ordered([F.col("_id")]),
            *[quoted(n) for n in self.plan.query.schema_of(name).names],
        )
        limits = (self._ids[name],) if name in self._ids else None
        return self._stored(name, self._in_part(name, TruthStream(frame, 1, limits=limits)))

    def _in_part(self, name: StreamId, stream: TruthStream) -> TruthStream:
        """Selects the right part of a stream that was computed from a part of its input."""
        return stream if self.part is None else stream.since(self.part.begin(name))

    def _stored(self, name: StreamId, stream: TruthStream) -> TruthStream:
        """Stores a stream with several readers on disk, so that it is computed once; freed with the proof."""
        if self._readers[name] < 2:
            return stream
        return stream.of(on_disk(stream.frame))

    def _run_unit(self, unit: Unit) -> None:
        end = self.frontier[unit.outputs[0]]
        streams: dict[str, TruthStream] = {}
        entering = {str(i.stream): i for i in unit.inputs}
        for name in (operator.name for operator in unit.operators):
            spec = self._entry(name)
            if isinstance(spec, RejectedEntry):
                continue
            if isinstance(spec, MergeEntry) and unit.partitions == 1:
                union = self._merged(name, [StreamId(input_) for input_ in spec.inputs])
                if union is not None:
                    streams[name] = union.before(end)
                    continue
            for input_ in entering.keys() & set(spec.inputs) - streams.keys():
                streams[input_] = self._entering(unit, entering[input_]).before(end)
            ports = [streams[input_] for input_ in spec.inputs]
            if self.part is not None and isinstance(spec, AggregateEntry) and isinstance(spec.window, CountEntry):
                ports = [self._with_open(name, spec, ports[0], end)]
            operator = next(o for o in self.plan.query.operators if o.name == name)
            made = _COMPUTED[type(spec)](spec, Asked(ports, name in self._read, operator, end)).before(end)
            made = self._in_part(name, made)
            streams[name] = made if type(spec) in _CHEAP else self._stored(name, made)
        self._made |= {name: streams[name] for name in unit.outputs if name in streams}

    def _merged(self, name: StreamId, sources: Sequence[StreamId]) -> TruthStream | None:
        """Returns the union of sources, read in its order where that pays for a large output; else None."""
        if (
            self._segments is None
            or self._run.origin
            or not self.plan.sources.keys() >= set(sources)
            or not any(name in self._above(output) for output in self.plan.query.outputs if self._in_order(output))
        ):
            return None
        tables = tuple(source_table(self._run, source) for source in sources)
        names = tables[0].schema.names
        types = [{a.name: a.type for a in source.schema} for source in tables]
        if len(tables) > _LOGS or any(source != types[0] for source in types):
            return None
        segments = tuple(tuple(self._segments(source)) for source in sources)
        cut = edges(segments)
        if depth(segments, cut) > _DEPTH * len(tables):
            return None
        merge = Merge(tables, segments, cut)
        spans = len(merge.edges) - 1
        rows = self._spark.range(0, spans, 1, tasks_for(self._spark, spans))
        frame = rows.mapInArrow(merge, spark_schema(merge.arrow_schema)).select(
            F.lit(0).alias(PARTITION),
            F.col("_time_us").alias(TIME),
            *ordered([F.col("_source"), F.col("_id")]),
            *[quoted(name) for name in names],
        )
        ids = max((self._ids[source] for source in sources), default=1) if self._ids else None
        return TruthStream(frame, 2, in_order=True, limits=None if ids is None else (len(tables), ids))

    def _in_order(self, output: StreamId) -> bool:
        """Does it pay to read sources in the order of an output?"""
        return self.plan.partitions_of(output) == 1 and bool(self.edges(output))

    def _above(self, output: StreamId) -> set[StreamId]:
        """Returns the streams that an output comes from, and itself."""
        streams, next_ = {output}, [output]
        while next_:
            inputs = [] if (name := next_.pop()) in self.plan.sources else self._entry(name).inputs
            new = {StreamId(input_) for input_ in inputs} - streams
            streams |= new
            next_ += new
        return streams

    def _with_open(self, name: StreamId, spec: AggregateEntry, stream: TruthStream, end: int) -> TruthStream:
        """Returns the input of count windows, with the rows of windows that were open before the range."""
        assert self.part is not None
        stream = stream.since(self.part.begin(name))
        if name in self.part.open_rows:
            earlier = self.part.open_rows[name].select(*stream.frame.columns)
            stream = TruthStream(on_disk(earlier.unionByName(stream.frame)), stream.width)
        self.open[name] = open_rows(spec, stream.before(end - self.part.lookback_us[name]))
        return stream

    def _entry(self, name: StreamId) -> OperatorEntry:
        if name not in self.reading.operators:
            raise SpeError(f"operator {name!r} was run, and the configuration has no such operator")
        return self.reading.operators[name]

    def _entering(self, unit: Unit, input_: InputStream) -> TruthStream:
        """Returns an input of the unit's partitions: their share by hash, ties settled by upstream partition (U2)."""
        stream = self.stream(input_.stream)
        frame, order, limits = stream.frame, columns(stream.order), stream.limits
        if input_.producers > 1:
            order = [F.col(PARTITION), *order]
            limits = None if limits is None else (input_.producers, *limits)
        number = F.lit(0)
        if input_.key is not None and unit.partitions > 1:
            number = partition_number(input_.key, stream, unit.partitions)
        frame = frame.select(number.alias(PARTITION), TIME, *ordered(order), *stream.attributes)
        in_order = stream.in_order and unit.partitions == input_.producers == 1
        return TruthStream(frame, len(order), in_order, limits)


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
                "makes strings by CAST; a Java from 21 on is needed: pip install '.[spark]' brings one"
            )


def _union(ports: list[TruthStream]) -> TruthStream:
    """Merges inputs; ties are ordered by port, then as they were."""
    width = 1 + max(port.width for port in ports)
    frame = None
    for at, port in enumerate(ports):
        order = ordered(padded([F.lit(at), *columns(port.order)], width))
        selected = port.frame.select(PARTITION, TIME, *order, *port.attributes)
        frame = selected if frame is None else frame.unionByName(selected)
    assert frame is not None
    limits: tuple[int, ...] | None = None
    if all(port.limits is not None for port in ports):
        each = [(port.limits or ()) + (1,) * (width - 1 - port.width) for port in ports]
        limits = (len(ports), *map(max, *each)) if len(each) > 1 else (1, *each[0])
    return TruthStream(frame, width, limits=limits)


class Asked(NamedTuple):
    """The inputs of an operator, besides its entry in the file.

    Attributes:
      exact: other operators read it.
      operator: as it was run, for the user's class.
      end: the boundary up to which its unit runs.
    """

    ports: list[TruthStream]
    exact: bool
    operator: QueryOperator
    end: int


def _filter(spec: FilterEntry, asked: Asked) -> TruthStream:
    first = asked.ports[0]
    return first.of(first.frame.where(expression(first.frame, spec.where)))


def _map(spec: MapEntry, asked: Asked) -> TruthStream:
    first = asked.ports[0]
    attributes = first.attributes if spec.keep else []
    made = values(first.frame, spec.columns)
    return first.of(first.frame.select(PARTITION, *first.position, *attributes, *made))


def _limited(made: Callable[[Any, Asked], TruthStream]) -> Callable[[Any, Asked], TruthStream]:
    """Drops large rows from the result under ``on_error: skip``."""

    def computed(spec: Any, asked: Asked) -> TruthStream:
        stream = made(spec, asked)
        return without_large_rows(stream) if spec.skip else stream

    return computed


#: Computes each operator by Spark's own functions, independently of the engine.
_COMPUTED: Final[Mapping[type, Callable[[Any, Asked], TruthStream]]] = {
    FilterEntry: _filter,
    MapEntry: _limited(_map),
    MergeEntry: lambda spec, asked: _union(asked.ports),
    AggregateEntry: _limited(lambda spec, asked: aggregate(spec, asked.ports[0], exact=asked.exact)),
    JoinEntry: _limited(lambda spec, asked: join(spec, asked.ports[0], asked.ports[1])),
    TopKEntry: lambda spec, asked: topk(spec, asked.ports[0]),
    CustomEntry: lambda spec, asked: custom(asked.operator, asked.ports, asked.end),
}
#: Operators that are cheaper to compute again than to store.
_CHEAP: Final = (FilterEntry, MapEntry, MergeEntry)
