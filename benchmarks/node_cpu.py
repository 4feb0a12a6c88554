"""CPU per tuple of a node process that merges and aggregates, against the bare NumPy kernels on the same data."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import trio

from benchmarks.cluster import Process, Segment, feeder_main, free_address, node_main, running
from benchmarks.cpu import cpu_for, cpu_of
from benchmarks.data import NAMES, SECOND_US, STREAMS, Plain, Shape, elements, plain
from benchmarks.tables import beside, demand, show
from replicas.client.client import Client, open_client
from spe.api import Environment, stdin, tumbling
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.production import production_env, tune_malloc
from spe.stream.batch import AnyArray, Batch, Boundary, Int64Array, Rows
from spe.stream.strings import StringDictionary
from spe.stream.times import format_duration
from spe.wire.codec import ElementEncoder

#: Tuples per batch, and batches of a segment; what the ratio should not exceed.
SHAPES = ((10, 10_000, 6.0), (100, 4_000, 5.0), (1_000, 500, 3.0), (10_000, 150, 3.0))
#: What the feeder sends in one go.
SEND_BYTES = 256 << 10


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="paired rounds per size (node-cpu)")
    parser.add_argument("--sizes", type=int, nargs="*", help="tuples per batch (node-cpu, sunion, codec)")
    parser.add_argument("--profile", metavar="FILE", help="cProfile of the node process into a file (node-cpu)")
    parser.add_argument("--single", action="store_true", help="the feeder sends bucket by bucket (node-cpu)")


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


def make_segment(plan: Plan, stream: int, segment: int, shape: Shape, single: bool) -> Segment:
    """Encoded elements, in pieces as a source would send them."""
    if stream not in _ENCODERS:
        _ENCODERS[stream] = _Encoder(plan, stream)
    return _ENCODERS[stream].segment(shape, segment, single)


class _Encoder:
    """The codec's tables belong to a connection, so one encoder makes all segments of a stream."""

    def __init__(self, plan: Plan, stream: int) -> None:
        self._dictionary = StringDictionary(NAMES)
        self._stream = stream
        self._encoder = ElementEncoder(list(plan.sources.values())[stream].schema)

    def segment(self, shape: Shape, segment: int, single: bool) -> Segment:
        made = elements(shape, segment, self._stream, self._dictionary)
        pieces: list[bytes] = []
        waiting: list[bytes] = []
        for at in range(0, len(made), 2):
            waiting.append(self._encoder.encode_many(made[at : at + 2]))
            if single or sum(map(len, waiting)) >= SEND_BYTES:
                pieces.append(b"".join(waiting))
                waiting = []
        pieces.append(b"".join(waiting))
        return [p for p in pieces if p]


#: Of this process, which is a feeder: by stream.
_ENCODERS: dict[int, _Encoder] = {}


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

    def bucket(self, parts: list[Plain]) -> None:
        time = np.concatenate([p.time for p in parts])
        order = time.argsort(kind="stable")
        time = time.take(order)
        key = np.concatenate([p.key for p in parts]).take(order)
        value = np.concatenate([p.value for p in parts]).take(order)
        np.concatenate([p.flag for p in parts]).take(order)
        np.concatenate([p.name for p in parts]).take(order)
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


def cut(data: Plain, shape: Shape) -> Iterator[Plain]:
    for low in range(0, shape.tuples, shape.batch):
        high = low + shape.batch
        yield Plain(
            data.time[low:high], data.key[low:high], data.value[low:high], data.flag[low:high], data.name[low:high]
        )


class Reader:
    """The client: keeps all result rows, and says how far the stable stream is."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.rows: list[Rows] = []
        self.frontier = 0
        self._moved = trio.Event()

    async def run(self) -> None:
        async for change in self._client.changes():
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
Bare = Callable[[list[list[Plain]], Reader], float]


async def measure(
    plan: Plan,
    directory: Directory,
    shape: Shape,
    rounds: int,
    bare: Bare,
    *,
    single: bool = False,
    profile: str | None = None,
) -> tuple[list[float], list[float], Reader]:
    """CPU seconds per tuple: of the node, and without an engine; the first round is a warm-up.  And what came out."""
    feeder = Process(feeder_main, plan, directory, make_segment, (shape, single))
    node = Process(node_main, plan, directory, "n", profile)
    of_node, of_bare = [], []
    env = production_env(Path("."), 0)
    with running(node, feeder):
        async with open_client(env, plan, directory, "bench") as client, trio.open_nursery() as nursery:
            reader = Reader(client)
            nursery.start_soon(reader.run)
            for segment in range(rounds + 1):
                await trio.to_thread.run_sync(feeder.ask, "load", segment)
                parts = [list(cut(plain(shape, segment, s), shape)) for s in range(len(STREAMS))]
                buckets = [list(p) for p in zip(*parts, strict=True)]
                tuples = shape.tuples * len(STREAMS)
                begin = cpu_of(node.pid)
                await trio.to_thread.run_sync(feeder.ask, "go")
                await reader.reach(shape.end_us(segment))
                of_node.append((cpu_of(node.pid) - begin) / tuples)
                of_bare.append(bare(buckets, reader) / tuples)
            nursery.cancel_scope.cancel()
    return of_node[1:], of_bare[1:], reader


def aggregated(
    shape: Shape, rounds: int, *, single: bool = False, profile: str | None = None
) -> tuple[list[float], list[float]]:
    """CPU seconds per tuple of node and kernels; their results are compared."""
    kernels = Kernels(1_000)

    def bare(buckets: list[list[Plain]], _: Reader) -> float:
        return cpu_for(lambda: [kernels.bucket(bucket) for bucket in buckets])

    plan, directory = make_plan(shape.bucket_us)
    node, without, reader = trio.run(
        partial(measure, plan, directory, shape, rounds, bare, single=single, profile=profile)
    )
    kernels.finish()
    check(reader.rows, kernels, reader.frontier)
    return node, without


def run(arguments: argparse.Namespace) -> None:
    tune_malloc()
    rows = []
    for batch, batches, limit in SHAPES:
        if arguments.sizes and batch not in arguments.sizes:
            continue
        measured = aggregated(
            Shape(batch, batches), arguments.rounds, single=arguments.single, profile=arguments.profile
        )
        rows.append([f"{batch:,}", *beside(*measured, limit)])
    show(
        "Node process, SUnion and aggregate",
        ["batch/stream", "NumPy kernels, CPU ns/tuple", "node, CPU ns/tuple", "ratio", "target", "check"],
        rows,
        [
            "A node process reads three streams over loopback TCP (29 bytes a tuple; per",
            "bucket a batch and a boundary of",
            "each), merges them, and counts, sums, averages and takes min and max per second",
            "over 1,000 keys.  Against:",
            "concatenate, stable argsort, take, ufunc.at on the same buckets in memory.  CPU time of the whole process",
            f"(kernel included), {arguments.rounds} paired rounds after one of warm-up: median (min-max)."
            + (
                "  Sent bucket by bucket."
                if arguments.single
                else "  Sent in pieces of 256 KiB, as a source that catches up does."
            ),
        ],
    )
