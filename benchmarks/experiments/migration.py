"""A keyed sum moves between real processes: ours, and the protocols of Madsen and Zhou (CIKM 2015, figures 5 and 6).

One node merges the input, the next one keeps a sum for each group and passes a sample of its input on, a third one is
the target.  Ours is ``spe move`` to a spare node.  The paper's protocols are made of what there is:

* direct: the link between the first two nodes is cut, so the owner stands still; then it is moved.  The target gets the
  state of one that does not go on, installs it, and reads what has waited.
* CPA: the target stands by, and its checkpoint has an age; the owner is killed.  The target takes over, and replays.
* CPAL: the same target is moved to while the owner goes on; the link between the two is cut, so that the target uses
  its checkpoint instead of a newer state, and replays.
* snapshot: nothing moves; a node that stands by takes a checkpoint.

Delay of a bucket of tuple time: from its end until the client has all results before that.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import yaml

from benchmarks.cpu import cpu_of
from benchmarks.experiments.results import Row
from replicas.cli import control
from replicas.cli.move import move
from replicas.client.recorder import read_recording
from replicas.local.run_dir import CONFIG
from spe.config import load
from spe.log.recording import channel_folder, client_folder
from spe.plan.directory import COORDINATOR
from spe.plots import Line, Panel
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch, Boundary, Int64Array
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME, MILLISECOND, SECOND

TITLE = "Migration of a keyed sum"
#: How often each point is measured where --runs does not say.
RUNS: Final = 5
UPSTREAM, OWNER, TARGET = "n1", "n2", "n3"
METHODS: Final = ("snapshot", "ours", "cpal", "cpa", "direct")
#: Methods in which the owner goes on.
LIVE: Final = ("snapshot", "ours", "cpal")
#: Methods whose target stands by from the beginning.
STANDS_BY: Final = ("snapshot", "cpal", "cpa")
BUCKET_US: Final = 20 * MILLISECOND
#: Of results of the sample, at most, per second.
SAMPLED: Final = 500
SAMPLE: Final = "sample"
PATIENCE_S: Final = 90.0
#: Of the sources, behind what is measured: a move may take so much longer on a busy machine.
TAIL_S: Final = 4.0
#: When the target's silence about its owner counts: four heartbeats, and some.
NOTICED_S: Final = 1.0


@dataclass(frozen=True)
class Times:
    """When what is done, seconds since the sources begin.

    Attributes:
      fill: rows per second that fill the groups, before anything else.
      before: what is compared with begins; it lasts ``window``.
      checkpoint: interval of the target's checkpoints: the first one is taken behind ``before``.
      order: without a checkpoint: when the move is ordered.
      age: of the checkpoint when the move is ordered.
    """

    fill: int
    before: float
    window: float
    checkpoint: float
    order: float
    age: float

    def ends(self, method: str) -> float:
        """When the sources end: some time behind the move."""
        last = {"snapshot": self.checkpoint}.get(method, self.checkpoint + self.age)
        return (last if method in STANDS_BY else self.order) + self.window + TAIL_S


ORDINARY: Final = Times(fill=200_000, before=7, window=4, checkpoint=12.5, order=11.5, age=4)
QUICK: Final = Times(fill=20_000, before=2, window=1.5, checkpoint=5, order=4, age=2)
#: Groups, rows to replay.
POINTS: Final = (
    (10_000, 10_000),
    (100_000, 10_000),
    (1_000_000, 10_000),
    (100_000, 100),
    (100_000, 1_000),
    (100_000, 100_000),
)


class Seen(NamedTuple):
    """What the client received of the sample: boundaries, when they came, and how many tentative tuples."""

    times: Int64Array
    arrived: Int64Array
    tentative: int


class Run(NamedTuple):
    """Figures of one run."""

    completion_s: float
    silence_ms: float
    p99_ms: float
    before_p99_ms: float
    tentative: int
    more_cpu_s: float | None
    findings: str


def measure(quick: bool, runs: int = RUNS) -> Iterator[Row]:
    times = QUICK if quick else ORDINARY
    for groups, replayed in ((2_000, 2_000),) if quick else POINTS:
        for method in ("ours", "direct") if quick else METHODS:
            found = [_run(method, groups, replayed, times) for _ in range(1 if quick else runs)]
            yield {
                "groups": groups,
                "replayed": replayed,
                "method": method,
                "runs": len(found),
                "completion_s": median(one.completion_s for one in found),
                "silence_ms": median(one.silence_ms for one in found),
                "p99_ms": median(one.p99_ms for one in found),
                "before_p99_ms": median(one.before_p99_ms for one in found),
                "times_before": median(one.p99_ms / one.before_p99_ms for one in found),
                "tentative": max(one.tentative for one in found),
                "more_cpu_s": None if method == "cpa" else median(one.more_cpu_s or 0.0 for one in found),
                "findings": "; ".join(one.findings for one in found if one.findings),
            }


def _run(method: str, groups: int, replayed: int, times: Times) -> Run:
    with tempfile.TemporaryDirectory() as made:
        config, run = Path(made) / "migration.yaml", Path(made) / "run"
        config.write_text(yaml.safe_dump(_configuration(method, groups, round(replayed / times.age), times)))
        command = [sys.executable, "-m", "replicas.cli", "run", config, "--run-dir", run, "--no-view"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
            try:
                watched = _watch(method, times, run, running)
                said, _ = running.communicate(timeout=PATIENCE_S)
            finally:
                running.terminate()
        return _figures(method, times, run, watched, "" if running.returncode == 0 else said[-2000:])


class _Watched(NamedTuple):
    """Wall times in microseconds; CPU seconds of all nodes in a period of the move, and before it in as long a one."""

    begun_us: int
    order_us: int
    cpu_before: float
    cpu_after: float


def _watch(method: str, times: Times, run: Path, running: subprocess.Popen[str]) -> _Watched:
    """Has the move made at its time."""
    begun_us = int(_wait_for(run / "events.jsonl", running, event="begin")["begun_us"])
    cpu = _Cpu(run / "events.jsonl")
    _sleep_until(begun_us, times.before)
    cpu_before = -cpu.read()
    _sleep_until(begun_us, times.before + times.window)
    before, looked = cpu.read(), time.time()
    cpu_before += before
    if method in STANDS_BY:
        taken = _wait_for(run / "trace" / f"{TARGET}.jsonl", running, event="checkpoint_taken")
        if method == "snapshot":
            _sleep_until(int(taken["t"]), times.window / 2)
            took = time.time() - looked
            return _Watched(begun_us, int(taken["t"]), cpu_before * took / times.window, cpu.read() - before)
        if method == "cpal":
            _sleep_until(int(taken["t"]), times.age - NOTICED_S)
            _inject(run, "cut", OWNER, TARGET)
        _sleep_until(int(taken["t"]), times.age)
    else:
        _sleep_until(begun_us, times.order)
    cpu_after = -cpu.read()
    order_us = time.time_ns() // 1000
    if method == "cpa":
        _inject(run, "kill", OWNER)
    else:
        if method == "direct":
            _inject(run, "cut", UPSTREAM, OWNER)
        with contextlib.redirect_stdout(io.StringIO()):
            move(run, "sums", OWNER, TARGET, wait=False)
    _sleep_until(order_us, times.window)
    cpu_after += cpu.read()
    if method == "direct":
        _inject(run, "heal")
    return _Watched(begun_us, order_us, cpu_before, cpu_after)


class _Cpu:
    """CPU seconds of all nodes so far; of one that has been killed, what it had when it was last read."""

    def __init__(self, events: Path) -> None:
        started = [line for line in _lines(events) if line["event"] == "process_started"]
        self._pids = {line["pid"]: 0.0 for line in started if line["process"] in (UPSTREAM, OWNER, TARGET)}

    def read(self) -> float:
        for pid in self._pids:
            with contextlib.suppress(OSError):
                self._pids[pid] = cpu_of(pid)
        return sum(self._pids.values())


def _inject(run: Path, kind: str, *names: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        control.inject(run, kind, names, None, None, False)


def _sleep_until(since_us: int, seconds: float) -> None:
    time.sleep(max(0.0, since_us / SECOND + seconds - time.time()))


def _wait_for(file: Path, running: subprocess.Popen[str], *, event: str) -> Mapping[str, Any]:
    """The first line of a trace that tells of an event.  Raises RuntimeError: it does not come."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and running.poll() is None:
        for line in _lines(file):
            if line["event"] == event:
                return line
        time.sleep(0.05)
    said = running.stdout.read() if running.poll() is not None and running.stdout is not None else "nothing yet"
    raise RuntimeError(f"{file.name} has no {event}; the run said: {said}")


def _lines(file: Path) -> list[Mapping[str, Any]]:
    """Whole lines of a trace that is being written."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]


def _figures(method: str, times: Times, run: Path, watched: _Watched, findings: str) -> Run:
    seen = _seen(run)
    begins = watched.begun_us + round(times.before * SECOND)
    window_us = round(times.window * SECOND)
    order_us = watched.order_us
    if method == "snapshot":
        order_us -= window_us // 2
        done_us = order_us + window_us
    elif method in LIVE:
        done_us = _done_us(run)
    else:
        delays = _delays(seen, order_us, order_us + window_us)
        late = np.flatnonzero(delays > 2 * np.percentile(_delays(seen, begins, begins + window_us), 99))
        last = int(late[-1]) if len(late) else 0
        done_us = _ends(order_us, order_us + window_us)[last] + int(delays[last])
    before = _p99_us(seen, begins, begins + window_us, done_us - order_us)
    if seen.tentative and method in LIVE:
        findings = "; ".join(filter(None, [findings, f"{seen.tentative} tentative tuples"]))
    return Run(
        completion_s=float(done_us - order_us) / SECOND,
        silence_ms=_silence_us(seen.arrived, order_us, done_us) / MILLISECOND,
        p99_ms=float(np.percentile(_delays(seen, order_us, done_us), 99)) / MILLISECOND,
        before_p99_ms=before / MILLISECOND,
        tentative=seen.tentative,
        more_cpu_s=None if method == "cpa" else watched.cpu_after - watched.cpu_before,
        findings=findings,
    )


def _done_us(run: Path) -> int:
    """When the move was over.  Raises RuntimeError: it never was."""
    for line in _lines(run / "trace" / f"{COORDINATOR}.jsonl"):
        if line["event"] == "move" and line["phase"] in ("done", "dropped"):
            if line["phase"] == "dropped":
                raise RuntimeError(f"the move was dropped: {line['why']}")
            return int(line["t"])
    raise RuntimeError("the move did not end before the sources")


def _seen(run: Path) -> Seen:
    folder = channel_folder(client_folder("client"), Channel(StreamId(SAMPLE), 0))
    plan, _ = load(run / CONFIG)
    found, tentative = [(BEFORE_TIME, 0)], 0
    for change in read_recording(DiskStorage(run), folder, plan.query.schema_of(StreamId(SAMPLE))):
        element = change.element
        if isinstance(element, Batch) and element.kind is Kind.TENTATIVE:
            tentative += len(element)
        if isinstance(element, Boundary) and element.kind is Kind.STABLE and found[-1][0] < element.time < END_OF_TIME:
            found.append((element.time, change.arrived_us))
    boundaries = np.array(found[1:])
    return Seen(boundaries[:, 0], boundaries[:, 1], tentative)


def _ends(since_us: int, until_us: int) -> Int64Array:
    """Ends of buckets within a period, of which there is one at least."""
    first = since_us // BUCKET_US + 1
    return np.arange(first, max(until_us // BUCKET_US, first) + 1) * BUCKET_US


def _delays(seen: Seen, since_us: int, until_us: int) -> Int64Array:
    """Of each bucket that ends in this period, whose tuple time is the wall time here."""
    ends = _ends(since_us, until_us)
    delays: Int64Array = seen.arrived[np.searchsorted(seen.times, ends)] - ends
    return delays


def _p99_us(seen: Seen, since_us: int, until_us: int, length_us: int) -> float:
    """Median of 99 % of the delays in successive parts of a period, each as long as the move took.

    Of few buckets 99 % is nearly the largest, so both must be of as many.
    """
    many = max(1, (until_us - since_us) // max(length_us, 1))
    each_us = min(length_us, until_us - since_us)
    begins = [since_us + at * each_us for at in range(many)]
    return float(median(np.percentile(_delays(seen, begin, begin + each_us), 99) for begin in begins))


def _silence_us(arrived: Int64Array, since_us: int, until_us: int) -> int:
    """Longest time between two arrivals, of which one at least lies in the period."""
    low, high = np.searchsorted(arrived, [since_us, until_us])
    return int(np.diff(arrived[max(low - 1, 0) : high + 1]).max())


def _configuration(method: str, groups: int, rate: int, times: Times) -> dict[str, Any]:
    """A source fills the groups and ends; the other one goes on at its rate, over all groups in turn."""
    boundary = {"boundary": f"{BUCKET_US // MILLISECOND}ms"}
    fill = {"name": "sequence", "rate": times.fill, "count": groups, "seed": 1}
    live = {"name": "sequence", "rate": rate, "duration": f"{times.ends(method):g}s", "seed": 2}
    fragment: dict[str, Any] = {"operators": ["sums", SAMPLE], "replicas": [OWNER]}
    if method in STANDS_BY:
        fragment |= {"standby": [TARGET], "checkpoint": f"{times.checkpoint:g}s"}
    return {
        "cluster": "migration",
        "bucket": f"{BUCKET_US // MILLISECOND}ms",
        "defaults": {"x": "4s", "alpha": 0.9, "policy": "process"},
        "sources": {n: {"from": {"generator": g}} | boundary for n, g in (("fill", fill), ("live", live))},
        "query": {
            "all": {"union": ["fill", "live"]},
            "sums": {
                "aggregate": {
                    "from": "all",
                    "window": {"tumbling": "24h"},
                    "group_by": {"group": f"n % {groups}"},
                    "compute": {"total": "sum(value)"},
                }
            },
            SAMPLE: {"filter": {"from": "all", "where": f"n % {max(1, rate // SAMPLED)} = 0"}},
        },
        "outputs": ["sums", SAMPLE],
        "fragments": {"input": {"operators": ["all"], "replicas": [UPSTREAM]}, "sums": fragment},
        "nodes": {UPSTREAM: {}, OWNER: {}, TARGET: {} if method in STANDS_BY else {"spare": True}},
        "coordinator": {},
        "clients": {"client": {"reads": ["sums", SAMPLE]}},
    }


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Silence and completion by groups and by rows to replay."""
    found = []
    for across, other, label in (("groups", "replayed", "groups"), ("replayed", "groups", "rows to replay")):
        most = max({row[other] for row in rows}, key=lambda value: sum(row[other] == value for row in rows))
        mine = [row for row in rows if row[other] == most]
        xs = sorted({row[across] for row in mine})
        for title, column in (("longest gap, ms", "silence_ms"), ("completion, s", "completion_s")):
            lines = [
                Line([next((r[column] for r in mine if r["method"] == m and r[across] == x), None) for x in xs], m)
                for m in dict.fromkeys(row["method"] for row in mine)
            ]
            found.append(Panel(title, [float(np.log10(x)) for x in xs], lines, f"{label}, powers of ten"))
    return found
