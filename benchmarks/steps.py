"""The longest single step of each kind of work, by size of the state (rule B8)."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from benchmarks.tables import CHECKED, demand, show
from consistency.dpc.instance import Checkpoint, Instance
from consistency.dpc.undo import UndoInstance
from operators.sunion.sunion import Slice
from spe.plan.plan import InputStream, Unit
from spe.query.query import (
    AggregateCall,
    AggregateSpec,
    JoinKind,
    JoinSpec,
    Operator,
    OperatorSpec,
    TopKSpec,
    Window,
    WindowKind,
    inputs_of,
)
from spe.query.typing import derive_schema
from spe.runtime.production import tune_gc, tune_malloc
from spe.stream.batch import AnyArray, Batch, Column, Rows
from spe.stream.names import Kind, StreamId, UnitId
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary
from spe.wire.state import decode_state, encode_large_state

GROUPS: Final = (1_000_000, 10_000_000)
#: Rows of a slice, as a node takes them (Limits.slice_rows).
ROWS: Final = 20_000
LIMIT_MS: Final = 50.0
HOUR: Final = 3_600_000_000
WALL: Final = ("loop waits while a thread encodes", "loop waits while a thread decodes")
#: Bytes that are touched before, so that the machine's first use of its memory is not measured.
_WARM: Final = 8 << 30

SCHEMA: Final = Schema.of(key="int64!", part="int64!", value="float64!")
TEXTS: Final = Schema.of(key="string!", part="int64!", value="float64!")
LEFT, RIGHT, OUT = StreamId("left"), StreamId("right"), StreamId("out")
_CALLS: Final = {
    "n": AggregateCall("count"),
    "total": AggregateCall("sum", "value"),
    "low": AggregateCall("min", "value"),
}


def _aggregate(window: Window, *group_by: str) -> AggregateSpec:
    return AggregateSpec(LEFT, window, {g: g for g in group_by}, _CALLS)


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
    "left join": Case(
        JoinSpec(LEFT, RIGHT, JoinKind.LEFT, (("key", "key"),), lower_us=-HOUR, upper_us=HOUR),
        SCHEMA,
        lambda n, met: n - met,
    ),
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--groups", type=int, nargs="*", default=GROUPS, help="steps: sizes of the state")
    parser.add_argument("--cases", nargs="*", default=list(CASES), help=f"steps: of {', '.join(CASES)}")


@dataclass
class Meter:
    """The longest step of each kind, milliseconds of CPU time, how many there were and what they took together."""

    longest: dict[str, float] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)

    def add(self, kind: str, began: float) -> float:
        now = time.thread_time()
        took = 1e3 * (now - began)
        self.longest[kind] = max(self.longest.get(kind, 0.0), took)
        self.count[kind] = self.count.get(kind, 0) + 1
        self.total[kind] = self.total.get(kind, 0.0) + took
        return time.thread_time()

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
        self._ports = len(inputs_of(case.spec))
        self._random = np.random.default_rng(groups)
        ports = [case.schema] * self._ports
        operator = Operator(OUT, case.spec, derive_schema(case.spec, ports))
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
        if self.case.schema is TEXTS:
            texts = StringDictionary([f"group {n}" for n in numbers.tolist()])
            key = Column(np.array([texts.code(f"group {n}") for n in numbers.tolist()], np.int32), None, texts)
        else:
            key = Column((numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64))
        rows = Rows(time, time, (key, Column(part), Column(self._random.random(len(numbers)))))
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
    return meter


def _result(steps: Any) -> Iterator[Any]:
    yield (yield from steps)


def stored(meter: Meter, checkpoint: Checkpoint) -> None:
    """Encodes and decodes in a thread, as a node does; how long does the event loop wait meanwhile?"""
    state = {"fragment": checkpoint.fragment, "outputs": list(checkpoint.outputs)}
    data: list[Any] = []

    def pause_during(kind: str, function: Callable[[], Any]) -> None:
        thread = threading.Thread(target=lambda: data.append(function()))
        thread.start()
        while thread.is_alive():
            began = time.perf_counter()
            time.sleep(0.001)
            meter.longest[kind] = max(meter.longest.get(kind, 0.0), 1e3 * (time.perf_counter() - began) - 1)
        thread.join()

    pause_during(WALL[0], lambda: encode_large_state(state))
    pause_during(WALL[1], lambda: decode_state(data[0]))
    demand(data[1]["outputs"] == state["outputs"], "what was stored differs")


def run(arguments: argparse.Namespace) -> None:
    tune_malloc()
    tune_gc()
    warm = [np.ones(_WARM // 64) for _ in range(8)]
    del warm
    for groups in arguments.groups:
        meters = {name: measure(name, groups) for name in arguments.cases}
        kinds = list(dict.fromkeys(kind for meter in meters.values() for kind in meter.longest))
        rows = []
        for kind in kinds:
            of = [m.longest.get(kind) for m in meters.values()]
            largest = max(v for v in of if v is not None)
            missed = "in wall time" if kind in WALL else "met" if largest <= LIMIT_MS else "MISSED"
            rows.append([kind, *["-" if v is None else f"{v:.1f}" for v in of], missed])
        show(
            f"Longest step at {groups:,} groups, ms",
            ["step", *meters, f"<= {LIMIT_MS:g}"],
            rows,
            [
                f"CPU time; slices of {ROWS:,} rows, wide random keys; count, sum and min per group; a join's left",
                f"side has as many rows.  {CHECKED.capitalize()}.  All of it took, CPU s:",
                ", ".join(f"{name} {sum(m.total.values()) / 1e3:.1f}" for name, m in meters.items()) + ".",
            ],
        )
