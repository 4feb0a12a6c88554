"""Encoding, a socket and decoding, against the same bytes through the same socket."""

from __future__ import annotations

import argparse
import os
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.cluster import connected
from benchmarks.data import SCHEMA, Shape, as_rows, plain
from benchmarks.tables import benchmark, chosen, demand, ratio, spread
from replicas.link.connection import RECEIVE_BYTES
from spe.stream.batch import AnyArray, Batch, Rows
from spe.stream.names import Kind
from spe.stream.strings import StringPool
from spe.wire.codec import ElementDecoder, ElementEncoder
from spe.wire.framing import FrameReader

#: Rows per batch, repetitions of a round, what the ratio should not exceed.
SHAPES = ((10, 4_000, None), (100, 3_000, None), (1_000, 2_000, 1.5), (10_000, 300, 1.5), (100_000, 30, 1.5))
ROUNDS = 9
#: Between batches that are to arrive alone.
ALONE_S = 150e-6


class Raw:
    """The limit: the columns' bytes are put into one piece, and copied into another one at the receiver."""

    def __init__(self, rows: Rows) -> None:
        self._columns = [a.tobytes() for a in arrays_of(rows)]
        self.size = sum(map(len, self._columns))
        self._out = bytearray(self.size)
        self._at = 0

    def make(self) -> bytes:
        return b"".join(self._columns)

    def take(self, piece: bytes) -> int:
        """Bytes of batches that are complete, as multiples of ``size``."""
        view, before = memoryview(piece), self._at
        while view:
            at = self._at % self.size
            part = view[: self.size - at]
            self._out[at : at + len(part)] = part
            self._at += len(part)
            view = view[len(part) :]
        return self._at // self.size - before // self.size

    def check(self) -> None:
        demand(bytes(self._out) == b"".join(self._columns), "the bytes came out different")


class Codec:
    """Ours, as a node does it: one batch at a time is encoded, and all frames of one read are decoded together."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._encoder = ElementEncoder(SCHEMA)
        self._decoder, self._reader = ElementDecoder(SCHEMA, StringPool()), FrameReader(64 << 20)
        self._sent = 0
        self._last: Batch | None = None

    def make(self) -> bytes:
        first, n = self._sent, len(self._rows)
        self._sent += n
        return self._encoder.encode_many([Batch(Kind.STABLE, first, first + n, None, self._rows)])

    def take(self, piece: bytes) -> int:
        rows = 0
        for element in self._decoder.decode_all(self._reader.feed(piece)):
            if isinstance(element, Batch):
                self._last = element
                rows += len(element)
        return rows // len(self._rows)

    def check(self) -> None:
        assert self._last is not None
        n = len(self._rows)
        received = self._last.rows.slice(len(self._last) - n, len(self._last))
        for mine, wanted in zip(arrays_of(received)[:4], arrays_of(self._rows)[:4], strict=True):
            demand(bool(np.array_equal(mine, wanted)), "a column came out different")
        demand(received.columns[3].to_list() == self._rows.columns[3].to_list(), "the strings came out different")


def arrays_of(rows: Rows) -> list[AnyArray]:
    return [rows.time, *[c.values for c in rows.columns]]


def receive(connection: socket.socket, ways: list[Raw | Codec], repeat: int, report: int) -> None:
    """The receiving process: takes ``repeat`` batches of each way in turn; reports CPU seconds of each turn."""
    for number in range(ROUNDS + 1):
        for way in ways[:: 1 if number % 2 else -1]:
            begin, count = time.process_time(), 0
            while count < repeat:
                count += way.take(connection.recv(RECEIVE_BYTES))
            os.write(report, struct.pack("d", time.process_time() - begin))
    for way in ways:
        way.check()
    os.write(report, struct.pack("d", 0.0))


def send(sender: socket.socket, way: Raw | Codec, repeat: int, *, alone: bool) -> float:
    """The sending process: CPU seconds for ``repeat`` batches; ``alone``: each is taken before the next is sent."""
    begin = time.process_time()
    if not alone:
        for _ in range(repeat):
            sender.sendall(way.make())
        return time.process_time() - begin
    spent = 0.0
    for _ in range(repeat):
        begin = time.thread_time()
        sender.sendall(way.make())
        spent += time.thread_time() - begin
        until = time.perf_counter() + ALONE_S
        while time.perf_counter() < until:
            pass
    return spent


def measure(n: int, repeat: int, *, alone: bool) -> tuple[list[float], list[float]]:
    """CPU seconds per batch of both processes together: with the codec, and of the bare bytes."""
    rows = as_rows(plain(Shape(n, 1), 0, 0))
    ways: list[Raw | Codec] = [Codec(rows), Raw(rows)]
    spent: dict[int, list[float]] = {0: [], 1: []}
    results, report = os.pipe()
    sender, receiver = connected()
    child = os.fork()
    if not child:
        try:
            sender.close()
            receive(receiver, ways, repeat, report)
        finally:
            os._exit(0)
    receiver.close()
    os.close(report)
    for number in range(ROUNDS + 1):
        for way in ways[:: 1 if number % 2 else -1]:
            own = send(sender, way, repeat, alone=alone)
            spent[ways.index(way)].append((own + _reported(results)) / repeat)
    _reported(results)  # it has checked what came out
    sender.close()
    os.close(results)
    os.waitpid(child, 0)
    return spent[0][1:], spent[1][1:]


def _reported(results: int) -> float:
    data = os.read(results, 8)
    demand(len(data) == 8, "the receiving process found something wrong, see above")
    (value,) = struct.unpack("d", data)
    return float(value)


@benchmark("codec", "rows/batch | batches | raw bytes, CPU us/batch | codec, CPU us/batch | ratio | target")
def _rows(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Codec.

    Two processes, one loopback TCP connection; CPU time of both together.  Codec: encode a batch of five columns (29
    bytes a row; one of strings whose table is known), send; receive, cut into frames, decode and check all frames of a
    read.  Raw: join the same columns' bytes, send; receive with the same reads, copy out into one buffer; no header, no
    checks, no strings.  Alone: the receiver waits for each batch, as at moderate rates; streamed: batch after batch,
    many in a read.  Paired rounds: median (min-max).
    """
    for n, repeat, limit in chosen(SHAPES, arguments):
        for alone in (True, False) if n <= 10_000 else (False,):
            ours, theirs = measure(n, repeat, alone=alone)
            way, bound = ("alone", limit) if alone else ("streamed", limit if n > 1_000 else None)
            times = (spread(values, ".1f", 1e6) for values in (theirs, ours))
            yield [f"{n:,}", way, *times, *ratio(ours, theirs, bound)]
