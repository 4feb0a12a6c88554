"""Is what a source has logged what its file says?  Compared by content: digests of rows, in any order.

CSV, JSON lines, Parquet and Avro are read again by libraries alone.  A row is *plain* where each cell is written as
every reader would take it; of others only the number counts, for they may be malformed.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consistency.proof.arrow import arrow_fields, from_arrow
from consistency.proof.digests import COMPARED, Digester, digests_of, halves
from consistency.proof.reading import SourceEntry
from consistency.proof.records import Table, read_log
from consistency.proof.report.words import plural
from consistency.proof.source import all_stretches
from spe.stream.batch import BoolArray
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import UInt64Array

_BLOCK: Final = 1 << 14
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_ISO: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)?", re.ASCII)
_WHOLE: Final = re.compile(r"-?[0-9]{1,15}")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,17}(\.[0-9]{1,17})?([eE][-+]?[0-9]{1,2})?")
#: What numbers since the epoch are multiplied and divided by.
_UNITS: Final = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
#: Plain cells of JSON, but for integers in place of floats; and the types of Arrow.
_TYPES: Final = {AttributeType.INT64: int, AttributeType.FLOAT64: float}
_ARROW: Final = {
    AttributeType.INT64: pa.int64(), AttributeType.FLOAT64: pa.float64(), AttributeType.STRING: pa.string()
}  # fmt: skip
#: In place of a value that is not plain.
_ODD: Final = object()

#: Cells by attribute, in Arrow or as a list, and which rows have them all.
_Block = tuple[Sequence[Any], BoolArray]


class NotCompared(Exception):
    """The reason why an input is not compared."""


class FileRows(NamedTuple):
    """Attributes:
    plain: of each row of a file, is it plain?
    digests: of the plain ones.
    """

    plain: BoolArray
    digests: UInt64Array


def read_file(file: Path, source: SourceEntry, schema: Schema) -> FileRows:
    """The rows of a source's file.

    Raises:
      NotCompared: it is of no kind that is read again, or a column has a type that is not.
    """
    if source.kind not in COMPARED:
        raise NotCompared("live input" if source.live else f"{source.kind} is not read again")
    digester, plain, digests = Digester(schema), [np.empty(0, np.bool_)], [np.empty(0, np.uint64)]
    unit, csv_ = str(source.reader.get("timestamps") or "iso"), source.kind == "csv"
    parse = [_parser(a.type, unit, csv_) for a in schema]
    for cells, good in _FORMATS[source.kind](file, source.reader, schema):
        arrays = []
        for attribute, field, given, value in zip(schema, arrow_fields(schema), cells, parse, strict=True):
            if isinstance(given, list) and (all_ := _at_once(given, attribute.type, text=csv_, unit=unit)) is not None:
                given = all_
            elif isinstance(given, list):
                found = [None if x is None else value(x) for x in given]
                good = good & np.array([x is not _ODD for x in found], np.bool_)
                given = pa.array([None if x is _ODD else x for x in found], _width(field.type)).cast(field.type)
            if not attribute.nullable or attribute.name == source.time:
                good = good & np.asarray(given.is_valid())
            arrays.append(given)
        rows = from_arrow(arrays, schema, np.zeros(len(good), np.int64)).select(good)
        plain.append(good)
        digests.append(digests_of(digester, rows))
    return FileRows(np.concatenate(plain), np.concatenate(digests))


def differences(
    found: FileRows, table: Table, count: int, sums: tuple[int, int], refused: int, *, ended: bool
) -> list[str]:
    """What the log of a source has that its file has not, and the reverse; sentences.

    Args:
      count, sums: tuples in the log, and ``halves`` of their digests.
      refused: plain rows that the source may have left out.
      ended: False: rows that the log has not are still to come.
    """
    if count == len(found.digests) and sums == halves(found.digests):
        return []
    digester = Digester(table.schema)
    batches = [b for stretch in all_stretches(table) for b in read_log(table, stretch) if len(b)]
    logged = np.concatenate([np.empty(0, np.uint64), *(digests_of(digester, b.rows) for b in batches)])
    said = []
    more, at = _surplus(logged, found.digests)
    if more > int((~found.plain).sum()):
        which = int(np.concatenate([b.row_ids() for b in batches])[at])
        said.append(f"no row of its input has the contents of {plural(more, 'tuple')} of its log: id {which:,}")
    more, at = _surplus(found.digests, logged)
    if ended and more > refused:
        which = int(np.flatnonzero(found.plain)[at]) + 1
        said.append(f"its log lacks the contents of {plural(more, 'well-formed row')} of its input: row {which:,}")
    return said


def _surplus(one: UInt64Array, other: UInt64Array) -> tuple[int, int]:
    """How many values one side has more often than the other, and the place of the first."""
    values, back, left = np.unique(one, return_inverse=True, return_counts=True)
    theirs, counts = np.unique(other, return_counts=True)
    _, ours_at, theirs_at = np.intersect1d(values, theirs, assume_unique=True, return_indices=True)
    left[ours_at] -= counts[theirs_at]
    return int(left[left > 0].sum()), int((left > 0)[back].argmax()) if len(back) else 0


def _at_once(given: list[Any], type_: AttributeType, *, text: bool, unit: str) -> Any:
    """The array of cells all of which are plain, in a fifth of the time; None where one is not, or it is not known."""
    pattern = {AttributeType.TIMESTAMP: _ISO, AttributeType.INT64: _WHOLE, AttributeType.FLOAT64: _DECIMAL}.get(type_)
    texts = type_ is AttributeType.STRING or (text or type_ is AttributeType.TIMESTAMP)
    if not set(map(type, given)) <= {type(None), str if texts else _TYPES.get(type_)} or type_ is AttributeType.BOOL:
        return None
    try:
        if not texts or type_ is AttributeType.STRING:
            made = pa.array(given, _ARROW[type_])
            return made if not pa.types.is_floating(made.type) or pc.all(pc.is_finite(made)).as_py() else None
        made = pa.array(given, pa.string())
        if (
            pattern is None
            or unit != "iso"
            or not pc.all(pc.match_substring_regex(made, f"^({pattern.pattern})$")).as_py()
        ):
            return None
        if type_ is AttributeType.TIMESTAMP:
            made = pc.replace_substring_regex(made, r"(Z|\+00:00)$", "")
            return made.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
        return made.cast(_ARROW[type_])
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
        return None


def _parser(type_: AttributeType, unit: str, text: bool) -> Callable[[Any], Any]:
    """What makes the value of a cell, or _ODD."""
    if type_ is AttributeType.TIMESTAMP:
        return lambda x: _moment(x, unit, text=text)
    if type_ is AttributeType.STRING:
        return lambda x: x if (type(x) is str and x.isprintable()) or _is_unicode(x) else _ODD
    if text and type_ is AttributeType.BOOL:
        return lambda x: {"true": True, "false": False}.get(x, _ODD)
    if text:
        form, make = (_WHOLE, int) if type_ is AttributeType.INT64 else (_DECIMAL, float)
        return lambda x: make(x) if form.fullmatch(x) else _ODD
    if type_ is AttributeType.BOOL:
        return lambda x: x if type(x) is bool else _ODD
    if type_ is AttributeType.INT64:
        return lambda x: x if type(x) is int and -(1 << 63) <= x < 1 << 63 else _ODD
    return lambda x: float(x) if type(x) in (int, float) and abs(x) < 1e300 else _ODD


def _is_unicode(text: Any) -> bool:
    try:
        return type(text) is str and bool(text.encode() or True)
    except UnicodeEncodeError:
        return False


def _moment(value: Any, unit: str, *, text: bool) -> Any:
    """Microseconds since the epoch."""
    if type(value) is datetime:  # a logical type of Avro
        return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    if type(value) is str and (unit == "iso" or not text):
        try:
            found = datetime.fromisoformat(value) if _ISO.fullmatch(value) else None
        except ValueError:
            return _ODD
        return _ODD if found is None else (found.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
    if unit != "iso" and _WHOLE.fullmatch(str(value)) and type(value) in (int, str):
        multiply, divide = _UNITS[unit]
        made = int(value) * multiply // divide
        return made if abs(made) < 1 << 62 else _ODD
    return _ODD


def _width(type_: Any) -> Any:
    return pa.int64() if pa.types.is_timestamp(type_) else type_


def _csv(file: Path, given: Mapping[str, Any], schema: Schema) -> Iterator[_Block]:
    null, named = given.get("null", ""), given.get("columns") or {}
    nulls = {null} if isinstance(null, str) else {*(null or [""])}
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        rows = csv.reader(
            lines, delimiter=given.get("delimiter") or ",", quotechar=given.get("quote") or '"', strict=True
        )
        header = None if str(given.get("header")).lower() == "false" else [one.strip() for one in next(rows, [])]
        places = []
        for number, name in enumerate(schema.names):
            wanted = named.get(name, name if header else str(number))
            places.append(header.index(wanted) if header and wanted in header else int(wanted))
        records = _records(rows)
        while some := list(islice(records, _BLOCK)):
            good = np.array([len(row) == len(header) if header else len(row) > max(places) for row in some], np.bool_)
            whole = [row if ok else None for row, ok in zip(some, good.tolist())]
            yield [[None if r is None or r[p] in nulls else r[p] for r in whole] for p in places], good


def _records(rows: Any) -> Iterator[list[str]]:
    """Records of a CSV reader: blank lines are none, and what is no CSV is one without cells."""
    while True:
        try:
            for row in rows:
                if row:
                    yield row
            return
        except csv.Error:
            yield []


def _jsonl(file: Path, given: Mapping[str, Any], schema: Schema) -> Iterator[_Block]:
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        yield from _of_objects((_object(line) for line in lines if not line.isspace()), given, schema)


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _avro(file: Path, given: Mapping[str, Any], schema: Schema) -> Iterator[_Block]:
    import fastavro

    with file.open("rb") as opened:
        yield from _of_objects(fastavro.reader(opened), given, schema)


def _of_objects(objects: Iterator[Any], given: Mapping[str, Any], schema: Schema) -> Iterator[_Block]:
    named = given.get("columns") or {}
    while some := list(islice(objects, _BLOCK)):
        good = np.array([isinstance(one, dict) for one in some], np.bool_)
        some = [one if ok else {} for one, ok in zip(some, good.tolist())]
        yield [[one.get(named.get(name, name)) for one in some] for name in schema.names], good


def _parquet(file: Path, given: Mapping[str, Any], schema: Schema) -> Iterator[_Block]:
    from pyarrow.parquet import ParquetFile

    named = given.get("columns") or {}
    columns = [str(named.get(name, name)) for name in schema.names]
    with ParquetFile(file) as opened:
        for batch in opened.iter_batches(_BLOCK, columns=columns):
            pairs = zip(schema, (batch.column(name) for name in columns))
            arrays = [_plain_array(array, one.type, given.get("timestamps")) for one, array in pairs]
            yield arrays, np.ones(batch.num_rows, np.bool_)


def _plain_array(array: Any, type_: AttributeType, unit: str | None) -> Any:
    """Raises NotCompared for a type of Arrow whose values every reader might take in another way."""
    types = pa.types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    given = array.type
    if type_ is AttributeType.TIMESTAMP and (types.is_timestamp(given) or types.is_int64(given)):
        multiply, divide = _UNITS[given.unit if types.is_timestamp(given) else str(unit)]
        values = np.asarray(array.view(pa.int64()).fill_null(0)) * multiply // divide
        return pa.array(values, mask=~np.asarray(array.is_valid())).cast(pa.timestamp("us", "UTC"))
    if type_ is AttributeType.STRING and (types.is_string(given) or types.is_large_string(given)):
        return array.cast(pa.string())
    numbers = types.is_integer(given) and type_ is not AttributeType.BOOL
    numbers |= types.is_floating(given) and type_ is AttributeType.FLOAT64
    if numbers and type_ in (AttributeType.INT64, AttributeType.FLOAT64):
        return array.cast(pa.int64() if type_ is AttributeType.INT64 else pa.float64())
    if type_ is AttributeType.BOOL and types.is_boolean(given):
        return array
    raise NotCompared(f"a column of {given} is not read again as {type_}")


_FORMATS: Final[Mapping[str, Callable[[Path, Mapping[str, Any], Schema], Iterator[_Block]]]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _parquet,
    "avro": _avro,
}
