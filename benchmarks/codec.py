"""Encoding, a socket and decoding, against the same bytes through the same socket."""

from __future__ import annotations

import argparse
import contextlib
import socket
from collections.abc import Callable
from statistics import median

import numpy as np

from benchmarks.cpu import cpu_for
from benchmarks.data import NAMES, SCHEMA, Shape, as_rows, plain
from benchmarks.tables import CHECKED, demand, show, spread, verdict
from replicas.links import RECEIVE_BYTES
from spe.batch import AnyArray, Batch, Rows
from spe.runtime import tune_gc, tune_malloc
from spe.states import Kind
from spe.strings import StringDictionary, StringPool
from spe.wire.codec import ElementDecoder, ElementEncoder
from spe.wire.framing import FrameReader

#: Rows per batch, repetitions of a round, what the ratio should not exceed.
SHAPES = ((10, 4_000, None), (100, 3_000, None), (1_000, 2_000, 1.5), (10_000, 300, 1.5), (100_000, 30, 1.5))
ROUNDS = 9


def options(parser: argparse.ArgumentParser) -> None:
    """Those of node-cpu."""


class Pair:
    """Two ends of a loopback TCP connection in one thread: sends what fits, receives what is there."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._sender = socket.create_connection(server.getsockname())
            self._receiver, _ = server.accept()
        self._sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sender.setblocking(False)

    def move(self, data: bytes, take: Callable[[bytes], None]) -> None:
        """All of ``data`` from one end to the other; ``take`` gets what each read brought."""
        view, sent, received = memoryview(data), 0, 0
        while received < len(data):
            if sent < len(data):
                with contextlib.suppress(BlockingIOError):
                    sent += self._sender.send(view[sent:])
            piece = self._receiver.recv(RECEIVE_BYTES)
            received += len(piece)
            take(piece)

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()


def arrays_of(rows: Rows) -> list[AnyArray]:
    return [rows.time, *[c.values for c in rows.columns]]


def measure(n: int, repeat: int) -> tuple[list[float], list[float]]:
    """CPU seconds per batch: with the codec, and of the bare bytes."""
    dictionary = StringDictionary(NAMES)
    rows = as_rows(plain(Shape(n, 1), 0, 0), dictionary)
    encoder, decoder, reader = ElementEncoder(SCHEMA), ElementDecoder(SCHEMA, StringPool()), FrameReader(64 << 20)
    pair = Pair()
    got: list[Batch] = []
    ids = iter(range(0, 10**9))

    def take(piece: bytes) -> None:
        for frame in reader.feed(piece):
            element = decoder.decode(frame)
            if isinstance(element, Batch):
                got[:] = [element]

    def with_codec() -> None:
        first = next(ids) * n
        pair.move(encoder.encode_many([Batch(Kind.STABLE, first, first + n, None, rows)]), take)

    # The baseline: the columns copied into one piece, sent, received, and copied out into one piece.
    columns = [a.tobytes() for a in arrays_of(rows)]
    out = bytearray(sum(len(c) for c in columns))

    def raw() -> None:
        at = 0

        def copy(piece: bytes) -> None:
            nonlocal at
            out[at : at + len(piece)] = piece
            at += len(piece)

        pair.move(b"".join(columns), copy)

    ours: list[float] = []
    theirs: list[float] = []
    for number in range(ROUNDS + 1):
        for function, into in [(with_codec, ours), (raw, theirs)][:: 1 if number % 2 else -1]:
            into.append(cpu_for(function, repeat))
    pair.close()
    received = got[0].rows
    for mine, wanted in zip(arrays_of(received)[:4], arrays_of(rows)[:4], strict=True):
        demand(bool(np.array_equal(mine, wanted)), "a column came out different")
    demand(received.columns[3].to_list() == rows.columns[3].to_list(), "the strings came out different")
    demand(bytes(out) == b"".join(columns), "the bytes came out different")
    return ours[1:], theirs[1:]


def run(arguments: argparse.Namespace) -> None:
    tune_malloc()
    tune_gc()
    table = []
    for n, repeat, limit in SHAPES:
        if arguments.sizes and n not in arguments.sizes:
            continue
        ours, theirs = measure(n, repeat)
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        raw_us, own_us = (spread([1e6 * v for v in values], ".1f") for values in (theirs, ours))
        table.append([f"{n:,}", raw_us, own_us, spread(ratios), verdict(median(ratios), limit), CHECKED])
    show(
        "Codec",
        ["rows/batch", "raw bytes, CPU us/batch", "codec, CPU us/batch", "ratio", "target", "check"],
        table,
        [
            "Codec: encode a batch of five columns (29 bytes a row; one of strings whose",
            "table is known), send, receive in",
            f"reads of at most {RECEIVE_BYTES >> 10} KiB, cut into frames, decode and check. ",
            "Raw: join the same columns' bytes, send, receive with",
            "the same reads, copy out into one buffer; no header, no checks, no strings. ",
            "One thread does both ends of a",
            f"loopback TCP connection.  {ROUNDS} paired rounds: median (min-max).",
        ],
    )
