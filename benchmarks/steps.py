"""The longest single step of each kind of work, by size of the state (rule B8).

A run takes thousands of steps, of which the machine disturbs some: CPU time grows where other load uses the same core
and its caches, or where the system has to clear memory.  So there are several runs, which take the same steps: beside
the longest step of each run stands the longest one when each is taken from the run in which it was quickest.  A pause
that comes in every run, but in another step each time, is not in that figure, so the verdict goes by the longest steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.tables import BENCHMARKS, CHECKED, Benchmark, demand, show
from consistency.dpc.instance import Instance
from consistency.dpc.undo import UndoInstance
from operators.sunion.slice import Slice
from spe.plan.plan import InputStream, Unit
from spe.query.declaration import OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.topk import TopKSpec
from spe.query.query import QueryOperator
from spe.query.windows import CountWindow, SlidingWindow, TumblingWindow, Window
from spe.stream.batch import AnyArray, Batch, Column, Rows
from spe.stream.names import Kind, StreamId, UnitId
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import END_OF_TIME

GROUPS: Final = (1_000_000, 10_000_000)
#: Rows of a slice, as a node takes them (Limits.slice_rows).
ROWS: Final = 20_000
LIMIT_MS: Final = 50.0
HOUR: Final = 3_600_000_000
SCHEMA: Final = Schema.of(key="int64!", part="int64!", value="float64!")
TEXTS: Final = Schema.of(key="string!", part="int64!", value="float64!")
#: With a text beside the key, another one for each group and slice.
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
      results: (groups, groups of the last slice) -> rows that come out at the end.
    """

    spec: OperatorSpec
    schema: Schema
    results: Callable[[int, int], int]


TUMBLING: Final = TumblingWindow(HOUR)
SLIDING: Final = SlidingWindow(HOUR, HOUR // 2)


def _join(kind: JoinKind, within_us: int) -> JoinSpec:
    return JoinSpec(LEFT, RIGHT, kind, (("key", "key"),), lower_us=-within_us, upper_us=within_us)


def _best(column: str) -> TopKSpec:
    return TopKSpec(LEFT, 1, ((column, True),), ("key",), TUMBLING)


def _none(groups: int, met: int) -> int:
    return 0


def _each(groups: int, met: int) -> int:
    return groups


CASES: Final = {
    "tumbling window": Case(_aggregate(TUMBLING, "key"), SCHEMA, _each),
    "tumbling window, two keys": Case(_aggregate(TUMBLING, "part", "key"), SCHEMA, _each),
    "sliding window": Case(_aggregate(SLIDING, "key"), SCHEMA, lambda n, _: n + n // 2),
    "count window": Case(_aggregate(CountWindow(1000), "key"), SCHEMA, _none),
    "strings": Case(_aggregate(TUMBLING, "key"), TEXTS, _each),
    "top-k": Case(_best("value"), SCHEMA, _each),
    "join": Case(_join(JoinKind.INNER, 2 * HOUR), SCHEMA, _none),
    "texts, join": Case(_join(JoinKind.INNER, 2 * HOUR), KEPT, _none),
    "texts, top-k": Case(_best("value"), KEPT, _each),
    "texts, top-k by text": Case(_best("text"), KEPT, _each),
    "texts, first and max": Case(AggregateSpec(LEFT, TUMBLING, {"key": "key"}, _OF_TEXTS), KEPT, _each),
    "left join": Case(_join(JoinKind.LEFT, HOUR), SCHEMA, lambda n, met: n - met),
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--groups", type=int, nargs="*", default=GROUPS, help="steps: sizes of the state")
    parser.add_argument("--runs", type=int, default=3, help="steps: runs of each case")
    parser.add_argument("--cases", nargs="*", default=list(CASES), help=f"steps: of {', '.join(CASES)}")


class Meter:
    """The steps of each kind in order, milliseconds of CPU time."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = {}

    def add(self, kind: str, began: float) -> None:
        self.took.setdefault(kind, []).append(1e3 * (time.thread_time() - began))

    def steps(self, kind: str, work: Iterator[Any]) -> list[Any]:
        """Runs an iterator that yields None between two steps; returns the other values."""
        made = []
        began = time.thread_time()
        for value in work:
            if value is None:
                self.add(kind, began)
                began = time.thread_time()
            else:
                made.append(value)
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
        """A slice of ROWS new groups."""
        piece = self.slice(np.arange(self.at, min(self.at + ROWS, self.groups)), Kind.STABLE)
        self.at += ROWS
        return piece

    @property
    def now(self) -> int:
        """End of the last slice."""
        return self._time(self.at)

    def known(self, kind: Kind) -> Slice:
        """A slice of known groups of the second half hour; in a join it is for the other side."""
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
    """Large slices of a checkpoint log, complete ones while snapshots are held."""
    live = Instance(load.unit, logs=True)
    assert live.log is not None, "it was asked for"
    while load.at < load.groups:
        meter.steps("new groups, logged", live.stable(load.new()))
    for _ in range(2):
        mark = live.mark(load.now)
        live.log.forget()
        made = meter.steps("complete slice of the log", _result(live.log.slice_log(load.now)))[0]
        written = sum(len(tree["born"]) for tree in made.all_footprints()[OUT])
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


def run(arguments: argparse.Namespace) -> None:
    for groups in arguments.groups:
        for name in arguments.cases:
            report(name, groups, [measure(name, groups) for _ in range(arguments.runs)])


def report(name: str, groups: int, meters: list[Meter]) -> None:
    rows = []
    for kind in meters[0].took:
        longest = [max(m.took[kind]) for m in meters]
        row = [kind, *[f"{f(longest):.1f}" for f in (min, median, max)]]
        demand(len({len(m.took[kind]) for m in meters}) == 1, f"{name}, {kind}: the runs differ in their steps")
        quickest = max(map(min, zip(*[m.took[kind] for m in meters], strict=True)))
        met = sum(took <= LIMIT_MS for took in longest)
        verdict = "met" if met == len(longest) else f"met in {met} of {len(longest)}" if met else "MISSED"
        rows.append([*row, f"{quickest:.1f}", verdict])
    head = f"step | least run | median run | worst run | each step at its quickest | <= {LIMIT_MS:g}"
    notes = (
        f"CPU time; slices of {ROWS:,} rows, wide random keys; count, sum and min per group; a join's left side has as "
        f"many rows.  {CHECKED.capitalize()}."
    )
    show(f"Longest step, {name}, {groups:,} groups, {len(meters)} runs, ms", head.split(" | "), rows, [notes])


BENCHMARKS["steps"] = Benchmark(run, options)
