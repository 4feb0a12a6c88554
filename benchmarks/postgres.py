"""Rows into PostgreSQL: the sink beside psycopg's own COPY, into tables of the same columns."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from random import Random
from statistics import median
from typing import Any

import numpy as np
import trio

from benchmarks.tables import CHECKED, chosen, demand, show, spread, verdict
from examples.servers.postgres import missing, running_server
from replicas.connectors.sink_registry import open_sink
from spe.runtime.production import ThreadCompute
from spe.stream.batch import Batch, Column, Rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary

#: Rows, and the columns besides those of each sink.
SHAPES = [
    (100_000, "numbers", Schema.of(n="int64!", x="float64", at="timestamp")),
    (100_000, "with a text", Schema.of(n="int64!", x="float64", at="timestamp", name="string")),
]
ROUNDS = 5
#: Rows of a batch, and of a transaction.
BATCH, TRANSACTION = 2_000, 20_000
LIMIT = 1.3
CHANNEL = Channel(StreamId("out"), 0)


def run(arguments: argparse.Namespace) -> None:
    if why := missing():
        print(f"postgres: skipped: {why}")
        return
    table = []
    with running_server("max_wal_size = 2GB\nshared_buffers = 128MB\n") as server:
        os.environ.update(server.environment)
        for rows, name, schema in chosen(SHAPES, arguments):
            batches = batches_of(rows, schema)
            tuples = [
                (0, id_, _moment(time_), *(_moment(v) if a.name == "at" else v for a, v in zip(schema, row)))
                for batch in batches
                for id_, time_, row in zip(batch.row_ids().tolist(), batch.rows.time.tolist(), batch.rows.to_tuples())
            ]
            ours, theirs, cpu = list[float](), list[float](), (list[float](), list[float]())
            for round_ in range(ROUNDS):
                bare = f"bare_{len(table)}_{round_}"
                own = f"own_{len(table)}_{round_}"
                columns = "_partition integer not null, _id bigint not null, _time timestamptz not null"
                more = ", ".join(f"{a.name} {_TYPES[a.type.value]}" for a in schema)
                server.query(f"create table {bare} ({columns}, {more})")
                for seconds, used, work in (
                    (theirs, cpu[1], lambda: _copy_bare(server, bare, tuples)),  # noqa: B023
                    (ours, cpu[0], lambda: trio.run(_copy_own, own, schema, batches)),  # noqa: B023
                ):
                    took, busy = timed(work)
                    seconds.append(took / rows)
                    used.append(busy / rows)
                where = "select count(*), sum(n), sum(_id), md5(string_agg(t::text, '' order by _id)) from {} t"
                demand(server.query(where.format(bare)) == server.query(where.format(own)), f"{own} is not {bare}")
                server.query(f"drop table {bare}")
                server.query(f"drop table {own}; delete from _spe_sinks")
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            busier = [a / b for a, b in zip(*cpu, strict=True)]
            table.append(
                [
                    f"{rows:,}",
                    name,
                    *(spread([1 / v / 1e3 for v in values], ".0f") for values in (theirs, ours)),
                    *(spread([1e6 * v for v in values]) for values in (cpu[1], cpu[0])),
                    spread(busier),
                    spread(ratios),
                    verdict(median(ratios), LIMIT),
                    CHECKED,
                ]
            )
    show(
        "PostgreSQL",
        [
            "rows", "columns", "bare, 1000 rows/s", "sink, 1000 rows/s", "bare, CPU us/row", "sink, CPU us/row",
            "ratio of CPU", "ratio of time", "target", "check",
        ],
        table,
        [
            f"A server of its own on loopback, synced at each commit, {TRANSACTION:,} rows a transaction.  Bare:",
            "psycopg's COPY FROM STDIN with write_row of Python tuples, which are there.  Sink: columns as they",
            "come from a node, and the position, in one transaction.  CPU: of the client's process.",
            f"{ROUNDS} paired rounds: median (min-max).",
        ],
    )  # fmt: skip


_TYPES = {"int64": "bigint", "float64": "double precision", "timestamp": "timestamptz", "string": "text"}


def _moment(us: int) -> Any:
    from datetime import UTC, datetime, timedelta

    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def batches_of(rows: int, schema: Schema) -> list[Batch]:
    random, dictionary = Random(1), StringDictionary()
    names = [f"customer {random.randrange(50_000)}" for _ in range(rows)]
    found = []
    for first in range(0, rows, BATCH):
        at = 1_700_000_000_000_000 + 1_000 * np.arange(first, first + BATCH)
        columns = [
            Column(np.arange(first, first + BATCH)),
            Column(np.arange(first, first + BATCH) / 7),
            Column(at),
            Column(dictionary.encode(names[first : first + BATCH]), None, dictionary),
        ]
        time_ = at + 500
        found.append(
            Batch(Kind.STABLE, first, first + BATCH, None, Rows(time_, time_, tuple(columns[: len(schema.names)])))
        )
    return found


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    began, busy = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - busy


def _copy_bare(server: Any, table: str, tuples: list[tuple[Any, ...]]) -> None:
    with server.connect() as connection:
        for first in range(0, len(tuples), TRANSACTION):
            with (
                connection.transaction(),
                connection.cursor() as cursor,
                cursor.copy(f"copy {table} from stdin") as copy,
            ):
                for row in tuples[first : first + TRANSACTION]:
                    copy.write_row(row)


async def _copy_own(table: str, schema: Schema, batches: list[Batch]) -> None:
    from tests.support.source_env import source_env

    sink: Any = open_sink({"kind": "postgres", "table": table, "mode": "stable"}, {CHANNEL: schema}, lambda _: ...)  # type: ignore[arg-type,return-value]
    await sink.open(source_env(), {CHANNEL: "q"})
    for batch in batches:
        sink.write(Change(CHANNEL, batch, 0))
        if sink.due:
            await sink.commit(ThreadCompute())
    await sink.commit(ThreadCompute())
    await sink.disconnect()
