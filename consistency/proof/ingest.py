"""Raw files of any size as the log of a source: read, cast, checked and sorted by Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from consistency.proof.arrow import spark_type
from consistency.proof.truth.stream import TIME, quoted
from consistency.proof.writing import write_log
from spe.errors import SpeError
from spe.plan.plan import Source
from spe.stream.schema import AttributeType
from spe.stream.text_size import ROW_TEXT_BYTES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Options of each kind of reader that mean the same here.
_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "csv": frozenset({"delimiter", "header"}),
    "jsonl": frozenset(),
    "parquet": frozenset(),
}
_COMMON: Final = frozenset({"kind", "path", "columns"})


@dataclass(frozen=True)
class Ingested:
    """What became of the rows of a source's files.

    Attributes:
      malformed: rows that do not fit the schema, have no time, or too much text: they are left out, and counted here.
    """

    tuples: int
    malformed: int


def ingest(spark: SparkSession, source: Source, root: Path) -> Ingested:
    """Writes the log of a source from the files that its configuration names, ordered by time, and ended.

    Raises:
      SpeError: its rows do not come from files, or options are used that Spark would read another way.
    """
    raw = _raw(spark, source)
    fits = F.lit(True)
    casts: list[Column] = []
    for attribute in source.schema:
        given, cast = F.col(quoted(attribute.name)), F.col(quoted(attribute.name)).cast(spark_type(attribute.type))
        lost = given.isNotNull() & cast.isNull()
        fits &= ~lost if attribute.nullable and attribute.name != source.time else cast.isNotNull()
        casts.append(cast.alias(attribute.name))
    texts = [F.octet_length(c) for c, a in zip(casts, source.schema) if a.type is AttributeType.STRING]
    if texts:
        fits &= sum((F.coalesce(n, F.lit(0)) for n in texts), F.lit(0).cast("long")) <= ROW_TEXT_BYTES
    time = quoted(source.time) if source.time is not None else ""
    good = raw.where(fits).select(*casts).withColumn(TIME, F.unix_micros(F.col(time)))
    rows = raw.count()
    tuples = write_log(good, source, root)
    return Ingested(tuples, rows - tuples)


def _raw(spark: SparkSession, source: Source) -> DataFrame:
    """The files' rows, uncast where they are text."""
    reader: Mapping[str, Any] = source.reader
    kind = str(reader.get("kind"))
    if kind not in _OPTIONS:
        raise SpeError(f"source {source.stream!r} reads {kind}; expected csv, jsonl or parquet")
    if source.time is None:
        raise SpeError(f"source {source.stream!r} has no time; an order by time needs an attribute that holds it")
    other = sorted(set(reader) - _COMMON - _OPTIONS[kind])
    if other:
        raise SpeError(f"source {source.stream!r}: {kind} is ingested without the option {other[0]!r}")
    path = str(reader["path"])
    names = {a.name: str(reader.get("columns", {}).get(a.name, a.name)) for a in source.schema}
    text = ", ".join(f"{quoted(name)} string" for name in names.values())
    if kind == "csv":
        header = bool(reader.get("header", True))
        options = spark.read.options(sep=reader.get("delimiter", ","), header=header)
        frame = (options if header else options.schema(text)).csv(path)
    elif kind == "jsonl":
        frame = spark.read.schema(text).json(path)
    else:
        frame = spark.read.parquet(path)
    missing = [name for name in names.values() if name not in frame.columns]
    if missing:
        raise SpeError(f"{path} has no column {missing[0]!r}; there are: {', '.join(frame.columns)}")
    return frame.select(*[F.col(quoted(column)).alias(name) for name, column in names.items()])
