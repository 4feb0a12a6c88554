"""Rows into PostgreSQL and into a Delta table: the sink beside the bare library, into tables of the same columns."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa
import trio
from deltalake import DeltaTable, write_deltalake

from benchmarks.tables import benchmark, chosen, demand, ratio, spread
from examples.servers.postgres import missing, running_server
from replicas.connectors.delta.rows import table_of
from replicas.connectors.server_sink import ChannelEntry
from replicas.connectors.sink_registry import open_sink
from spe.connectors.declaration import STABLE
from spe.runtime.production import ThreadCompute
from spe.stream.batch import Batch, Column, Rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary

#: Rows, and the columns besides those of each sink.
SHAPES: Final = [
    (100_000, "numbers", Schema.of(n="int64!", x="float64", at="timestamp")),
    (100_000, "with a text", Schema.of(n="int64!", x="float64", at="timestamp", name="string")),
]
ROUNDS: Final = 5
#: Rows of a batch, and of a transaction in PostgreSQL.
BATCH, TRANSACTION = 2_000, 20_000
#: A Delta table gets so many times the rows, and so many batches in a commit.
TIMES, COMMIT = 4, 50
LIMIT: Final = 1.3
CHANNEL: Final = Channel(StreamId("out"), 0)
_TYPES: Final = {"int64": "bigint", "float64": "double precision", "timestamp": "timestamptz", "string": "text"}
_HEAD: Final = (
    "rows | columns | bare, 1000 rows/s | sink, 1000 rows/s | bare, CPU us/row | sink, CPU us/row | ratio of CPU | "
    "target | ratio of time | target"
)


def _compared(
    rows: int, bare: Callable[[str], object], own: Callable[[str], object], check: Callable[[str, str], None],
    limits: tuple[float | None, float | None],
) -> list[str]:  # fmt: skip
    """Paired rounds, each into tables of its own; the limits are for CPU and time.  The bare library comes first."""
    seconds, cpu = ([], []), ([], [])
    for number in range(ROUNDS):
        names = [f"{kind}_{number}" for kind in ("bare", "own")]
        for way, work in enumerate((bare, own)):
            began, busy = time.perf_counter(), time.process_time()
            work(names[way])
            seconds[way].append((time.perf_counter() - began) / rows)
            cpu[way].append((time.process_time() - busy) / rows)
        check(*names)
    return [
        *(spread([1e-3 / v for v in values], ".0f") for values in seconds),
        *(spread(values, scale=1e6) for values in cpu),
        *ratio(cpu[1], cpu[0], limits[0]),
        *ratio(seconds[1], seconds[0], limits[1]),
    ]


def batches_of(rows: int, schema: Schema) -> list[Batch]:
    random, dictionary = Random(1), StringDictionary()
    names = [f"customer {random.randrange(50_000)}" for _ in range(rows)]
    batches = []
    for first in range(0, rows, BATCH):
        n = np.arange(first, first + BATCH)
        at = 1_700_000_000_000_000 + 1_000 * n
        text = Column(dictionary.encode(names[first : first + BATCH]), None, dictionary)
        columns = (Column(n), Column(n / 7), Column(at), text)[: len(schema.names)]
        batches.append(Batch(Kind.STABLE, first, first + BATCH, None, Rows(at + 500, at + 500, columns)))
    return batches


async def _write(spec: dict[str, Any], schema: Schema, batches: Sequence[Batch], commit: int) -> None:
    """Through the sink; ``commit``: batches of a commit, 0: when the sink wants it."""
    from tests.support.source_env import source_env

    sink: Any = open_sink(spec, {CHANNEL: schema}, lambda _: None)
    await sink.open(source_env(), {CHANNEL: "q"})
    for number, batch in enumerate(batches, 1):
        sink.write(Change(CHANNEL, batch, 0))
        if number % commit == 0 if commit else sink.due:
            await sink.commit(ThreadCompute())
    await sink.commit(ThreadCompute())
    if spec["kind"] == "postgres":
        await sink.disconnect()


# --- PostgreSQL ---


@benchmark("postgres", _HEAD)
def _postgres_rows(arguments: argparse.Namespace) -> Iterator[list[str] | str]:
    """PostgreSQL.

    A server of its own on loopback, synced at each commit, 20,000 rows a transaction.  Bare: psycopg's COPY FROM STDIN
    with write_row of Python tuples, which are there.  Sink: columns as they come from a node, and the position, in one
    transaction.  CPU: of the client's process.  Paired rounds: median (min-max).
    """
    if why := missing():
        yield f"Skipped: {why}."
        return
    with running_server("max_wal_size = 2GB\nshared_buffers = 128MB\n") as server:
        os.environ.update(server.environment)
        for rows, name, schema in chosen(SHAPES, arguments):
            batches = batches_of(rows, schema)
            tuples = [
                (0, id_, _moment(time_), *(_moment(v) if a.name == "at" else v for a, v in zip(schema, row)))
                for batch in batches
                for id_, time_, row in zip(batch.row_ids().tolist(), batch.rows.time.tolist(), batch.rows.to_tuples())
            ]
            for number in range(ROUNDS):
                columns = "_partition integer not null, _id bigint not null, _time timestamptz not null"
                more = ", ".join(f"{a.name} {_TYPES[a.type.value]}" for a in schema)
                server.query(f"create table bare_{number} ({columns}, {more})")

            def own(table: str, schema: Schema = schema, batches: Sequence[Batch] = batches) -> None:
                trio.run(_write, {"kind": "postgres", "table": table, "mode": STABLE}, schema, batches, 0)

            copy = partial(_copy, server, tuples)
            yield [f"{rows:,}", name, *_compared(rows, copy, own, partial(_check, server), (None, LIMIT))]


def _check(server: Any, bare: str, own: str) -> None:
    sums = "select count(*), sum(n), sum(_id), md5(string_agg(t::text, '' order by _id)) from {} t"
    demand(server.query(sums.format(bare)) == server.query(sums.format(own)), f"{own} is not {bare}")
    server.query(f"drop table {bare}")
    server.query(f"drop table {own}; delete from _spe_sinks")


def _moment(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def _copy(server: Any, tuples: list[tuple[Any, ...]], table: str) -> None:
    with server.connect() as connection:
        for first in range(0, len(tuples), TRANSACTION):
            with (
                connection.transaction(),
                connection.cursor() as cursor,
                cursor.copy(f"copy {table} from stdin") as copy,
            ):
                for row in tuples[first : first + TRANSACTION]:
                    copy.write_row(row)


# --- Delta ---


@benchmark("delta", _HEAD)
def _delta_rows(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Delta.

    Into a folder, 100,000 rows a commit.  Bare: write_deltalake of tables, which are there, without a sync.  Sink:
    columns as they come from a node; files are synced, and each commit has the position.  Paired rounds: median (min-
    max).
    """
    for size, name, schema in chosen(SHAPES, arguments):
        batches = batches_of(TIMES * size, schema)
        parts = [batches[first : first + COMMIT] for first in range(0, len(batches), COMMIT)]
        tables = [table_of([ChannelEntry(CHANNEL, "insert", b.upto_id, b) for b in p], schema, STABLE) for p in parts]
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)

            def bare(table: str, folder: Path = folder, tables: Sequence[Any] = tables) -> None:
                for part in tables:
                    write_deltalake(str(folder / table), part, mode="append")

            def own(
                table: str, folder: Path = folder, schema: Schema = schema, batches: Sequence[Batch] = batches
            ) -> None:
                spec = {"kind": "delta", "path": str(folder / table), "every": 10_000_000, "mode": STABLE}
                trio.run(_write, spec, schema, batches, COMMIT)

            cells = _compared(TIMES * size, bare, own, partial(_check_delta, folder), (LIMIT, None))
        yield [f"{TIMES * size:,}", name, *cells]


def _check_delta(folder: Path, bare: str, own: str) -> None:
    mine, theirs = (
        pa.table(DeltaTable(str(folder / table)).to_pyarrow_table()).sort_by("_id") for table in (own, bare)
    )
    demand(mine.equals(theirs), f"{own} is not {bare}")
