"""Parquet files, from Arrow columns to ours without an object per row.  Arrow is imported when a file is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from replicas.connectors.reader import CHUNK_ROWS, Chunk, Replay
from replicas.connectors.text_columns import chunk_of, note_nulls
from spe.errors import SpeError
from spe.stream.batch import AnyArray, BoolArray, Column, canonical
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringDictionary

if TYPE_CHECKING:
    import pyarrow

#: Microseconds per Arrow time unit, as a fraction.
_UNITS: Final = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}


class ParquetReplay(Replay):
    """A Parquet file.

    Options (``reader``): ``path``; ``columns`` (attribute -> column name; default: its own name); ``sort`` (a column
    to order the rows by first, e.g. an arrival sequence; the rows are then held in memory).

    Raises:
      SpeError: Arrow is not installed.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._time = None if time is None else schema.index(time)
        self._path = str(reader["path"])
        mapping: Mapping[str, Any] = reader.get("columns") or {}
        self._names = [str(mapping.get(a.name, a.name)) for a in schema]
        self._sort: str | None = reader.get("sort")

    def chunks(self, skip: int) -> Iterator[Chunk]:
        first = 0
        for batch in self._batches():
            start = max(0, skip - first)
            if start < batch.num_rows:
                yield self._chunk(first + start, batch.slice(start))
            first += batch.num_rows

    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise SpeError(
                f"{self._path}: reading Parquet needs Arrow: pip install 'tentative-spe[parquet]'"
            ) from error
        try:
            with pyarrow.parquet.ParquetFile(self._path) as file:
                self._check(file.schema_arrow)
                if self._sort is None:
                    yield from file.iter_batches(CHUNK_ROWS, columns=[*dict.fromkeys(self._names)])
                else:
                    table = file.read(columns=[*dict.fromkeys([*self._names, self._sort])])
                    yield from table.sort_by(self._sort).to_batches(max_chunksize=CHUNK_ROWS)
        except (OSError, pyarrow.ArrowException) as error:
            raise SpeError(f"{self._path}: cannot be read: {error}") from error

    def _check(self, found: pyarrow.Schema) -> None:
        wanted = [*self._names, *([] if self._sort is None else [self._sort])]
        missing = sorted(set(wanted) - set(found.names))
        if missing:
            raise SpeError(f"{self._path}: no column {', '.join(missing)}; the file has: {', '.join(found.names)}")
        for attribute, name in zip(self._schema, self._names):
            type_ = found.field(name).type
            if not _fits(attribute.type, type_):
                raise SpeError(f"{self._path}: column {name} is {type_}; {attribute.type.value} was expected")

    def _chunk(self, first: int, batch: pyarrow.RecordBatch) -> Chunk:
        bad: dict[int, str] = {}
        columns = [self._column(a, batch.column(n), bad) for a, n in zip(self._schema, self._names)]
        rows = range(first + 1, first + 1 + batch.num_rows)
        return chunk_of(self._time, first, columns, bad, rows, lambda i: str(batch.slice(i, 1).to_pylist()[0]))

    def _column(self, attribute: Attribute, array: pyarrow.Array, bad: dict[int, str]) -> Column:
        valid: BoolArray | None = None
        if array.null_count:
            valid = array.is_valid().to_numpy(zero_copy_only=False)
            note_nulls(attribute, valid, bad)
        if attribute.type is AttributeType.STRING:
            return self._strings(array, valid)
        return Column(canonical(_values(attribute.type, array)), valid)

    def _strings(self, array: pyarrow.Array, valid: BoolArray | None) -> Column:
        """Arrow finds the distinct texts; only those become Python strings."""
        import pyarrow

        if pyarrow.types.is_dictionary(array.type):
            array = array.dictionary_decode()  # its dictionary may hold nulls and doubles
        encoded = array.dictionary_encode()
        dictionary = StringDictionary()
        empty = dictionary.code("") if valid is not None else 0
        table = dictionary.encode(encoded.dictionary.to_pylist())
        codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        values = table.take(codes) if len(table) else np.full(len(codes), empty, np.int32)
        return Column(values if valid is None else np.where(valid, values, np.int32(empty)), valid, dictionary)


def _fits(wanted: AttributeType, type_: pyarrow.DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(type_):
        type_ = type_.value_type
    match wanted:
        case AttributeType.INT64:
            return bool(types.is_integer(type_)) and str(type_) != "uint64"
        case AttributeType.FLOAT64:
            return bool(types.is_floating(type_) or types.is_integer(type_))
        case AttributeType.BOOL:
            return bool(types.is_boolean(type_))
        case AttributeType.STRING:
            return bool(types.is_string(type_) or types.is_large_string(type_))
    return bool(types.is_timestamp(type_))


def _values(type_: AttributeType, array: pyarrow.Array) -> AnyArray:
    """Numbers of our dtype; 0 under nulls."""
    import pyarrow

    if type_ is AttributeType.TIMESTAMP:
        multiply, divide = _UNITS[array.type.unit]
        array = array.cast(pyarrow.int64())
    else:
        multiply, divide = 1, 1
    if array.null_count:
        array = array.fill_null(False if type_ is AttributeType.BOOL else 0)
    values = array.to_numpy(zero_copy_only=False).astype(type_.dtype, copy=False)
    if multiply != divide:
        values = values * multiply // divide
    return np.asarray(values)
