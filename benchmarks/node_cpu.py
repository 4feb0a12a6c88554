"""CPU per tuple of a node process that merges and aggregates, against the bare NumPy kernels on the same data."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import trio

from benchmarks.cluster import Process, Segment, feeder_main, free_address, node_main, pieces_of, reading, running
from benchmarks.cpu import cpu_for, cpu_of
from benchmarks.data import KEYS, SECOND_US, STREAMS, Plain, Shape, buckets, elements, merged
from benchmarks.tables import beside, chosen, demand, show
from spe.api import Environment, stdin, tumbling
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.batch import AnyArray, Batch, Boundary, Int64Array, Rows
from spe.stream.change import Change
from spe.stream.times import format_duration
from spe.wire.codec import ElementEncoder

#: Tuples per batch, and batches of a segment; what the ratio should not exceed.
SHAPES = ((10, 10_000, 6.0), (100, 4_000, 5.0), (1_000, 500, 3.0), (10_000, 150, 3.0))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="paired rounds per size (node-cpu)")
    parser.add_argument("--sizes", type=int, nargs="*", help="tuples per batch (node-cpu, sunion, codec)")


def make_plan(bucket_us: int, *, aggregate: bool = True) -> Deployed:
    """Three sources, merged, and aggregated if wanted, by one node; X so large that nothing is ever tentative."""
    env = Environment("bench", bucket=format_duration(bucket_us), x="60s")
    schema = {"key": "int64!", "value": "float64!", "flag": "bool!", "name": "string!"}
    sources = [
        env.source(s, stdin(format="jsonl"), schema, boundary=format_duration(bucket_us), address=free_address())
        for s in STREAMS
    ]
    made = [sources[0].union(*sources[1:], name="merged")]
    if aggregate:
        wanted = {
            "n": "count(*)",
            "total": "sum(value)",
            "mean": "avg(value)",
            "low": "min(value)",
            "high": "max(value)",
        }
        made.append(made[0].key_by("key").window(tumbling("1s")).aggregate("per_key", **wanted))
    env.outputs(made[-1]).node("n", free_address()).fragment("f", made, replicas=1).client("bench", made[-1:])
    return env.deployed()


def make_segment(encoder: ElementEncoder, stream: int, segment: int, shape: Shape) -> Segment:
    """Encoded elements, in pieces as a source would send them."""
    return pieces_of(encoder, elements(shape, segment, stream))


class Kernels:
    """The same work without an engine: concatenate, sort, take, and ``ufunc.at`` into arrays by key."""

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._window = 0
        self.results: list[tuple[int, tuple[Any, ...]]] = []
        self._begin()

    def _begin(self) -> None:
        self._count = np.zeros(self._keys, np.int64)
        self._sum = np.zeros(self._keys)
        self._low = np.full(self._keys, np.inf)
        self._high = np.full(self._keys, -np.inf)

    def bucket(self, parts: Sequence[Plain]) -> None:
        time, key, value, *_ = merged(parts)
        first, last = int(time[0]) // SECOND_US, int(time[-1]) // SECOND_US
        if first == last:
            self._add(first, key, value)
            return
        cuts = [0, *((np.diff(time // SECOND_US)).nonzero()[0] + 1).tolist(), len(time)]
        for low, high in pairwise(cuts):
            self._add(int(time[low]) // SECOND_US, key[low:high], value[low:high])

    def _add(self, window: int, key: Int64Array, value: AnyArray) -> None:
        if window != self._window:
            self.finish()
            self._window = window
        np.add.at(self._count, key, 1)
        np.add.at(self._sum, key, value)
        np.minimum.at(self._low, key, value)
        np.maximum.at(self._high, key, value)

    def finish(self) -> None:
        at = self._count.nonzero()[0]
        if len(at):
            n, total = self._count[at], self._sum[at]
            self.results.append((self._window, (at, n, total, total / n, self._low[at], self._high[at])))
            self._begin()


class Reader:
    """The client: keeps all result rows, and says how far the stable stream is."""

    def __init__(self) -> None:
        self.rows: list[Rows] = []
        self.frontier = 0
        self._moved = trio.Event()

    def take(self, change: Change) -> None:
        if isinstance(change.element, Batch):
            self.rows.append(change.element.rows)
        elif isinstance(change.element, Boundary):
            self.frontier = change.element.time
            self._moved.set()
            self._moved = trio.Event()

    async def reach(self, end_us: int) -> None:
        with trio.fail_after(30):
            while self.frontier < end_us:
                await self._moved.wait()


def check(rows: list[Rows], kernels: Kernels, end_us: int) -> None:
    """Windows that have ended are equal to the bit."""
    columns = [np.concatenate(values) for values in zip(*[[c.values for c in r.columns] for r in rows], strict=True)]
    key, start, _, *values = columns
    wanted = [(w * SECOND_US, r) for w, r in kernels.results if (w + 1) * SECOND_US <= end_us]
    cuts = start.searchsorted([w for w, _ in wanted] + [end_us])
    demand(cuts[0] == 0 and cuts[-1] == len(key), "windows that must not be there")
    for (window, expected), low, high in zip(wanted, cuts[:-1], cuts[1:], strict=True):
        order = low + key[low:high].argsort()
        for mine, theirs in zip([key, *values], expected, strict=True):
            demand(bool(np.array_equal(mine[order], theirs)), f"the results of window {window} differ")


#: CPU seconds of doing without an engine what the node does with these buckets of a segment; it may take the results.
Bare = Callable[[Sequence[Sequence[Plain]], Reader], float]


async def measure(
    plan: Plan, directory: Directory, shape: Shape, rounds: int, bare: Bare
) -> tuple[list[float], list[float], Reader]:
    """CPU seconds per tuple: of the node, and without an engine; the first round is a warm-up.  And what came out."""
    feeder = Process(feeder_main, plan, directory, make_segment, (shape,))
    node = Process(node_main, plan, directory, "n")
    of_node, of_bare = [], []
    tuples, reader = shape.tuples * len(STREAMS), Reader()
    with running(node, feeder):
        async with reading(plan, directory, "bench", reader.take):
            for segment in range(rounds + 1):
                await feeder.do("load", segment)
                parts = buckets(shape, segment)
                begin = cpu_of(node.pid)
                await feeder.do("go")
                await reader.reach(shape.end_us(segment))
                of_node.append((cpu_of(node.pid) - begin) / tuples)
                of_bare.append(bare(parts, reader) / tuples)
    return of_node[1:], of_bare[1:], reader


def aggregated(shape: Shape, rounds: int) -> tuple[list[float], list[float]]:
    """CPU seconds per tuple of node and kernels; their results are compared."""
    kernels = Kernels(KEYS)

    def bare(parts: Sequence[Sequence[Plain]], _: Reader) -> float:
        return cpu_for(lambda: [kernels.bucket(bucket) for bucket in parts])

    plan, directory = make_plan(shape.bucket_us)
    node, without, reader = trio.run(measure, plan, directory, shape, rounds, bare)
    kernels.finish()
    check(reader.rows, kernels, reader.frontier)
    return node, without


def run(arguments: argparse.Namespace) -> None:
    rows = []
    for batch, batches, limit in chosen(SHAPES, arguments):
        rows.append([f"{batch:,}", *beside(*aggregated(Shape(batch, batches), arguments.rounds), limit)])
    show(
        "Node process, SUnion and aggregate",
        ["batch/stream", "NumPy kernels, CPU ns/tuple", "node, CPU ns/tuple", "ratio", "target", "check"],
        rows,
        [
            "A node process reads three streams over loopback TCP (29 bytes a tuple; per bucket a batch and a boundary",
            "of each), merges them, and counts, sums, averages and takes min and max per second over 1,000 keys.",
            "Against: concatenate, stable argsort, take, ufunc.at on the same buckets in memory.  CPU time of the",
            f"whole process (kernel included), {arguments.rounds} paired rounds after one of warm-up: median",
            "(min-max).  Sent in pieces of 256 KiB, as a source that catches up does.",
        ],
    )
