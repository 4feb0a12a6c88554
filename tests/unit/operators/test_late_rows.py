"""``on_late: reject`` (U15): which rows are late for windows by an attribute, and why, however the input is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.fragment import Fragment
from operators.join import steps as join_steps
from operators.skipping import Rejected, Skipping
from operators.sunion.slice import Slice
from spe.plan.plan import InputStream, Unit
from spe.query.declaration import OnError, OnLate
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.topk import TopKSpec
from spe.query.query import QueryOperator
from spe.query.windows import SlidingWindow, TumblingWindow, Window
from spe.stream import text_size
from spe.stream.batch import Rows
from spe.stream.names import Kind, StreamId, UnitId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME, iso_timestamp
from tests.support.operators import Run, Tuple, check_contract, make, run, step_sizes, tuples

SCHEMA = Schema.of(ts="timestamp", key="string", n="int64")
IN, OTHER = StreamId("in"), StreamId("other")
TUMBLING = TumblingWindow(10, 0, "ts")
SLIDING = SlidingWindow(10, 4, 1, "ts")
GAPS = SlidingWindow(4, 10, 0, "ts")
COUNT = {"n": AggregateCall("count")}
NULL = "without time: its window attribute is null"
Spec = AggregateSpec | TopKSpec | JoinSpec


def aggregate(window: Window, on_error: OnError = OnError.STOP) -> AggregateSpec:
    return AggregateSpec(IN, window, {"key": "key"}, COUNT, on_error, OnLate.REJECT)


def topk(window: Window) -> TopKSpec:
    return TopKSpec(IN, 2, (("n", True),), ("key",), window, on_late=OnLate.REJECT)


def join(window: Window, kind: JoinKind = JoinKind.FULL) -> JoinSpec:
    return JoinSpec(IN, OTHER, kind, (("key", "key"),), window, on_late=OnLate.REJECT)


def ports_of(spec: Spec) -> int:
    return len(spec.inputs)


def skipping(spec: Spec) -> Skipping:
    made = make(spec, *[SCHEMA] * ports_of(spec))
    assert isinstance(made, Skipping)
    return made


def rejected(
    spec: Spec, ports: Sequence[Sequence[Tuple]], cuts: Sequence[int] = (), portion: int = 0
) -> tuple[list[Tuple], list[Rejected]]:
    operator = skipping(spec)
    feed = Run(operator, [SCHEMA] * len(ports))
    feed.portion = portion
    out, found = [], []
    for cut in [*sorted(set(cuts)), END_OF_TIME]:
        out += feed.slice(ports, cut)
        found += operator.take_rejected()
    counted = operator.counters()
    assert [one.number for one in found] == list(range(1, counted["late"] + counted["without_time"] + 1))
    assert counted["rejected"] == len(found)
    return out, found


def instant(us: int) -> str:
    return iso_timestamp(us)


def test_a_row_is_rejected_with_its_window() -> None:
    """It came at 20 or later, so [10, 20) had ended; at 19 it had not."""
    port = tuples(SCHEMA, "1 1 a 1 \n 19 12 a 2 \n 20 19 a 3 \n 25 - b 4 \n 31 25 a 5 \n 31 31 a 6")
    for spec in (aggregate(TUMBLING), topk(TUMBLING)):
        out, found = rejected(spec, [port])
        assert len(out) == 3
        assert [(one.port, one.row, one.time, one.values["n"], one.reason) for one in found] == [
            (
                0,
                2,
                20,
                3,
                f"late: its window [{instant(10)}, {instant(20)}) had ended by its tuple time, {instant(20)}",
            ),
            (0, 3, 25, 4, NULL),
            (
                0,
                4,
                31,
                5,
                f"late: its window [{instant(20)}, {instant(30)}) had ended by its tuple time, {instant(31)}",
            ),
        ]


def test_a_row_that_missed_some_of_its_windows_says_how_many() -> None:
    """12 is in the windows from 5 and from 9; the first ended at 15, the second at 19."""
    port = tuples(SCHEMA, "14 12 a 1 \n 15 12 a 2 \n 19 12 a 3")
    last = f"; the last of these is [{instant(5)}, {instant(15)})"
    some = f"late: 1 of its 2 windows had ended by its tuple time, {instant(15)}{last}"
    last = f"; the last of these is [{instant(9)}, {instant(19)})"
    every = f"late: 2 of its 2 windows had ended by its tuple time, {instant(19)}{last}"
    for spec in (aggregate(SLIDING), topk(SLIDING)):
        _, found = rejected(spec, [port])
        assert [(one.row, one.reason) for one in found] == [(1, some), (2, every)]
        assert [(one.row, one.reason) for one in rejected(spec, [port], [15])[1]] == [(0, some), (1, every)]


def test_a_row_between_windows_is_not_late() -> None:
    assert rejected(aggregate(GAPS), [tuples(SCHEMA, "100 7 a 1 \n 100 13 a 2")])[1][0].row == 1


def test_a_join_rejects_rows_of_both_sides() -> None:
    left = tuples(SCHEMA, "1 1 a 1 \n 12 9 a 2 \n 25 22 a 3 \n 40 2 - 4")
    right = tuples(SCHEMA, "3 3 a 1 \n 12 2 a 2 \n 26 - a 3")
    wanted = [(0, 1, 12), (1, 1, 12), (1, 2, 26), (0, 3, 40)]
    for rows in (8192, 1):  # in how many pieces a slice is joined
        with patch.object(join_steps, "_STEP_ROWS", rows):
            _, found = rejected(join(TUMBLING), [left, right])
        assert [(one.port, one.row, one.time) for one in found] == wanted
        assert found[2].reason == NULL
        assert found[3].values == {"ts": instant(2), "key": None, "n": 4}


def test_only_the_side_that_goes_by_an_attribute_has_late_rows() -> None:
    spec = replace(join(replace(TUMBLING, on=None)), right_time="ts")
    rows = tuples(SCHEMA, "1 1 a 1 \n 12 9 a 2")
    assert [(one.port, one.row) for one in rejected(spec, [rows, rows])[1]] == [(1, 1)]


def test_a_late_value_that_a_function_refuses_is_rejected_twice() -> None:
    """Its row is late for one window, and the function does not take it in the other."""
    calls = {"total": AggregateCall("tests.unit.operators.aggregate.test_skipping:Total", "n")}
    spec = replace(aggregate(SLIDING, OnError.SKIP), aggregates=calls)
    port = tuples(SCHEMA, "15 12 a 7 \n 15 15 a 14")
    operator = skipping(spec)
    Run(operator, [SCHEMA]).slice([port], END_OF_TIME)
    found = operator.take_rejected()
    assert [(one.number, one.row) for one in found] == [(1, 0), (2, 0), (3, 1)]
    assert [one.reason.split(":")[0] for one in found] == [
        "late",
        *["tests.unit.operators.aggregate.test_skipping"] * 2,
    ]


def test_an_error_of_a_function_still_stops_the_replica() -> None:
    calls = {"total": AggregateCall("tests.unit.operators.aggregate.test_skipping:Total", "n")}
    with pytest.raises(ValueError, match="multiple of 7"):
        rejected(replace(aggregate(TUMBLING), aggregates=calls), [tuples(SCHEMA, "1 1 a 7")])


def test_a_large_result_is_no_late_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """``on_late`` leaves no result out: the fragment stops for it, as ever."""
    monkeypatch.setattr(text_size, "ROW_TEXT_BYTES", 5)
    port = tuples(SCHEMA, "1 1 longer_than_that 1")
    assert len(rejected(aggregate(TUMBLING), [port])[0]) == 1


def test_many_late_rows_are_reported_in_portions() -> None:
    """A step is bounded (B8)."""
    operator = skipping(aggregate(TUMBLING))
    count = 3000
    rows = Rows.from_tuples(SCHEMA, [50] * count, [(1, "a", at) for at in range(count)])
    pauses = sum(made is None for made in operator.work([rows], 60))
    assert pauses >= 10
    assert [one.values["n"] for one in operator.take_rejected()] == list(range(count))


def test_a_late_row_keeps_its_id() -> None:
    spec = aggregate(TUMBLING)
    operator = QueryOperator(StreamId("out"), spec, spec.output_schema([SCHEMA]))
    unit = Unit(UnitId("u"), "f", (InputStream(IN, SCHEMA, 1, None),), (operator,), (operator.name,), partitions=1)
    fragment = Fragment(unit)
    part = Rows.from_tuples(SCHEMA, [20, 20], [(1, "a", 1), (20, "a", 2)])
    piece = Slice([[part]], 30, Kind.STABLE)
    with patch.object(Slice, "ids_of", lambda self, at, rows: [(at, 70 + row) for row in rows]):
        fragment.step(piece)
    (one,) = fragment.take_rejections()
    assert (one.operator, one.result, one.input, one.id, one.time) == ("out", False, "in/0", 70, 20)


TIMES = st.integers(0, 40)
PORT = st.lists(st.tuples(TIMES, st.one_of(st.none(), st.integers(-5, 45)), st.sampled_from("ab")), max_size=25).map(
    lambda rows: [(time, (ts, key, at)) for at, (time, ts, key) in enumerate(sorted(rows, key=lambda r: r[0]))]
)
SPECS = st.sampled_from(
    [make_spec(window) for make_spec in (aggregate, topk, join) for window in (TUMBLING, SLIDING, GAPS)]
)
CUTS = st.lists(st.integers(0, 42), max_size=4)


def late_by_hand(spec: Spec, ports: Sequence[Sequence[Tuple]]) -> list[tuple[int, int, int]]:
    """Time, port and row of what missed a window or has no time, by looking at every window."""
    window = spec.window
    assert window is not None
    starts = [window.offset_us + k * window.slide_us for k in range(-40, 40)]
    found = []
    for port, rows in enumerate(ports):
        for row, (time, (ts, *_)) in enumerate(rows):
            if ts is None or any(s <= ts < s + window.size_us <= time for s in starts):
                found.append((time, port, row))
    return sorted(found)


@given(SPECS, PORT, PORT, CUTS, st.integers(0, 3))
def test_the_late_rows_do_not_depend_on_cuts(
    spec: Spec, port: list[Tuple], other: list[Tuple], cuts: list[int], portion: int
) -> None:
    ports = [port, other][: ports_of(spec)]
    out, whole = rejected(spec, ports)
    assert [(one.time, one.port, one.row) for one in whole] == late_by_hand(spec, ports)
    with step_sizes():
        again, cut = rejected(spec, ports, cuts, portion)
    assert again == out
    # Rows of a port are counted from the slice's first.
    brief = [[(one.number, one.port, one.time, one.values, one.reason) for one in found] for found in (whole, cut)]
    assert brief[0] == brief[1]
    assert run(make(replace(spec, on_late=OnLate.COUNT), *[SCHEMA] * len(ports)), [SCHEMA] * len(ports), ports) == out


@given(SPECS, PORT, PORT, st.lists(st.tuples(st.integers(0, 42), st.booleans()), max_size=3))
def test_skipping_operator_fulfils_contract(
    spec: Spec, port: list[Tuple], other: list[Tuple], cuts: list[tuple[int, bool]]
) -> None:
    ports = [port, other][: ports_of(spec)]
    check_contract(lambda: skipping(spec), [SCHEMA] * len(ports), ports, sorted(dict(cuts).items()))


def test_late_rows_are_not_reported_by_default() -> None:
    """The operator runs bare, as it always did."""
    for spec in (aggregate(TUMBLING), topk(TUMBLING), join(TUMBLING)):
        assert not isinstance(make(replace(spec, on_late=OnLate.COUNT), *[SCHEMA] * ports_of(spec)), Skipping)
