"""A node that only merges, against bare NumPy, and against that and a raw copy of the bytes from socket to socket."""

from __future__ import annotations

import argparse
import os
import socket
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np
import trio

from benchmarks.cpu import cpu_for
from benchmarks.data import NAMES, ROW_BYTES, STREAMS, Plain, Shape
from benchmarks.node_cpu import SEND_BYTES, Reader, make_plan, measure
from benchmarks.sunion import bare as merge
from benchmarks.tables import beside, demand, show
from replicas.links import RECEIVE_BYTES
from spe.batch import AnyArray
from spe.runtime import tune_malloc

#: Tuples per batch, batches of a segment, what the ratios should not exceed: to NumPy, to NumPy and the raw copy.
SHAPES = ((100, 2_000, None, None), (1_000, 300, 8.0, 2.0), (10_000, 40, 8.0, 2.0))


def options(parser: argparse.ArgumentParser) -> None:
    """Those of node-cpu."""


def _loopback() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    for one in (near, far):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


class Copier:
    """Takes a segment's bytes from a socket, merges its arrays with NumPy, and sends the result's bytes to another."""

    def __init__(self) -> None:
        self._source, far_source = _loopback()
        self._sink, far_sink = _loopback()
        self._child = os.fork()
        if not self._child:
            try:
                self._source.close()
                self._sink.close()
                self._others(far_source, far_sink)
            finally:
                os._exit(0)
        far_source.close()
        far_sink.close()

    @staticmethod
    def _others(source: socket.socket, sink: socket.socket) -> None:
        """The child: sends as many bytes as it is asked for, then takes as many."""
        piece = bytes(SEND_BYTES)
        while asked := sink.recv(8):
            size = int.from_bytes(asked, "big")
            for at in range(0, size, SEND_BYTES):
                source.sendall(piece[: size - at])
            left = size
            while left:
                left -= len(sink.recv(min(left, RECEIVE_BYTES)))

    def close(self) -> None:
        self._source.close()
        self._sink.close()
        os.waitpid(self._child, 0)

    def copy(self, buckets: Sequence[list[Plain]]) -> float:
        """CPU seconds."""
        size = sum(part.time.nbytes for bucket in buckets for part in bucket) // 8 * ROW_BYTES
        self._sink.sendall(size.to_bytes(8, "big"))

        def work() -> None:
            left = size
            while left:
                left -= len(self._source.recv(min(left, RECEIVE_BYTES)))
            waiting: list[bytes] = []
            for bucket in buckets:
                waiting += [column.tobytes() for column in merge(bucket)]
                if sum(map(len, waiting)) >= SEND_BYTES:
                    self._sink.sendall(b"".join(waiting))
                    waiting = []
            self._sink.sendall(b"".join(waiting))

        return cpu_for(work)


class Merged:
    """What NumPy makes of all segments, kept to be compared."""

    def __init__(self) -> None:
        self._parts: list[tuple[AnyArray, ...]] = []

    def add(self, buckets: Sequence[list[Plain]]) -> None:
        self._parts += [merge(bucket) for bucket in buckets]

    def check(self, reader: Reader) -> None:
        wanted = [np.concatenate(columns) for columns in zip(*self._parts, strict=True)]
        time = np.concatenate([rows.time for rows in reader.rows])
        demand(bool(np.array_equal(time, wanted[0])), "a tuple is missing, came twice or out of order")
        for at in range(3):
            made = np.concatenate([rows.columns[at].values for rows in reader.rows])
            demand(bool(np.array_equal(made, wanted[1 + at])), "a column came out different")
        names = np.array(NAMES)
        made = np.concatenate([np.array(rows.columns[3].to_list()) for rows in reader.rows])
        demand(bool(np.array_equal(made, names.take(wanted[4]))), "the strings came out different")


def passed(shape: Shape, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """CPU seconds per tuple of the node, of kernels and copy, and of the kernels."""
    copier, merged, kernels = Copier(), Merged(), list[float]()

    def bare(buckets: list[list[Plain]]) -> float:
        merged.add(buckets)
        kernels.append(cpu_for(lambda: deque(map(merge, buckets), 0)) / (shape.tuples * len(STREAMS)))
        return copier.copy(buckets)

    try:
        plan = make_plan(shape.bucket_us, aggregate=False)
        node, without, reader = trio.run(partial(measure, plan, shape, rounds, bare))
    finally:
        copier.close()
    merged.check(reader)
    return node, without, kernels[1:]  # the first round is a warm-up


def run(arguments: argparse.Namespace) -> None:
    tune_malloc()
    rows = []
    for batch, batches, *limits in SHAPES:
        if arguments.sizes and batch not in arguments.sizes:
            continue
        node, both, kernels = passed(Shape(batch, batches), arguments.rounds)
        of_kernels, _, *to_kernels, _ = beside(node, kernels, limits[0])
        rows.append([f"{batch:,}", of_kernels, *to_kernels, *beside(node, both, limits[1])])
    show(
        "Node process that only merges",
        [
            "batch/stream",
            "NumPy, CPU ns/tuple",
            "node / NumPy",
            "target",
            "NumPy and raw copy, CPU ns/tuple",
            "node, CPU ns/tuple",
            "node / both",
            "target",
            "check",
        ],
        rows,
        [
            "As node-cpu, but all tuples go on to the client.  Against: concatenate, stable argsort, take of the same",
            "buckets in memory; and that, receiving as many bytes as the columns have, and sending the result's bytes;",
            f"no frames, no checks, no strings, no redo data.  {arguments.rounds} paired rounds: median (min-max).",
        ],
    )
