"""A stream as a frame: its attributes, its partition, and the columns that hold the engine's order.

The engine's stable order is (time, then what settles ties), and what settles ties follows from the input alone
(docs/operators.md).  So no stream has to be numbered on the way: each operator says of which columns its order is made,
and only the output is sorted.  Names that begin with ``__`` are ours; an attribute cannot have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from consistency.proof.arrow import spark_type
from spe.expressions import compile_expression, spark_expression
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import END_OF_TIME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARTITION: Final = "__partition"
TIME: Final = "__time"


@dataclass(frozen=True)
class Stream:
    """One stream of the query.

    Attributes:
      frame: columns PARTITION int, TIME long, ``__order0``, ``__order1`` … long, and the attributes.
      width: how many order columns there are.  (TIME, order columns) is a total order of a partition.
    """

    frame: DataFrame
    schema: Schema
    width: int

    @property
    def order(self) -> list[str]:
        """Within a time."""
        return order_names(self.width)

    @property
    def position(self) -> list[str]:
        """TIME and the order columns: the place of a tuple among those of its partition."""
        return [TIME, *self.order]

    @property
    def attributes(self) -> list[str]:
        """Quoted."""
        return [quoted(name) for name in self.schema.names]

    def before(self, end: int) -> Stream:
        """What is released by the boundary ``end``."""
        if end >= END_OF_TIME:
            return self
        return Stream(self.frame.where(F.col(TIME) < end), self.schema, self.width)


def order_names(width: int) -> list[str]:
    return [f"__order{i}" for i in range(width)]


def ordered(columns: Sequence[Column]) -> list[Column]:
    """Order columns with their names."""
    return [column.cast("long").alias(name) for column, name in zip(columns, order_names(len(columns)))]


def padded(columns: Sequence[Column], width: int) -> list[Column]:
    return [*columns, *[F.lit(0)] * (width - len(columns))]


def columns(names: Sequence[str]) -> list[Column]:
    return [F.col(name) for name in names]


def position_struct(names: Sequence[str]) -> Column:
    """The place of a tuple as one value that compares as it does."""
    return F.struct(*columns(names))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def as_attribute(column: Column, attribute: Attribute) -> Column:
    """A computed column as the attribute that it is: its type, and 0.0 for −0.0 (docs/rules.md U12)."""
    typed = column.cast(spark_type(attribute.type))
    if attribute.type is AttributeType.FLOAT64:
        typed = typed + F.lit(0.0)
    return typed.alias(attribute.name)


def value(text: str, schema: Schema, name: str) -> Column:
    """An expression of the query over the attributes, as Spark evaluates it; ``name`` is its attribute's."""
    type_ = compile_expression(text, schema).type
    return as_attribute(F.expr(spark_expression(text, schema)), Attribute(name, type_))


def timestamp(column: Column, name: str) -> Column:
    """Microseconds as a timestamp."""
    return F.timestamp_micros(column).alias(name)
