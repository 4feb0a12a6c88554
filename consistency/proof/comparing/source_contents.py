"""Compares the log of a source with its file by content: digests of rows, in any order.

CSV, JSON lines, Parquet and Avro are read again by libraries alone.  A row is *plain* if every reader takes each of
its cells in the same way; other rows are only counted, for they may be malformed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consistency.proof.comparing.digests import COMPARED, Digester, digests_of, halves
from consistency.proof.recorded.query_file import SourceEntry
from consistency.proof.recorded.records import Table, read_log
from consistency.proof.recorded.table_source import all_stretches
from consistency.proof.report.words import plural
from consistency.proof.storage.arrow import ARROW, from_arrow
from spe.stream.batch import BoolArray
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import UInt64Array

_BLOCK: Final = 1 << 14
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Plain timestamps in a text; whole numbers since the epoch have the unit of the configuration.
_ISO: Final = r"^\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|\+00:00)?$"
_WHOLE: Final = r"^-?[0-9]{1,15}$"
_PATTERNS: Final = {
    AttributeType.INT64: _WHOLE,
    AttributeType.FLOAT64: r"^-?[0-9]{1,17}(\.[0-9]{1,17})?([eE][-+]?[0-9]{1,2})?$",
    AttributeType.BOOL: "^(true|false)$",
    AttributeType.STRING: "",
}
#: Plain cells of JSON.
_TYPES: Final[Mapping[AttributeType, tuple[type, ...]]] = {
    AttributeType.INT64: (int,),
    AttributeType.FLOAT64: (float, int),
    AttributeType.BOOL: (bool,),
    AttributeType.STRING: (str,),
}
#: Multiplier and divisor that turn numbers since the epoch into microseconds.
_UNITS: Final = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}

#: Cells by attribute, in Arrow or as a list, and which rows are complete.
_Block = tuple[Sequence[Any], BoolArray]


class NotCompared(Exception):
    """The reason why an input is not compared."""


class InputContent(NamedTuple):
    """Content of a source's file.

    Attributes:
      plain: per row of the file: is it plain?
      digests: of the plain rows.
    """

    plain: BoolArray
    digests: UInt64Array


def read_file(file: Path, source: SourceEntry, schema: Schema) -> InputContent:
    """Reads the rows of a source's file.

    Raises:
      NotCompared: files of this kind are not read again, or a column has an unsupported type.
    """
    if source.kind not in COMPARED:
        raise NotCompared("live input" if source.live else f"{source.kind} is not read again")
    digester, plain, digests = Digester(schema), [np.empty(0, np.bool_)], [np.empty(0, np.uint64)]
    unit = str(source.reader.get("timestamps") or "iso")
    for cells, good in _FORMATS[source.kind](file, source.reader, schema):
        arrays = []
        for attribute, column in zip(schema, cells, strict=True):
            if isinstance(column, list):
                column, known = _column(column, attribute.type, unit, text=source.kind == "csv")
                good = good & known
            if not attribute.nullable or attribute.name == source.time:
                good = good & np.asarray(column.is_valid())
            arrays.append(column)
        rows = from_arrow(arrays, schema, np.zeros(len(good), np.int64)).select(good)
        plain.append(good)
        digests.append(digests_of(digester, rows))
    return InputContent(np.concatenate(plain), np.concatenate(digests))


def differences(
    content: InputContent, table: Table, count: int, sums: tuple[int, int], refused: int, *, ended: bool
) -> list[str]:
    """Returns sentences on rows that only the log of a source has, or only its file.

    Args:
      count, sums: tuples in the log, and ``halves`` of their digests.
      refused: plain rows that the source may have left out.
      ended: False: rows missing in the log are still to come.
    """
    if count == len(content.digests) and sums == halves(content.digests):
        return []
    digester = Digester(table.schema)
    batches = [b for stretch in all_stretches(table) for b in read_log(table, stretch) if len(b)]
    logged = np.concatenate([np.empty(0, np.uint64), *(digests_of(digester, b.rows) for b in batches)])
    sentences = []
    more, at = _surplus(logged, content.digests)
    if more > int((~content.plain).sum()):
        which = int(np.concatenate([b.row_ids() for b in batches])[at])
        sentences.append(f"no row of its input has the contents of {plural(more, 'tuple')} of its log: id {which:,}")
    more, at = _surplus(content.digests, logged)
    if ended and more > refused:
        which = int(np.flatnonzero(content.plain)[at]) + 1
        sentences.append(f"its log lacks the contents of {plural(more, 'well-formed row')} of its input: row {which:,}")
    return sentences


def _surplus(left_side: UInt64Array, right_side: UInt64Array) -> tuple[int, int]:
    """Returns how many values the first side has in excess of the other, and the place of the first."""
    values, back, left = np.unique(left_side, return_inverse=True, return_counts=True)
    theirs, counts = np.unique(right_side, return_counts=True)
    _, ours_at, theirs_at = np.intersect1d(values, theirs, assume_unique=True, return_indices=True)
    left[ours_at] -= counts[theirs_at]
    return int(left[left > 0].sum()), int((left > 0)[back].argmax()) if len(back) else 0


def _column(cells: list[Any], type_: AttributeType, unit: str, *, text: bool) -> tuple[Any, BoolArray]:
    """Returns an array of cells, null where a cell is not plain; and which cells are plain or null."""
    time = type_ is AttributeType.TIMESTAMP
    if time and any(isinstance(x, datetime) for x in cells):  # a logical type of Avro
        cells, unit, text = [x and _micros(x) for x in cells], "us", False
    types = (str,) if text or (time and unit == "iso") else _TYPES.get(type_, (int,))
    most = 1e300 if type_ is AttributeType.FLOAT64 else 1 << 63
    if str in types and set(map(type, cells)) <= {str, type(None)}:
        known = np.ones(len(cells), np.bool_)
    else:
        plain = [x is None or (type(x) in types and (type(x) is str or -most < x < most)) for x in cells]
        cells, known = [x if ok else None for x, ok in zip(cells, plain)], np.array(plain, np.bool_)
    if str not in types:
        if type_ is AttributeType.FLOAT64:
            cells = [x if x is None else float(x) for x in cells]
        return _in_micros(pa.array(cells, pa.int64()), unit, known) if time else (pa.array(cells, ARROW[type_]), known)
    texts = pa.array([x if x is None or _is_unicode(x) else "\0" for x in cells], pa.string())
    pattern = _PATTERNS.get(type_, _ISO if unit == "iso" else _WHOLE)
    matches = pc.match_substring_regex(texts, pattern or "^[^\\x00]*$").fill_null(True)
    if time and unit == "iso":
        matches = pc.and_(matches, _has_its_day(texts))
    texts, known = pc.if_else(matches, texts, None), known & np.asarray(matches)
    if not time:
        return texts.cast(ARROW[type_]), known
    if unit != "iso":
        return _in_micros(texts.cast(pa.int64()), unit, known)
    return pc.replace_substring_regex(texts, r"(Z|\+00:00)$", "").cast(pa.timestamp("us")), known


def _has_its_day(texts: Any) -> Any:
    """Returns False where a text begins with a day that does not exist."""
    days = pc.utf8_slice_codeunits(texts, 0, 10)
    return pc.invert(pc.is_in(days, pa.array([d for d in days.unique().to_pylist() if not _is_day(d)], pa.string())))


def _is_day(text: str | None) -> bool:
    try:
        return text is None or bool(date.fromisoformat(text))
    except ValueError:
        return False


def _is_unicode(text: str) -> bool:
    return text.isascii() or max(text) <= "\ud7ff" or not any("\ud800" <= c <= "\udfff" for c in text)


def _micros(moment: datetime) -> int:
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _in_micros(numbers: Any, unit: str, known: BoolArray) -> tuple[Any, BoolArray]:
    """Returns numbers since the epoch as timestamps, null where too large; and which are known and not too large."""
    multiply, divide = _UNITS[unit]
    values = np.asarray(numbers.cast(pa.int64()).fill_null(0))
    fits = np.abs(values) < (1 << 62) // multiply
    made = pa.array(values * multiply // divide, mask=~(fits & np.asarray(numbers.is_valid())))
    return made.cast(ARROW[AttributeType.TIMESTAMP]), known & fits


def _csv(file: Path, options: Mapping[str, Any], schema: Schema) -> Iterator[_Block]:
    null, named = options.get("null", ""), options.get("columns") or {}
    nulls = {null} if isinstance(null, str) else {*(null or [""])}
    with opened_lines(file) as lines:
        header, records = csv_records(lines, options)
        places = []
        for number, name in enumerate(schema.names):
            wanted = named.get(name, name if header else str(number))
            places.append(header.index(wanted) if header and wanted in header else int(wanted))
        while some := list(islice(records, _BLOCK)):
            good = np.array([len(row) == len(header) if header else len(row) > max(places) for row in some], np.bool_)
            whole = [row if ok else None for row, ok in zip(some, good.tolist())]
            yield [[None if r is None or r[p] in nulls else r[p] for r in whole] for p in places], good


def opened_lines(file: Path) -> TextIO:
    """Opens a file of lines; bytes that are no UTF-8 are lone surrogates."""
    return file.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def csv_records(lines: TextIO, options: Mapping[str, Any]) -> tuple[list[str] | None, Iterator[list[str]]]:
    """Returns the names of the columns of a CSV file, None where it has no header, and its records."""
    rows = csv.reader(
        lines, delimiter=options.get("delimiter") or ",", quotechar=options.get("quote") or '"', strict=True
    )
    # A header counts even if it is blank: it is no record.
    header = None if str(options.get("header")).lower() == "false" else [name.strip() for name in next(rows, [])]
    return header, _records(rows)


def _records(rows: Any) -> Iterator[list[str]]:
    """Yields records of a CSV reader: blank lines are skipped, a line that is not CSV is a record without cells."""
    while True:
        try:
            for row in rows:
                if row:
                    yield row
            return
        except csv.Error:
            yield []


def _jsonl(file: Path, options: Mapping[str, Any], schema: Schema) -> Iterator[_Block]:
    with opened_lines(file) as lines:
        yield from _of_objects((_object(line) for line in lines if not line.isspace()), options, schema)


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _avro(file: Path, options: Mapping[str, Any], schema: Schema) -> Iterator[_Block]:
    import fastavro

    with file.open("rb") as opened:
        yield from _of_objects(fastavro.reader(opened), options, schema)


def _of_objects(objects: Iterator[Any], options: Mapping[str, Any], schema: Schema) -> Iterator[_Block]:
    named = options.get("columns") or {}
    while some := list(islice(objects, _BLOCK)):
        good = np.array([isinstance(object_, dict) for object_ in some], np.bool_)
        some = [object_ if ok else {} for object_, ok in zip(some, good.tolist())]
        yield [[object_.get(named.get(name, name)) for object_ in some] for name in schema.names], good


def _parquet(file: Path, options: Mapping[str, Any], schema: Schema) -> Iterator[_Block]:
    from pyarrow.parquet import ParquetFile

    named = options.get("columns") or {}
    columns = [str(named.get(name, name)) for name in schema.names]
    with ParquetFile(file) as opened:
        for batch in opened.iter_batches(_BLOCK, columns=columns):
            pairs = zip(schema, (batch.column(name) for name in columns))
            columns_ = [_plain_array(array, attribute.type, options.get("timestamps")) for attribute, array in pairs]
            yield [array for array, _ in columns_], np.logical_and.reduce([known for _, known in columns_])


def _plain_array(array: Any, type_: AttributeType, unit: str | None) -> tuple[Any, BoolArray]:
    """Works as :func:`_column`.  Raises NotCompared for a type of Arrow that readers may take in different ways."""
    types, known = pa.types, np.ones(len(array), np.bool_)
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    arrow_type = array.type
    if type_ is AttributeType.TIMESTAMP and types.is_timestamp(arrow_type):
        return _in_micros(array.view(pa.int64()), arrow_type.unit, known)
    if type_ is AttributeType.TIMESTAMP and types.is_integer(arrow_type):
        return _in_micros(array, str(unit), known)
    fits = {
        AttributeType.INT64: types.is_integer(arrow_type),
        AttributeType.FLOAT64: types.is_integer(arrow_type) or types.is_floating(arrow_type),
        AttributeType.STRING: types.is_string(arrow_type) or types.is_large_string(arrow_type),
        AttributeType.BOOL: types.is_boolean(arrow_type),
    }
    if fits.get(type_):
        return array.cast(ARROW[type_]), known
    raise NotCompared(f"a column of {arrow_type} is not read again as {type_}")


_FORMATS: Final[Mapping[str, Callable[[Path, Mapping[str, Any], Schema], Iterator[_Block]]]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _parquet,
    "avro": _avro,
}
