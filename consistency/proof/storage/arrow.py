"""Converts rows to Arrow and back, and the types of both.  Works on whole columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from spe.errors import SpeError
from spe.stream.batch import AnyArray, Column, Rows, canonical
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringDictionary

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
ARROW: Final = {
    AttributeType.INT64: pa.int64(),
    AttributeType.FLOAT64: pa.float64(),
    AttributeType.BOOL: pa.bool_(),
    AttributeType.STRING: pa.string(),
    AttributeType.TIMESTAMP: _TIMESTAMP,
}
_SPARK: Final[dict[AttributeType, T.DataType]] = {
    AttributeType.INT64: T.LongType(),
    AttributeType.FLOAT64: T.DoubleType(),
    AttributeType.BOOL: T.BooleanType(),
    AttributeType.STRING: T.StringType(),
    AttributeType.TIMESTAMP: T.TimestampType(),
}


#: Our types by Spark's; streams have no others.
_OURS: Final = {made: type_ for type_, made in _SPARK.items()}


def spark_type(type_: AttributeType) -> T.DataType:
    return _SPARK[type_]


def attribute_type(type_: T.DataType) -> AttributeType | None:
    """Returns the attribute type of a type of Spark; None: there is no such attribute."""
    return _OURS.get(type_)


def schema_of(types: Mapping[str, T.DataType]) -> Schema:
    """Returns the schema of Spark's attributes; each may be null.  Raises SpeError for a type that streams lack."""
    attributes = []
    for name, made in types.items():
        type_ = attribute_type(made)
        if type_ is None:
            raise SpeError(f"attribute {name!r} is {made.simpleString()} in Spark, which no attribute can be")
        attributes.append(Attribute(name, type_))
    return Schema(tuple(attributes))


def spark_fields(schema: Schema) -> list[T.StructField]:
    """Returns the attributes of a stream; each may be null, since an element without a tuple has none of them."""
    return [T.StructField(a.name, _SPARK[a.type]) for a in schema]


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Returns a frame's schema in Arrow, as its tasks get it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC", prefers_large_types=False)


def spark_schema(schema: pa.Schema) -> T.StructType:
    """Returns the schema of a frame whose tasks return Arrow batches of ``schema``."""
    from pyspark.sql.pandas.types import from_arrow_schema

    struct = from_arrow_schema(schema)
    assert isinstance(struct, T.StructType)
    return struct


def arrow_fields(schema: Schema) -> list[pa.Field]:
    return [pa.field(a.name, ARROW[a.type]) for a in schema]


class ToArrow:
    """Converts columns to Arrow arrays.  Texts of a dictionary are converted once while it does not grow."""

    def __init__(self) -> None:
        self._texts: tuple[StringDictionary | None, pa.Array] = (None, pa.array([], pa.string()))

    def arrays(self, rows: Rows, schema: Schema) -> list[pa.Array]:
        return [self._array(column, attribute) for column, attribute in zip(rows.columns, schema, strict=True)]

    def _array(self, column: Column, attribute: Attribute) -> pa.Array:
        mask = None if column.valid is None else ~column.valid
        if column.dictionary is not None:
            return self._strings(column, mask)
        array = pa.array(column.values, mask=mask)
        return array.cast(_TIMESTAMP) if attribute.type is AttributeType.TIMESTAMP else array

    def _strings(self, column: Column, mask: AnyArray | None) -> pa.Array:
        dictionary, texts = self._texts
        if dictionary is not column.dictionary or len(texts) != len(column.dictionary.strings):  # type: ignore[union-attr]
            assert column.dictionary is not None
            texts = pa.array(column.dictionary.strings, pa.string())
            self._texts = (column.dictionary, texts)
        codes = pa.array(column.values, mask=mask)
        return pa.DictionaryArray.from_arrays(codes, texts).cast(pa.string())


def from_arrow(arrays: Sequence[pa.Array], schema: Schema, time: AnyArray) -> Rows:
    """Returns rows of Arrow columns, ``t_max`` = ``time``.  Strings go into their own dictionary."""
    columns = tuple(_column(array, attribute) for array, attribute in zip(arrays, schema, strict=True))
    return Rows(time, time, columns)


def _column(array: pa.Array, attribute: Attribute) -> Column:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    valid = None if array.null_count == 0 else np.asarray(array.is_valid())
    if attribute.type is AttributeType.STRING:
        encoded: Any = array.dictionary_encode()
        dictionary = StringDictionary()
        dictionary.code("")  # the value under a null
        table = dictionary.encode(encoded.dictionary.to_pylist())
        codes = np.asarray(encoded.indices.fill_null(0))
        values = table.take(codes) if len(table) else np.zeros(len(array), np.int32)
        return Column(values.astype(np.int32), valid, dictionary)
    if attribute.type is AttributeType.TIMESTAMP:
        array = array.cast(_TIMESTAMP).cast(pa.int64())
    if valid is not None:
        array = array.fill_null(False if attribute.type is AttributeType.BOOL else 0)
    values = array.to_numpy(zero_copy_only=False).astype(attribute.type.dtype, copy=False)
    return Column(canonical(values), valid)
