"""JSON lines: one object per line, from a file or as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TextIO

import numpy as np

from replicas.connectors.reader import CHUNK_ROWS, FilePart, Replay, RowChunk
from replicas.connectors.text_columns import (
    CellFormat,
    chunk_of,
    encode_texts,
    epoch_number,
    expected_timestamp,
    note_nulls,
)
from replicas.connectors.text_files import open_text, opened_part, text_parts
from spe.stream.batch import AnyArray, BoolArray, Column, canonical
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import parse_timestamp

#: JSON types that an attribute takes; a bool is no number here.
_TAKES: Final[Mapping[AttributeType, frozenset[type]]] = {
    AttributeType.INT64: frozenset((int,)),
    AttributeType.FLOAT64: frozenset((float, int)),
    AttributeType.BOOL: frozenset((bool,)),
    AttributeType.STRING: frozenset((str,)),
    AttributeType.TIMESTAMP: frozenset((str, int, float)),
}


class JsonLines:
    """Lines to chunks.  A missing key is null; other keys are ignored."""

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._time = None if time is None else schema.index(time)
        mapping: Mapping[str, Any] = reader.get("columns") or {}
        self._keys = [str(mapping.get(a.name, a.name)) for a in schema]
        self._unit = CellFormat.of(reader).timestamps

    def chunk(self, first: int, lines: Sequence[str], numbers: Sequence[int] | None = None) -> RowChunk:
        """
        Args:
          first: number of the first row.
          numbers: line number of each line; None: first + 1 and so on.
        """
        bad: dict[int, str] = {}
        objects = [self._object(i, line, bad) for i, line in enumerate(lines)]
        dictionary = StringDictionary()
        columns = [
            self._column(a, [o.get(key) for o in objects], dictionary, bad) for a, key in zip(self._schema, self._keys)
        ]
        places = numbers if numbers is not None else range(first + 1, first + 1 + len(lines))
        return chunk_of(self._time, first, columns, bad, places, lambda i: lines[i])

    def _object(self, i: int, line: str, bad: dict[int, str]) -> Mapping[str, Any]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad[i] = f"no JSON: {error}"
            return {}
        if not isinstance(found, dict):
            bad[i] = f"expected a JSON object, got {type(found).__name__}"
            return {}
        return found

    def _column(
        self, attribute: Attribute, items: list[Any], dictionary: StringDictionary, bad: dict[int, str]
    ) -> Column:
        type_ = attribute.type
        filler: Any = "" if type_ is AttributeType.STRING else 0
        if not set(map(type, items)) <= _TAKES[type_] | {type(None)}:
            for i, item in enumerate(items):
                if item is not None and type(item) not in _TAKES[type_]:
                    bad.setdefault(i, f"{attribute.name}: expected {type_.value}, got {str(item)[:40]!r}")
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
            items = [self._timestamp(attribute, i, item, bad) for i, item in enumerate(items)]
        try:
            return np.array(items, attribute.type.dtype)
        except OverflowError:
            values = np.zeros(len(items), attribute.type.dtype)
            for i, item in enumerate(items):
                try:
                    values[i] = item
                except OverflowError:
                    bad.setdefault(i, f"{attribute.name}: {str(item)[:40]} is beyond 64 bits")
            return values

    def _timestamp(self, attribute: Attribute, i: int, item: Any, bad: dict[int, str]) -> int:
        try:
            if isinstance(item, str):
                return parse_timestamp(item)
            if self._unit != "iso":
                return epoch_number(item, self._unit)
            more = "; for numbers since the epoch say timestamps: s, ms, us or ns"
        except (ValueError, OverflowError):
            more = ""
        expected = expected_timestamp(self._unit)
        bad.setdefault(i, f"{attribute.name}: expected {expected}, got {str(item)[:40]!r}{more}")
        return 0


class JsonReplay(Replay):
    """A file of JSON lines."""

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._path = str(reader["path"])
        self._lines = JsonLines(schema, time, reader)

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        with open_text(self._path) as file:
            yield from self._chunks(file, skip)

    def parts(self, size: int) -> list[FilePart]:
        return text_parts(self._path, size)

    def part(self, one: FilePart) -> Iterator[RowChunk]:
        with opened_part(self._path, one) as file:
            yield from self._chunks(file, 0)

    def _chunks(self, file: TextIO, skip: int) -> Iterator[RowChunk]:
        lines = ((n, line) for n, line in enumerate(file, 1) if not line.isspace())
        first = sum(1 for _ in islice(lines, skip))
        while taken := list(islice(lines, CHUNK_ROWS)):
            yield self._lines.chunk(first, [line for _, line in taken], [n for n, _ in taken])
            first += len(taken)
