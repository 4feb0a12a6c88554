"""The cost of many partitions on two nodes at one total rate: partitions move, so there are many of them.

Two sources, merged and counted per second and key, in partitions by key, each on one of two node processes in turn; a
client reads all of them.  Delay of a result: from the end of its second until the client has it.  ``came``: share of
the tuples in results that come within two seconds; below 1 where the machine had too much to do for its connections.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

import numpy as np
import yaml

from benchmarks.experiments.played_run import PlayedRun, played, sleep_until
from benchmarks.experiments.record import Plot, Row, experiment, sweep
from benchmarks.tables import demand
from spe.stream.batch import Batch
from spe.stream.names import Kind
from spe.stream.times import SECOND

NODES: Final = ("n1", "n2")
SOURCES: Final = ("a", "b")
#: Tuples per second of each source.
RATE: Final = 10_000
KEYS: Final = 10_000
#: After the measured seconds, for late results.
GRACE_S: Final = 2.0


@experiment(
    "partitions",
    "no paper",
    lambda quick: sweep(partitions=(2, 10) if quick else (2, 10, 100, 300)),
    Plot("partitions", "", "nodes_cpu p99_ms"),
    runs=5,
)
def partitions(quick: bool, partitions: int) -> Row:
    """Many partitions on two nodes.

    CPU in cores of both nodes together.
    """
    warm_up, seconds = (2.0, 2.0) if quick else (4.0, 10.0)
    with played(_configuration(partitions, warm_up + seconds + GRACE_S)) as run:
        with run.started():
            sleep_until(run.begun_us(), warm_up)
            before, begun_us = run.cpu(), time.time_ns() // 1000
            time.sleep(seconds)
            took_s = (time.time_ns() // 1000 - begun_us) / SECOND
            cpu = {name: (cpu_s - before[name]) / took_s for name, cpu_s in run.cpu().items()}
            findings = run.end(300)
        return {
            "nodes_cpu": sum(cpu[name] for name in NODES),
            **_results(run, partitions, begun_us, begun_us + round(seconds * SECOND)),
            "findings": findings,
        }


def _results(run: PlayedRun, many: int, since_us: int, until_us: int) -> Row:
    """Delays of results whose second ended in this period; the least share of the tuples of a second in its results.

    Raises WrongResult where results count more tuples than there were.
    """
    delays, counts, tentative = [0.0], Counter[int](), 0
    for partition in range(many):
        for change in run.recorded("counts", partition):
            if not isinstance(change.element, Batch):
                continue
            if change.element.kind is Kind.TENTATIVE:
                tentative += len(change.element)
                continue
            _, start, _, count = (column.values for column in change.element.rows.columns)
            ends = start + SECOND
            mine = (ends >= since_us) & (ends < until_us)
            delays += ((change.arrived_us - ends[mine]) / 1e3).tolist()
            if change.arrived_us < until_us + GRACE_S * SECOND:
                for second, tuples in zip(ends[mine].tolist(), count[mine].tolist(), strict=True):
                    counts[second] += tuples
    total = RATE * len(SOURCES)
    demand(max(counts.values(), default=0) <= total, f"more than {total} tuples per second: {counts}")
    p50, p99 = (float(np.percentile(delays, p)) for p in (50, 99))
    came = min(counts.values(), default=0) / total
    return {"p50_ms": p50, "p99_ms": p99, "came": came, "tentative": tentative}


def _configuration(many: int, lasts_s: float) -> dict[str, Any]:
    generator = f"name: orders, rate: {RATE}, keys: {KEYS}, duration: {lasts_s:g}s"
    config: dict[str, Any] = yaml.safe_load(f"""
cluster: partitions
bucket: 100ms
defaults: {{x: 5s, alpha: 0.9, policy: process}}
sources:
  a: {{from: {{generator: {{{generator}, seed: 0}}}}, boundary: 100ms}}
  b: {{from: {{generator: {{{generator}, seed: 1}}}}, boundary: 100ms}}
query:
  all: {{union: [a, b]}}
  counts: {{aggregate: {{from: all, window: {{tumbling: 1s}}, group_by: key, compute: {{n: count(*)}}}}}}
outputs: [counts]
fragments: {{counting: {{operators: [all, counts], key: key, partitions: {many}}}}}
nodes: [{", ".join(NODES)}]
clients: {{client: {{reads: [counts]}}}}
""")
    config["fragments"]["counting"]["replicas"] = [[NODES[at % len(NODES)]] for at in range(many)]
    return config
