"""The cost of a checkpoint and of the first write after it, by size of the state; a checkpoint log, by record."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from statistics import median
from typing import Any

import numpy as np
import trio

from benchmarks.tables import benchmark, demand, verdict
from operators.fragment import Fragment
from operators.sunion.slice import Slice
from replicas.checkpoint.log import CheckpointLog, LogKind
from spe.api import Environment, stdin, tumbling
from spe.runtime.production import ThreadCompute
from spe.runtime.storage import DiskStorage
from spe.stream.batch import AnyArray, Column, Rows
from spe.stream.names import Kind

KEYS = (1_000, 100_000, 1_000_000)
#: Rows that are written after a checkpoint.
WRITTEN = 1_000
ROUNDS = 15
#: A pause that is short beside a tick of 10 ms.
LIMIT_US = 1_000.0


def make_fragment() -> Fragment:
    env = Environment("bench")
    rows = env.source("rows", stdin(format="jsonl"), {"key": "int64!", "value": "float64!"})
    out = (
        rows.key_by("key")
        .window(tumbling("1h"))
        .aggregate("out", n="count(*)", total="sum(value)", mean="avg(value)", low="min(value)", high="max(value)")
    )
    return Fragment(env.outputs(out).node("n").fragment("f", [out], replicas=1).plan().units[0])


def piece(at: int, key: AnyArray, value: AnyArray) -> Slice:
    stamps = np.full(len(key), at, np.int64)
    return Slice([[Rows(stamps, stamps, (Column(key), Column(value)))]], at + 1, Kind.STABLE)


def clock(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return 1e6 * (time.perf_counter() - begin)


def measure(keys: int) -> tuple[float, float, float, float]:
    """Median microseconds: snapshot, a step without one before it, the first step after one, the next after that."""
    random = np.random.default_rng(keys)
    fragment = make_fragment()
    fragment.step(piece(1, np.arange(keys), random.normal(size=keys)))
    took: list[list[float]] = [[], [], [], []]
    total, at = keys, 1
    saved = None
    for _ in range(ROUNDS):
        steps = []
        for _ in range(3):
            at += 1
            steps.append(piece(at, random.integers(0, keys, WRITTEN), random.normal(size=WRITTEN)))
            total += WRITTEN
        took[1].append(clock(lambda steps=steps: fragment.step(steps[0])))
        counted = total - 2 * WRITTEN
        states: list[Any] = []
        took[0].append(clock(lambda states=states: states.append(fragment.snapshot())))
        saved = (states[0], counted)
        took[2].append(clock(lambda steps=steps: fragment.step(steps[1])))
        took[3].append(clock(lambda steps=steps: fragment.step(steps[2])))
    assert saved is not None
    # The last snapshot has to be what it was when it was taken, whatever was written since.
    restored = make_fragment()
    restored.restore(saved[0])
    for state, wanted in ((restored, saved[1]), (fragment, total)):
        rows = state.step(Slice([[]], 7_200_000_000, Kind.STABLE))[0]
        same = rows is not None and int(rows.columns[3].values.sum()) == wanted
        demand(same, "a snapshot changed after it was taken")
    return median(took[0]), median(took[1]), median(took[2]), median(took[3])


@benchmark(
    "checkpoint", "keys | snapshot us | step of 1,000 rows us | first step after a snapshot us | next us | target"
)
def _rows(_: argparse.Namespace) -> Iterator[list[str]]:
    """Checkpoint.

    A fragment with count, sum, avg, min and max per key in one open window.  A snapshot refers to the arrays; the first
    write after it copies them.  Wall time, medians.  Restoring the snapshot gives what was there then.
    """
    for keys in KEYS:
        pause, *steps = measure(keys)
        yield [f"{keys:,}", f"{pause:.1f}", *(f"{us:.0f}" for us in steps), verdict(pause, LIMIT_US)]


# --- the log: written in slices as a node does, and loaded as at a restart; both copies on this machine's disk ---

COUNTS = (10_000, 100_000, 1_000_000)
#: A footprint of a sum and a count with its key; the record's own fields are added.
PAYLOAD_BYTES = 64
SLICE_RECORDS = 1_000
SYNC_SLICES = 10
LOG_ROUNDS = 3
#: Goal for loading, opening included.
LOAD_US = 5.0
FOLDER = PurePosixPath("log")


async def measure_log(folder: Path, count: int) -> list[float]:
    """Microseconds per record: write, sync, open, read."""
    log = await CheckpointLog.open(DiskStorage(folder), FOLDER, ThreadCompute())
    written = synced = 0.0
    for at in range(0, count, SLICE_RECORDS):
        numbers = range(at, min(at + SLICE_RECORDS, count))
        records = [(LogKind.FOOTPRINTS, n.to_bytes(8, "little") * (PAYLOAD_BYTES // 8)) for n in numbers]
        begin = time.perf_counter()
        log.write(at + 1, records, b"", needs=1)
        written += time.perf_counter() - begin
        if at // SLICE_RECORDS % SYNC_SLICES == SYNC_SLICES - 1 or at + SLICE_RECORDS >= count:
            begin = time.perf_counter()
            await log.sync()
            synced += time.perf_counter() - begin
    log.close()

    storage, footprints, total = DiskStorage(folder / "again"), 0, 0
    (folder / FOLDER).rename(folder / "again" / FOLDER)  # the first writer holds its lock as long as the process lives
    (folder / "again" / FOLDER / "lock").unlink()
    begin = time.perf_counter()
    again = await CheckpointLog.open(storage, FOLDER, compute := ThreadCompute())
    opened = time.perf_counter() - begin
    begin = time.perf_counter()
    with again.reading(1) as portions:
        while (portion := await compute.run(lambda: next(portions, None))) is not None:
            footprints += sum(r.kind == LogKind.FOOTPRINTS for r in portion)
            total += len(portion)
    read = time.perf_counter() - begin
    demand(footprints == count and total == again.last_sequence, f"{footprints} records of {count} were read")
    again.close()
    return [1e6 * seconds / count for seconds in (written, synced, opened, read)]


@benchmark("checkpoint-log", "records | write us | sync us | open us | read us | load us | target")
def _log_rows(_: argparse.Namespace) -> Iterator[list[str]]:
    """Checkpoint log.

    Per record of 64 bytes, in slices of 1,000, synced every 10 slices, in two copies.  Wall time, medians.  Load is
    open and read: the work of a restart before it restores operators.  Each record is read back.
    """
    for count in COUNTS:
        took = []
        for _ in range(LOG_ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "again").mkdir()
                took.append(trio.run(measure_log, Path(folder), count))
        *write, opened, read = (median(values) for values in zip(*took))
        cells = (*write, opened, read, opened + read)
        yield [f"{count:,}", *(f"{us:.2f}" for us in cells), verdict(opened + read, LOAD_US)]
