"""Writes micro-batches of a Spark query as batches of a source: tasks stage parts, and the driver commits these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import trio
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from consistency.proof.storage.arrow import arrow_fields, from_arrow, spark_type
from replicas.client.push import Pusher
from replicas.link.connection import secured
from replicas.local.run_dir import load_target
from replicas.on_spark.addresses import placed
from replicas.spark.options import WriteOptions, token
from spe.errors import SpeError
from spe.log.pushed_batches import PART_BYTES, encode_part
from spe.plan.deploy import check_all_addressed
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.problems import check_known, did_you_mean, one_of
from spe.runtime.production import production_env
from spe.stream.batch import Rows
from spe.stream.names import StreamId
from spe.stream.schema import Schema

#: Spark's names of the query and batch of a task.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
#: Types from which another one can be made without loss.
_WIDER: Final = {"bigint": ("tinyint", "smallint", "int"), "double": ("float",), "timestamp": ("timestamp_ntz",)}


@dataclass(frozen=True)
class LiveSource:
    """A source of a running cluster that takes pushed rows.  Spark carries it to executors, so it holds no token."""

    what: WriteOptions
    plan: Plan
    directory: Directory

    @classmethod
    def of(cls, what: WriteOptions) -> LiveSource:
        """Raises SpeError, ConfigError: the configuration is wrong, or lacks a named part."""
        target = load_target(what.cluster)
        check_known("source", what.source, target.plan.sources)
        source = cls(what, target.plan, target.directory)
        check_all_addressed(str(what.cluster), {f"source:{what.source}": target.directory.sources[source.stream]})
        source.pusher()  # checks that the writer is known and has a certificate
        return source

    @property
    def stream(self) -> StreamId:
        return StreamId(self.what.source)

    @property
    def schema(self) -> Schema:
        return self.plan.sources[self.stream].schema

    def pusher(self) -> Pusher:
        """Returns a pusher on this machine, with the writer's certificate.  Raises ConfigError, SpeError."""
        what, name = self.what, f"writer:{self.what.writer}"
        return Pusher(
            secured(placed(production_env(Path()), what.cluster), self.plan, name),
            self.plan,
            self.directory,
            self.stream,
            what.writer,
            patience_s=what.patience,
            token=token(what.token_file, what.cluster),
        )


@dataclass
class Staged(WriterCommitMessage):
    """Message of a task to the driver."""

    query: str
    part: str


class LiveWriter(DataSourceStreamArrowWriter):
    """Writes to a source; see the module.

    Raises:
      SpeError: the columns are not those of the source.
    """

    def __init__(self, source: LiveSource, schema: StructType) -> None:
        self._source = source
        check_columns(source.what.source, source.schema, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stages a part, on an executor."""
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY) if context is not None else None
        batch = context.getLocalProperty(_BATCH) if context is not None else None
        if not query or batch is None:
            raise SpeError("Spark does not say of which query and batch this task is: expected a query of writeStream")
        data, schema, time = bytearray(), self._source.schema, self._source.plan.sources[self._source.stream].time
        for record_batch in iterator:  # encoded as they come: Spark's batches are not kept
            data += encode_part([rows_of(record_batch, schema, time)], schema)
            _check_size(len(data))
        return Staged(query, trio.run(self._source.pusher().stage, query, int(batch), data))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commits a batch, on the driver."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if len(staged) < len(messages):
            raise SpeError(f"batch {batchId}: {len(messages) - len(staged)} tasks do not say what they have staged")
        if queries := sorted({message.query for message in staged}):
            parts = [message.part for message in staged]
            trio.run(self._source.pusher().commit, queries[0], batchId, parts, self._source.what.replaces)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Drops a batch, on the driver."""
        parts = [message.part for message in messages if isinstance(message, Staged)]
        if parts:
            trio.run(self._source.pusher().drop, parts)


def _check_size(size: int) -> None:
    if size > PART_BYTES:
        raise SpeError(
            f"a task has more than {PART_BYTES >> 20} MiB of a batch: divide it into more partitions, or limit what a "
            "trigger of the query takes"
        )


def check_columns(source: str, schema: Schema, columns: StructType) -> None:
    """Raises SpeError where a query's columns are not a source's attributes, in any order."""
    types = {field.name: field.dataType for field in columns.fields}
    wrong = []
    for name in types:
        if name not in schema:
            wrong.append(f"column {name!r} is no attribute of it{did_you_mean(name, schema.names)}")
    for attribute in schema:
        wanted = spark_type(attribute.type)
        type_ = types.get(attribute.name)
        if type_ is None:
            wrong.append(f"there is no column {attribute.name!r}")
        elif type_ != wanted and type_.simpleString() not in _WIDER.get(wanted.simpleString(), ()):
            wrong.append(
                f"column {attribute.name!r} is {type_.simpleString()}, and {wanted.simpleString()} is expected"
            )
    if wrong:
        raise SpeError(f"source {source!r}: {'; '.join(wrong)}; its attributes are {one_of([str(a) for a in schema])}")


def rows_of(batch: pa.RecordBatch, schema: Schema, time: str | None) -> Rows:
    """Converts Spark's columns to rows of a source.  Raises SpeError for a null in a required attribute."""
    arrays = []
    for attribute, field in zip(schema, arrow_fields(schema), strict=True):
        array = batch.column(attribute.name)
        if array.null_count and (not attribute.nullable or attribute.name == time):
            raise SpeError(
                f"column {attribute.name!r} has {array.null_count} nulls in {batch.num_rows} rows, and is never null "
                "in the source: filter them out, or replace them"
            )
        if pa.types.is_timestamp(array.type) and array.type.tz is None:
            array = array.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        arrays.append(array.cast(field.type))
    at = None if time is None else schema.index(time)
    rows = from_arrow(arrays, schema, np.zeros(batch.num_rows, np.int64))
    return rows if at is None else Rows(rows.columns[at].values, rows.columns[at].values, rows.columns)
