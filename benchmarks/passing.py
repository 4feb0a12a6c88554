"""A node that only merges, against bare NumPy, and against a program that does the same with raw bytes."""

from __future__ import annotations

import argparse
import os
import socket
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from threading import Thread

import numpy as np
import trio

from benchmarks.cluster import SEND_BYTES
from benchmarks.cpu import cpu_for, cpu_of
from benchmarks.data import NAMES, ROW_BYTES, STREAMS, Plain, Shape, merged
from benchmarks.node_cpu import Reader, make_plan, measure
from benchmarks.tables import beside, chosen, demand, show
from replicas.link.connection import RECEIVE_BYTES
from spe.stream.batch import AnyArray, Rows

#: Tuples per batch, batches of a segment, as in node-cpu; what the ratios should not exceed: to NumPy, to the relay.
SHAPES = ((100, 4_000, None, None), (1_000, 500, 8.0, 2.0), (10_000, 150, 8.0, 2.0))


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
        pairs = [_loopback() for _ in (*STREAMS, "merged")]
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
        for one in (*self._inputs, self._output):
            one.close()
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
        """The batch that begins at a byte of what was received; of 100 rows each second one is not aligned."""
        columns = []
        for type_ in (np.int64, np.int64, np.float64, np.bool_, np.int32):
            columns.append(np.frombuffer(piece, type_, self._shape.batch, at))
            at += columns[-1].nbytes
        return Plain(*columns)


def _loopback() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    for one in (near, far):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


def _fill(piece: bytearray, source: socket.socket) -> bool:
    """Until it is full; False when the other end has hung up."""
    view, at = memoryview(piece), 0
    while at < len(piece):
        got = source.recv_into(view[at:])
        if not got:
            return False
        at += got
    return True


def check(wanted: Sequence[AnyArray], rows: Sequence[Rows]) -> None:
    """What came of a segment is what NumPy makes of it: time, key, value, flag, name."""
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

    def bare(buckets: Sequence[Sequence[Plain]], reader: Reader) -> float:
        kernels.append(cpu_for(lambda: deque(map(merged, buckets), 0)) / (shape.tuples * len(STREAMS)))
        made = [merged(bucket) for bucket in buckets]
        check([np.concatenate(columns) for columns in zip(*made, strict=True)], reader.rows)
        reader.rows.clear()
        return relay.cpu(buckets, b"".join([column for columns in made for column in columns]))

    try:
        plan, directory = make_plan(shape.bucket_us, aggregate=False)
        node, without, _ = trio.run(measure, plan, directory, shape, rounds, bare)
    finally:
        relay.close()
    return node, without, kernels[1:]  # the first round is a warm-up


def run(arguments: argparse.Namespace) -> None:
    rows = []
    for batch, batches, *limits in chosen(SHAPES, arguments):
        node, relay, kernels = passed(Shape(batch, batches), arguments.rounds)
        of_kernels, _, *to_kernels, _ = beside(node, kernels, limits[0])
        rows.append([f"{batch:,}", of_kernels, *to_kernels, *beside(node, relay, limits[1])])
    show(
        "Node process that only merges",
        [
            "batch/stream",
            "NumPy, CPU ns/tuple",
            "node / NumPy",
            "target",
            "relay, CPU ns/tuple",
            "node, CPU ns/tuple",
            "node / relay",
            "target",
            "check",
        ],
        rows,
        [
            "As node-cpu, but all tuples go on to the client.  NumPy: concatenate, stable argsort, take of the same",
            "buckets in memory.  Relay: a program that receives three streams' columns as raw bytes, does that, and",
            "sends the result's bytes; without frames, checks, strings, redo data, or anything else to do.",
            f"{arguments.rounds} paired rounds: median (min-max).",
        ],
    )
