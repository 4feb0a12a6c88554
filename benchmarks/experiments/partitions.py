"""What many partitions cost two nodes at one total rate: partitions are what moves, so there are many of them.

Two sources, merged and counted per second and key, in partitions by key, each on one of two node processes in turn; a
client reads all of them.  Then the same with sources that send hardly more than boundaries.  Delay of a result: from
the end of its second until the client has it; of those that come within two seconds after the end, a share that is
below 1 where connections broke because the machine had too much to do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import trio

from benchmarks.cluster import Process, free_address, node_main, reading, running, source_main
from benchmarks.cpu import cpu_of
from benchmarks.experiments.results import Row, lines, places
from benchmarks.tables import demand
from spe.config import load_data
from spe.plots import Panel
from spe.runtime.production import tune_malloc
from spe.stream.batch import Batch
from spe.stream.change import Change
from spe.stream.names import Kind
from spe.stream.times import SECOND

TITLE = "Many partitions on two nodes"
#: How often each point is measured where --runs does not say.
RUNS: Final = 5
PARTITIONS: Final = (2, 10, 100, 300)
SOURCES: Final = ("a", "b")
NODES: Final = ("n1", "n2")
#: Tuples per second of each source; while idle.
RATE: Final = 10_000
IDLE: Final = 1
KEYS: Final = 10_000
#: Seconds before measuring begins, and while it lasts.
SECONDS: Final = (4.0, 10.0)
QUICK: Final = (2.0, 2.0)
#: After that, for results that are late.
GRACE_S: Final = 2.0


class Seen(NamedTuple):
    """Of one run.  Shares are of a core, of all nodes or sources together; the memory is a node's."""

    nodes_cpu: float
    sources_cpu: float
    p50_ms: float
    p99_ms: float
    memory_mb: float
    came: float
    tentative: int


def measure(quick: bool, runs: int = RUNS) -> Iterator[Row]:
    tune_malloc()
    for many in PARTITIONS[:2] if quick else PARTITIONS:
        busy, idle = (
            [trio.run(_seen, many, rate, *(QUICK if quick else SECONDS)) for _ in range(1 if quick else runs)]
            for rate in (RATE, IDLE)
        )
        idle_cpu = median(one.nodes_cpu for one in idle)
        tentative = max(one.tentative for one in busy + idle)
        yield {
            "partitions": many,
            "runs": len(busy),
            "nodes_cpu": median(one.nodes_cpu for one in busy),
            "sources_cpu": median(one.sources_cpu for one in busy),
            "idle_nodes_cpu": idle_cpu,
            "idle_each": idle_cpu / many,
            "idle_sources_cpu": median(one.sources_cpu for one in idle),
            "p50_ms": median(one.p50_ms for one in busy),
            "p99_ms": median(one.p99_ms for one in busy),
            "memory_mb": median(one.memory_mb for one in busy),
            "came": min(one.came for one in busy),
            "tentative": tentative,
            "findings": "",
        }


async def _seen(many: int, rate: int, warm_up: float, seconds: float) -> Seen:
    plan, directory = load_data(_configuration(many, rate))
    results = _Results()
    sources = [Process(source_main, plan, directory, name) for name in SOURCES]
    nodes = [Process(node_main, plan, directory, name) for name in NODES]
    with running(*nodes, *sources):
        async with reading(plan, directory, "client", results.take):
            for source in sources:
                await source.do("begin")
            await trio.sleep(warm_up)
            before, begun = _cpu(nodes, sources), time.time_ns() // 1000
            await trio.sleep(seconds)
            took = (time.time_ns() // 1000 - begun) / SECOND
            of_nodes, of_sources = ((a - b) / took for a, b in zip(_cpu(nodes, sources), before, strict=True))
            memory = max(_resident_mb(node.pid) for node in nodes)
            await trio.sleep(GRACE_S)
    delays = results.delays(begun, begun + round(seconds * SECOND))
    came = results.came(begun, begun + round((seconds - 1) * SECOND), rate * len(SOURCES)) if rate == RATE else 1.0
    p50, p99 = (float(np.percentile(delays, p)) for p in (50, 99)) if len(delays) else (0.0, 0.0)
    return Seen(of_nodes, of_sources, p50, p99, memory, came, results.tentative)


def _cpu(nodes: Sequence[Process], sources: Sequence[Process]) -> tuple[float, float]:
    return sum(cpu_of(p.pid) for p in nodes), sum(cpu_of(p.pid) for p in sources)


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the system does not say how much memory a process has")


class _Results:
    """What the client gets: (begin of the second, when it came, tuples counted) of each batch of results."""

    def __init__(self) -> None:
        self.tentative = 0
        self._found: list[tuple[int, int, int, int]] = []

    def take(self, change: Change) -> None:
        element = change.element
        if not isinstance(element, Batch) or not len(element):
            return
        if element.kind is Kind.TENTATIVE:
            self.tentative += len(element)
            return
        _, start, _, count = (column.values for column in element.rows.columns)
        now = time.time_ns() // 1000
        for second in np.unique(start):
            of = start == second
            self._found.append((int(second), now, int(of.sum()), int(count[of].sum())))

    def delays(self, since_us: int, until_us: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Milliseconds, of each result whose second ended in this period."""
        mine = [one for one in self._found if since_us <= one[0] + SECOND < until_us]
        return np.repeat(
            [(now - second - SECOND) / 1e3 for second, now, _, _ in mine], [rows for _, _, rows, _ in mine]
        )

    def came(self, since_us: int, until_us: int, rate: int) -> float:
        """Share of the tuples of each second that its results count, of the second with least.

        Raises WrongResult where some count more than there were.
        """
        counts: dict[int, int] = {}
        for second, _, _, count in self._found:
            if since_us <= second + SECOND < until_us:
                counts[second] = counts.get(second, 0) + count
        demand(max(counts.values(), default=0) <= rate, f"more than {rate} tuples per second: {counts}")
        return min(counts.values(), default=0) / rate


def _configuration(many: int, rate: int) -> dict[str, Any]:
    generator = {"name": "orders", "rate": rate, "keys": KEYS}
    return {
        "cluster": "partitions",
        "bucket": "100ms",
        "defaults": {"x": "5s", "alpha": 0.9, "policy": "process"},
        "sources": {
            name: {"from": {"generator": generator | {"seed": at}}, "boundary": "100ms", "address": free_address()}
            for at, name in enumerate(SOURCES)
        },
        "query": {
            "all": {"union": list(SOURCES)},
            "counts": {
                "aggregate": {
                    "from": "all",
                    "window": {"tumbling": "1s"},
                    "group_by": "key",
                    "compute": {"n": "count(*)"},
                }
            },
        },
        "outputs": ["counts"],
        "fragments": {
            "counting": {
                "operators": ["all", "counts"],
                "key": "key",
                "partitions": many,
                "replicas": [[NODES[at % len(NODES)]] for at in range(many)],
            }
        },
        "nodes": {name: {"address": free_address()} for name in NODES},
        "clients": {"client": {"reads": ["counts"]}},
    }


def panels(rows: Sequence[Row]) -> list[Panel]:
    """CPU and delay by the number of partitions."""
    some = [{**row, "all": ""} for row in rows]
    return [
        Panel(title, places(some, "partitions"), lines(some, "all", "partitions", column), "partitions on two nodes")
        for title, column in (
            ("CPU of both nodes, cores", "nodes_cpu"),
            ("the same while idle", "idle_nodes_cpu"),
            ("p99 of the delay, ms", "p99_ms"),
            ("memory of a node, MB", "memory_mb"),
        )
    ]
