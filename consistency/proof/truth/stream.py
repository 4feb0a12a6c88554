"""A stream as a frame: its attributes, its partition, and the columns that hold the engine's order.

The engine's stable order is (time, tie-breakers), and the tie-breakers follow from the input alone
(docs/reference/operators.md).  So no intermediate stream has to be numbered: each operator names the columns of its
order, and only the output is sorted.  Names that begin with ``__`` are ours; an attribute cannot have them.

Types are Spark's own: an expression has the type that Spark gives it, and nothing is cast to the engine's types.  Only
INT becomes BIGINT, for our integers have 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from consistency.proof.spark_expressions import spark_text
from spe.stream import text_size
from spe.stream.times import END_OF_TIME

PARTITION: Final = "__partition"
TIME: Final = "__time"


@dataclass(frozen=True)
class TruthStream:
    """One stream of the query.

    Attributes:
      frame: columns PARTITION int, TIME long, ``__order0``, ``__order1`` … long, and the attributes.
      width: number of order columns.  (TIME, order columns) is a total order of a partition.
      in_order: rows come in this order from each task, and task after task; there is one partition.
      limits: upper bounds, exclusive, of the order columns, which are not negative; None: they are not known.
    """

    frame: DataFrame
    width: int
    in_order: bool = False
    limits: tuple[int, ...] | None = None

    def of(self, frame: DataFrame) -> TruthStream:
        """Returns a stream of the same order: some of the rows, or other attributes."""
        return replace(self, frame=frame)

    @property
    def names(self) -> list[str]:
        """Names of the attributes, in order."""
        return [name for name in self.frame.columns if not name.startswith("__")]

    @property
    def types(self) -> dict[str, T.DataType]:
        """Types of the attributes, as Spark has them."""
        return {name: self.frame.schema[name].dataType for name in self.names}

    @property
    def order(self) -> list[str]:
        """Columns that order tuples of equal time."""
        return order_names(self.width)

    @property
    def position(self) -> list[str]:
        """TIME and the order columns: the place of a tuple in its partition."""
        return [TIME, *self.order]

    @property
    def attributes(self) -> list[str]:
        """The attributes as quoted names."""
        return [quoted(name) for name in self.names]

    def since(self, begin: int) -> TruthStream:
        """Returns the tuples from ``begin`` on."""
        return self.of(self.frame.where(F.col(TIME) >= begin))

    def before(self, end: int) -> TruthStream:
        """Returns the tuples that the boundary ``end`` releases."""
        if end >= END_OF_TIME:
            return self
        return self.of(self.frame.where(F.col(TIME) < end))


class Places:
    """Encodes the place of a tuple within a span of time as one value that compares as the place does.

    It is a BIGINT if the place fits: for the least struct of a group Spark would sort all rows.
    """

    def __init__(self, stream: TruthStream, since: Column, span_us: int | None) -> None:
        """
        Args:
          since: beginning of the span that a row is in.
          span_us: its length; None: tuples may have any times.
        """
        self._stream = stream
        self._since = since
        limits = stream.limits
        fits = limits is not None and span_us is not None and span_us * prod(limits) < 1 << 63
        self._limits = limits if fits else None

    @property
    def value(self) -> Column:
        if self._limits is None:
            return position_struct(self._stream.position)
        value = F.col(TIME) - self._since
        for name, limit in zip(self._stream.order, self._limits, strict=True):
            value = value * _long(limit) + F.col(name)
        return value

    def struct(self, value: Column) -> Column:
        """Decodes a value into a struct of the columns."""
        if self._limits is None:
            return value
        parts: list[Column] = []
        for name, limit in [*zip(self._stream.order, self._limits, strict=True)][::-1]:
            parts.append(F.pmod(value, _long(limit)).alias(name))
            value = F.call_function("div", value, _long(limit))
        return F.struct((value + self._since).alias(TIME), *parts[::-1])


def _long(number: int) -> Column:
    return F.lit(number).cast("long")


def order_names(width: int) -> list[str]:
    return [f"__order{i}" for i in range(width)]


def ordered(columns: Sequence[Column]) -> list[Column]:
    """Names order columns."""
    return [column.cast("long").alias(name) for column, name in zip(columns, order_names(len(columns)))]


def padded(columns: Sequence[Column], width: int) -> list[Column]:
    return [*columns, *[F.lit(0)] * (width - len(columns))]


def columns(names: Sequence[str]) -> list[Column]:
    return [F.col(name) for name in names]


def position_struct(names: Sequence[str]) -> Column:
    """Returns the place of a tuple as one value that compares as the place does."""
    return F.struct(*columns(names))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def expression(frame: DataFrame, text: str) -> Column:
    """Returns an expression of the query over the attributes of a frame, as Spark evaluates it."""

    def type_of(operand: str) -> str:
        return frame.select(F.expr(operand)).schema[0].dataType.simpleString()

    return F.expr(spark_text(text, type_of))


def attributes(frame: DataFrame, made: Mapping[str, Column]) -> list[Column]:
    """Returns columns over a frame as attributes, each with its name and the type that Spark gives it.

    INT becomes BIGINT, and −0.0 becomes 0.0 (rule U12).
    """
    named = [column.alias(name) for name, column in made.items()]
    if not named:
        return []
    types = [field.dataType for field in frame.select(*named).schema]
    return [_attribute(column, type_).alias(name) for (name, column), type_ in zip(made.items(), types)]


def values(frame: DataFrame, texts: Mapping[str, str]) -> list[Column]:
    """Returns expressions of the query over a frame as attributes, by name."""
    return attributes(frame, {name: expression(frame, text) for name, text in texts.items()})


def _attribute(column: Column, type_: T.DataType) -> Column:
    if isinstance(type_, T.IntegerType | T.ShortType | T.ByteType):
        return column.cast("long")
    return column + F.lit(0.0) if isinstance(type_, T.DoubleType) else column


def without_large_rows(stream: TruthStream) -> TruthStream:
    """Drops rows with more text than a row may have, each text counted once (rules B9, U15)."""
    texts = [F.coalesce(F.col(quoted(n)), F.lit("")) for n, t in stream.types.items() if isinstance(t, T.StringType)]
    if not texts:
        return stream
    sizes = F.transform(F.array_distinct(F.array(*texts)), lambda text: F.octet_length(text).cast("long"))
    total = F.aggregate(sizes, F.lit(0).cast("long"), lambda sum_, size: sum_ + size)
    return stream.of(stream.frame.where(total <= text_size.ROW_TEXT_BYTES))


def timestamp(column: Column) -> Column:
    """Converts microseconds to a timestamp."""
    return F.timestamp_micros(column)
