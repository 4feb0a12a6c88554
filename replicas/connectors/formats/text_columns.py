"""Converts text cells to columns: a whole column at once if all cells are valid, else cell by cell to find the bad
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any, Final

import numpy as np

from replicas.connectors.reader import Malformed, RowChunk
from spe.errors import SpeError
from spe.log.rejected_rows import TEXT_MAX
from spe.stream.batch import AnyArray, BoolArray, Column, canonical
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringDictionary
from spe.stream.text_size import refusal, too_large
from spe.stream.times import parse_timestamp

#: Microseconds per unit of numbers since the epoch.
UNITS_US: Final = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 0.001}
_BOOLS: Final = {"true": True, "t": True, "yes": True, "1": True, "false": False, "f": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class CellFormat:
    """The notation of cells.

    Attributes:
      nulls: texts for null.
      timestamps: ``iso``, or the unit of numbers since the epoch: ``s``, ``ms``, ``us``, ``ns``.
    """

    nulls: frozenset[str]
    timestamps: str

    @classmethod
    def of(cls, reader: Mapping[str, Any]) -> CellFormat:
        """Reads a reader's options ``null`` (a text or a list of them) and ``timestamps``."""
        null = reader.get("null", "")
        unit = str(reader.get("timestamps", "iso"))
        if unit != "iso" and unit not in UNITS_US:
            raise SpeError(f"reader.timestamps: expected iso, s, ms, us or ns, got {unit!r}")
        return cls(frozenset([null] if isinstance(null, str) else map(str, null)), unit)


def expected_timestamp(unit: str) -> str:
    """Describes a valid timestamp, for messages."""
    return "an ISO 8601 timestamp" if unit == "iso" else f"a number of {unit} since the epoch"


def _number(text: str) -> str:
    """Refuses ``1_000``, and digits beyond ASCII, which Python accepts as numbers.  Raises ValueError."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def _float(text: str) -> float:
    """Parses a float.  Raises ValueError: no number, or one beyond float64, which Python reads as infinity."""
    value = float(_number(text))
    if isinf(value) and any(c.isdigit() for c in text):
        raise ValueError(text)
    return value


def epoch_number(value: float | str, unit: str) -> int:
    """Converts a number since the epoch to microseconds; exact for integers."""
    scale = UNITS_US[unit]
    try:
        whole = int(value) if isinstance(value, int | str) else None
    except ValueError:
        whole = None
    if whole is not None:
        return whole * int(scale) if scale >= 1 else whole // 1000
    return round(float(value) * scale)


def _timestamp(unit: str) -> Callable[[str], int]:
    if unit == "iso":
        return parse_timestamp
    return lambda text: epoch_number(_number(text), unit)


def cell_parser(type_: AttributeType, unit: str) -> Callable[[str], Any]:
    """Returns a parser of texts, which raises ValueError, KeyError or OverflowError."""
    if type_ is AttributeType.INT64:
        return lambda text: int(_number(text))
    if type_ is AttributeType.FLOAT64:
        return _float
    if type_ is AttributeType.BOOL:
        return lambda text: _BOOLS[text.strip().lower()]
    return _timestamp(unit)


def _whole_column(type_: AttributeType, cells: Sequence[str], unit: str) -> AnyArray:
    """Parses all cells at once; raises if one is bad."""
    n = len(cells)
    if type_ in (AttributeType.INT64, AttributeType.FLOAT64):
        _number("".join(cells))
    if type_ is AttributeType.INT64:
        return np.fromiter(map(int, cells), np.int64, n)
    if type_ is AttributeType.FLOAT64:
        floats = np.fromiter(map(float, cells), np.float64, n)
        for i in np.flatnonzero(np.isinf(floats)).tolist():
            _float(cells[i])
        return floats
    return np.fromiter(map(cell_parser(type_, unit), cells), type_.dtype, n)


class ColumnsOfCells:
    """Makes a chunk of text cells, one sequence per attribute, and sets invalid rows aside."""

    def __init__(self, schema: Schema, time: str | None, form: CellFormat) -> None:
        self._schema = schema
        self._time = None if time is None else schema.index(time)
        self._form = form

    def chunk(
        self,
        first: int,
        cells: Sequence[Sequence[str]],
        lines: Sequence[int],
        raw: Callable[[int], str],
        dictionary: StringDictionary,
        bad: dict[int, str],
    ) -> RowChunk:
        """Makes a chunk.

        Args:
          first: number of the first row among all input rows.
          cells: per attribute, the texts of all rows.
          lines: line number of each row.
          raw: returns the text of row i, for rows that are set aside.
          bad: rows known to be bad, with reasons; any text may stand in their cells.
        """
        columns = [self._column(a, c, dictionary, bad) for a, c in zip(self._schema, cells)]
        return chunk_of(self._time, first, columns, bad, lines, raw)

    def _column(
        self, attribute: Attribute, cells: Sequence[str], dictionary: StringDictionary, bad: dict[int, str]
    ) -> Column:
        valid = self._valid(cells)
        if valid is not None:
            note_nulls(attribute, valid, bad)
            filler = self._filler(attribute.type)
            cells = [c if v else filler for c, v in zip(cells, valid.tolist())]
        if attribute.type is AttributeType.STRING:
            return Column(encode_texts(attribute, cells, dictionary, bad), valid, dictionary)
        unit = self._form.timestamps
        try:
            values = _whole_column(attribute.type, cells, unit)
        except (ValueError, KeyError, OverflowError):
            values = self._cell_by_cell(attribute, cells, bad)
        return Column(canonical(values), valid)

    def _filler(self, type_: AttributeType) -> str:
        """Returns a text for nulls: any that parses."""
        if type_ is AttributeType.STRING:
            return ""
        return "1970-01-01" if type_ is AttributeType.TIMESTAMP and self._form.timestamps == "iso" else "0"

    def _valid(self, cells: Sequence[str]) -> BoolArray | None:
        nulls = self._form.nulls
        if nulls.isdisjoint(cells):
            return None
        return np.array([c not in nulls for c in cells], np.bool_)

    def _cell_by_cell(self, attribute: Attribute, cells: Sequence[str], bad: dict[int, str]) -> AnyArray:
        parse = cell_parser(attribute.type, self._form.timestamps)
        values = np.zeros(len(cells), attribute.type.dtype)
        for i, text in enumerate(cells):
            try:
                values[i] = parse(text)
            except (ValueError, KeyError, OverflowError):
                bad.setdefault(i, f"{attribute.name}: expected {self._expected(attribute.type)}, got {text[:40]!r}")
        return values

    def _expected(self, type_: AttributeType) -> str:
        if type_ is AttributeType.TIMESTAMP:
            return expected_timestamp(self._form.timestamps)
        return type_.value


def note_nulls(attribute: Attribute, valid: BoolArray, bad: dict[int, str]) -> None:
    """Notes rows in which an attribute is null that must not be."""
    if not attribute.nullable:
        for i in np.flatnonzero(~valid).tolist():
            bad.setdefault(i, f"{attribute.name}: null, but the attribute is not nullable")


def encode_texts(
    attribute: Attribute, texts: Sequence[str], dictionary: StringDictionary, bad: dict[int, str]
) -> AnyArray:
    """Returns string codes; texts that are not Unicode (half a surrogate pair) are bad and become empty."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        cleaned = list(texts)
        for i, text in enumerate(texts):
            try:
                text.encode()
            except UnicodeEncodeError:
                bad.setdefault(i, f"{attribute.name}: not UTF-8")
                cleaned[i] = ""
        texts = cleaned
    return dictionary.encode(texts)


def chunk_of(
    time: int | None,
    first: int,
    columns: list[Column],
    bad: dict[int, str],
    lines: Sequence[int],
    raw: Callable[[int], str],
) -> RowChunk:
    """Makes a chunk of whole columns, without the bad rows.

    Args:
      time: index of the event time attribute; its nulls are bad as well.
    """
    if time is not None and (valid := columns[time].valid) is not None:
        for i in np.flatnonzero(~valid).tolist():
            bad.setdefault(i, "no event time")
    for i, size in too_large(columns).items():
        bad.setdefault(i, refusal(size))
    malformed = [Malformed(lines[i], bad[i], printable(raw(i))) for i in sorted(bad)]
    events = None if time is None else columns[time].values
    chunk = RowChunk(first, len(lines), events, tuple(columns), malformed)
    if not bad:
        return chunk
    good = np.ones(len(lines), np.bool_)
    good[list(bad)] = False
    chunk = chunk.select(good)
    # The nulls may have been in bad rows, and an attribute that is never null must have no mask.
    chunk.columns = tuple(without_idle_mask(column) for column in chunk.columns)
    return chunk


def without_idle_mask(column: Column) -> Column:
    """Removes the mask of a column without nulls, as for an attribute that is never null."""
    if column.valid is None or not column.valid.all():
        return column
    return Column(column.values, None, column.dictionary)


def printable(text: str) -> str:
    """Returns the beginning of a row, with invalid Unicode escaped."""
    return text[:TEXT_MAX].encode("utf-8", "backslashreplace").decode()
