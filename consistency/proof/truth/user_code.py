"""Runs users' Python code through Arrow: operators on the serialised stream, aggregates on arrays.

Only here does the truth run code that the engine runs too: there is no other definition of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas import functions as arrow_functions

from consistency.proof.storage.arrow import ToArrow, arrow_fields, from_arrow, schema_of, spark_fields, spark_type
from consistency.proof.truth.stream import PARTITION, TIME, TruthStream, order_names, ordered, padded, quoted
from operators.aggregate.custom import Failed, added, merged, result_of
from operators.build import build_operator
from operators.operator import Operator
from operators.skipping import Skipping
from spe.query.declaration import load_class
from spe.query.query import QueryOperator as OperatorOfQuery
from spe.stream.batch import Rows
from spe.stream.schema import AttributeType, Schema

#: Typed Any: its annotations have fewer types than it accepts.
_arrow_udf: Any = arrow_functions.arrow_udf


def custom(operator: OperatorOfQuery, ports: list[TruthStream], end: int) -> TruthStream:
    """Runs a user's operator: one task per partition, its rows in order, slice by slice.

    Its schema is its own answer to inputs with Spark's types.

    Args:
      operator: its class and arguments are used.
      end: the boundary up to which the unit runs.
    """
    width = 1 + max(port.width for port in ports)
    schemas = [schema_of(port.types) for port in ports]
    operator = OperatorOfQuery(operator.name, operator.spec, operator.spec.output_schema(schemas))
    frame = None
    for at, port in enumerate(ports):
        own = [F.struct(*port.attributes).alias(f"__port{at}")]
        others = [
            F.lit(None).cast(T.StructType(spark_fields(schema_of_port))).alias(f"__port{i}")
            for i, schema_of_port in enumerate(schemas)
            if i != at
        ]
        tagged = port.frame.select(
            PARTITION,
            TIME,
            *ordered(padded([F.lit(at), *[F.col(name) for name in port.order]], width)),
            *[*own, *others],
        )
        frame = tagged if frame is None else frame.unionByName(tagged)
    assert frame is not None
    sorted_ = frame.repartition(PARTITION).sortWithinPartitions(PARTITION, TIME, *order_names(width))
    fields = [T.StructField(PARTITION, T.IntegerType()), T.StructField(TIME, T.LongType())]
    fields += [T.StructField(name, T.LongType()) for name in order_names(1)]
    made = sorted_.mapInArrow(
        _steps(operator, schemas, end),
        T.StructType([*fields, *spark_fields(operator.schema)]),
    )
    return TruthStream(made, 1)


def _steps(
    operator: OperatorOfQuery, schemas: list[Schema], end: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        host: _Host | None = None
        for batch in batches:
            for part in _by_partition(batch):
                partition = part.column(PARTITION)[0].as_py()
                if host is None or host.partition != partition:
                    if host is not None:
                        yield from host.finish(end)
                    host = _Host(partition, build_operator(operator, schemas), schemas, operator.schema)
                yield from host.take(part)
        if host is not None:
            yield from host.finish(end)

    return run


def _by_partition(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Splits the batch into pieces of one partition each."""
    numbers = np.asarray(batch.column(PARTITION))
    cuts = [0, *((numbers[1:] != numbers[:-1]).nonzero()[0] + 1).tolist(), len(numbers)]
    return (batch.slice(a, b - a) for a, b in pairwise(cuts) if b > a)


class _Host:
    """Runs one partition of the operator.  A slice ends where a new time begins, so the last time is held back."""

    def __init__(self, partition: int, operator: Operator, schemas: list[Schema], schema: Schema) -> None:
        self.partition = partition
        self._operator = operator
        self._schemas = schemas
        self._schema = schema
        self._held: list[pa.RecordBatch] = []
        self._count = 0
        self._to_arrow = ToArrow()

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        times = np.asarray(batch.column(TIME))
        latest = int(times[-1])
        cut = int(times.searchsorted(latest))
        if cut == 0 and self._held and int(self._held[0].column(TIME)[0].as_py()) == latest:
            self._held.append(batch)
            return
        self._held.append(batch.slice(0, cut))
        yield from self._step(latest)
        self._held = [batch.slice(cut)]

    def finish(self, end: int) -> Iterator[pa.RecordBatch]:
        yield from self._step(end)

    def _step(self, boundary: int) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(self._held) if self._held else None
        self._held = []
        ports = [self._rows(table, i) for i in range(len(self._schemas))]
        rows = self._operator.step(ports, boundary)
        if isinstance(self._operator, Skipping):
            self._operator.take_rejected()  # the truth does not report which rows were rejected
        if rows is None or not len(rows):
            return
        numbers = np.arange(self._count, self._count + len(rows))
        self._count += len(rows)
        arrays = [np.full(len(rows), self.partition, np.int32), rows.time, numbers]
        fields = [
            pa.field(PARTITION, pa.int32()),
            pa.field(TIME, pa.int64()),
            pa.field(order_names(1)[0], pa.int64()),
            *arrow_fields(self._schema),
        ]
        columns = [*map(pa.array, arrays), *self._to_arrow.arrays(rows, self._schema)]
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _rows(self, table: pa.Table | None, port: int) -> Rows | None:
        """Returns the rows of a port.  Rows of all ports are sorted by time, so those of one are, too."""
        if table is None:
            return None
        own = table.filter(pc.equal(table.column(order_names(1)[0]), port))
        if not len(own):
            return None
        struct = own.column(f"__port{port}").combine_chunks()
        time = np.asarray(own.column(TIME).combine_chunks())
        return from_arrow(struct.flatten(), self._schemas[port], time)


def user_aggregate(path: str, argument: T.DataType, entries: Column, *, skip: bool) -> Column:
    """Computes a user's aggregate of sorted (pane, …, x) entries: one array per group.

    With ``skip`` it is a struct of ``value`` and ``failed``: there is no result, and no row (rule U15).
    """
    returns, argument_type = AttributeType(load_class(path, "function").returns), schema_of({"x": argument})["x"].type

    def evaluate(groups: pa.Array) -> pa.Array:
        aggregator = load_class(path, "function")()
        made = arrow_fields(Schema.of(x=returns))[0].type
        if not skip:
            return pa.array([_result(aggregator, group, argument_type) for group in groups], made)
        results = [_result_or_failed(aggregator, group, argument_type, returns) for group in groups]
        failed = [isinstance(result, Failed) for result in results]
        values = pa.array([None if bad else result for result, bad in zip(results, failed)], made)
        return pa.StructArray.from_arrays([values, pa.array(failed)], ["value", "failed"])

    evaluate.__annotations__ = {"groups": pa.Array, "return": pa.Array}
    pairs = F.transform(entries, lambda e: F.struct(e["__pane"].cast("long").alias("pane"), e["x"].alias("x")))
    type_ = spark_type(returns)
    if skip:
        type_ = T.StructType([T.StructField("value", type_), T.StructField("failed", T.BooleanType())])
    made: Column = _arrow_udf(evaluate, type_)(pairs)
    return made


def _result(aggregator: Any, group: pa.Scalar, argument: AttributeType) -> Any:
    """Merges the panes from the oldest on, as windows do."""
    state = aggregator.create()
    for values in _panes(group, argument):
        state = aggregator.merge(state, aggregator.add(aggregator.create(), values))
    return aggregator.result(state)


def _result_or_failed(aggregator: Any, group: pa.Scalar, argument: AttributeType, returns: AttributeType) -> Any:
    """Does the same by the rules of ``on_error: skip``, with the engine's code since the function is the user's."""
    state = aggregator.create()
    for values in _panes(group, argument):
        part, _ = added(aggregator, aggregator.create(), values)
        state = merged(aggregator, state, part)
    return result_of(aggregator, state, returns)


def _panes(group: pa.Scalar, argument: AttributeType) -> Iterator[np.ndarray[Any, Any]]:
    """Yields the values of each pane, from the oldest on."""
    entries = group.values
    if entries is not None and len(entries):
        panes, values = entries.flatten()
        if argument is AttributeType.TIMESTAMP:
            values = values.cast(pa.int64())
        array = np.array(values.to_pylist(), np.object_ if argument is AttributeType.STRING else argument.dtype)
        at = 0
        for _, members in groupby(panes.to_pylist()):
            count = len(list(members))
            yield array[at : at + count]
            at += count


def partition_number(keys: Sequence[str], stream: TruthStream, count: int) -> Column:
    """Returns the partition of each row by the engine's hash of its key attributes: placement, not evaluation."""
    types = stream.types
    wanted = schema_of({name: types[name] for name in keys})

    def number(*columns: pa.Array) -> pa.Array:
        from spe.stream.hashing import partition_of

        rows = from_arrow(columns, wanted, np.zeros(len(columns[0]), np.int64))
        return pa.array(partition_of(rows.columns, count).astype(np.int32))

    number.__annotations__ = {"columns": pa.Array, "return": pa.Array}
    made: Column = _arrow_udf(number, T.IntegerType())(*[F.col(quoted(k)) for k in keys])
    return made
