"""CPU per tuple of a node process that merges and aggregates, against the bare NumPy kernels on the same data."""

from __future__ import annotations

import argparse
import os
import socket
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from threading import Thread
from typing import Any

import numpy as np
import trio

from benchmarks.cluster import (
    SEND_BYTES,
    Process,
    Segment,
    connected,
    feeder_main,
    node_main,
    one_node,
    only_merged,
    pieces_of,
    reading,
    running,
)
from benchmarks.cpu import cpu_for, cpu_of
from benchmarks.data import KEYS, NAMES, ROW_BYTES, STREAMS, Plain, Shape, buckets, elements, merged
from benchmarks.tables import benchmark, beside, chosen, demand
from replicas.link.connection import RECEIVE_BYTES
from spe.api import Environment, Stream, tumbling
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.batch import AnyArray, Batch, Boundary, Int64Array, Rows
from spe.stream.change import Change
from spe.stream.times import SECOND, format_duration
from spe.wire.codec import ElementEncoder

#: Tuples per batch, and batches of a segment; what the ratio should not exceed.
SHAPES = ((10, 10_000, 6.0), (100, 4_000, 5.0), (1_000, 500, 3.0), (10_000, 150, 3.0))


SCHEMA = {"key": "int64!", "value": "float64!", "flag": "bool!", "name": "string!"}


def _aggregate(sources: Sequence[Stream], env: Environment) -> list[Stream]:
    merged = sources[0].union(*sources[1:], name="merged")
    wanted = {"n": "count(*)", "total": "sum(value)", "mean": "avg(value)", "low": "min(value)", "high": "max(value)"}
    per_key = merged.key_by("key").window(tumbling("1s")).aggregate("per_key", **wanted)
    env.fragment("f", [merged, per_key], replicas=1)
    return [per_key]


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
        first, last = int(time[0]) // SECOND, int(time[-1]) // SECOND
        if first == last:
            self._add(first, key, value)
            return
        cuts = [0, *((np.diff(time // SECOND)).nonzero()[0] + 1).tolist(), len(time)]
        for low, high in pairwise(cuts):
            self._add(int(time[low]) // SECOND, key[low:high], value[low:high])

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
    """The client: it has all result rows, and the position of the stable stream."""

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
    wanted = [(w * SECOND, r) for w, r in kernels.results if (w + 1) * SECOND <= end_us]
    cuts = start.searchsorted([w for w, _ in wanted] + [end_us])
    demand(cuts[0] == 0 and cuts[-1] == len(key), "windows that must not be there")
    for (window, expected), low, high in zip(wanted, cuts[:-1], cuts[1:], strict=True):
        order = low + key[low:high].argsort()
        for mine, theirs in zip([key, *values], expected, strict=True):
            demand(bool(np.array_equal(mine[order], theirs)), f"the results of window {window} differ")


#: CPU seconds of the same work without an engine, for the buckets of a segment; it may take the results.
Bare = Callable[[Sequence[Sequence[Plain]], Reader], float]


async def measure(
    plan: Plan, directory: Directory, shape: Shape, rounds: int, bare: Bare
) -> tuple[list[float], list[float], Reader]:
    """CPU seconds per tuple of the node and without an engine, after a round of warm-up; and the results."""
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

    plan, directory = one_node(format_duration(shape.bucket_us), SCHEMA, _aggregate)
    node, without, reader = trio.run(measure, plan, directory, shape, rounds, bare)
    kernels.finish()
    check(reader.rows, kernels, reader.frontier)
    return node, without


@benchmark("node-cpu", "batch/stream | NumPy kernels, CPU ns/tuple | node, CPU ns/tuple | ratio | target")
def _rows(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Node process, SUnion and aggregate.

    A node process reads three streams over loopback TCP (29 bytes a tuple; per bucket a batch and a boundary of each),
    merges them, and counts, sums, averages and takes min and max per second over 1,000 keys.  Against: concatenate,
    stable argsort, take, ufunc.at on the same buckets in memory.  CPU time of the whole process (kernel included),
    paired rounds after one of warm-up: median (min-max).  Sent in pieces of 256 KiB, as a source that catches up does.
    """
    for batch, batches, limit in chosen(SHAPES, arguments):
        yield [f"{batch:,}", *beside(*aggregated(Shape(batch, batches), arguments.rounds), limit)]


# --- a node that only merges, against NumPy, and against a program that does the same with raw bytes ---

#: Tuples per batch, batches of a segment, as in node-cpu; what the ratios should not exceed: to NumPy, to the relay.
PASSING_SHAPES = ((100, 4_000, None, None), (1_000, 500, 8.0, 2.0), (10_000, 150, 8.0, 2.0))


class Relay:
    """The least program that does a node's work: takes three streams' columns from sockets, merges them, sends them on.

    A process of its own, with the same neighbours as the node: one that sends, one that reads.  It knows how many bytes
    come in what order, and uses the same memory again: it has no frames, checks, strings, redo data, or more than one
    thing to do at a time.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        least = SEND_BYTES // (shape.batch * ROW_BYTES)
        #: Batches that are sent at one go, as the node gets them.
        self._together = next(n for n in range(1, shape.batches + 1) if n >= least and shape.batches % n == 0)
        pairs = [connected() for _ in (*STREAMS, "merged")]
        self._pid = os.fork()
        mine, others = (0, 1) if self._pid else (1, 0)
        *self._inputs, self._output = [pair[mine] for pair in pairs]
        for pair in pairs:
            pair[others].close()
        if not self._pid:
            try:
                self._work()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)

    def close(self) -> None:
        for connection in (*self._inputs, self._output):
            connection.close()
        os.waitpid(self._pid, 0)

    def cpu(self, buckets: Sequence[Sequence[Plain]], wanted: bytes) -> float:
        """CPU seconds that it takes for a segment, of which ``wanted`` must come."""
        size = len(wanted)
        sending = Thread(target=self._send, args=(list(self._pieces(buckets)),))
        begin = cpu_of(self._pid)
        sending.start()
        received = list[bytes]()
        while size:
            received.append(self._output.recv(RECEIVE_BYTES))
            demand(bool(received[-1]), "the relay has died")
            size -= len(received[-1])
        taken = cpu_of(self._pid) - begin
        sending.join()
        demand(b"".join(received) == wanted, "the relay sent something else")
        return taken

    def _pieces(self, buckets: Sequence[Sequence[Plain]]) -> Iterator[tuple[socket.socket, bytes]]:
        for at in range(0, len(buckets), self._together):
            for stream, source in enumerate(self._inputs):
                parts = [bucket[stream] for bucket in buckets[at : at + self._together]]
                yield source, b"".join([c for p in parts for c in p])

    @staticmethod
    def _send(pieces: list[tuple[socket.socket, bytes]]) -> None:
        for source, piece in pieces:
            source.sendall(piece)

    def _work(self) -> None:
        """The child: until its inputs end."""
        batch = self._shape.batch * ROW_BYTES
        pieces = [bytearray(self._together * batch) for _ in self._inputs]
        waiting: list[AnyArray] = []
        size = came = 0
        while all(map(_fill, pieces, self._inputs)):
            came += self._together
            for at in range(0, self._together * batch, batch):
                waiting += merged([self._plain(piece, at) for piece in pieces])
                size += batch * len(pieces)
            if size >= SEND_BYTES or came == self._shape.batches:
                self._output.sendall(b"".join(waiting))
                waiting, size = [], 0
                came %= self._shape.batches

    def _plain(self, piece: bytearray, at: int) -> Plain:
        """The batch at a byte of the received piece; of 100 rows each second batch is not aligned."""
        columns = []
        for type_ in (np.int64, np.int64, np.float64, np.bool_, np.int32):
            columns.append(np.frombuffer(piece, type_, self._shape.batch, at))
            at += columns[-1].nbytes
        return Plain(*columns)


def _fill(piece: bytearray, source: socket.socket) -> bool:
    """Until it is full; False when the other end has hung up."""
    view, at = memoryview(piece), 0
    while at < len(piece):
        got = source.recv_into(view[at:])
        if not got:
            return False
        at += got
    return True


def check_passed(wanted: Sequence[AnyArray], rows: Sequence[Rows]) -> None:
    """The rows of a segment are those that NumPy makes of it: time, key, value, flag, name."""
    time = np.concatenate([r.time for r in rows])
    demand(bool(np.array_equal(time, wanted[0])), "a tuple is missing, came twice or out of order")
    for at in range(3):
        made = np.concatenate([r.columns[at].values for r in rows])
        demand(bool(np.array_equal(made, wanted[1 + at])), "a column came out different")
    made = np.concatenate([np.array(r.columns[3].to_list()) for r in rows])
    demand(bool(np.array_equal(made, np.array(NAMES).take(wanted[4]))), "the strings came out different")


def passed(shape: Shape, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """CPU seconds per tuple of the node, of the relay, and of the kernels."""
    relay, kernels = Relay(shape), list[float]()

    def bare(parts: Sequence[Sequence[Plain]], reader: Reader) -> float:
        kernels.append(cpu_for(lambda: deque(map(merged, parts), 0)) / (shape.tuples * len(STREAMS)))
        made = [merged(bucket) for bucket in parts]
        check_passed([np.concatenate(columns) for columns in zip(*made, strict=True)], reader.rows)
        reader.rows.clear()
        return relay.cpu(parts, b"".join([column for columns in made for column in columns]))

    try:
        plan, directory = one_node(format_duration(shape.bucket_us), SCHEMA, only_merged)
        node, without, _ = trio.run(measure, plan, directory, shape, rounds, bare)
    finally:
        relay.close()
    return node, without, kernels[1:]  # the first round is a warm-up


@benchmark(
    "passing",
    "batch/stream | NumPy, CPU ns/tuple | node / NumPy | target | relay, CPU ns/tuple | node, CPU ns/tuple | "
    "node / relay | target",
)
def _passing_rows(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Node process that only merges.

    As node-cpu, but all tuples go on to the client.  NumPy: concatenate, stable argsort, take of the same buckets in
    memory.  Relay: a program that receives three streams' columns as raw bytes, does that, and sends the result's
    bytes; without frames, checks, strings, redo data, or anything else to do.  Paired rounds: median (min-max).
    """
    for batch, batches, *limits in chosen(PASSING_SHAPES, arguments):
        node, relay, kernels = passed(Shape(batch, batches), arguments.rounds)
        of_kernels, _, *to_kernels = beside(node, kernels, limits[0])
        yield [f"{batch:,}", of_kernels, *to_kernels, *beside(node, relay, limits[1])]
