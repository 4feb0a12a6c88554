"""Readers of sinks: lines of JSON, Parquet files, Delta tables, tables of PostgreSQL."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

from consistency.sinks.entries import Entries, entries_of, joined
from spe.connectors.postgres import STREAM, table_parts
from spe.errors import SpeError
from spe.stream.ids import Channel
from spe.stream.schema import AttributeType, Schema

#: Number of lines, or rows of a table, that become columns at once.
_BLOCK: Final = 1 << 14
_PART: Final = re.compile(r"(\d{4,})-(\d{8,})-\d+(-tentative)?\.parquet")

Schemas = Mapping[Channel, Schema]


class SinkUnread(SpeError):
    """The reason why a sink cannot be read from here."""


def json_lines(spec: Mapping[str, Any], schemas: Schemas) -> Iterator[tuple[Channel, Entries]]:
    for channel, schema in schemas.items():
        file = Path(str(spec["path"]), f"{channel.stream}.{channel.partition}.jsonl")
        parts = []
        with suppress(FileNotFoundError), file.open("rb") as lines:
            while block := list(islice(lines, _BLOCK)):
                objects = [json.loads(line) for line in block if line.endswith(b"\n")]  # a kill tears the last line
                parts.append(entries_of(_cells(objects, schema), schema))
        yield channel, joined(parts, schema)


def _cells(objects: list[dict[str, Any]], schema: Schema) -> dict[str, list[Any]]:
    cells = {name: [object_.get(name) for object_ in objects] for name in ("_id", "_time", "_tentative")}
    cells["_kind"] = [object_.get("_kind", "insert") for object_ in objects]
    rows = [kind == "insert" for kind in cells["_kind"]]
    return cells | {
        name: [object_[name] if row else None for object_, row in zip(objects, rows)] for name in schema.names
    }


def parquet(spec: Mapping[str, Any], schemas: Schemas) -> Iterator[tuple[Channel, Entries]]:
    from pyarrow.parquet import ParquetFile

    for channel, schema in schemas.items():
        folder = Path(str(spec["path"]), channel.stream)
        files = [(m, file) for file in folder.glob("*.parquet") if (m := _PART.fullmatch(file.name))]
        ours = sorted((int(m[2]), file) for m, file in files if int(m[1]) == channel.partition)
        parts = []
        for _, file in ours:
            with ParquetFile(file) as opened:
                parts += [entries_of(_arrow_cells(batch, schema), schema) for batch in opened.iter_batches(_BLOCK)]
        yield channel, joined(parts, schema)


def delta(spec: Mapping[str, Any], schemas: Schemas) -> Iterator[tuple[Channel, Entries]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if spec.get("append"):
        raise SinkUnread("others append to the table, and their rows have numbers, too")
    with delta_table(spec) as opened:
        table = pa.table(opened.to_pyarrow_table())
    order = "_change" if "_change" in table.schema.names else "_id"
    for channel, schema in schemas.items():
        ours = table.filter(pc.equal(table.column("_partition"), channel.partition)).sort_by(order)
        yield channel, joined([entries_of(_arrow_cells(b, schema), schema) for b in ours.to_batches(_BLOCK)], schema)


@contextmanager
def delta_table(spec: Mapping[str, Any]) -> Iterator[Any]:
    """Opens the table of a sink.  Raises SinkUnread."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    options = {"endpoint": spec.get("endpoint"), "region": spec.get("region")}
    try:
        yield DeltaTable(str(spec["path"]), storage_options={k: v for k, v in options.items() if v} or None)
    except (DeltaError, OSError) as error:
        raise SinkUnread(str(error).partition("\n")[0]) from error


def postgres(spec: Mapping[str, Any], schemas: Schemas) -> Iterator[tuple[Channel, Entries]]:
    owner, table = table_parts(str(spec["table"]))
    with postgres_server(spec) as connection:
        for channel, schema in schemas.items():
            name = [part for part in (owner, table.replace(STREAM, channel.stream)) if part]
            yield channel, _postgres_entries(connection, name, schema, str(spec["mode"]), channel.partition)


@contextmanager
def postgres_server(spec: Mapping[str, Any]) -> Iterator[Any]:
    """Opens a connection to the server of a sink.  Raises SinkUnread."""
    import psycopg

    try:
        with psycopg.connect(str(spec.get("connection") or ""), connect_timeout=10) as connection:
            yield connection
    except psycopg.Error as error:
        raise SinkUnread(str(error).strip().partition("\n")[0]) from error


def _postgres_entries(connection: Any, name: list[str], schema: Schema, mode: str, partition: int) -> Entries:
    from psycopg import sql

    columns = ["_id", *(["_tentative"] if mode != "stable" else []), *(["_kind"] if mode == "corrections" else [])]
    times = ["_time", *(a.name for a in schema if a.type is AttributeType.TIMESTAMP)]
    plain = [a.name for a in schema if a.type is not AttributeType.TIMESTAMP]
    wanted: list[sql.Composable] = [sql.Identifier(n) for n in (*columns, *plain)]
    wanted += [sql.SQL("(extract(epoch from {}) * 1000000)::bigint").format(sql.Identifier(n)) for n in times]
    query = sql.SQL("select {} from {} where _partition = %s order by {}").format(
        sql.SQL(", ").join(wanted), sql.Identifier(*name), sql.Identifier("_change" if "_kind" in columns else "_id")
    )
    parts = []
    with connection.cursor("sink") as cursor:
        cursor.execute(query, [partition])
        while rows := cursor.fetchmany(_BLOCK):
            parts.append(entries_of(dict(zip((*columns, *plain, *times), zip(*rows))), schema))
    return joined(parts, schema)


def _arrow_cells(batch: Any, schema: Schema) -> dict[str, list[Any]]:
    """Converts columns to lists, times to microseconds: years beyond 9999 are no ``datetime``."""
    times = {"_time", *(a.name for a in schema if a.type is AttributeType.TIMESTAMP)}
    return {
        name: (column.cast("int64") if name in times else column).to_pylist()
        for name, column in zip(batch.schema.names, batch.columns)
    }


#: Readers by the kind of a sink.
FORMATS: Final[Mapping[str, Callable[[Mapping[str, Any], Schemas], Iterator[tuple[Channel, Entries]]]]] = {
    "jsonl": json_lines,
    "parquet": parquet,
    "delta": delta,
    "postgres": postgres,
}
