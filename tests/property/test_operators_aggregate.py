"""Aggregates against a row-at-a-time reference, under any cutting, snapshots, nulls and changing dictionaries."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.operator import Operator
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.windows import CountWindow, SlidingWindow, TumblingWindow, Window
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support.distribution import FEW_OR_MANY, Situations, cuts_among
from tests.support.operators import (
    EXERCISED,
    Cut,
    Tuple,
    check_contract,
    lists_of_all_sizes,
    make,
    require_exercised,
)
from tests.support.row_operators import Call, Windows, aggregated, counted, late_counts, plain

INPUT = Schema.of(ts="timestamp", key="string", number="int64", amount="float64", flag="bool", text="string")
FUNCTIONS = ("count", "count_distinct", "sum", "avg", "min", "max", "first", "last")
CALLS = {
    "n": AggregateCall("count"),
    **{f"number_{f}": AggregateCall(f, "number") for f in FUNCTIONS},
    **{f"amount_{f}": AggregateCall(f, "amount") for f in FUNCTIONS},
    **{f"text_{f}": AggregateCall(f, "text") for f in FUNCTIONS if f not in ("sum", "avg")},
    **{f"flag_{f}": AggregateCall(f, "flag") for f in FUNCTIONS if f not in ("sum", "avg")},
    "texts": AggregateCall("tests.property.test_operators_aggregate:Texts", "key"),
    "digits": AggregateCall("tests.property.test_operators_aggregate:Digits", "number"),
}


class Texts:
    """A user-defined aggregate of strings: all of them, in order."""

    returns = "string"

    @classmethod
    def check(cls, argument: Any) -> None: ...

    def create(self) -> Any:
        return ()

    def add(self, state: Any, values: Any) -> Any:
        return (*state, *values.tolist())

    def merge(self, state: Any, later: Any) -> Any:
        return state + later

    def result(self, state: Any) -> Any:
        return "".join(state) if state else None


class Digits(Texts):
    """A user-defined aggregate of numbers: all of them, in order."""

    returns = "int64"

    def result(self, state: Any) -> Any:
        return sum(n * 3**i for i, n in enumerate(reversed(state))) % 1000


#: Multiples of 1/4: sums of few are exact, so a reference may add them in another order.
AMOUNTS = st.sampled_from([None, 0.0, -0.25, 0.5, 2.0, math.nan, 1.75, math.inf])
NUMBERS = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([2**63 - 1, 2**62, -(2**62), -(2**63), 10**12]))
KEYS = [None, "", "a", "b", "c", "é", "z" * 9]


@st.composite
def streams(draw: st.DrawFn) -> list[Tuple]:
    """Few groups as often as many, because only repeated groups test their state."""
    gaps = draw(lists_of_all_sizes(st.sampled_from([0, 0, 1, 2, 6]), 24))
    time, rows = draw(st.integers(-20, 20)), []
    keys = st.sampled_from(draw(st.sampled_from([KEYS, ["a"], [None, "b"], KEYS])))
    texts = st.sampled_from(draw(st.sampled_from([KEYS, ["", *[f"text {n}" for n in range(30)]]])))
    flags = st.sampled_from(draw(st.sampled_from([[None, True, False], [True], [None, True, False]])))
    for gap in gaps:
        time += gap
        ts = draw(st.one_of(st.none(), st.integers(-15, 4).map(lambda d, t=time: t + d), st.just(time)))
        values = (ts, draw(keys), draw(NUMBERS), draw(AMOUNTS), draw(flags), draw(texts))
        rows.append((time, values))
    return rows


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[list[Tuple], list[Cut]]:
    rows = draw(streams())
    return rows, draw(cuts_among(t for t, _ in rows))


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Tumbling; sliding with overlap, also where the slide does not divide the size; sliding with gaps."""
    on = draw(st.sampled_from([None, "ts", "ts"]))
    size, offset = draw(st.one_of(st.integers(1, 12), st.sampled_from([24, 60]))), draw(st.integers(-5, 20))
    if draw(st.integers(0, 2)) == 0:
        return TumblingWindow(size, offset, on)
    return SlidingWindow(
        size,
        draw(st.one_of(st.just(size // 2 + 1), st.integers(1, size), st.integers(1, 15))),
        offset,
        on,
    )


def _joined(panes: list[list[Any]]) -> str | None:
    return "".join(v for pane in panes for v in pane) if panes else None


def _digits(panes: list[list[Any]]) -> int:
    return sum(n * 3**i for i, n in enumerate(reversed([v for pane in panes for v in pane]))) % 1000


#: The same calls for the reference.
ROW_CALLS = [
    Call("count"),
    *(
        Call(function, itemgetter(INPUT.index(attribute)))
        for attribute, function in (name.split("_", 1) for name in list(CALLS)[1:-2])
    ),
    Call(_joined, itemgetter(1)),
    Call(_digits, itemgetter(2)),
]


def in_plain(rows: list[Tuple]) -> list[Tuple]:
    return [(time, tuple(map(plain, values))) for time, values in rows]


def reference(rows: list[Tuple], window: Window) -> tuple[list[Tuple], dict[str, int]]:
    windows = Windows(window.size_us, window.slide_us, window.offset_us, None if window.on is None else itemgetter(0))
    return in_plain(aggregated(rows, windows, itemgetter(1, 4), 2, ROW_CALLS)), late_counts(rows, windows)


#: Many rows of one group and few of another, in windows that end together and are cut in the middle.
MANY: list[Tuple] = [
    (at // 3, (None, "c" if at % 7 == 6 else "a", at, None, None, f"text {at * 7 % 40}")) for at in range(40)
]
MANY_CUTS: list[Cut] = [(2, False), (4, True), (6, False), (9, False)]


def test_time_windows_equal_the_reference_for_any_cuts() -> None:
    EXERCISED.clear()
    check_time_windows()
    require_exercised(
        {
            "pauses": 101,
            "slices released in pieces": 2,
            "instants cut": 1,
            "overwritten entries saved": 6,
            "texts forgotten": 11,
            "dictionaries begun": 11,
        }
    )


def groups_of(rows: list[Tuple]) -> dict[Any, list[int]]:
    """Times of the rows of each group."""
    found: dict[Any, list[int]] = {}
    for time, values in rows:
        found.setdefault((values[1], values[4]), []).append(time)
    return found


def restored_within(times: list[int], cuts: list[Cut], reach: int) -> bool:
    """Is there a cut with rows on both sides that are at most ``reach`` apart?"""
    return any(any(a < cut <= b and b - a < reach for a in times for b in times) for cut, _ in cuts)


TIME_WINDOWS = Situations(
    {
        "a window of a group is restored in the middle": 0.02,
        "two rows of a group at one time": 0.12,
        "three rows for each group": 0.05,
        "a late row": 0.03,
        "a null among other values": 0.13,
    }
)


@TIME_WINDOWS.required
@settings(max_examples=25, deadline=None)
@given(cut_streams(), windows())
@example((MANY, MANY_CUTS), SlidingWindow(12, 6))
@example(([(0, (None, key, 1, None, None, key)) for key in "abcdefgh"], [(9, False)]), TumblingWindow(8))
def check_time_windows(stream: tuple[list[Tuple], list[Cut]], window: Window) -> None:
    rows, cuts = stream
    spec = AggregateSpec(StreamId("in"), window, {"key": "key", "flag": "flag"}, CALLS)
    operators: list[Operator] = []

    def made() -> Operator:
        operators.append(make(spec, INPUT))
        return operators[-1]

    out = check_contract(made, [INPUT], [rows], cuts)
    expected, late = reference(rows, window)
    groups = groups_of(rows)
    numbers = {values[2] is None for _, values in rows}
    TIME_WINDOWS.example(
        {
            "a window of a group is restored in the middle": any(
                restored_within(times, cuts, window.size_us) for times in groups.values()
            ),
            "two rows of a group at one time": any(len(set(times)) < len(times) for times in groups.values()),
            "three rows for each group": bool(rows) and len(rows) >= 3 * len(groups),
            "a late row": late["late"] > 0,
            "a null among other values": len(numbers) == 2,
        }
    )
    assert out == expected
    assert operators[0].counters() == late


def test_count_windows_equal_the_reference_for_any_cuts() -> None:
    """Every n tuples of a group give one row at the time of the n-th; the rest gives nothing."""
    EXERCISED.clear()
    check_count_windows()
    require_exercised({"pauses": 101, "overwritten entries saved": 6, "texts forgotten": 11})


COUNT_WINDOWS = Situations(
    {"an open window is restored in the middle": 0.03, "a group fills two windows": 0.12, "a window stays open": 0.1}
)


@COUNT_WINDOWS.required
@settings(max_examples=25, deadline=None)
@given(cut_streams(), st.integers(1, 4))
@example((MANY, MANY_CUTS), 4)
@example((MANY, MANY_CUTS), 3)
def check_count_windows(stream: tuple[list[Tuple], list[Cut]], size: int) -> None:
    rows, cuts = stream
    spec = AggregateSpec(StreamId("in"), CountWindow(size), {"key": "key", "flag": "flag"}, CALLS)
    expected = in_plain(counted(rows, size, itemgetter(1, 4), ROW_CALLS))
    groups = groups_of(rows).values()
    COUNT_WINDOWS.example(
        {
            "an open window is restored in the middle": any(
                sum(t < cut for t in times) % size and sum(t < cut for t in times) // size < len(times) // size
                for times in groups
                for cut, _ in cuts
            ),
            "a group fills two windows": any(len(times) >= 2 * size for times in groups),
            "a window stays open": any(len(times) % size for times in groups),
        }
    )
    assert check_contract(lambda: make(spec, INPUT), [INPUT], [rows], cuts) == expected


FLOAT_SUMS = Situations(
    {"a window is restored in the middle": 0.03, "a sum of three": 0.1, "an infinity, or no number": 0.1}
)


FLOATS = st.one_of(st.floats(), st.floats(-1, 1), st.sampled_from([math.nan, math.inf, -math.inf, 1e300, 1e-300]))


@FLOAT_SUMS.required
@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 12), st.integers(1, 12))
def test_float_sums_have_the_same_bits_for_any_cuts(data: st.DataObject, size: int, slide: int) -> None:
    drawn = st.lists(
        st.tuples(st.integers(0, 40), FLOATS, st.integers(0, 2)), min_size=data.draw(FEW_OR_MANY), max_size=40
    )
    rows = [(t, (x, k)) for t, x, k in sorted(data.draw(drawn), key=lambda v: v[0])]
    cuts = data.draw(cuts_among(t for t, _ in rows))
    schema = Schema.of(x="float64", key="int64")
    spec = AggregateSpec(
        StreamId("in"),
        SlidingWindow(size, slide),
        {"key": "key"},
        {"sum": AggregateCall("sum", "x"), "avg": AggregateCall("avg", "x")},
    )
    of = {key: [t for t, (_, k) in rows if k == key] for key in range(3)}
    FLOAT_SUMS.example(
        {
            "a window is restored in the middle": any(restored_within(times, cuts, size) for times in of.values()),
            "a sum of three": any(b - a < size for times in of.values() for a, b in zip(times, times[2:])),
            "an infinity, or no number": any(not math.isfinite(x) for _, (x, _) in rows),
        }
    )
    check_contract(lambda: make(spec, schema), [schema], [rows], cuts)
