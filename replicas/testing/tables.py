"""Rows as tests write them, as text or lists, and results as tests read them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from replicas.testing.blame import PromiseBroken, wrong
from spe.problems import did_you_mean, one_of
from spe.stream.batch import Rows
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import iso_timestamp, parse_duration, parse_timestamp
from spe.text_table import text_table

#: The column of tuple times if no attribute has them; sinks use the same name.
TIME: Final = "_time"
#: Rows of a stream: a table as text, or dicts, or tuples in the order of the attributes.
GivenTable = str | Sequence[Mapping[str, Any]] | Sequence[Sequence[Any]]
#: One tuple: its time in microseconds, then its values.
Timed = tuple[Any, ...]
#: One row of results.
Record = dict[str, Any]

_WORD: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\S+')
_TIME_OF_DAY: Final = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: The day of times without a date.
DAY: Final = "2026-01-01"
DAY_US: Final = parse_timestamp(DAY)
#: Relative precision: floats in a table are decimal, with fewer digits than they have.
_PRECISION: Final = 1e-9


@dataclass(frozen=True)
class Layout:
    """The layout of a stream's rows.

    Attributes:
      time: the attribute with the tuple time; None: a column ``_time`` has it, before all others.
      name: name of the stream, for messages.
    """

    schema: Schema
    time: str | None
    name: str

    def columns(self) -> tuple[Attribute, ...]:
        stamp = (Attribute(TIME, AttributeType.TIMESTAMP, nullable=False),) if self.time is None else ()
        return (*stamp, *self.schema)

    def read(self, table: GivenTable) -> list[Timed]:
        """Returns the tuples.  Raises ConfigError with the line of the call and the row."""
        columns = self.columns()
        rows = [self._row(columns, number, row) for number, row in enumerate(_split(table, columns, self.name), 1)]
        at = 0 if self.time is None else self.schema.index(self.time)
        tuples = []
        for number, row in enumerate(rows, 1):
            if row[at] is None:
                raise wrong(f"{self.name}: row {number}: {columns[at].name} is null; a tuple needs its time")
            tuples.append(row if self.time is None else (row[at], *row))
        return tuples

    def _row(self, columns: Sequence[Attribute], number: int, row: Mapping[str, Any] | Sequence[Any]) -> Timed:
        where = f"{self.name}: row {number}"
        names = [c.name for c in columns]
        if isinstance(row, Mapping):
            for name in row:
                if name not in names:
                    raise wrong(f"{where}: no attribute {name!r}{did_you_mean(name, names)}; expected {one_of(names)}")
            row = [row.get(name) for name in names]
        if isinstance(row, str) or not isinstance(row, Sequence) or len(row) != len(columns):
            raise wrong(f"{where}: expected {len(columns)} values ({', '.join(names)}), got {row!r}")
        return tuple(_value(value, column, where) for value, column in zip(row, columns, strict=True))


def _split(table: GivenTable, columns: Sequence[Attribute], what: str) -> Iterable[Mapping[str, Any] | Sequence[Any]]:
    """Splits a text into rows by column, with values as text; returns other rows unchanged."""
    if not isinstance(table, str):
        return table
    lines = [_WORD.findall(line) for line in table.splitlines() if line.strip()]
    if not lines:
        return []
    head, names = lines[0], [c.name for c in columns]
    for name in head:
        if name not in names:
            near = did_you_mean(name, names)
            raise wrong(f"{what}: no attribute {name!r}{near}; the first line names columns: {one_of(names)}")
    for number, words in enumerate(lines[1:], 1):
        if len(words) != len(head):
            raise wrong(f"{what}: row {number}: expected {len(head)} values ({', '.join(head)}), got {' '.join(words)}")
    return [{n: _Word(w) for n, w in zip(head, words, strict=True)} for words in lines[1:]]


class _Word(str):
    """A value in a text."""


def _value(value: Any, column: Attribute, where: str) -> Any:
    try:
        parsed = _parsed(value, column.type) if isinstance(value, _Word) else _plain(value, column.type)
    except (ValueError, TypeError, KeyError):
        expected = "a time such as 12:00:01.5, 2026-01-01T12:00:00 or 1.5s" if _is_time(column) else str(column.type)
        raise wrong(f"{where}: {column.name}: expected {expected}, got {value!r}") from None
    if parsed is None and not column.nullable:
        raise wrong(f"{where}: {column.name} is null, and is declared not null")
    return parsed


def _is_time(column: Attribute) -> bool:
    return column.type is AttributeType.TIMESTAMP


def _parsed(word: str, type_: AttributeType) -> Any:
    """Parses a value of a text.  Raises ValueError, KeyError."""
    if word == "-":
        return None
    match type_:
        case AttributeType.STRING:
            return re.sub(r"\\(.)", r"\1", word[1:-1]) if word.startswith('"') and len(word) > 1 else str(word)
        case AttributeType.BOOL:
            return {"true": True, "false": False}[word]
        case AttributeType.INT64:
            return int(word)
        case AttributeType.FLOAT64:
            return float(word)
        case AttributeType.TIMESTAMP:
            return moment(word)


def _plain(value: Any, type_: AttributeType) -> Any:
    """Converts a value of a list.  Raises ValueError, TypeError."""
    if value is None:
        return None
    match type_:
        case AttributeType.TIMESTAMP if not isinstance(value, int):
            return moment(value)
        case AttributeType.FLOAT64 if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    types = {"string": str, "bool": bool, "int64": int, "float64": float, "timestamp": int}
    if not isinstance(value, types[type_]) or (isinstance(value, bool) and type_ is not AttributeType.BOOL):
        raise TypeError(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(value)
    return value


def moment(value: Any) -> int:
    """Returns microseconds since the epoch: of ISO text, a time of day or since midnight (of :data:`DAY`), datetime, or
    int.

    Raises:
      ValueError, TypeError: another value.
    """
    if isinstance(value, datetime):
        stamp = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (stamp - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise TypeError(value)
    if _TIME_OF_DAY.fullmatch(value):
        return parse_timestamp(f"{DAY}T{value.rjust(8, '0') if value.count(':') == 2 else value.zfill(5)}")
    try:
        return DAY_US + parse_duration(value)
    except ValueError:
        return parse_timestamp(value)


def seconds(value: str | float) -> float:
    """Returns a time of a run, given as ``"5s"`` or a number of seconds.  Raises ConfigError."""
    try:
        return parse_duration(value) / 1e6 if isinstance(value, str) else float(value)
    except (ValueError, TypeError):
        raise wrong(f"expected a time of the run such as 5s, or seconds, got {value!r}") from None


def row_key(row: Sequence[Any]) -> tuple[Any, ...]:
    """Returns a key that is equal for equal rows; every NaN is the same."""
    return tuple("NaN" if isinstance(value, float) and math.isnan(value) else value for value in row)


def records(rows: Rows, schema: Schema, *, time: bool = False) -> list[Record]:
    """Returns rows as dicts; timestamps as ISO text, null is None.  ``time``: with the tuple time as ``_time``."""
    columns: dict[str, Sequence[Any]] = {TIME: [_iso(t) for t in rows.time.tolist()]} if time else {}
    for attribute, column in zip(schema, rows.columns, strict=True):
        values = column.to_list()
        columns[attribute.name] = [_iso(v) for v in values] if _is_time(attribute) else values
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _iso(us: int | None) -> str | None:
    return None if us is None else iso_timestamp(us)


def compare(actual: Sequence[Record], expected: GivenTable, layout: Layout) -> None:
    """Raises PromiseBroken if the rows differ from the expected ones; columns that are not expected may have any value.

    Floats are equal to nine digits.
    """
    columns = {c.name: c for c in layout.columns()}
    wanted = [
        row if isinstance(row, Mapping) else dict(zip(layout.schema.names, row, strict=True))
        for row in _split(expected, tuple(columns.values()), layout.name)
    ]
    shown = list(dict.fromkeys(name for row in wanted for name in row)) or list(layout.schema.names)
    for number, row in enumerate(wanted, 1):
        where = f"{layout.name}: expected row {number}"
        for name in row:
            if name not in columns:
                raise wrong(f"{where}: no attribute {name!r}{did_you_mean(name, columns)}; {one_of(list(columns))}")
        wanted[number - 1] = {
            name: _shown(_value(value, Attribute(name, columns[name].type), where), columns[name])
            for name, value in row.items()
        }
    if len(actual) == len(wanted) and all(map(_same, actual, wanted)):
        return
    raise PromiseBroken(_difference(layout.name, actual, wanted, shown))


def _shown(value: Any, column: Attribute) -> Any:
    return _iso(value) if _is_time(column) else value


def _same(actual: Record, wanted: Mapping[str, Any]) -> bool:
    return all(_equal(actual[name], value) for name, value in wanted.items())


def _equal(actual: Any, other: Any) -> bool:
    if isinstance(actual, float) and isinstance(other, float):
        return math.isclose(actual, other, rel_tol=_PRECISION) or (math.isnan(actual) and math.isnan(other))
    return bool(actual == other)


def _difference(name: str, actual: Sequence[Record], wanted: Sequence[Mapping[str, Any]], shown: list[str]) -> str:
    """Formats both tables as one: equal lines, missing lines (−) and surplus lines (+)."""
    at = next((i for i, (a, b) in enumerate(zip(actual, wanted)) if not _same(a, b)), min(len(actual), len(wanted)))
    lines = [["", *shown]]
    lines += [[" ", *_words(row, shown)] for row in actual[:at]]
    lines += [["-", *_words(row, shown)] for row in wanted[at:]]
    lines += [["+", *_words(row, shown)] for row in actual[at:]]
    table = "\n".join(text_table(lines, indent="  "))
    return f"{name}: row {at + 1} is not as expected (- expected, + found)\n{table}"


def _words(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [_word(row.get(name)) for name in names]


def _word(value: Any) -> str:
    """Formats a value as in a text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and (not value or value == "-" or re.search(r'[\s"\\]', value)):
        return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return repr(value) if isinstance(value, float) else str(value)
