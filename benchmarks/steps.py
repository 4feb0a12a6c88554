"""The longest single step of each kind of work, by size of the state (rule B8).

A run takes thousands of steps, of which the machine disturbs some: CPU time grows where others use the same core and
its caches, or where the system has to clear memory or get it from its host.  So there are several runs, which take the
same steps.  What a step does itself takes its time in every run: beside the longest step of each run stands the longest
one when each is taken from the run in which it was quickest.  A pause that comes in every run, but in another step each
time, is not in that figure, and is ours all the same: so the verdict goes by the longest step of each run.

Each step is followed by the same tenth of a millisecond of work on memory that was used just before.  Where that takes
many times as long after the longest steps, all is slow then, and not the step: this points to the machine or its host.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.source_steps import FEEDS, RECORDS, source_steps
from benchmarks.tables import CHECKED, demand, show
from consistency.dpc.instance import Checkpoint, Instance
from consistency.dpc.undo import UndoInstance
from operators.sunion.slice import Slice
from spe.plan.plan import InputStream, Unit
from spe.query.declaration import OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.topk import TopKSpec
from spe.query.query import QueryOperator
from spe.query.windows import Window, WindowKind
from spe.stream.batch import AnyArray, Batch, Column, Rows
from spe.stream.names import Kind, StreamId, UnitId
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import END_OF_TIME
from spe.wire.state import decode_state, encode_large_state

GROUPS: Final = (1_000_000, 10_000_000)
#: Rows of a slice, as a node takes them (Limits.slice_rows).
ROWS: Final = 20_000
LIMIT_MS: Final = 50.0
HOUR: Final = 3_600_000_000
WALL: Final = ("loop waits while a thread encodes", "loop waits while a thread decodes")
LOGS: Final = "loop waits while a thread makes footprints"
#: The same while a thread does nothing: what the machine lets it wait.
IDLE: Final = "loop waits while a thread sleeps"
#: What each step is followed by.
_HOT: Final = [f"group {n}" for n in range(2_000)]
#: Bytes of memory that is used for the first time, to see what that takes, and of the pieces that are measured.
_FRESH: Final = 1 << 29
_PIECE: Final = 1 << 21

SCHEMA: Final = Schema.of(key="int64!", part="int64!", value="float64!")
TEXTS: Final = Schema.of(key="string!", part="int64!", value="float64!")
#: With a text that is kept beside the key, another one for each group and slice.
KEPT: Final = Schema.of(key="int64!", part="int64!", value="float64!", text="string!")
LEFT, RIGHT, OUT = StreamId("left"), StreamId("right"), StreamId("out")
_CALLS: Final = {
    "n": AggregateCall("count"),
    "total": AggregateCall("sum", "value"),
    "low": AggregateCall("min", "value"),
}


def _aggregate(window: Window, *group_by: str) -> AggregateSpec:
    return AggregateSpec(LEFT, window, {g: g for g in group_by}, _CALLS)


_OF_TEXTS: Final = {**_CALLS, "first": AggregateCall("first", "text"), "greatest": AggregateCall("max", "text")}


@dataclass(frozen=True)
class Case:
    """A query with much state.

    Attributes:
      spec: its operator.
      schema: of its inputs.
      results: how many rows come out at the end, of so many groups, of which so many were met in the last slice.
    """

    spec: OperatorSpec
    schema: Schema
    results: Callable[[int, int], int]


TUMBLING: Final = Window(WindowKind.TUMBLING, HOUR, HOUR)
CASES: Final = {
    "tumbling window": Case(_aggregate(TUMBLING, "key"), SCHEMA, lambda n, _: n),
    "tumbling window, two keys": Case(_aggregate(TUMBLING, "part", "key"), SCHEMA, lambda n, _: n),
    "sliding window": Case(
        _aggregate(Window(WindowKind.SLIDING, HOUR, HOUR // 2), "key"), SCHEMA, lambda n, _: n + n // 2
    ),
    "count window": Case(_aggregate(Window(WindowKind.COUNT, count=1000), "key"), SCHEMA, lambda n, _: 0),
    "strings": Case(_aggregate(TUMBLING, "key"), TEXTS, lambda n, _: n),
    "top-k": Case(TopKSpec(LEFT, 1, (("value", True),), ("key",), TUMBLING), SCHEMA, lambda n, _: n),
    "join": Case(
        JoinSpec(LEFT, RIGHT, JoinKind.INNER, (("key", "key"),), lower_us=-2 * HOUR, upper_us=2 * HOUR),
        SCHEMA,
        lambda n, _: 0,
    ),
    "texts, join": Case(
        JoinSpec(LEFT, RIGHT, JoinKind.INNER, (("key", "key"),), lower_us=-2 * HOUR, upper_us=2 * HOUR),
        KEPT,
        lambda n, _: 0,
    ),
    "texts, top-k": Case(TopKSpec(LEFT, 1, (("value", True),), ("key",), TUMBLING), KEPT, lambda n, _: n),
    "texts, top-k by text": Case(TopKSpec(LEFT, 1, (("text", True),), ("key",), TUMBLING), KEPT, lambda n, _: n),
    "texts, first and max": Case(AggregateSpec(LEFT, TUMBLING, {"key": "key"}, _OF_TEXTS), KEPT, lambda n, _: n),
    "left join": Case(
        JoinSpec(LEFT, RIGHT, JoinKind.LEFT, (("key", "key"),), lower_us=-HOUR, upper_us=HOUR),
        SCHEMA,
        lambda n, met: n - met,
    ),
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--groups", type=int, nargs="*", default=GROUPS, help="steps: sizes of the state")
    parser.add_argument("--runs", type=int, default=3, help="steps: runs of each case")
    parser.add_argument("--cases", nargs="*", default=list(CASES), help=f"steps: of {', '.join(CASES)}")


@dataclass
class Meter:
    """The steps of each kind in order, milliseconds of CPU time, and what is measured in wall time.

    Attributes:
      took: kind -> a number per step.
      after: of all steps, what they and the work after them took.
    """

    took: dict[str, list[float]] = field(default_factory=dict)
    after: list[tuple[float, float]] = field(default_factory=list)

    def add(self, kind: str, began: float) -> float:
        ended = time.thread_time()
        step_ms = 1e3 * (ended - began)
        set(map(str.upper, _HOT))
        now = time.thread_time()
        self.took.setdefault(kind, []).append(step_ms)
        self.after.append((step_ms, 1e3 * (now - ended)))
        return time.thread_time()

    @property
    def total_s(self) -> float:
        """CPU seconds of all steps."""
        return sum(sum(took) for kind, took in self.took.items() if kind not in (*WALL, LOGS, IDLE)) / 1e3

    def steps(self, kind: str, work: Iterator[Any]) -> list[Any]:
        """Runs what yields None between two steps; returns what else it yields."""
        made = []
        began = time.thread_time()
        for one in work:
            if one is None:
                began = self.add(kind, began)
            else:
                made.append(one)
        self.add(kind, began)
        return made

    def once(self, kind: str, function: Callable[[], Any]) -> Any:
        began = time.thread_time()
        result = function()
        self.add(kind, began)
        return result


class Load:
    """Slices of a stream, in which each group comes once."""

    def __init__(self, case: Case, groups: int) -> None:
        self.case = case
        self.groups = groups
        self.at = 0
        #: Groups of the last slice of known ones.
        self.met = 0
        self._ports = len(case.spec.inputs)
        self._random = np.random.default_rng(groups)
        ports = [case.schema] * self._ports
        operator = QueryOperator(OUT, case.spec, case.spec.output_schema(ports))
        inputs = tuple(InputStream(s, case.schema, 1, None) for s in (LEFT, RIGHT)[: self._ports])
        self.unit = Unit(UnitId("u"), "f", inputs, (operator,), (OUT,), partitions=1)

    def new(self) -> Slice:
        """Of ROWS groups that have not come yet."""
        piece = self.slice(np.arange(self.at, min(self.at + ROWS, self.groups)), Kind.STABLE)
        self.at += ROWS
        return piece

    @property
    def now(self) -> int:
        """End of the last slice."""
        return self._time(self.at)

    def known(self, kind: Kind) -> Slice:
        """Of groups from anywhere, of those of the second half hour; in a join they are those of the other side."""
        numbers = self._random.integers(self.groups // 2, self.groups, ROWS)
        piece = self.slice(numbers, kind, self._ports - 1)
        self.at += ROWS
        self.met = len(np.unique(numbers))
        return piece

    def slice(self, numbers: AnyArray, kind: Kind, port: int = 0) -> Slice:
        begin = self._time(self.at)
        time = np.linspace(begin, self._time(self.at + ROWS) - 1, len(numbers)).astype(np.int64)
        part = numbers % 100
        text = Column(np.empty(0, np.int32))
        if self.case.schema is not SCHEMA:
            texts, form = StringDictionary(), "group {}" if self.case.schema is TEXTS else f"text {{}} of {self.at}"
            text = Column(texts.encode([form.format(n) for n in numbers.tolist()]), None, texts)
        key = Column((numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64))
        columns = [text if self.case.schema is TEXTS else key, Column(part), Column(self._random.random(len(numbers)))]
        if self.case.schema is KEPT:
            columns.append(text)
        rows = Rows(time, time, tuple(columns))
        return Slice([[rows] if at == port else [] for at in range(self._ports)], self._time(self.at + ROWS), kind)

    def _time(self, at: int) -> int:
        """New groups come from a quarter to a quarter before the full hour."""
        return HOUR // 4 + at * (HOUR // 2 // self.groups)

    def end(self, kind: Kind) -> Slice:
        return Slice([[] for _ in range(self._ports)], 10 * HOUR, kind)


def rebuild(instance: Instance) -> Iterator[None]:
    while instance.rebuild(ROWS):
        yield None


def measure(name: str, groups: int) -> Meter:
    meter, case = Meter(), CASES[name]
    made: dict[str, int] = {}
    for way, kind in (("checkpoint", Instance), ("undo", UndoInstance)):
        load = Load(case, groups)
        live = kind(load.unit)
        while load.at < groups:
            meter.steps("new groups", live.stable(load.new()))
        mark = meter.once("mark", lambda live=live, load=load: live.mark(load.now))
        meter.steps("first slice after a mark", live.tentative(load.known(Kind.TENTATIVE)))
        copy = meter.steps(f"snapshot while tainted, {way}", _result(live.checkpoint_at(mark)))[0]
        redo = meter.once(f"begin redo, {way}", lambda live=live, mark=mark: live.back(mark))
        meter.steps(f"rebuild, {way}", rebuild(redo))
        meter.steps("first slices of redo", redo.stable(load.known(Kind.STABLE)))
        if way == "checkpoint":
            meter.steps("close, live", live.tentative(load.end(Kind.TENTATIVE)))
            stored(meter, copy)
        holder = [live, mark, copy]
        del live, mark, copy
        meter.once("free what live had", holder.clear)
        released = meter.steps("close of the window", redo.stable(load.end(Kind.STABLE)))
        batches = [e for _, elements in released for e in elements if isinstance(e, Batch)]
        made[way] = sum(map(len, batches))
        demand(made[way] == case.results(groups, load.met), f"{name}: {made[way]} results")
        if isinstance(case.spec, AggregateSpec) and made[way]:
            counted = sum(
                int(b.rows.columns[list(redo.fragment.operators[OUT].schema.names).index("n")].values.sum())
                for b in batches
            )
            fed = groups + groups // 2 + 2 * ROWS if name.startswith("sliding") else groups + ROWS
            demand(counted == fed, f"{name}: {counted} rows counted")
    demand(made["undo"] == made["checkpoint"], f"{name}: {made}")
    if isinstance(case.spec, AggregateSpec):
        logged(meter, Load(case, groups))
    return meter


def logged(meter: Meter, load: Load) -> None:
    """Large slices of a checkpoint log, complete ones while snapshots are held: what the stream waits for, and what a
    thread does beside it."""
    live = Instance(load.unit, logs=True)
    assert live.log is not None, "it was asked for"
    while load.at < load.groups:
        meter.steps("new groups, logged", live.stable(load.new()))
    for _ in range(2):
        mark = live.mark(load.now)
        live.log.forget()
        made = meter.steps("complete slice of the log", _result(live.log.slice_log(load.now)))[0]
        found: list[Any] = []
        pause_during(meter, LOGS, lambda made=made, found=found: found.append(made.all_footprints()))
        written = sum(len(tree["born"]) for tree in found[0][OUT])
        demand(load.groups <= made.written == written, f"{written} footprints of {load.groups} groups")
        meter.steps("first slice after a slice of the log", live.stable(load.known(Kind.STABLE)))
        del mark
    meter.steps("all of the log anew", _result(live.log.slice_log(load.now, load.now - 1)))
    count = sum(len(part.times) for part in meter.steps("footprints that count", _result(live.log.live()))[0])
    demand(count >= load.groups, f"{count} footprints count of {load.groups} groups")
    for _ in live.stable(load.end(Kind.STABLE)):
        pass
    ended = meter.steps("slice of the log in which the window ends", _result(live.log.slice_log(END_OF_TIME)))[0]
    gone = sum(len(part.times) for part in ended.replaced)
    demand(gone == (0 if load.case is CASES["count window"] else count), f"{gone} of {count} count no more")


def _result(steps: Any) -> Iterator[Any]:
    yield (yield from steps)


def stored(meter: Meter, checkpoint: Checkpoint) -> None:
    """Encodes and decodes in a thread, as a node does; how long does the event loop wait meanwhile?"""
    state = {"fragment": checkpoint.fragment, "outputs": list(checkpoint.outputs)}
    data: list[Any] = []

    began = time.perf_counter()
    pause_during(meter, WALL[0], lambda: data.append(encode_large_state(state)))
    pause_during(meter, WALL[1], lambda: data.append(decode_state(data[0])))
    demand(data[1]["outputs"] == state["outputs"], "what was stored differs")
    pause_during(meter, IDLE, lambda: time.sleep(time.perf_counter() - began))


def pause_during(meter: Meter, kind: str, function: Callable[[], Any]) -> None:
    """Measures how long an event loop waits for its turn while a thread runs this."""
    thread = threading.Thread(target=function)
    thread.start()
    while thread.is_alive():
        began = time.perf_counter()
        time.sleep(0.001)
        meter.took.setdefault(kind, []).append(1e3 * (time.perf_counter() - began) - 1)
    thread.join()


def run(arguments: argparse.Namespace) -> None:
    meter = Meter()
    source_steps(meter.add)
    show(
        f"Longest step of a source, {FEEDS} feeds, {RECORDS:,} records of a row, ms",
        ["step", "longest", "all", f"<= {LIMIT_MS:g}"],
        [
            [k, f"{max(t):.1f}", f"{sum(t):.0f}", "met" if max(t) <= LIMIT_MS else "MISSED"]
            for k, t in meter.took.items()
        ],
        ["CPU time; a pull of a feed, and its encoding."],
    )
    for groups in arguments.groups:
        for name in arguments.cases:
            before = disturbance()
            meters = [measure(name, groups) for _ in range(arguments.runs)]
            report(name, groups, meters, [before, disturbance()])


def report(name: str, groups: int, meters: list[Meter], disturbances: list[list[float]]) -> None:
    rows = []
    for kind in meters[0].took:
        longest = [max(m.took[kind]) for m in meters]
        row = [kind, *[f"{f(longest):.1f}" for f in (min, median, max)]]
        if kind in (*WALL, LOGS, IDLE):
            rows.append([*row, "-", "in wall time"])
            continue
        demand(len({len(m.took[kind]) for m in meters}) == 1, f"{name}, {kind}: the runs differ in their steps")
        quickest = max(map(min, zip(*[m.took[kind] for m in meters], strict=True)))
        met = sum(took <= LIMIT_MS for took in longest)
        verdict = "met" if met == len(longest) else f"met in {met} of {len(longest)}" if met else "MISSED"
        rows.append([*row, f"{quickest:.1f}", verdict])
    same = [f"{min(took):.1f}-{max(took):.1f}" for took in disturbances]
    show(
        f"Longest step, {name}, {groups:,} groups, {len(meters)} runs, ms",
        ["step", "least run", "median run", "worst run", "each step at its quickest", f"<= {LIMIT_MS:g}"],
        rows,
        [
            f"CPU time; slices of {ROWS:,} rows, wide random keys; count, sum and min per group; a join's left",
            f"side has as many rows.  {CHECKED.capitalize()}.  All steps of a run took, CPU s:",
            f"{', '.join(f'{m.total_s:.1f}' for m in meters)}.  The same work of Python's took {' and '.join(same)} ms",
            f"before and after, the first use of 2 MB of memory up to {first_use():.1f} ms.  {hot_work(meters)}",
        ],
    )


def hot_work(meters: list[Meter]) -> str:
    """What the work after a step takes, after most steps and after those beyond the limit, if there are any."""
    usual = median(took for meter in meters for _, took in meter.after)
    text = f"The hot work after a step took {usual:.2f} ms"
    if long := sorted(took for meter in meters for step, took in meter.after if step > LIMIT_MS):
        text += f", after the {len(long)} beyond the limit {median(long):.2f}, up to {long[-1]:.2f} ms"
    return f"{text}."


def disturbance() -> list[float]:
    """What the same work takes each time, milliseconds of CPU time."""
    texts, meter = [f"group {n}" for n in range(ROWS)], Meter()
    for _ in range(100):
        meter.once("same", lambda: set(map(str.upper, texts)))
    return meter.took["same"]


def first_use() -> float:
    """The longest write to a piece of memory that the process did not have, milliseconds of CPU time."""
    memory, meter = np.empty(_FRESH, np.uint8), Meter()
    for start in range(0, _FRESH, _PIECE):
        meter.once("write", lambda start=start: memory[start : start + _PIECE].fill(1))
    return max(meter.took["write"])
