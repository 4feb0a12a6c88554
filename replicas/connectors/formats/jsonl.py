"""Reads JSON lines: one object per line, from a file or a live stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import isinf
from typing import Any, BinaryIO, Final, TextIO

import numpy as np

from replicas.connectors.formats.file_format import FileFormat, text_of
from replicas.connectors.formats.text_columns import (
    UNITS_US,
    CellFormat,
    chunk_of,
    encode_texts,
    epoch_number,
    expected_timestamp,
    note_nulls,
)
from replicas.connectors.formats.text_files import text_of_part, text_parts
from replicas.connectors.reader import CHUNK_BYTES, CHUNK_ROWS, FilePart, RowChunk
from spe.stream.batch import AnyArray, BoolArray, Column, canonical
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import parse_timestamp

#: JSON types that an attribute takes; a bool does not count as a number.
_TAKES: Final[Mapping[AttributeType, frozenset[type]]] = {
    AttributeType.INT64: frozenset((int,)),
    AttributeType.FLOAT64: frozenset((float, int)),
    AttributeType.BOOL: frozenset((bool,)),
    AttributeType.STRING: frozenset((str,)),
    AttributeType.TIMESTAMP: frozenset((str, int, float)),
}

#: Lines of a file that are taken before their length is checked.
_LINES: Final = 256
#: Returns the value at a place of a text, and its end.
_SCAN: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def number_or_text(text: str) -> float | str:
    """Parses a float for json: a number beyond float64, which Python reads as infinity, stays a text."""
    return text if isinf(value := float(text)) else value


class JsonLines:
    """Converts lines to chunks.  A missing key is null; other keys are ignored.

    Args:
      units: units of the timestamps of some attributes, where they differ from the option.
    """

    def __init__(
        self, schema: Schema, time: str | None, reader: Mapping[str, Any], units: Mapping[str, str] | None = None
    ) -> None:
        self._schema = schema
        self._time = None if time is None else schema.index(time)
        mapping: Mapping[str, Any] = reader.get("columns") or {}
        self._keys = [str(mapping.get(a.name, a.name)) for a in schema]
        unit = CellFormat.of(reader).timestamps
        self._units = {a.name: (units or {}).get(a.name, unit) for a in schema}

    def chunk(
        self,
        first: int,
        lines: Sequence[str],
        numbers: Sequence[int] | None = None,
        dictionary: StringDictionary | None = None,
    ) -> RowChunk:
        """Makes a chunk.

        Args:
          first: number of the first row.
          numbers: line number of each line; None: first + 1 and so on.
          dictionary: for texts; None: a new one.
        """
        bad: dict[int, str] = {}
        objects = self._objects(lines, bad)
        places = numbers if numbers is not None else range(first + 1, first + 1 + len(lines))
        exact = lambda i: json.loads(lines[i], parse_float=number_or_text)  # noqa: E731
        return self._chunk(first, objects, bad, places, lambda i: lines[i], dictionary, exact)

    def chunk_of_values(
        self,
        values: Sequence[Any],
        first: int = 0,
        write: Callable[[Any], str] = json.dumps,
        bad: Mapping[int, str] | None = None,
        dictionary: StringDictionary | None = None,
        exact: Callable[[int], Mapping[str, Any]] | None = None,
    ) -> RowChunk:
        """Makes a chunk of the elements of a JSON array, or of rows decoded from another format, numbered from
        ``first`` + 1.

        Args:
          write: formats an invalid value.
          bad: rows known to be bad, with reasons; any object may stand in their place.
          dictionary: for texts; None: a new one.
          exact: returns a value with :func:`number_or_text`; None: infinities are intended.
        """
        wrong = {
            i: f"expected a JSON object, got {type(v).__name__}" for i, v in enumerate(values) if type(v) is not dict
        }
        objects = [{} if i in wrong else value for i, value in enumerate(values)] if wrong else values
        wrong.update(bad or {})
        numbers = range(first + 1, first + 1 + len(values))
        return self._chunk(first, objects, wrong, numbers, lambda i: _shown(values[i], write), dictionary, exact)

    def chunks(self, file: TextIO, skip: int) -> Iterator[RowChunk]:
        """Yields the rows of a file from row ``skip`` on."""
        lines = ((n, line.rstrip("\r\n")) for n, line in enumerate(file, 1) if not line.isspace())
        first = sum(1 for _ in islice(lines, skip))
        while taken := _some(lines):
            yield self.chunk(first, [line for _, line in taken], [n for n, _ in taken])
            first += len(taken)

    def _chunk(
        self,
        first: int,
        objects: Sequence[Mapping[str, Any]],
        bad: dict[int, str],
        places: Sequence[int],
        raw: Callable[[int], str],
        dictionary: StringDictionary | None,
        exact: Callable[[int], Mapping[str, Any]] | None,
    ) -> RowChunk:
        dictionary = StringDictionary() if dictionary is None else dictionary
        columns = [
            self._column(a, [o.get(key) for o in objects], dictionary, bad) for a, key in zip(self._schema, self._keys)
        ]
        if exact is not None:
            self._note_beyond(columns, exact, bad)
        return chunk_of(self._time, first, columns, bad, places, raw)

    def _note_beyond(
        self, columns: Sequence[Column], exact: Callable[[int], Mapping[str, Any]], bad: dict[int, str]
    ) -> None:
        """Notes infinities that are numbers beyond float64."""
        for attribute, key, column in zip(self._schema, self._keys, columns):
            if attribute.type is AttributeType.FLOAT64:
                for i in np.flatnonzero(np.isinf(column.values)).tolist():
                    if isinstance(text := exact(i)[key], str):
                        bad.setdefault(i, f"{attribute.name}: {text[:40]} is beyond float64")

    def _objects(self, lines: Sequence[str], bad: dict[int, str]) -> list[Mapping[str, Any]]:
        """Returns the result of ``json.loads`` for each line, by its scanner alone if a line is just an object."""
        objects: list[Mapping[str, Any]] = []
        for i, line in enumerate(lines):
            try:
                value, end = _SCAN(line, 0)
                good = end == len(line) and type(value) is dict
            except (StopIteration, ValueError, RecursionError):
                good = False
            objects.append(value if good else self._object(i, line, bad))
        return objects

    def _object(self, i: int, line: str, bad: dict[int, str]) -> Mapping[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad[i] = f"no JSON: {error}"
            return {}
        if not isinstance(value, dict):
            bad[i] = f"expected a JSON object, got {type(value).__name__}"
            return {}
        return value

    def _column(
        self, attribute: Attribute, items: list[Any], dictionary: StringDictionary, bad: dict[int, str]
    ) -> Column:
        type_ = attribute.type
        filler: Any = "" if type_ is AttributeType.STRING else 0
        if type_ is AttributeType.TIMESTAMP and self._units[attribute.name] == "iso":
            filler = "1970-01-01"
        if not set(map(type, items)) <= _TAKES[type_] | {type(None)}:
            for i, item in enumerate(items):
                if item is not None and type(item) not in _TAKES[type_]:
                    bad.setdefault(i, f"{attribute.name}: expected {type_.value}, got {_shown(item)[:40]!r}")
                    items[i] = filler
        valid: BoolArray | None = None
        if None in items:
            valid = np.array([x is not None for x in items], np.bool_)
            note_nulls(attribute, valid, bad)
            items = [filler if x is None else x for x in items]
        if type_ is AttributeType.STRING:
            return Column(encode_texts(attribute, items, dictionary, bad), valid, dictionary)
        return Column(canonical(self._values(attribute, items, bad)), valid)

    def _values(self, attribute: Attribute, items: list[Any], bad: dict[int, str]) -> AnyArray:
        if attribute.type is AttributeType.TIMESTAMP:
            if (values := self._whole_timestamps(self._units[attribute.name], items)) is not None:
                return values
            items = [self._timestamp(attribute, i, item, bad) for i, item in enumerate(items)]
        try:
            return np.array(items, attribute.type.dtype)
        except OverflowError:
            numbers = np.zeros(len(items), attribute.type.dtype)
            for i, item in enumerate(items):
                try:
                    numbers[i] = item
                except OverflowError:
                    bad.setdefault(i, f"{attribute.name}: {str(item)[:40]} is beyond 64 bits")
            return numbers

    def _whole_timestamps(self, unit: str, items: list[Any]) -> AnyArray | None:
        """Converts whole numbers since the epoch, all at once; None: they must be converted one by one."""
        if unit == "iso" or not set(map(type, items)) <= {int}:
            return None
        try:
            numbers = np.array(items, np.int64)
        except OverflowError:
            return None
        scale = UNITS_US[unit]
        if scale < 1:
            return numbers // 1000
        most = np.iinfo(np.int64).max // int(scale)
        return numbers * int(scale) if not len(numbers) or -most <= numbers.min() <= numbers.max() <= most else None

    def _timestamp(self, attribute: Attribute, i: int, item: Any, bad: dict[int, str]) -> int:
        unit = self._units[attribute.name]
        try:
            if isinstance(item, str):
                return parse_timestamp(item)
            if unit != "iso":
                return epoch_number(item, unit)
            more = "; for numbers since the epoch say timestamps: s, ms, us or ns"
        except (ValueError, OverflowError):
            more = ""
        expected = expected_timestamp(unit)
        bad.setdefault(i, f"{attribute.name}: expected {expected}, got {_shown(item)[:40]!r}{more}")
        return 0


def _shown(value: Any, write: Callable[[Any], str] = str) -> str:
    """Formats a value of JSON for a message; a deeply nested one can be read, but not written."""
    try:
        return write(value)
    except RecursionError:
        return "a value that is nested deeply"


def _some(lines: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    """Returns the next lines, as many as fit a chunk."""
    taken: list[tuple[int, str]] = []
    size = 0
    while size <= CHUNK_BYTES and (more := list(islice(lines, min(_LINES, CHUNK_ROWS - len(taken))))):
        taken += more
        size += sum([len(line) for _, line in more])
    return taken


class JsonFiles(FileFormat):
    """Reads files of JSON lines."""

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._lines = JsonLines(schema, time, reader)

    def rows(self, file: BinaryIO, name: str, skip: int) -> Iterator[RowChunk]:
        with text_of(file) as text:
            yield from self._lines.chunks(text, skip)

    def parts(self, file: BinaryIO, name: str, size: int) -> list[FilePart]:
        return text_parts(file, size)

    def part(self, file: BinaryIO, name: str, file_part: FilePart) -> Iterator[RowChunk]:
        with text_of_part(file, file_part) as text:
            yield from self._lines.chunks(text, 0)
