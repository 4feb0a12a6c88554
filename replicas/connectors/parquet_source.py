"""Parquet files, from Arrow columns to ours without an object per row.  Arrow is imported when a file is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from replicas.connectors.reader import CHUNK_ROWS, FilePart, Replay, RowChunk
from replicas.connectors.text_columns import chunk_of, epoch_number, expected_timestamp, note_nulls
from spe.errors import SpeError
from spe.stream.batch import AnyArray, BoolArray, Column, canonical
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import parse_timestamp

if TYPE_CHECKING:
    import pyarrow

#: Microseconds per unit of time, as a fraction.
_UNITS: Final = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
_INT64_MAX: Final = 2**63 - 1


class ParquetReplay(Replay):
    """A Parquet file.

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
        self._unit: str | None = reader.get("timestamps")

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        first = 0
        for batch in self._batches():
            start = max(0, skip - first)
            if start < batch.num_rows:
                yield self._chunk(first + start, batch.slice(start))
            first += batch.num_rows

    def parts(self, size: int) -> list[FilePart]:
        """Parts of whole row groups; ``sort`` makes no difference."""
        with self._opened() as file:
            groups = [file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups)]
        found, first, held = [], 0, 0
        for n, bytes_ in enumerate(groups):
            if n > first and held + bytes_ > size:
                found.append(FilePart(first, n))
                first, held = n, 0
            held += bytes_
        return [*found, FilePart(first, len(groups))]

    def part(self, one: FilePart) -> Iterator[RowChunk]:
        names, first = [*dict.fromkeys(self._names)], 0
        with self._opened() as file:
            groups = range(one.first, one.until or 0)
            for batch in file.iter_batches(CHUNK_ROWS, row_groups=groups, columns=names):
                yield self._chunk(first, batch)
                first += batch.num_rows

    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        with self._opened() as file:
            if self._sort is None:
                yield from file.iter_batches(CHUNK_ROWS, columns=[*dict.fromkeys(self._names)])
            else:
                table = file.read(columns=[*dict.fromkeys([*self._names, self._sort])])
                yield from table.sort_by(self._sort).to_batches(max_chunksize=CHUNK_ROWS)

    @contextmanager
    def _opened(self) -> Iterator[pyarrow.parquet.ParquetFile]:
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
                yield file
        except (OSError, pyarrow.ArrowException) as error:
            raise SpeError(f"{self._path}: cannot be read: {error}") from error

    def _check(self, found: pyarrow.Schema) -> None:
        wanted = [*self._names, *([] if self._sort is None else [self._sort])]
        missing = sorted(set(wanted) - set(found.names))
        if missing:
            raise SpeError(f"{self._path}: no column {', '.join(missing)}; the file has: {', '.join(found.names)}")
        for attribute, name in zip(self._schema, self._names):
            type_ = found.field(name).type
            if not _fits(attribute.type, type_, self._unit):
                hint = ""
                if attribute.type is AttributeType.TIMESTAMP:
                    hint = "; for numbers since the epoch say timestamps: s, ms, us or ns, for texts timestamps: iso"
                raise SpeError(f"{self._path}: column {name} is {type_}; {attribute.type.value} was expected{hint}")

    def _chunk(self, first: int, batch: pyarrow.RecordBatch) -> RowChunk:
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
        if attribute.type is AttributeType.TIMESTAMP:
            return Column(self._timestamps(attribute, array, bad), valid)
        return Column(canonical(_values(attribute.type, array)), valid)

    def _timestamps(self, attribute: Attribute, array: pyarrow.Array, bad: dict[int, str]) -> AnyArray:
        """Microseconds since the epoch; 0 under nulls and where a value is bad."""
        import pyarrow

        types = pyarrow.types
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_timestamp(array.type):
            unit, array = array.type.unit, array.cast(pyarrow.int64())
        elif types.is_integer(array.type):
            unit, array = self._unit, array.cast(pyarrow.int64())
        else:
            return self._timestamp_by_timestamp(attribute, array.to_pylist(), bad)
        values = array.fill_null(0).to_numpy(zero_copy_only=False)
        multiply, divide = _UNITS[unit]
        if multiply > 1:
            most = _INT64_MAX // multiply
            for i in np.flatnonzero((values > most) | (values < -most)).tolist():
                bad.setdefault(i, f"{attribute.name}: {values[i]} {unit} since the epoch is beyond 64 bits")
            values = np.clip(values, -most, most) * multiply
        return np.asarray(values // divide)

    def _timestamp_by_timestamp(self, attribute: Attribute, items: list[Any], bad: dict[int, str]) -> AnyArray:
        """Of texts, and of floats since the epoch."""
        unit = self._unit or "iso"
        values = np.zeros(len(items), np.int64)
        for i, item in enumerate(items):
            try:
                if item is not None:
                    values[i] = parse_timestamp(item) if isinstance(item, str) else epoch_number(item, unit)
            except (ValueError, OverflowError):
                bad.setdefault(i, f"{attribute.name}: expected {expected_timestamp(unit)}, got {str(item)[:40]!r}")
        return values

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


def _fits(wanted: AttributeType, type_: pyarrow.DataType, unit: str | None) -> bool:
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
    if unit == "iso" and (types.is_string(type_) or types.is_large_string(type_)):
        return True
    if unit in _UNITS and (types.is_floating(type_) or (types.is_integer(type_) and str(type_) != "uint64")):
        return True
    return bool(types.is_timestamp(type_))


def _values(type_: AttributeType, array: pyarrow.Array) -> AnyArray:
    """Numbers of our dtype; 0 under nulls."""
    if array.null_count:
        array = array.fill_null(False if type_ is AttributeType.BOOL else 0)
    return np.asarray(array.to_numpy(zero_copy_only=False).astype(type_.dtype, copy=False))
