"""The two sides as frames: the stable rows that a client recorded, and a table of any engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from consistency.proof.recorded.elements import STABLE, STABLE_BOUNDARY
from consistency.proof.recorded.recording import changes
from consistency.proof.recorded.run import Run
from consistency.proof.storage.arrow import spark_type
from consistency.proof.storage.hadoop import literal
from consistency.proof.storage.tables import on_disk
from consistency.proof.truth.stream import TIME, quoted
from consistency.proof.two_runs.choice import columns_of, compared, time_column
from consistency.proof.two_runs.model import Wanted
from spe.errors import SpeError
from spe.stream.names import StreamId
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import BEFORE_TIME, END_OF_TIME

#: Types of a column from which each attribute can be read without loss, besides texts.
_READ: Final[Mapping[AttributeType, tuple[type[T.DataType], ...]]] = {
    AttributeType.INT64: (T.ByteType, T.ShortType, T.IntegerType, T.LongType),
    AttributeType.FLOAT64: (T.FloatType, T.DoubleType, T.ByteType, T.ShortType, T.IntegerType, T.DecimalType),
    AttributeType.BOOL: (T.BooleanType,),
    AttributeType.STRING: (T.StringType,),
    AttributeType.TIMESTAMP: (T.TimestampType, T.TimestampNTZType),
}

#: Texts of Spark about a file that it cannot read, and about CSV.
_FILE: Final = re.compile(r"while reading file (?:file://)?(\S+?)\.\s")
_BAD_ROW: Final = re.compile(r"Malformed records are detected in record parsing: (.{0,80})")
_OTHER_HEADER: Final = "CSV header does not conform to the schema"


@dataclass(frozen=True)
class ComparedSide:
    """Rows of one output.

    Attributes:
      name: as the user gave it.
      frame: TIME (microseconds; null where it is not known) and the attributes to compare.
      until_us: all rows before this time are present; END_OF_TIME: all rows are.
      timed: TIME is known.
      apart: columns that are not compared.
    """

    name: str
    frame: DataFrame
    until_us: int
    timed: bool
    apart: tuple[str, ...] = ()


def recorded(spark: SparkSession, run: Run, client: str, output: StreamId, wanted: Wanted) -> ComparedSide:
    """Returns a client's final rows.  They are stored on disk, since they are read several times."""
    schema = compared(run.plan.query.schema_of(output), wanted)
    stored = on_disk(
        changes(spark, run, client, output).where(F.col("kind").isin(STABLE, STABLE_BOUNDARY))
        .select("partition", "kind", "time_us", "tuple")
    )  # fmt: skip
    ends = (
        stored.where(F.col("kind") == STABLE_BOUNDARY).groupBy("partition").agg(F.max("time_us").alias("end")).collect()
    )
    all_there = len(ends) == run.plan.partitions_of(output)
    until = min((int(row["end"]) for row in ends), default=BEFORE_TIME) if all_there else BEFORE_TIME
    rows = stored.where(F.col("kind") == STABLE).select(
        F.col("time_us").alias(TIME),
        *[_plain(F.col(f"tuple.{quoted(a.name)}"), a).alias(a.name) for a in schema],
    )
    return ComparedSide(run.where, rows, until, True)


def table(spark: SparkSession, uri: str, where: str, format_: str, schema: Schema, wanted: Wanted) -> ComparedSide:
    """Reads a user's table.

    Args:
      where: the user's name for it.

    Raises:
      SpeError: it has other columns, a type that an attribute cannot be read from, or texts that are no value of it.
    """
    frame = _read(spark, uri, where, format_, wanted)
    schema = compared(schema, wanted)
    names, apart = columns_of(frame.columns, schema, wanted, where)
    columns = {a.name: _value(frame, names[a.name], a, where) for a in schema}
    if time := time_column(frame.columns, wanted, where):
        columns[TIME] = F.unix_micros(_value(frame, time, Attribute(time, AttributeType.TIMESTAMP), where))
    _check_texts(frame, {**names, **({TIME: time} if time else {})}, columns, where)
    made = frame.select(
        columns.get(TIME, F.lit(None).cast("long")).alias(TIME),
        *[_plain(columns[a.name], a).alias(a.name) for a in schema],
    )
    return ComparedSide(where, made, END_OF_TIME, bool(time), tuple(apart))


def _plain(value: Column, attribute: Attribute) -> Column:
    """Turns −0.0 into 0.0, as the engine does (rule U12)."""
    return value + F.lit(0.0) if attribute.type is AttributeType.FLOAT64 else value


def _read(spark: SparkSession, uri: str, where: str, format_: str, wanted: Wanted) -> DataFrame:
    """Reads the table as it is: CSV and JSON as texts."""
    if format_ == "parquet":
        frame = spark.read.parquet(uri)
        _check_columns(spark, frame.inputFiles())
        return frame
    if format_ == "csv":
        options = {"sep": wanted.delimiter, "header": True, "escape": '"', "multiLine": True, "mode": "FAILFAST",
                   "columnPruning": False}  # fmt: skip
        frame = spark.read.options(**options).csv(uri)  # type: ignore[arg-type]
        if len(frame.inputFiles()) > 1:  # in a single file, columns without a name do no harm
            frame = spark.read.options(**options, enforceSchema=False).csv(uri)  # type: ignore[arg-type]
        return frame
    frame = spark.read.options(primitivesAsString=True).json(uri)
    if "_corrupt_record" in frame.columns:
        raise SpeError(f"{where} has lines that are no JSON objects")
    return frame


def _check_columns(spark: SparkSession, files: Sequence[str]) -> None:
    """Raises SpeError where a Parquet file lacks a column of another: Spark would read nulls, or leave it out."""
    first: list[str] = []
    for file in files if len(files) > 1 else ():
        columns = spark.read.parquet(literal(unquote(file))).columns
        first = first or columns
        if lacking := sorted(set(first) ^ set(columns)):
            raise SpeError(
                f"{unquote(file)} and {unquote(files[0])} are of one table, and only one of them has the column "
                f"{lacking[0]!r}; expected the same columns in each file"
            )


def _value(frame: DataFrame, column: str, attribute: Attribute, where: str) -> Column:
    """Converts a column to the type of an attribute."""
    type_ = frame.schema[column].dataType
    source = F.col(quoted(column))
    wanted = spark_type(attribute.type)
    if isinstance(type_, (T.StringType, *_READ[attribute.type])):
        return source if type_ == wanted else source.cast(wanted)
    if isinstance(type_, T.DecimalType) and type_.scale == 0 and attribute.type is AttributeType.INT64:
        return source.cast(wanted)
    raise SpeError(
        f"column {column!r} of {where} is {type_.simpleString()}, from which attribute {attribute.name!r} "
        f"({attribute.type}) cannot be read; leave it out with --ignore {attribute.name}"
    )


def _check_texts(frame: DataFrame, names: Mapping[str, str], columns: Mapping[str, Column], where: str) -> None:
    """Raises SpeError for the first column with a text that is no value of its attribute."""
    lost: list[tuple[str, Column]] = []
    for name, column in names.items():
        type_, made = frame.schema[column].dataType, columns[name]
        source = F.col(quoted(column))
        if not isinstance(type_, T.StringType | T.DecimalType):
            continue
        bad = source.isNotNull() & made.isNull()
        if isinstance(frame.select(made).schema[0].dataType, T.LongType) and name != TIME:
            bad |= source.cast("double") != made.cast("double")  # Spark cuts 1.7 off to 1
        lost.append((column, F.min(F.when(bad, source.cast("string")))))
    if not lost:
        return
    with _files_named(frame.columns):
        row = frame.agg(*[first_bad.alias(f"_{n}") for n, (_, first_bad) in enumerate(lost)]).first()
    assert row is not None
    for (column, _), example in zip(lost, row):
        if example is not None:
            raise SpeError(f"column {column!r} of {where} has {example[:80]!r}, which is no value of its attribute")


@contextmanager
def _files_named(columns: Sequence[str]) -> Iterator[None]:
    """Raises SpeError where Spark finds that a CSV file is no table, or has other columns than the others."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        text = str(error)
        file, row = _FILE.search(text), _BAD_ROW.search(text)
        if file is not None and _OTHER_HEADER in text:
            raise SpeError(
                f"{unquote(file[1])} has another header than {', '.join(columns)}, that of another file of the table; "
                "expected the same columns in one order, each with a name of its own"
            ) from error
        if file is not None and row is not None:
            raise SpeError(f"{unquote(file[1])} has a row of more or fewer cells than its header: {row[1]}") from error
        raise
