"""CPU that checkpoints for a standby take, against their interval (PPA section VI-A): node processes, real time.

A task of the first level of the paper's topology: two inputs, joined on a key that each tuple has of its own, so that
the state is the input of the window.  Its node sends a checkpoint to a standby on another node, every interval; beside
it, in the same minutes, the same node without a standby.  The window is full when measuring begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import Any, Final

import trio

from benchmarks.cluster import (
    Process,
    Segment,
    feeder_main,
    free_address,
    node_main,
    numbered_buckets,
    pieces_of,
    reading,
    running,
)
from benchmarks.cpu import cpu_of
from benchmarks.experiments.results import Row, lines, places
from spe.config import load_data
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plots import Panel
from spe.runtime.production import tune_malloc
from spe.stream.batch import Boundary
from spe.stream.change import Change
from spe.stream.times import MILLISECOND, SECOND
from spe.wire.codec import ElementEncoder

TITLE = "CPU share of checkpoints"
SOURCES: Final = ("a", "b")
BUCKET_US: Final = 100 * MILLISECOND
#: Seconds between checkpoints; 0: no standby.
INTERVALS: Final = (0, 1, 5, 15, 30)
#: Tuples per second and source, seconds of the window, seconds that are measured, rounds.
SETTINGS: Final = ((1000, 30, 30, 3),)


def measure(quick: bool) -> Iterator[Row]:
    tune_malloc()
    settings, intervals = (((1000, 4, 3, 1),), (0, 1)) if quick else (SETTINGS, INTERVALS)
    for rate, window, seconds, rounds in settings:
        found: dict[int, list[tuple[float, float]]] = {every: [] for every in intervals}
        for _ in range(rounds):
            for every, shares in zip(intervals, _round(rate, window, seconds, intervals), strict=True):
                found[every].append(shares)
        for every in intervals:
            of = [one / without for (one, _), (without, _) in zip(found[every], found[0], strict=True)]
            yield {
                "rate": rate,
                "window_s": window,
                "interval_s": every,
                "node_cpu": median(one for one, _ in found[every]),
                "standby_cpu": median(other for _, other in found[every]) if every else None,
                "against_none": median(of),
                "smallest": min(of),
                "largest": max(of),
                "findings": "",
            }


@dataclass(frozen=True)
class _Cluster:
    """Running processes; the first of the nodes runs the task, the other one stands by."""

    plan: Plan
    directory: Directory
    feeder: Process
    nodes: Sequence[Process]


def _round(rate: int, window: int, seconds: float, intervals: Sequence[int]) -> list[tuple[float, float]]:
    """Of each interval, in the same time: CPU of the node and of its standby's, shares of a core.

    Processes are started here, for they die with the thread that started them.
    """
    with ExitStack() as stack:
        clusters = []
        for every in intervals:
            plan, directory = load_data(_configuration(window, every))
            feeder = Process(feeder_main, plan, directory, make_segment, (rate, window))
            nodes = [Process(node_main, plan, directory, str(name)) for name in directory.nodes]
            stack.enter_context(running(feeder, *nodes))
            clusters.append(_Cluster(plan, directory, feeder, nodes))
        return trio.run(_all, clusters, window, seconds)


async def _all(clusters: Sequence[_Cluster], window: int, seconds: float) -> list[tuple[float, float]]:
    found: dict[int, tuple[float, float]] = {}

    async def one(at: int) -> None:
        found[at] = await _shares(clusters[at], window, seconds)

    async with trio.open_nursery() as nursery:
        for at in range(len(clusters)):
            nursery.start_soon(one, at)
    return [found[at] for at in range(len(clusters))]


async def _shares(cluster: _Cluster, window: int, seconds: float) -> tuple[float, float]:
    feeder, nodes = cluster.feeder, cluster.nodes
    reached, full = 0, trio.Event()

    def take(change: Change) -> None:
        nonlocal reached
        if isinstance(change.element, Boundary):
            reached = change.element.time
            if reached >= (1 + window) * SECOND:
                full.set()

    async with reading(cluster.plan, cluster.directory, "client", take) as (_, nursery):
        await feeder.send(0)
        with trio.fail_after(60):
            await full.wait()
        nursery.start_soon(feeder.send_each, count(1), BUCKET_US)
        await trio.sleep(2)
        began, before = trio.current_time(), [cpu_of(node.pid) for node in nodes]
        await trio.sleep(seconds)
        took = trio.current_time() - began
        shares = [(cpu_of(node.pid) - b) / took for node, b in zip(nodes, before, strict=True)]
        if reached < (window + seconds) * SECOND:
            raise RuntimeError("results did not keep up with their sources")
    return shares[0], sum(shares[1:])


def make_segment(encoder: ElementEncoder, _: int, segment: int, rate: int, window: int) -> Segment:
    """Segment 0: what fills the window; from 1 on: a bucket each."""
    full = window * SECOND // BUCKET_US
    buckets = range(full) if segment == 0 else range(full + segment - 1, full + segment)
    return pieces_of(encoder, numbered_buckets(buckets, rate * BUCKET_US // SECOND, BUCKET_US))


def _configuration(window: int, every: int) -> dict[str, Any]:
    query: dict[str, Any] = {
        f"of_{name}": {"map": {"from": name, "compute": {"n": "n", "key": f"n * {len(SOURCES)} + {at}"}}}
        for at, name in enumerate(SOURCES)
    }
    query["merged"] = {"union": list(query)}
    query["joined"] = {"join": {"left": "merged", "right": "merged", "on": "key", "within": [f"-{window}s", "0s"]}}
    fragment: dict[str, Any] = {"operators": list(query), "replicas": ["n"]}
    if every:
        fragment |= {"standby": ["b"], "checkpoint": f"{every}s"}
    return {
        "cluster": "checkpointing",
        "bucket": f"{BUCKET_US // MILLISECOND}ms",
        "defaults": {"x": "5s", "alpha": 0.9, "policy": "process"},
        "nodes": {name: {"address": free_address()} for name in (["n", "b"] if every else ["n"])},
        "sources": {
            name: {
                "from": {"generator": {"name": "sequence", "rate": 1000, "duration": "1s"}},
                "boundary": f"{BUCKET_US // MILLISECOND}ms",
                "address": free_address(),
            }
            for name in SOURCES
        },
        "query": query,
        "outputs": ["joined"],
        "fragments": {"task": fragment},
        "clients": {"client": {"reads": ["joined"]}},
    }


def panels(rows: Sequence[Row]) -> list[Panel]:
    """What the node takes beyond what it takes without a standby."""
    some = [{**row, "more": 100 * (row["against_none"] - 1)} for row in rows if row["interval_s"]]
    found = lines(some, "rate", "interval_s", "more")
    return [Panel("more CPU than without a standby, %", places(some, "interval_s"), found, "interval, s")]
