"""Tuples per second from Parquet files through real processes, and whose CPU it costs.

A merged aggregate by partitions and replicas, and a windowed join.  With a core for every process the busiest one
would be the limit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import trio

from benchmarks.cluster import Process, free_address, node_main, results, running, source_main
from benchmarks.cpu import cpu_of
from benchmarks.tables import CHECKED, demand, show
from replicas.client.client import open_client
from spe.api import Environment, Stream, parquet, tumbling
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.production import production_env
from spe.stream.batch import AnyArray, Rows

#: Partitions, and replicas of each, of the merged aggregate.
SHAPES = ((1, 1), (2, 1), (4, 1), (1, 2), (1, 3))
START_US = 1_700_000_000_000_000
AGGREGATES = {"n": "count(*)", "total": "sum(value)", "mean": "avg(value)"}
#: Relative difference of a float sum that another order of addition explains.
TOLERANCE = 1e-9


def options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("throughput", "Parquet files with ts (timestamp), key (int64), value (float64)")
    group.add_argument(
        "--merge", nargs="+", metavar="FILE", help="files to merge and aggregate; generated if not given"
    )
    group.add_argument("--left", metavar="FILE", help="of the join; generated if not given")
    group.add_argument("--right", metavar="FILE", help="of the join; generated if not given")
    group.add_argument("--columns", nargs=3, default=["ts", "key", "value"], metavar=("TS", "KEY", "VALUE"))
    group.add_argument("--disorder", default="0s", help="how far rows of the files may be out of order")
    group.add_argument("--rows", type=int, default=1_000_000, help="per generated file; a join's have half as many")


def generate(path: Path, *, rows: int, keys: int, rate: int, seed: int) -> None:
    """A file of rows in time order, ``rate`` a second."""
    random = np.random.default_rng(seed)
    steps = random.integers(0, 2 * 1_000_000 // rate + 1, rows)
    table = pa.table(
        {
            "ts": pa.array(START_US + np.cumsum(steps), pa.timestamp("us", "UTC")),
            "key": random.integers(0, keys, rows),
            "value": random.normal(100.0, 25.0, rows),
        }
    )
    pq.write_table(table, path)


def sources(env: Environment, files: Sequence[str], arguments: argparse.Namespace) -> list[Any]:
    names = dict(zip(("ts", "key", "value"), arguments.columns, strict=True))
    schema = {"ts": "timestamp!", "key": "int64!", "value": "float64!"}
    return [
        env.source(
            f"s{at}",
            parquet(str(Path(file).resolve()), columns=names),
            schema,
            time="ts",
            disorder=arguments.disorder,
            boundary="100ms",
            replay={"max": True},
            address=free_address(),
        )
        for at, file in enumerate(files)
    ]


def merge_query(env: Environment, files: Sequence[str], arguments: argparse.Namespace) -> list[Stream]:
    """The files merged, and count, sum and average of that per second and key."""
    streams = sources(env, files, arguments)
    merged = streams[0].union(*streams[1:], name="merged")
    return [merged, merged.key_by("key").window(tumbling("1s")).aggregate("per_key", **AGGREGATES)]


def join_query(env: Environment, files: Sequence[str], arguments: argparse.Namespace) -> list[Stream]:
    left, right = sources(env, files, arguments)
    return [left.join(right, ["key"], window=tumbling("1s"), name="joined")]


Query = Callable[[Environment, Sequence[str], argparse.Namespace], list[Stream]]


def make_plan(
    query: Query, files: Sequence[str], arguments: argparse.Namespace, partitions: int, replicas: int
) -> Deployed:
    """One node for each replica of each partition."""
    env = Environment("bench", bucket="100ms", x="60s")
    streams = query(env, files, arguments)
    names = [[f"n{p}_{r}" for r in range(replicas)] for p in range(partitions)]
    for name in (name for of_partition in names for name in of_partition):
        env.node(name, free_address())
    split = {"key": "key", "partitions": partitions, "replicas": names} if partitions > 1 else {"replicas": names[0]}
    env.outputs(streams[-1]).fragment("f", streams, **split)
    return env.client("bench", streams[-1:]).deployed()


def read(file: str, arguments: argparse.Namespace) -> pa.Table:
    """Columns window, key, value; the window by the timestamp's second."""
    ts, key, value = (pq.read_table(file, columns=arguments.columns).column(c) for c in arguments.columns)
    micros = pc.cast(pc.cast(ts, pa.timestamp("us", "UTC")), pa.int64())
    start = pc.multiply(pc.divide(micros, 1_000_000), 1_000_000)
    return pa.table({"window": start, "key": pc.cast(key, pa.int64()), "value": pc.cast(value, pa.float64())})


def columns_of(rows: list[Rows], plan: Plan) -> dict[str, AnyArray]:
    names = plan.query.schema_of(plan.query.outputs[0]).names
    return {n: np.concatenate([r.columns[i].values for r in rows]) for i, n in enumerate(names)}


def check_merge(rows: list[Rows], plan: Plan, files: Sequence[str], arguments: argparse.Namespace) -> None:
    table = pa.concat_tables([read(f, arguments) for f in files])
    wanted = table.group_by(["window", "key"]).aggregate([("value", "count"), ("value", "sum"), ("value", "mean")])
    wanted = wanted.sort_by([("window", "ascending"), ("key", "ascending")])
    got = columns_of(rows, plan)
    order = np.lexsort((got["key"], got["window_start"]))
    demand(len(order) == wanted.num_rows, f"{len(order)} results instead of {wanted.num_rows}")
    for mine, theirs in (("window_start", "window"), ("key", "key"), ("n", "value_count")):
        demand(bool(np.array_equal(got[mine][order], wanted.column(theirs).to_numpy())), f"{mine} differs")
    for mine, theirs in (("total", "value_sum"), ("mean", "value_mean")):
        close = np.allclose(got[mine][order], wanted.column(theirs).to_numpy(), rtol=TOLERANCE, atol=0)
        demand(bool(close), f"{mine} differs")


def check_join(rows: list[Rows], plan: Plan, files: Sequence[str], arguments: argparse.Namespace) -> None:
    left, right = (read(f, arguments) for f in files)
    wanted = left.join(right.rename_columns(["window", "key", "other"]), ["window", "key"], join_type="inner")
    got = columns_of(rows, plan)
    demand(len(got["l_key"]) == wanted.num_rows, f"{len(got['l_key'])} pairs instead of {wanted.num_rows}")
    mine = [got["window_start"], got["l_key"], got["l_value"], got["r_value"]]
    theirs = [wanted.column(c).to_numpy() for c in ("window", "key", "value", "other")]
    orders = [np.lexsort(columns[::-1]) for columns in (mine, theirs)]
    for a, b in zip(mine, theirs, strict=True):
        demand(bool(np.array_equal(a[orders[0]], b[orders[1]])), "the pairs differ")
    demand(bool(np.array_equal(got["l_key"], got["r_key"])), "a pair of two keys")


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run; CPU in nanoseconds per input tuple.

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


def run(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        merge, join = arguments.merge, [arguments.left, arguments.right]
        if not merge:
            merge = [str(Path(folder, f"merge-{i}.parquet")) for i in range(3)]
            for at, file in enumerate(merge):
                generate(Path(file), rows=arguments.rows, keys=1_000, rate=50_000, seed=at)
        for at, name in enumerate(("left", "right")):
            if join[at] is None:
                join[at] = str(Path(folder, f"{name}.parquet"))
                generate(Path(join[at]), rows=arguments.rows // 2, keys=10_000, rate=10_000, seed=10 + at)
        jobs: list[tuple[str, list[str], Query, Callable[..., None], int, int]] = [
            (f"{len(merge)} streams merged", merge, merge_query, check_merge, *shape) for shape in SHAPES
        ]
        jobs.append(("join of two in windows of 1 s", join, join_query, check_join, 1, 1))
        table = []
        for title, files, query, check, partitions, replicas in jobs:
            plan, directory = make_plan(query, files, arguments, partitions, replicas)
            tuples = sum(pq.read_metadata(f).num_rows for f in files)
            rows, cost = trio.run(measure, plan, directory, tuples)
            check(rows, plan, files, arguments)
            table.append(
                [
                    title,
                    partitions,
                    replicas,
                    f"{tuples:,}",
                    f"{sum(len(r) for r in rows):,}",
                    f"{tuples / cost.wall_s / 1e6:.2f}",
                    f"{sum(cost.sources_ns):.0f}",
                    f"{sum(cost.nodes_ns):.0f}",
                    f"{max(cost.nodes_ns):.0f}",
                    f"{1e3 / max(*cost.sources_ns, *cost.nodes_ns):.1f}",
                    CHECKED,
                ]
            )
    show(
        "Throughput from Parquet files",
        [
            "query",
            "partitions",
            "replicas",
            "tuples",
            "results",
            "M tuples/s",
            "sources, CPU ns/tuple",
            "nodes, CPU ns/tuple",
            "busiest node",
            "limit with a core for each, M/s",
            "check",
        ],
        table,
        [
            "A process for each source, which reads a file as fast as it can, logs and syncs it before it sends, and",
            "for each replica of each partition; then a client.  Merged: count, sum and average per second and key.",
            "Tuples per second of wall time, from the start of the sources to the end of the output at the client,",
            "connecting included.  CPU per tuple of the input.  Results compared with pyarrow's: counts and pairs",
            f"exactly, sums and means within {TOLERANCE:g}.",
        ],
    )
