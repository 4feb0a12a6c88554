"""Where the CPU of a source goes, from a Parquet file to the wire: its copies, checksums and syncs one by one.

One source reads a file as fast as it can, logs it, syncs and sends it to a node that aggregates.  Each stage is
measured by the CPU clock of its thread; what is left is the event loop, its tasks, threads and page faults.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
import trio

from benchmarks.cluster import source_main
from benchmarks.tables import CHECKED, show, verdict
from benchmarks.throughput import AGGREGATES, check_merge, generate, make_plan, measure, sources
from replicas.connectors.formats.arrow_columns import ArrowColumns
from replicas.source.proxy import SourceProxy
from replicas.source.stamping import Stamper
from spe.api import Environment, Stream, tumbling
from spe.log import segmented
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime import network
from spe.runtime.storage import DiskFile
from spe.wire.encoder import ElementEncoder

ROWS: Final = 8_000_000
ROUNDS: Final = 3
#: Nanoseconds of CPU for a tuple.
LIMIT_NS: Final = 120
#: A time, a timestamp, an integer and a number.
TUPLE_BYTES: Final = 32
_FILE: Final = "stages.json"


class Stage(NamedTuple):
    """What a source does with its tuples.

    Attributes:
      copied: bytes of a tuple that are copied; for decoding, that are made.
      wrap: puts a function in the place of the one that does it, and back where it was.
    """

    copied: int
    wrap: Callable[[Callable[..., Any]], None]


def _method(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    def wrap(timed: Callable[..., Any]) -> None:
        setattr(owner, name, timed(getattr(owner, name)))

    return wrap


def _decoding(timed: Callable[..., Any]) -> None:
    """The batches of Arrow, each as it is asked for."""
    original = pq.ParquetFile.iter_batches

    def batches(*arguments: Any, **options: Any) -> Iterator[Any]:
        following = timed(partial(next, original(*arguments, **options), None))
        while (batch := following()) is not None:
            yield batch

    pq.ParquetFile.iter_batches = batches


STAGES: Final = {
    "Arrow decodes": Stage(TUPLE_BYTES - 8, _decoding),
    "columns of ours": Stage(8, _method(ArrowColumns, "chunk")),  # of numbers, for −0.0
    "check times": Stage(0, _method(SourceProxy, "_checked")),
    "stamp": Stage(0, _method(Stamper, "stamp")),
    "checksum": Stage(0, _method(segmented, "record_header")),
    "write to the log": Stage(TUPLE_BYTES, _method(DiskFile, "append")),
    "sync": Stage(0, _method(os, "fdatasync")),
    "encode for the wire": Stage(0, _method(ElementEncoder, "encode")),
    "send": Stage(TUPLE_BYTES, _method(network.TcpStream, "_send")),
}


def _main(pipe: Pipe, plan: Plan, directory: Directory, stream: str, folder: str) -> None:
    """The source's process."""
    spent = {name: [0, 0] for name in STAGES}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        found = spent[name]

        def run(*arguments: Any, **options: Any) -> Any:
            begun = time.thread_time_ns()
            try:
                return function(*arguments, **options)
            finally:
                found[0] += time.thread_time_ns() - begun
                found[1] += 1

        return run

    for name, stage in STAGES.items():
        stage.wrap(partial(timed, name))
    try:
        source_main(pipe, plan, directory, stream)
    finally:
        Path(folder, _FILE).write_text(json.dumps(spent))


def _query(env: Environment, files: Sequence[str], arguments: argparse.Namespace) -> list[Stream]:
    (stream,) = sources(env, files, arguments)
    return [stream.key_by("key").window(tumbling("1s")).aggregate("per_key", **AGGREGATES)]


def run(arguments: argparse.Namespace) -> None:
    rows = ROWS
    found: list[tuple[float, dict[str, list[int]]]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "in.parquet"))
        generate(Path(file), rows=rows, keys=1_000, rate=50_000, seed=0)
        for _ in range(ROUNDS):
            plan, directory = make_plan(_query, [file], arguments, 1, 1)
            results, cost = trio.run(partial(measure, plan, directory, rows, partial(_main, folder=folder)))
            check_merge(results, plan, [file], arguments)
            found.append((sum(cost.sources_ns), json.loads(Path(folder, _FILE).read_text())))
    whole_ns, spent = sorted(found, key=lambda one: one[0])[ROUNDS // 2]
    table = [
        [name, f"{ns / rows:.1f}", f"{1e6 * calls / rows:,.1f}", STAGES[name].copied or "-", "-"]
        for name, (ns, calls) in spent.items()
    ]
    rest = whole_ns - sum(ns for ns, _ in spent.values()) / rows
    copied = sum(stage.copied for stage in STAGES.values()) + TUPLE_BYTES
    show(
        "A source from a Parquet file to the wire",
        ["stage", "CPU ns/tuple", "times per million tuples", "bytes copied per tuple", "target", "check"],
        [
            *[[*row, CHECKED] for row in table],
            ["all else", f"{rest:.1f}", "-", TUPLE_BYTES, "-", CHECKED],
            ["all", f"{whole_ns:.1f}", "-", copied, verdict(whole_ns, LIMIT_NS), CHECKED],
        ],
        [
            f"One source of {rows:,} tuples of {TUPLE_BYTES} bytes, as fast as it can, with its start; the median of",
            f"{ROUNDS} runs.  Each stage by the CPU clock of its thread; all else: the event loop, threads, page",
            "faults, and frames that are put together for the socket.  Results compared as those of `throughput`.",
        ],
    )
