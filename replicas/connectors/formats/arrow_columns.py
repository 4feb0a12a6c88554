"""Converts Arrow columns, without an object per row.  Arrow is imported when a file is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from replicas.connectors.formats.file_format import is_of_storage
from replicas.connectors.formats.text_columns import (
    chunk_of,
    encode_texts,
    epoch_number,
    expected_timestamp,
    note_nulls,
)
from replicas.connectors.reader import CHUNK_BYTES, CHUNK_ROWS, COLUMN_ROWS, RowChunk
from spe.errors import SpeError
from spe.stream.batch import AnyArray, BoolArray, Column, canonical
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import DICTIONARY_LIMIT, StringDictionary
from spe.stream.times import parse_timestamp

if TYPE_CHECKING:
    import pyarrow

#: Microseconds per unit of time, as a fraction.
_UNITS: Final = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
_INT64_MAX: Final = 2**63 - 1


def chunk_rows(rows: int, size: int) -> int:
    """Returns the number of rows per chunk, for columns in which ``rows`` take ``size`` bytes."""
    return min(COLUMN_ROWS, max(CHUNK_ROWS, CHUNK_BYTES * rows // max(1, size)))


class ArrowColumns:
    """Converts Arrow batches to chunks.

    Attributes:
      names: column name of each attribute.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._time = None if time is None else schema.index(time)
        mapping: Mapping[str, Any] = reader.get("columns") or {}
        self.names = [str(mapping.get(a.name, a.name)) for a in schema]
        self._unit: str | None = reader.get("timestamps")
        #: Dictionary of the last batch, by attribute.
        self._dictionaries: dict[str, _Known] = {}

    @property
    def texts(self) -> list[str]:
        """Names of columns whose attributes are texts."""
        return [name for a, name in zip(self._schema, self.names) if a.type is AttributeType.STRING]

    def check(self, columns: pyarrow.Schema, where: str, more: tuple[str, ...] = ()) -> None:
        """Raises SpeError: a column is missing, or its type does not fit its attribute.

        Args:
          more: further required columns, of any type.
        """
        missing = sorted({*self.names, *more} - set(columns.names))
        if missing:
            raise SpeError(f"{where}: no column {', '.join(missing)}; the file has: {', '.join(columns.names)}")
        for attribute, name in zip(self._schema, self.names):
            if columns.names.count(name) > 1:
                raise SpeError(f"{where}: several columns are named {name}; expected one")
            type_ = columns.field(name).type
            if not _fits(attribute.type, type_, self._unit):
                hint = ""
                if attribute.type is AttributeType.TIMESTAMP:
                    hint = "; for numbers since the epoch say timestamps: s, ms, us or ns, for texts timestamps: iso"
                raise SpeError(f"{where}: column {name} is {type_}; {attribute.type.value} was expected{hint}")

    def chunks(self, first: int, batch: pyarrow.RecordBatch) -> Iterator[RowChunk]:
        """Divides a batch of any size into chunks."""
        count = chunk_rows(batch.num_rows, batch.nbytes)
        for at in range(0, batch.num_rows, count):
            yield self.chunk(first + at, batch.slice(at, count))

    def chunk(self, first: int, batch: pyarrow.RecordBatch) -> RowChunk:
        bad: dict[int, str] = {}
        columns = [self._column(a, batch.column(n), bad) for a, n in zip(self._schema, self.names)]
        rows = range(first + 1, first + 1 + batch.num_rows)
        chunk = chunk_of(self._time, first, columns, bad, rows, lambda i: _shown(batch.slice(i, 1)))
        return chunk.in_rows()

    def _column(self, attribute: Attribute, array: pyarrow.Array, bad: dict[int, str]) -> Column:
        valid: BoolArray | None = None
        if array.null_count:
            valid = _plain(array.is_valid(), 0)
            note_nulls(attribute, valid, bad)
        if attribute.type is AttributeType.STRING:
            return self._strings(attribute, array, valid, bad)
        if attribute.type is AttributeType.TIMESTAMP:
            return Column(self._timestamps(attribute, array, bad), valid)
        return Column(canonical(_values(attribute.type, array)), valid)

    def _timestamps(self, attribute: Attribute, array: pyarrow.Array, bad: dict[int, str]) -> AnyArray:
        """Returns microseconds since the epoch; 0 for nulls and bad values."""
        import pyarrow

        types = pyarrow.types
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_timestamp(array.type):
            unit, array = array.type.unit, array.view(pyarrow.int64())
        elif types.is_integer(array.type):
            unit, array = self._unit, array.cast(pyarrow.int64())
        else:
            return self._timestamp_by_timestamp(attribute, array.to_pylist(), bad)
        values = _plain(array, 0)
        multiply, divide = _UNITS[unit]
        if multiply > 1:
            most = _INT64_MAX // multiply
            for i in np.flatnonzero((values > most) | (values < -most)).tolist():
                bad.setdefault(i, f"{attribute.name}: {values[i]} {unit} since the epoch is beyond 64 bits")
            values = np.clip(values, -most, most) * multiply
        return np.asarray(values if divide == 1 else values // divide)

    def _timestamp_by_timestamp(self, attribute: Attribute, items: list[Any], bad: dict[int, str]) -> AnyArray:
        """Converts texts, and floats since the epoch."""
        unit = self._unit or "iso"
        values = np.zeros(len(items), np.int64)
        for i, item in enumerate(items):
            try:
                if item is not None:
                    values[i] = parse_timestamp(item) if isinstance(item, str) else epoch_number(item, unit)
            except (ValueError, OverflowError):
                bad.setdefault(i, f"{attribute.name}: expected {expected_timestamp(unit)}, got {str(item)[:40]!r}")
        return values

    def _strings(
        self, attribute: Attribute, array: pyarrow.Array, valid: BoolArray | None, bad: dict[int, str]
    ) -> Column:
        """Encodes texts: Arrow finds the distinct ones, and only those become Python strings.  Arrow does not validate
        them.
        """
        import pyarrow

        if pyarrow.types.is_dictionary(array.type):
            if len(array.dictionary) <= DICTIONARY_LIMIT and not array.dictionary.null_count:
                with suppress(UnicodeDecodeError):
                    return self._by_dictionary(attribute.name, array, valid)
            array = array.dictionary_decode()
        if str(array.type) == "string_view":
            array = array.cast(pyarrow.string())
        encoded = array.dictionary_encode()
        dictionary = StringDictionary()
        try:
            table = dictionary.extend(encoded.dictionary.to_pylist())
        except UnicodeDecodeError:
            texts = [b"" if item is None else item for item in array.cast(pyarrow.large_binary()).to_pylist()]
            decoded = [text.decode("utf-8", "surrogateescape") for text in texts]
            return Column(encode_texts(attribute, decoded, dictionary, bad), valid, dictionary)
        return _column_of(encoded.indices, valid, table, dictionary, dictionary.code("") if valid is not None else 0)

    def _by_dictionary(self, name: str, array: pyarrow.Array, valid: BoolArray | None) -> Column:
        """Encodes texts by the dictionary of the last batch if it is the same: it may be that of a row group, or of a
        file.
        """
        entries = array.dictionary
        known = self._dictionaries.get(name)
        if known is None or not known.entries.equals(entries):
            dictionary = StringDictionary()
            table = dictionary.encode(entries.to_pylist())  # it may have doubles
            known = self._dictionaries[name] = _Known(entries, dictionary, table, dictionary.code(""))
        return _column_of(array.indices, valid, known.table, known.dictionary, known.empty)


def _shown(row: pyarrow.RecordBatch) -> str:
    """Formats a row for a message, even if a text is invalid."""
    return str({name: _cell(row.column(n)) for n, name in enumerate(row.schema.names)})


def _cell(array: pyarrow.Array) -> Any:
    import pyarrow

    try:
        return array.to_pylist()[0]
    except UnicodeDecodeError:
        whole = array.dictionary_decode() if pyarrow.types.is_dictionary(array.type) else array
        return whole.cast(pyarrow.large_binary()).to_pylist()[0]


class _Known(NamedTuple):
    """An Arrow dictionary, encoded.

    Attributes:
      table: our code of each entry.
      empty: code of the empty text.
    """

    entries: pyarrow.Array
    dictionary: StringDictionary
    table: AnyArray
    empty: int


def _column_of(
    indices: pyarrow.Array, valid: BoolArray | None, table: AnyArray, dictionary: StringDictionary, empty: int
) -> Column:
    codes = _plain(indices, 0)
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
            return _is_text(type_)
    if unit == "iso" and _is_text(type_):
        return True
    if unit in _UNITS and (types.is_floating(type_) or (types.is_integer(type_) and str(type_) != "uint64")):
        return True
    return bool(types.is_timestamp(type_))


def _is_text(type_: pyarrow.DataType) -> bool:
    return str(type_) in ("string", "large_string", "string_view")


def _values(type_: AttributeType, array: pyarrow.Array) -> AnyArray:
    """Returns numbers of our dtype; 0 for nulls."""
    values = _plain(array, False if type_ is AttributeType.BOOL else 0)
    return np.asarray(values.astype(type_.dtype, copy=False))


def _plain(array: pyarrow.Array, null: int) -> AnyArray:
    """Returns numbers, or booleans, with ``null`` in place of nulls."""
    import pyarrow

    if array.null_count:
        array = array.fill_null(null)
    if pyarrow.types.is_boolean(array.type):
        return np.from_dlpack(array.cast(pyarrow.uint8())).view(np.bool_)
    return np.from_dlpack(array)  # Arrow's to_numpy imports pandas if it is installed, which takes 0.2 s


@contextmanager
def arrow_reads(where: str) -> Iterator[None]:
    """Converts errors of Arrow to SpeError; OSErrors of the storage pass.

    Raises:
      SpeError: the data is torn, or of another kind; or Arrow is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise SpeError(f"{where}: reading it needs Arrow: pip install '.[parquet]'") from error
    try:
        yield
    except SpeError:
        raise
    except Exception as error:  # for damaged metadata, Arrow raises any Python error
        if is_of_storage(error):
            raise
        kind = "" if isinstance(error, pyarrow.ArrowException | OSError) else f"{type(error).__name__}: "
        raise SpeError(f"{where}: cannot be read: {kind}{error}") from error


def arrow_file(file: Any) -> Any:
    """Returns an open file for Arrow; Arrow's own files are returned unchanged."""
    import pyarrow

    return file if isinstance(file, pyarrow.NativeFile) else pyarrow.PythonFile(file, "r")
