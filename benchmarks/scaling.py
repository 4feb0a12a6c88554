"""A merged aggregate over partitions and replicas, each a process: throughput, and whose CPU it costs.

Model: a source spends s + f on each tuple for one subscriber and f more for each further one; a node spends n / P + m
on each tuple of the input, m being what does not divide.  With a core for every process the rate is 1 / (the largest of
these).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import trio

from benchmarks.cluster import Process, free_address, node_main, results, running, source_main
from benchmarks.cpu import cpu_of
from benchmarks.tables import CHECKED, show
from benchmarks.throughput import check_merge, generate, merged_per_key
from replicas.client.client import open_client
from spe.api import Environment
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.production import production_env, tune_gc, tune_malloc
from spe.stream.batch import Rows

#: Partitions and replicas of each.
SHAPES = ((1, 1), (2, 1), (4, 1), (1, 2), (1, 3))
FILES = 3
KEYS = 1_000
PATIENCE_S = 600


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run; CPU in nanoseconds per input tuple.

    Attributes:
      wall_s: from the start of the sources to the end of the output at the client.
      source_ns: all sources together; each handles a third of the tuples.
      node_ns: all nodes together; busiest_ns: the busiest one.
    """

    wall_s: float
    source_ns: float
    node_ns: float
    busiest_ns: float

    @property
    def own_limit(self) -> float:
        """Tuples per second if every process had a core of its own: the busiest node's, or a source's."""
        return 1e9 / max(self.busiest_ns, self.source_ns / FILES)


def options(parser: argparse.ArgumentParser) -> None:
    """--rows, --columns and --disorder of throughput."""


def make_plan(files: list[str], partitions: int, replicas: int, arguments: argparse.Namespace) -> Deployed:
    """One node for each replica of each partition."""
    env = Environment("bench", bucket="100ms", x="60s")
    merged, out = merged_per_key(env, files, arguments)
    names = [[f"n{p}_{r}" for r in range(replicas)] for p in range(partitions)]
    for name in (name for of_partition in names for name in of_partition):
        env.node(name, free_address())
    placed = names if partitions > 1 else names[0]
    env.outputs(out).fragment("f", [merged, out], key="key", partitions=partitions, replicas=placed)
    return env.client("bench", [out]).deployed()


async def measure(plan: Plan, directory: Directory, tuples: int) -> tuple[list[Rows], Cost]:
    """Result rows, and what they cost."""
    made = [Process(source_main, plan, directory, stream) for stream in plan.sources]
    nodes = [Process(node_main, plan, directory, node, None) for node in directory.nodes]
    with running(*nodes, *made):
        async with open_client(production_env(Path("."), 0), plan, directory, "bench") as client:
            begun = time.perf_counter()
            before = [cpu_of(p.pid) for p in (*made, *nodes)]
            rows = await results(client, made, nodes, PATIENCE_S)
            wall_s = time.perf_counter() - begun
            spent = [1e9 * (cpu_of(p.pid) - b) / tuples for p, b in zip((*made, *nodes), before, strict=True)]
    of_sources, of_nodes = spent[: len(made)], spent[len(made) :]
    return rows, Cost(wall_s, sum(of_sources), sum(of_nodes), max(of_nodes))


def run(arguments: argparse.Namespace) -> None:
    tune_malloc()
    tune_gc()
    table = []
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder, f"{at}.parquet")) for at in range(FILES)]
        for at, file in enumerate(files):
            generate(Path(file), rows=arguments.rows, keys=KEYS, rate=50_000, seed=at)
        tuples = sum(pq.read_metadata(file).num_rows for file in files)
        for partitions, replicas in SHAPES:
            plan, directory = make_plan(files, partitions, replicas, arguments)
            rows, cost = trio.run(measure, plan, directory, tuples)
            check_merge(rows, plan, files, arguments)
            table.append(
                [
                    partitions,
                    replicas,
                    f"{cost.wall_s:.2f}",
                    f"{tuples / cost.wall_s / 1e6:.2f}",
                    f"{cost.source_ns:.0f}",
                    f"{cost.node_ns:.0f}",
                    f"{cost.busiest_ns:.0f}",
                    f"{cost.own_limit / 1e6:.1f}",
                    CHECKED,
                ]
            )
    show(
        "Partitions and replicas",
        [
            "partitions",
            "replicas",
            "wall s",
            "M tuples/s",
            "sources, CPU ns/tuple",
            "nodes, CPU ns/tuple",
            "busiest node",
            "limit with a core for each, M/s",
            "check",
        ],
        table,
        [
            f"{tuples:,} tuples of {FILES} files, {KEYS:,} keys, merged; count, sum and average per second and key.",
            "A process for each source and for each replica of each partition.  CPU per tuple of the input.",
        ],
    )
