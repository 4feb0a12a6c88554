"""A checkpoint log against whole checkpoints: what each costs, and what upstream keeps meanwhile.

Rows come to 1 % of the groups per second, at random, into windows of ten; or as in the paper.  Whole checkpoints are
encoded and written as a node does, at intervals; a standby fetches each of them, or what follows in the log, over the
network.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from statistics import fmean
from typing import Final

import trio

from benchmarks.experiments.checkpoint_log import RATE
from benchmarks.experiments.logged_fragment import Input, LoggedFragment, files
from benchmarks.experiments.results import Experiment, Row, lines, places
from replicas.checkpoint.log import COPIES
from spe.plan.log_targets import Continuous
from spe.plots import Panel
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch
from spe.stream.names import Kind
from spe.stream.times import MILLISECOND, SECOND
from spe.wire.codec import encode_standalone
from spe.wire.state import encode_large_state

_CHANGED: Final = (0.01, RATE)
_STEP_US: Final = 100 * MILLISECOND
#: Rows per group until as many windows close as open, of random groups.
_FILLED: Final = 25
#: Seconds between whole checkpoints.
INTERVALS: Final = (1, 5, 15, 30)
#: Microseconds of ``recovery`` for each group.
TARGETS_US: Final = (8, 16)


class Whole:
    """Whole checkpoints of a fragment without a log."""

    def __init__(self, one: LoggedFragment, every_us: int, folder: Path) -> None:
        self._one = one
        self._every_us = every_us
        self._storage = DiskStorage(folder)
        self._taken_at = 0
        self._acknowledged = 0
        self.bytes = self.cpu_ns = 0

    async def write(self, now_us: int) -> None:
        """Takes one if its time has come."""
        if now_us - self._taken_at < self._every_us:
            return
        begun = time.thread_time_ns()
        instance = self._one.instance
        outputs = [o.snapshot() for o in instance.outputs]
        data = encode_large_state({"fragment": instance.fragment.snapshot(), "outputs": outputs})
        self.cpu_ns += time.thread_time_ns() - begun
        begun = time.process_time_ns()  # it is written in a thread; all others wait
        await self._storage.write_atomic(PurePosixPath("checkpoint"), data)
        self.cpu_ns += time.process_time_ns() - begun
        self._taken_at, self._acknowledged = now_us, self._one.row
        self.bytes += len(data)

    @property
    def kept_rows(self) -> int:
        return self._one.row - self._acknowledged


def _costs(quick: bool) -> Iterator[Row]:
    settings = (2_000, 4, INTERVALS[:1], TARGETS_US) if quick else (100_000, 30, INTERVALS, TARGETS_US)
    for changed in _CHANGED:
        yield from trio.run(_measured, changed, *settings)


async def _measured(
    changed: float, groups: int, seconds: int, intervals: Sequence[int], targets_us: Sequence[int]
) -> list[Row]:
    """All in turns, a tenth of a second of the stream each."""
    given = Input(groups, round(changed * groups))
    row_bytes = _row_bytes(given)
    with files() as folder:
        plain = LoggedFragment(given, None, None)
        wholes: dict[str, tuple[LoggedFragment, Whole]] = {}
        for every in intervals:
            one, name = LoggedFragment(given, None, None), f"whole, each {every} s"
            wholes[name] = one, Whole(one, every * SECOND, folder / name)
        logs = {}
        for us in targets_us:
            name = f"log, recovery {us * groups / 1e6:g} s"
            logs[name] = LoggedFragment(given, Continuous(us * groups), folder / name)
        for one in logs.values():
            await one.open()
        step = given.rate * _STEP_US // SECOND
        for _ in range(_FILLED * groups // given.rate):
            for one in logs.values():
                one.take(given.rate)
                await one.write(given.time(one.row), syncs=False)
        for one in (plain, *(one for one, _ in wholes.values())):
            for _ in range(_FILLED):
                one.take(groups)
        for one, whole in wholes.values():
            await whole.write(given.time(one.row))
            whole.bytes = whole.cpu_ns = 0
        for one in logs.values():
            await one.write(given.time(one.row), sure=True)
        everyone = [plain, *(one for one, _ in wholes.values()), *logs.values()]
        begun = {id(one): (one.cpu_ns, one.log_ns, one.rewritten) for one in everyone}
        bytes_before = {name: one.log.written_bytes for name, one in logs.items() if one.log is not None}
        kept: dict[str, list[int]] = {name: [] for name in (*wholes, *logs)}
        for _ in range(seconds * SECOND // _STEP_US):
            for one in everyone:
                one.take(step)
            for name, (one, whole) in wholes.items():
                await whole.write(given.time(one.row))
                kept[name].append(whole.kept_rows)
            for name, one in logs.items():
                await one.write(given.time(one.row))
                kept[name].append(one.kept_rows)
        plain_ns = plain.cpu_ns - begun[id(plain)][0]
        found: list[Row] = []

        def add(name: str, one: LoggedFragment, cpu_ns: int, disk: int, net: int) -> None:
            working_ns = one.cpu_ns - begun[id(one)][0] - (one.log_ns - begun[id(one)][1])
            added_ns = cpu_ns + max(0, working_ns - plain_ns)  # what is written first after a snapshot is copied
            rows = kept[name]
            found.append(
                {
                    "kind": f"{name.split(',')[0]}, {changed:g}",
                    "case": name,
                    "groups": groups,
                    "changed": changed,
                    "cpu_ms_per_s": added_ns / 1e6 / seconds,
                    "disk_kb_per_s": disk / 1e3 / seconds,
                    "net_kb_per_s": net / 1e3 / seconds,
                    "rewritten_per_s": (one.rewritten - begun[id(one)][2]) / seconds,
                    "kept_upstream_kb": fmean(rows) * row_bytes / 1e3,
                    "most_kept_kb": max(rows) * row_bytes / 1e3,
                    "findings": "",
                }
            )

        for name, (one, whole) in wholes.items():
            add(name, one, whole.cpu_ns, whole.bytes, whole.bytes)
        for name, one in logs.items():
            assert one.log is not None, "it is open"
            size = one.log.written_bytes - bytes_before[name]
            add(name, one, one.log_ns - begun[id(one)][1], len(COPIES) * size, size)
            await one.recovered(given.time(one.row))
            one.close()
        return found


def _row_bytes(given: Input) -> float:
    """Bytes of a row in what upstream keeps."""
    count, unit = 1_000, given.unit()
    (rows,) = given.slice(0, count).parts[0]
    batch = Batch(Kind.STABLE, 0, count, None, rows)
    return len(encode_standalone(batch, unit.inputs[0].schema)) / count


def _panels(rows: Sequence[Row]) -> list[Panel]:
    at = [{**row, "at": float(number)} for number, row in enumerate(rows, 1)]
    shown = [("CPU ms per s", "cpu_ms_per_s"), ("disk KB per s", "disk_kb_per_s"), ("KB upstream", "kept_upstream_kb")]
    return [Panel(title, places(at, "at"), lines(at, "kind", "at", value), "row") for title, value in shown]


COSTS: Final = Experiment("A checkpoint log against whole checkpoints", _costs, _panels)
