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

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import yaml

from benchmarks.experiments.played_run import PlayedRun, played, printed_by, sleep_until
from benchmarks.experiments.record import Plot, Row, experiment
from replicas.cli import control
from replicas.cli.move import move
from spe.plan.directory import COORDINATOR
from spe.stream.batch import Batch, Boundary, Int64Array
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME, END_OF_TIME, MILLISECOND, SECOND

UPSTREAM, OWNER, TARGET = "n1", "n2", "n3"
METHODS: Final = ("snapshot", "ours", "cpal", "cpa", "direct")
#: Methods in which the owner goes on.
LIVE: Final = ("snapshot", "ours", "cpal")
#: Methods whose target stands by from the beginning.
STANDS_BY: Final = ("snapshot", "cpal", "cpa")
BUCKET_US: Final = 20 * MILLISECOND
#: Results of the sample per second, at most.
SAMPLED: Final = 500
SAMPLE: Final = "sample"
PATIENCE_S: Final = 90.0
#: Of the sources, behind what is measured: a move may take so much longer on a busy machine.
TAIL_S: Final = 4.0
#: When the target's silence about its owner counts: four heartbeats, and some.
NOTICED_S: Final = 1.0


@dataclass(frozen=True)
class Times:
    """The schedule of a run, seconds since the sources begin.

    Attributes:
      fill: rows per second that fill the groups, before anything else.
      before: the period that is compared with begins; it lasts ``window``.
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
    *((groups, 10_000) for groups in (10_000, 100_000, 1_000_000)),
    *((100_000, rows) for rows in (100, 1_000, 100_000)),
)


class Seen(NamedTuple):
    """The sample at the client: boundaries, when they came, and how many tentative tuples."""

    times: Int64Array
    arrived: Int64Array
    tentative: int


def _points(quick: bool) -> Iterator[Row]:
    for groups, replayed in ((2_000, 2_000),) if quick else POINTS:
        for method in ("ours", "direct") if quick else METHODS:
            yield {"groups": groups, "replayed": replayed, "method": method}


@experiment(
    "migration",
    "CIKM 2015, figures 5 and 6",
    _points,
    Plot("groups", "replayed method", "silence_ms completion_s"),
    Plot("replayed", "groups method", "silence_ms completion_s"),
    runs=5,
)
def migration(quick: bool, groups: int, replayed: int, method: str) -> Row:
    """Migration of a keyed sum."""
    times = QUICK if quick else ORDINARY
    with played(_configuration(method, groups, round(replayed / times.age), times)) as run:
        with run.started():
            begun_us = run.begun_us()
            order_us = _ordered_us(method, times, run, begun_us)
            findings = run.end(PATIENCE_S)
        return _figures(method, times, run, begun_us, order_us, findings)


def _ordered_us(method: str, times: Times, run: PlayedRun, begun_us: int) -> int:
    """Orders the move at its time, which is returned; of a snapshot, when it was taken."""
    if method in STANDS_BY:
        taken_us = int(run.wait_for("checkpoint_taken", TARGET)["t"])
        if method == "snapshot":
            return taken_us
        if method == "cpal":
            sleep_until(taken_us, times.age - NOTICED_S)
            _inject(run, "cut", OWNER, TARGET)
        sleep_until(taken_us, times.age)
    else:
        sleep_until(begun_us, times.order)
    order_us = time.time_ns() // 1000
    if method == "cpa":
        _inject(run, "kill", OWNER)
    else:
        if method == "direct":
            _inject(run, "cut", UPSTREAM, OWNER)
        printed_by(move, run.path, "sums", OWNER, TARGET, wait=False)
    if method == "direct":
        sleep_until(order_us, times.window)
        _inject(run, "heal")
    return order_us


def _inject(run: PlayedRun, kind: str, *names: str) -> None:
    printed_by(control.inject, run.path, kind, names, None, None, False)


def _figures(method: str, times: Times, run: PlayedRun, begun_us: int, order_us: int, findings: str) -> Row:
    seen = _seen(run)
    begins = begun_us + round(times.before * SECOND)
    window_us = round(times.window * SECOND)
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
    before_us = _p99_us(seen, begins, begins + window_us, done_us - order_us)
    p99_us = float(np.percentile(_delays(seen, order_us, done_us), 99))
    return {
        "completion_s": float(done_us - order_us) / SECOND,
        "silence_ms": _silence_us(seen.arrived, order_us, done_us) / MILLISECOND,
        "p99_ms": p99_us / MILLISECOND,
        "before_p99_ms": before_us / MILLISECOND,
        "times_before": p99_us / before_us,
        "tentative": seen.tentative,
        "findings": [findings, f"{seen.tentative} tentative tuples" if seen.tentative and method in LIVE else ""],
    }


def _done_us(run: PlayedRun) -> int:
    """When the move was over.  Raises RuntimeError: it never was."""
    for line in run.events("move", COORDINATOR):
        if line["phase"] == "dropped":
            raise RuntimeError(f"the move was dropped: {line['why']}")
        if line["phase"] == "done":
            return int(line["t"])
    raise RuntimeError("the move did not end before the sources")


def _seen(run: PlayedRun) -> Seen:
    stable, tentative = [(BEFORE_TIME, 0)], 0
    for change in run.recorded(SAMPLE):
        element = change.element
        if isinstance(element, Batch) and element.kind is Kind.TENTATIVE:
            tentative += len(element)
        if isinstance(element, Boundary) and element.kind is Kind.STABLE and stable[-1][0] < element.time < END_OF_TIME:
            stable.append((element.time, change.arrived_us))
    boundaries = np.array(stable[1:])
    return Seen(boundaries[:, 0], boundaries[:, 1], tentative)


def _ends(since_us: int, until_us: int) -> Int64Array:
    """Ends of buckets within a period, of which there is one at least."""
    first = since_us // BUCKET_US + 1
    return np.arange(first, max(until_us // BUCKET_US, first) + 1) * BUCKET_US


def _delays(seen: Seen, since_us: int, until_us: int) -> Int64Array:
    """Delay of each bucket that ends in this period; tuple time is wall time here."""
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
    config: dict[str, Any] = yaml.safe_load(f"""
cluster: migration
bucket: {BUCKET_US}us
defaults: {{x: 4s, alpha: 0.9, policy: process}}
sources:
  fill:
    from: {{generator: {{name: sequence, rate: {times.fill}, count: {groups}, seed: 1}}}}
    boundary: {BUCKET_US}us
  live:
    from: {{generator: {{name: sequence, rate: {rate}, duration: {times.ends(method):g}s, seed: 2}}}}
    boundary: {BUCKET_US}us
query:
  all: {{union: [fill, live]}}
  sums:
    aggregate: {{from: all, window: {{tumbling: 24h}}, group_by: {{g: n % {groups}}}, compute: {{total: sum(value)}}}}
  {SAMPLE}: {{filter: {{from: all, where: n % {max(1, rate // SAMPLED)} = 0}}}}
outputs: [sums, {SAMPLE}]
fragments:
  input: {{operators: [all], replicas: [{UPSTREAM}]}}
  sums: {{operators: [sums, {SAMPLE}], replicas: [{OWNER}]}}
nodes: {{{UPSTREAM}: {{}}, {OWNER}: {{}}, {TARGET}: {{}}}}
coordinator: {{}}
clients: {{client: {{reads: [sums, {SAMPLE}]}}}}
""")
    if method in STANDS_BY:
        config["fragments"]["sums"] |= {"standby": [TARGET], "checkpoint": f"{times.checkpoint:g}s"}
    else:
        config["nodes"][TARGET] = {"spare": True}
    return config
