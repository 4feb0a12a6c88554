"""Converts a client's results to columns and files of a Delta table."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from replicas.connectors.files.parquet_sink import ARROW_TYPES, arrow_rows
from replicas.connectors.server_sink import ChannelEntry, in_groups
from spe.connectors.declaration import CORRECTIONS, STABLE
from spe.errors import ConfigError
from spe.stream.schema import Schema
from spe.stream.times import iso_timestamp

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:  # pragma: no cover - the extra is installed wherever tests run
    raise ConfigError(["Delta tables need deltalake and pyarrow: pip install '.[delta]'"]) from error

#: Order of the changes in mode corrections; the table itself has no order.
CHANGE: Final = "_change"
#: Partitions the table in mode current, so that whole files are withdrawn.
TENTATIVE: Final = "_tentative"
_FLOAT_MAX: Final = sys.float_info.max
#: Range of times that readers can parse: the years 1 to 9999, in microseconds.
_TIME_MIN: Final = -62_135_596_800_000_000
_TIME_MAX: Final = 253_402_300_799_999_999
#: Largest length of a text bound in the statistics of a file; and the suffix of a text that is cut.
_TEXT_CHARS: Final = 32
_LAST_CHARACTER: Final = "\U0010ffff"


def columns_of(schema: Schema, mode: str) -> pa.Schema:
    """Returns the columns of the table: those of the sink, then the attributes.

    The columns of the sink may be null, as in rows of other writers.
    """
    fields = [
        pa.field("_partition", pa.int32()),
        pa.field("_id", pa.int64()),
        pa.field("_time", pa.timestamp("us", tz="UTC")),
    ]
    if mode != STABLE:
        fields.insert(0, pa.field(TENTATIVE, pa.bool_()))
    if mode == CORRECTIONS:
        fields[:0] = [pa.field(CHANGE, pa.int64()), pa.field("_kind", pa.string())]
    fields += [pa.field(a.name, ARROW_TYPES[a.type], nullable=a.nullable or mode == CORRECTIONS) for a in schema]
    return pa.schema(fields)


def table_of(entries: Sequence[ChannelEntry], schema: Schema, mode: str, change: int = 0) -> pa.Table:
    """Converts entries to rows, in order.

    Args:
      change: number of the first row, in mode corrections.
    """
    columns = columns_of(schema, mode)
    tables = []
    for group in in_groups(entries):
        tables.append(_table(group, schema, columns, change))
        change += len(tables[-1])
    return pa.concat_tables(tables) if tables else columns.empty_table()


def _table(group: Sequence[ChannelEntry], schema: Schema, columns: pa.Schema, change: int) -> pa.Table:
    """Converts inserts, or markers of one kind."""
    counts = [e.rows for e in group]
    n = sum(counts)
    arrays = arrow_rows(group, schema) | {
        CHANGE: pa.array(np.arange(change, change + n)),
        "_kind": pa.repeat(group[0].kind, n),
        TENTATIVE: pa.array(np.repeat([e.tentative for e in group], counts)),
        "_partition": pa.array(np.repeat(np.array([e.channel.partition for e in group], np.int32), counts)),
    }
    return pa.Table.from_arrays([arrays[name] for name in columns.names], schema=columns)


def statistics_of(table: pa.Table) -> str:
    """Returns the statistics of a file for a commit, by which readers skip files.

    They bound every column that has an order and a value: if only some files have bounds, delta-rs takes the others for
    empty.
    """
    least: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls = {}
    for field, column in zip(table.schema, table.columns):
        nulls[field.name] = column.null_count
        if column.null_count < len(column):
            least[field.name], largest[field.name] = _bounds(column, field.type)
    whole = {"numRecords": len(table), "minValues": least, "maxValues": largest, "nullCount": nulls}
    return json.dumps(whole, allow_nan=False)


def _bounds(column: Any, type_: Any) -> tuple[Any, Any]:
    """Returns a lower and an upper bound of a column's values; None without values."""
    if pa.types.is_timestamp(type_):
        ends = pc.min_max(column.cast(pa.int64())).as_py()
        low, high = (min(max(ends[end], _TIME_MIN), _TIME_MAX) for end in ("min", "max"))
        return f"{iso_timestamp(low)}Z", f"{iso_timestamp(high)}Z"
    ends = pc.min_max(column).as_py()
    low, high = ends["min"], ends["max"]
    if pa.types.is_floating(type_):
        # JSON has no infinity; NaN is above all others for Spark, and Arrow leaves it out.
        if math.isnan(low) or pc.any(pc.is_nan(column)).as_py():
            high = math.inf
            low = -math.inf if math.isnan(low) else low
        return min(max(low, -_FLOAT_MAX), _FLOAT_MAX), min(max(high, -_FLOAT_MAX), _FLOAT_MAX)
    if pa.types.is_string(type_):
        return low[:_TEXT_CHARS], high if len(high) <= _TEXT_CHARS else high[:_TEXT_CHARS] + _LAST_CHARACTER
    return low, high


def differences(there: pa.Schema, expected: pa.Schema) -> list[str]:
    """Explains why rows do not fit a table, by column; further columns are accepted if they may be null."""
    problems = []
    for field in expected:
        place = there.get_field_index(field.name)
        if place < 0:
            problems.append(f"{field.name} is missing, expected {field.type}")
        elif _plain(there.field(place).type) != field.type:
            problems.append(f"{field.name} is {there.field(place).type}, expected {field.type}")
        elif field.nullable and not there.field(place).nullable:
            problems.append(f"{field.name} is declared not null, expected that it may be null")
    names = set(expected.names)
    problems += [f"{f.name} is not ours, and not null" for f in there if f.name not in names and not f.nullable]
    return problems


def _plain(type_: Any) -> Any:
    return pa.string() if str(type_) in ("large_string", "string_view") else type_
