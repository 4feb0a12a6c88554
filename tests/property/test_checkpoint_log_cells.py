"""Any operator, crashed after any slice and made again from its log and the input since T, goes on as if nothing had
happened, and writes the log on (rules G2 to G4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from operators import topk
from replicas.checkpoint.extent import Extent
from spe.query.declaration import OnError, OnLate, OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.custom import CustomSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.join import JoinSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.topk import TopKSpec
from spe.query.windows import CountWindow, SlidingWindow, Window
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from tests.property import test_operators_aggregate as aggregates
from tests.property import test_operators_join as joins
from tests.property import test_operators_topk as topks
from tests.support.distribution import Situations
from tests.support.logged import LoggedRun, unit_of, whole_run
from tests.support.operators import Tuple, step_sizes

IN = StreamId("in")
OWN = "tests.support.operators_for_tests"
GROUPS = st.sampled_from([("key", "flag"), ("amount",), ("key", "amount"), ()])


def ends_among(ports: Sequence[Sequence[Tuple]]) -> st.SearchStrategy[list[int]]:
    """Ends of slices that are even, so that many lie within one window."""
    times = [t for port in ports for t, _ in port] or [0]
    first, last = min(times), max(times)
    return st.tuples(st.integers(1, 4), st.integers(0, 3)).map(
        lambda drawn: list(range(first + drawn[1], last + 2, max(drawn[0], (last - first) // 10)))
    )


def check(
    data: st.DataObject,
    specs: Mapping[str, OperatorSpec],
    schemas: Mapping[str, Schema],
    ports: Sequence[Sequence[Tuple]],
) -> Counter[str]:
    """Runs with and without crashes; returns what came up."""
    unit = unit_of(specs, schemas)
    ends = [*data.draw(ends_among(ports)), END_OF_TIME]
    expected = whole_run(unit, ports, ends)
    rewriting = data.draw(st.booleans())

    def rewrites(end: int, extent: Extent) -> tuple[int, int]:
        known = list(extent.counts())
        if not rewriting or not known:
            return BEFORE_TIME, 0
        return data.draw(st.sampled_from(known)), data.draw(st.integers(0, 5))

    run = LoggedRun(unit, ports, rewrites)
    out: list[list[Tuple]] = [[] for _ in unit.outputs]
    with step_sizes() if sum(map(len, ports)) % 2 else nullcontext():
        for end in ends:
            for rows, more in zip(out, run.slice(end), strict=True):
                rows += more
            others = data.draw(ends_among(ports))
            if data.draw(st.booleans()):
                run.crash(others)
            else:
                run.remade(others)
            if data.draw(st.integers(0, 5)) == 0:
                run.log.forget()
    assert out == expected
    return run.met


TIME_WINDOWS = Situations(
    {"rewritten": 0.12, "rows replayed": 0.1, "several slices replayed": 0.1, "final footprints": 0.1}
)


@TIME_WINDOWS.required
@settings(max_examples=120, deadline=None)
@given(st.data(), aggregates.streams(), aggregates.windows(), GROUPS)
def test_time_windows(data: st.DataObject, rows: list[Tuple], window: Window, group_by: tuple[str, ...]) -> None:
    on_late = OnLate.COUNT if window.on is None else OnLate.REJECT
    spec = AggregateSpec(IN, window, {name: name for name in group_by}, aggregates.CALLS, on_late=on_late)
    met = check(data, {"out": spec}, {"in": aggregates.INPUT}, [rows])
    TIME_WINDOWS.example({name: met[name] for name in TIME_WINDOWS.names})


COUNT_WINDOWS = Situations({"rewritten": 0.12, "rows replayed": 0.12, "several slices replayed": 0.1, "closings": 0.15})


@COUNT_WINDOWS.required
@settings(max_examples=60, deadline=None)
@given(st.data(), aggregates.streams(), st.integers(1, 4), GROUPS)
def test_count_windows(data: st.DataObject, rows: list[Tuple], size: int, group_by: tuple[str, ...]) -> None:
    window = CountWindow(size)
    spec = AggregateSpec(IN, window, {name: name for name in group_by}, aggregates.CALLS)
    met = check(data, {"out": spec}, {"in": aggregates.INPUT}, [rows])
    COUNT_WINDOWS.example({name: met[name] for name in COUNT_WINDOWS.names})


KEYED = Situations({"rewritten": 0.12, "closings": 0.3, "several crashes with keys": 0.3})


@KEYED.required
@settings(max_examples=60, deadline=None)
@given(st.data(), aggregates.streams(), st.integers(1, 12), GROUPS)
def test_operators_with_keys(data: st.DataObject, rows: list[Tuple], gap: int, by: tuple[str, ...]) -> None:
    """Each change is written, so nothing is replayed."""
    spec = CustomSpec((IN,), f"{OWN}:Visits", {"by": by, "gap": gap})
    met = check(data, {"out": spec}, {"in": aggregates.INPUT}, [rows])
    assert not met["rows replayed"]
    KEYED.example({name: met[name] for name in KEYED.names} | {"several crashes with keys": met["with keys"] > 1})


class Picky(aggregates.Digits):
    """An aggregate that refuses 2."""

    def add(self, state: Any, values: Any) -> Any:
        if 2 in values.tolist():
            raise ValueError("2")
        return super().add(state, values)


PATHS = Situations({"rewritten": 0.05, "rows replayed": 0.12, "several slices replayed": 0.1})


@PATHS.required
@settings(max_examples=20, deadline=None)
@given(
    st.data(), topks.streams(), joins.streams(), joins.streams(), joins.KINDS, joins.KEYS, st.integers(1, 12),
    st.integers(1, 12), topks.ORDERS, st.sampled_from([None, "ts"]),
)  # fmt: skip
def test_operators_of_all_kinds_share_paths(
    data: st.DataObject, rows: list[Tuple], left: list[Tuple], right: list[Tuple], kind: Any, keys: Any, size: int,
    slide: int, order_by: Any, on: str | None,
) -> None:  # fmt: skip
    """Cells, rows that are kept, and states that are one record, behind and before operators without a state."""
    window, few, sides = (
        SlidingWindow(size, slide, 3, on),
        StreamId("few"),
        (StreamId("left"), StreamId("right")),
    )
    picky = AggregateCall(f"{__name__}:Picky", "number")
    specs: dict[str, OperatorSpec] = {
        "few": FilterSpec(IN, "key IS NULL OR key <> 'é'"),
        "best": TopKSpec(few, 2, order_by, ("key",), window, False, "rank"),
        "instant": TopKSpec(few, 1, order_by, (), None, False, "rank"),
        "sums": AggregateSpec(few, window, {"key": "key"}, {"n": AggregateCall("count"), "p": picky}, OnError.SKIP),
        "largest": MapSpec(StreamId("sums"), {"twice": "n + n"}, keep=False),
        "counts": AggregateSpec(IN, CountWindow(3), {"key": "key"}, {"n": AggregateCall("count")}),
        "pairs": JoinSpec(*sides, kind, keys, None, -slide, size),
        "same": JoinSpec(*sides, kind, keys, SlidingWindow(size, slide)),
        "places": CustomSpec((StreamId("ints"),), f"{OWN}:Places", {}),
        "latest": CustomSpec(sides, f"{OWN}:Latest", {}),
        "visits": CustomSpec(
            (few, StreamId("ints")), f"{OWN}:Visits", {"by": ["key"], "gap": size, "bad": ["a"]}, OnError.SKIP
        ),
    }
    specs = {"ints": MapSpec(IN, {"key": "key", "number": "number"}, keep=False), **specs}
    schemas = {"in": topks.INPUT, "left": joins.SIDE, "right": joins.SIDE}
    with patch.object(topk, "_PRUNE_AT", 3):
        met = check(data, specs, schemas, [rows, left, right])
    PATHS.example({name: met[name] for name in PATHS.names})
