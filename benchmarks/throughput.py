"""Tuples per second from Parquet files through real processes, and whose CPU it costs.

A merged aggregate by partitions and replicas.  With a core for every process the busiest one would be the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import trio

from benchmarks.cluster import Process, at_free_addresses, node_main, results, running, source_main
from benchmarks.cpu import cpu_of
from benchmarks.tables import benchmark, demand, verdict
from replicas.client.client import open_client
from replicas.connectors.formats.arrow_columns import ArrowColumns
from replicas.source.proxy import SourceProxy
from replicas.source.stamping import Stamper
from spe.api import Environment, Stream, parquet, tumbling
from spe.log import segmented
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime import network
from spe.runtime.production import production_env
from spe.runtime.storage import DiskFile
from spe.stream.batch import AnyArray, Rows
from spe.wire.encoder import ElementEncoder

#: Partitions, and replicas of each, of the merged aggregate.
SHAPES = ((1, 1), (2, 1), (4, 1), (1, 2), (1, 3))
START_US = 1_700_000_000_000_000
AGGREGATES = {"n": "count(*)", "total": "sum(value)", "mean": "avg(value)"}
#: Relative difference of a float sum that another order of addition explains.
TOLERANCE = 1e-9


def options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("throughput", "Parquet files with ts (timestamp), key (int64), value (float64)")
    group.add_argument("--merge", nargs="+", metavar="FILE", help="files to merge and aggregate; else generated")
    group.add_argument("--rows", type=int, default=1_000_000, help="per generated file")


def generate(path: Path, *, rows: int, keys: int, rate: int, seed: int) -> None:
    """A file of rows in time order, ``rate`` a second."""
    random = np.random.default_rng(seed)
    steps = random.integers(0, 2 * 1_000_000 // rate + 1, rows)
    generated = pa.table(
        {
            "ts": pa.array(START_US + np.cumsum(steps), pa.timestamp("us", "UTC")),
            "key": random.integers(0, keys, rows),
            "value": random.normal(100.0, 25.0, rows),
        }
    )
    pq.write_table(generated, path)


def make_plan(files: Sequence[str], partitions: int = 1, replicas: int = 1) -> Deployed:
    """The files, merged if there are several, and count, sum and average of that per second and key.

    One node for each replica of each partition.
    """
    env = Environment("bench", bucket="100ms", x="60s")
    schema = {"ts": "timestamp!", "key": "int64!", "value": "float64!"}
    streams: list[Stream] = [
        env.source(
            f"s{at}", parquet(str(Path(file).resolve())), schema, time="ts", boundary="100ms", replay={"max": True}
        )
        for at, file in enumerate(files)
    ]
    if len(files) > 1:
        streams = [streams[0].union(*streams[1:], name="merged")]
    per_key = streams[0].key_by("key").window(tumbling("1s")).aggregate("per_key", **AGGREGATES)
    operators = [*(streams if len(files) > 1 else ()), per_key]
    names = [[f"n{p}_{r}" for r in range(replicas)] for p in range(partitions)]
    for name in (name for of_partition in names for name in of_partition):
        env.node(name)
    split = {"key": "key", "partitions": partitions, "replicas": names} if partitions > 1 else {"replicas": names[0]}
    env.outputs(per_key).fragment("f", operators, **split).client("bench", [per_key])
    return at_free_addresses(*env.deployed())


def read(file: str) -> pa.Table:
    """Columns window, key, value; the window by the timestamp's second."""
    table = pq.read_table(file)
    micros = pc.cast(pc.cast(table.column("ts"), pa.timestamp("us", "UTC")), pa.int64())
    start = pc.multiply(pc.divide(micros, 1_000_000), 1_000_000)
    return pa.table({"window": start, "key": table.column("key"), "value": table.column("value")})


def columns_of(rows: list[Rows], plan: Plan) -> dict[str, AnyArray]:
    names = plan.query.schema_of(plan.query.outputs[0]).names
    return {n: np.concatenate([r.columns[i].values for r in rows]) for i, n in enumerate(names)}


def check_merge(rows: list[Rows], plan: Plan, files: Sequence[str]) -> None:
    merged = pa.concat_tables(map(read, files))
    wanted = merged.group_by(["window", "key"]).aggregate([("value", "count"), ("value", "sum"), ("value", "mean")])
    wanted = wanted.sort_by([("window", "ascending"), ("key", "ascending")])
    got = columns_of(rows, plan)
    order = np.lexsort((got["key"], got["window_start"]))
    demand(len(order) == wanted.num_rows, f"{len(order)} results instead of {wanted.num_rows}")
    for mine, theirs in (("window_start", "window"), ("key", "key"), ("n", "value_count")):
        demand(bool(np.array_equal(got[mine][order], wanted.column(theirs).to_numpy())), f"{mine} differs")
    for mine, theirs in (("total", "value_sum"), ("mean", "value_mean")):
        close = np.allclose(got[mine][order], wanted.column(theirs).to_numpy(), rtol=TOLERANCE, atol=0)
        demand(bool(close), f"{mine} differs")


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run; CPU in nanoseconds per input tuple.

    Attributes:
      wall_s: from the start of the sources to the end of the output at the client.
      sources_ns, nodes_ns: of each of them.
    """

    wall_s: float
    sources_ns: list[float]
    nodes_ns: list[float]


async def measure(
    plan: Plan, directory: Directory, tuples: int, source: Callable[..., None] = source_main
) -> tuple[list[Rows], Cost]:
    """Result rows, and what they cost.

    Args:
      source: the main function of a source's process.
    """
    made = [Process(source, plan, directory, stream) for stream in plan.sources]
    nodes = [Process(node_main, plan, directory, node) for node in directory.nodes]
    with running(*nodes, *made):
        async with open_client(production_env(Path("."), 0), plan, directory, "bench") as client:
            begun = time.perf_counter()
            before = [cpu_of(p.pid) for p in (*made, *nodes)]
            rows = await results(client, made, nodes, 600)
            wall_s = time.perf_counter() - begun
            spent = [1e9 * (cpu_of(p.pid) - b) / tuples for p, b in zip((*made, *nodes), before, strict=True)]
    return rows, Cost(wall_s, spent[: len(made)], spent[len(made) :])


@benchmark(
    "throughput",
    "partitions | replicas | tuples | results | M tuples/s | sources, CPU ns/tuple | nodes, CPU ns/tuple | "
    "busiest node | limit with a core for each, M/s",
    options,
)
def _rows(arguments: argparse.Namespace) -> Iterator[list[object]]:
    """Throughput from Parquet files.

    A process for each source, which reads a file as fast as it can, logs and syncs it before it sends, and for each
    replica of each partition; then a client.  Merged: count, sum and average per second and key.  Tuples per second of
    wall time, from the start of the sources to the end of the output at the client, connecting included.  CPU per tuple
    of the input.  Results compared with pyarrow's: counts exactly, sums and means nearly.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = arguments.merge
        if not files:
            files = [str(Path(folder, f"merge-{i}.parquet")) for i in range(3)]
            for at, file in enumerate(files):
                generate(Path(file), rows=arguments.rows, keys=1_000, rate=50_000, seed=at)
        tuples = sum(pq.read_metadata(f).num_rows for f in files)
        for partitions, replicas in SHAPES:
            plan, directory = make_plan(files, partitions, replicas)
            rows, cost = trio.run(measure, plan, directory, tuples)
            check_merge(rows, plan, files)
            costs = (sum(cost.sources_ns), sum(cost.nodes_ns), max(cost.nodes_ns))
            limit = 1e3 / max(*cost.sources_ns, *cost.nodes_ns)
            counts = (partitions, replicas, f"{tuples:,}", f"{sum(len(r) for r in rows):,}")
            yield [*counts, f"{tuples / cost.wall_s / 1e6:.2f}", *(f"{ns:.0f}" for ns in costs), f"{limit:.1f}"]


# --- where the CPU of a source goes: its copies, checksums and syncs one by one ---

#: Times the rows of a file of `throughput`.
TIMES: Final = 8
ROUNDS: Final = 3
#: Nanoseconds of CPU for a tuple.
LIMIT_NS: Final = 120
#: A time, a timestamp, an integer and a number.
TUPLE_BYTES: Final = 32
_FILE: Final = "stages.json"


class Stage(NamedTuple):
    """A stage of a source.

    Attributes:
      copied: bytes of a tuple that it copies; decoding makes them.
      wrap: replaces the function that does it by a timed one.
    """

    copied: int
    wrap: Callable[[Callable[..., Any]], None]


def _method(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    def wrap(timed: Callable[..., Any]) -> None:
        setattr(owner, name, timed(getattr(owner, name)))

    return wrap


def _decoding(timed: Callable[..., Any]) -> None:
    """The batches of Arrow, each as it is asked for."""
    original = pq.ParquetFile.iter_batches

    def batches(*arguments: Any, **options: Any) -> Iterator[Any]:
        following = timed(partial(next, original(*arguments, **options), None))
        while (batch := following()) is not None:
            yield batch

    pq.ParquetFile.iter_batches = batches


STAGES: Final = {
    "Arrow decodes": Stage(TUPLE_BYTES - 8, _decoding),
    "columns of ours": Stage(8, _method(ArrowColumns, "chunk")),  # of numbers, for −0.0
    "check times": Stage(0, _method(SourceProxy, "_checked")),
    "stamp": Stage(0, _method(Stamper, "stamp")),
    "checksum": Stage(0, _method(segmented, "record_header")),
    "write to the log": Stage(TUPLE_BYTES, _method(DiskFile, "append")),
    "sync": Stage(0, _method(os, "fdatasync")),
    "encode for the wire": Stage(0, _method(ElementEncoder, "encode")),
    "send": Stage(TUPLE_BYTES, _method(network.TcpStream, "_send")),
}


def _main(pipe: Pipe, plan: Plan, directory: Directory, stream: str, folder: str) -> None:
    """The source's process."""
    spent = {name: [0, 0] for name in STAGES}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        total = spent[name]

        def run(*arguments: Any, **options: Any) -> Any:
            begun = time.thread_time_ns()
            try:
                return function(*arguments, **options)
            finally:
                total[0] += time.thread_time_ns() - begun
                total[1] += 1

        return run

    for name, stage in STAGES.items():
        stage.wrap(partial(timed, name))
    try:
        source_main(pipe, plan, directory, stream)
    finally:
        Path(folder, _FILE).write_text(json.dumps(spent))


@benchmark("source-path", "stage | CPU ns/tuple | times per million tuples | bytes copied per tuple | target")
def _stage_rows(arguments: argparse.Namespace) -> Iterator[list[object]]:
    """A source from a Parquet file to the wire.

    One source of 8 million tuples of 32 bytes, as fast as it can, with its start; the median of the rounds.  Each stage
    by the CPU clock of its thread; all else: the event loop, threads, page faults, and frames that are put together for
    the socket.  Results compared as those of `throughput`.
    """
    measured: list[tuple[float, dict[str, list[int]]]] = []
    count = TIMES * arguments.rows
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "in.parquet"))
        generate(Path(file), rows=count, keys=1_000, rate=50_000, seed=0)
        for _ in range(ROUNDS):
            plan, directory = make_plan([file])
            results, cost = trio.run(partial(measure, plan, directory, count, partial(_main, folder=folder)))
            check_merge(results, plan, [file])
            measured.append((sum(cost.sources_ns), json.loads(Path(folder, _FILE).read_text())))
    whole_ns, spent = sorted(measured, key=lambda run: run[0])[ROUNDS // 2]
    for name, (ns, calls) in spent.items():
        yield [name, f"{ns / count:.1f}", f"{1e6 * calls / count:,.1f}", STAGES[name].copied or "-", "-"]
    rest = whole_ns - sum(ns for ns, _ in spent.values()) / count
    copied = sum(stage.copied for stage in STAGES.values()) + TUPLE_BYTES
    yield ["all else", f"{rest:.1f}", "-", TUPLE_BYTES, "-"]
    yield ["all", f"{whole_ns:.1f}", "-", copied, verdict(whole_ns, LIMIT_NS)]
