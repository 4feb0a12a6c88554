"""What a checkpoint log takes to write, to open and to load, by record; both copies on this machine's disk."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path, PurePosixPath
from statistics import median
from typing import NamedTuple

import trio

from benchmarks.tables import CHECKED, demand, show
from replicas.checkpoint.log import CheckpointLog, LogKind
from spe.runtime.production import ThreadCompute
from spe.runtime.storage import DiskStorage

COUNTS = (10_000, 100_000, 1_000_000)
#: A footprint of a sum and a count with its key; what a record holds beside it is added.
PAYLOAD_BYTES = 64
#: Records per slice, and slices per sync.
SLICE_RECORDS = 1_000
SYNC_SLICES = 10
ROUNDS = 3
#: Goal for loading, opening included.
LIMIT_US = 5.0
FOLDER = PurePosixPath("log")


class Took(NamedTuple):
    """Microseconds per record."""

    written: float
    synced: float
    opened: float
    read: float

    @property
    def loaded(self) -> float:
        return self.opened + self.read


def payload(number: int) -> bytes:
    return number.to_bytes(8, "little") * (PAYLOAD_BYTES // 8)


async def measure(folder: Path, count: int) -> Took:
    """Writes so many records in slices, as a node does, and loads them as one that begins again."""
    log = await CheckpointLog.open(DiskStorage(folder), FOLDER, ThreadCompute())
    written = synced = 0.0
    for at in range(0, count, SLICE_RECORDS):
        records = [(LogKind.FOOTPRINTS, payload(at + i)) for i in range(min(SLICE_RECORDS, count - at))]
        begin = time.perf_counter()
        log.write(at + 1, records, b"", needs=1)
        written += time.perf_counter() - begin
        if at // SLICE_RECORDS % SYNC_SLICES == SYNC_SLICES - 1 or at + SLICE_RECORDS >= count:
            begin = time.perf_counter()
            await log.sync()
            synced += time.perf_counter() - begin
    log.close()

    storage, found, total = DiskStorage(folder / "again"), 0, 0
    (folder / FOLDER).rename(folder / "again" / FOLDER)  # the first writer holds its lock as long as the process lives
    (folder / "again" / FOLDER / "lock").unlink()
    begin = time.perf_counter()
    again = await CheckpointLog.open(storage, FOLDER, compute := ThreadCompute())
    opened = time.perf_counter() - begin
    begin = time.perf_counter()
    with again.reading(1) as portions:
        while (portion := await compute.run(lambda: next(portions, None))) is not None:
            found += sum(r.kind == LogKind.FOOTPRINTS for r in portion)
            total += len(portion)
    read = time.perf_counter() - begin
    demand(found == count and total == again.last_sequence, f"{found} records of {count} were read")
    again.close()
    return Took(*(1e6 * seconds / count for seconds in (written, synced, opened, read)))


def run(arguments: argparse.Namespace) -> None:
    rows = []
    for count in COUNTS:
        took = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "again").mkdir()
                took.append(trio.run(measure, Path(folder), count))
        one = Took(*(median(values) for values in zip(*took)))
        verdict = f"<= {LIMIT_US:g}: {'met' if one.loaded <= LIMIT_US else 'MISSED'}"
        rows.append([f"{count:,}", *(f"{us:.2f}" for us in (*one, one.loaded)), verdict, CHECKED])
    show(
        "Checkpoint log",
        ["records", "write us", "sync us", "open us", "read us", "load us", "target", "check"],
        rows,
        [
            f"Per record of {PAYLOAD_BYTES} bytes, in slices of {SLICE_RECORDS:,}, synced every {SYNC_SLICES} slices,",
            f"in two copies.  Wall time, median of {ROUNDS}.  Load is open and read: what a restart does before",
            "it restores operators.  Each record is read back.",
        ],
    )
