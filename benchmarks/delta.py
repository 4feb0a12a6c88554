"""Rows into a Delta table: the sink beside ``write_deltalake`` of the same rows, into tables of the same columns."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import trio
from deltalake import DeltaTable, write_deltalake

from benchmarks.postgres import BATCH, CHANNEL, SHAPES, batches_of, timed
from benchmarks.tables import CHECKED, chosen, demand, show, spread, verdict
from replicas.connectors.delta.rows import table_of
from replicas.connectors.server_sink import ChannelEntry
from replicas.connectors.sink_registry import open_sink
from spe.connectors.declaration import STABLE
from spe.runtime.production import ThreadCompute
from spe.stream.batch import Batch
from spe.stream.change import Change
from spe.stream.schema import Schema

ROUNDS = 5
#: Times the rows of SHAPES; batches of a commit.
TIMES, COMMIT = 4, 50
LIMIT = 1.3


def run(arguments: argparse.Namespace) -> None:
    table = []
    with tempfile.TemporaryDirectory() as folder:
        for size, name, schema in chosen(SHAPES, arguments):
            rows = TIMES * size
            batches = batches_of(rows, schema)
            given = [_arrow(batches[first : first + COMMIT], schema) for first in range(0, len(batches), COMMIT)]
            ours, theirs, cpu = list[float](), list[float](), (list[float](), list[float]())
            for round_ in range(ROUNDS):
                bare, own = (str(Path(folder, f"{kind}-{name}-{round_}")) for kind in ("bare", "own"))
                for seconds, used, work in (
                    (theirs, cpu[1], lambda: _write_bare(bare, given)),  # noqa: B023
                    (ours, cpu[0], lambda: trio.run(_write_own, own, schema, batches)),  # noqa: B023
                ):
                    took, busy = timed(work)
                    seconds.append(took / rows)
                    used.append(busy / rows)
                demand(_read(bare).equals(_read(own)), f"{own} is not {bare}")
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
                    verdict(median(busier), LIMIT),
                    CHECKED,
                ]
            )
    show(
        "Delta",
        [
            "rows", "columns", "bare, 1000 rows/s", "sink, 1000 rows/s", "bare, CPU us/row", "sink, CPU us/row",
            "ratio of CPU", "ratio of time", "target (CPU)", "check",
        ],
        table,
        [
            f"Into a folder, {COMMIT * BATCH:,} rows a commit.  Bare: write_deltalake of tables, which are there,",
            "without a sync.  Sink: columns as they come from a node; files are synced, and each commit has the",
            f"position.  {ROUNDS} paired rounds: median (min-max).",
        ],
    )  # fmt: skip


def _arrow(batches: list[Batch], schema: Schema) -> Any:
    return table_of([ChannelEntry(CHANNEL, "insert", b.upto_id, b) for b in batches], schema, STABLE)


def _read(path: str) -> Any:
    return pa.table(DeltaTable(path).to_pyarrow_table()).sort_by("_id")


def _write_bare(path: str, tables: list[Any]) -> None:
    for one in tables:
        write_deltalake(path, one, mode="append")


async def _write_own(path: str, schema: Schema, batches: list[Batch]) -> None:
    from tests.support.source_env import source_env

    spec = {"kind": "delta", "path": path, "every": 10_000_000, "mode": STABLE}
    sink: Any = open_sink(spec, {CHANNEL: schema}, lambda _: ...)  # type: ignore[arg-type,return-value]
    await sink.open(source_env(), {CHANNEL: "q"})
    for number, batch in enumerate(batches, 1):
        sink.write(Change(CHANNEL, batch, 0))
        if number % COMMIT == 0:
            await sink.commit(ThreadCompute())
    await sink.commit(ThreadCompute())
