"""Rows as files of each format that a directory may have."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

#: Of the rows: a time in microseconds, a number, and a text.
SCHEMA: Final = {"ts": "timestamp!", "n": "int64!", "name": "string"}
_ARROW: Final = pa.schema([("ts", pa.timestamp("us")), ("n", pa.int64()), ("name", pa.string())])
AVRO: Final = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "n", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
    ],
}
Row = tuple[int, int, str | None]


def rows(first: int, count: int) -> list[Row]:
    return [(n * 1_000_000, n, None if n % 5 == 0 else f"r{n % 3}") for n in range(first, first + count)]


def _table(given: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(_ARROW.names, row)) for row in given], _ARROW)


def jsonl(given: Sequence[Row]) -> bytes:
    return "".join(f"{json.dumps(dict(zip(('ts', 'n', 'name'), row)))}\n" for row in given).encode()


def csv(given: Sequence[Row]) -> bytes:
    return ("ts,n,name\n" + "".join(f"{t},{n},{'' if s is None else s}\n" for t, n, s in given)).encode()


def parquet(given: Sequence[Row]) -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(_table(given), out, row_group_size=4)
    return out.getvalue()


def arrow(given: Sequence[Row]) -> bytes:
    out = io.BytesIO()
    with pyarrow.ipc.new_file(out, _ARROW) as writer:
        writer.write_table(_table(given), max_chunksize=4)
    return out.getvalue()


def arrow_stream(given: Sequence[Row]) -> bytes:
    out = io.BytesIO()
    with pyarrow.ipc.new_stream(out, _ARROW) as writer:
        writer.write_table(_table(given), max_chunksize=4)
    return out.getvalue()


def avro(given: Sequence[Row], **options: Any) -> bytes:
    import fastavro

    out = io.BytesIO()
    records = [dict(zip(("ts", "n", "name"), row)) for row in given]
    fastavro.writer(out, AVRO, records, sync_interval=40, **options)
    return out.getvalue()


#: How rows are written, and the options with which they are read.
FORMATS: Final[Mapping[str, tuple[Callable[[Sequence[Row]], bytes], Mapping[str, Any]]]] = {
    "jsonl": (jsonl, {"format": "jsonl", "timestamps": "us"}),
    "csv": (csv, {"format": "csv", "timestamps": "us"}),
    "parquet": (parquet, {"format": "parquet"}),
    "arrow": (arrow, {"format": "arrow"}),
    "arrow_stream": (arrow_stream, {"format": "arrow"}),
    "avro": (avro, {"format": "avro"}),
}
