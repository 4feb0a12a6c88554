"""``on_error: skip`` of user aggregates (U15: rows that fail): refused values and missing results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.aggregate.custom import Aggregator
from operators.skipping import Rejected, Skipping
from spe.query.declaration import OnError
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.windows import CountWindow, SlidingWindow, TumblingWindow, Window
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.operators import Run, Tuple, check_contract, make, step_sizes, text, tuples

SCHEMA = Schema.of(key="string", n="int64")
HERE = "tests.unit.operators.aggregate.test_skipping"
CALLS = {
    "count": AggregateCall("count"),
    "total": AggregateCall(f"{HERE}:Total", "n"),
    "again": AggregateCall(f"{HERE}:Total", "n + 0"),
}
TUMBLING = TumblingWindow(4)
SLIDING = SlidingWindow(6, 2)
COUNT = CountWindow(3)


class Total(Aggregator):
    """A sum that refuses multiples of 7, cannot merge a sum ending in 5, and has no result for one ending in 3."""

    returns = "int64"

    def create(self) -> Any:
        return None

    def add(self, state: Any, values: Any) -> Any:
        for value in values.tolist():
            if value % 7 == 0:
                raise ValueError(f"{value} is a multiple of 7")
            state = value if state is None else state + value
        return state

    def merge(self, state: Any, later: Any) -> Any:
        if later is not None and state is not None and later % 10 == 5:
            raise LookupError(f"{later} ends in 5")
        return later if state is None else state if later is None else state + later

    def result(self, state: Any) -> Any:
        if state is not None and state % 10 == 3:
            raise ArithmeticError(f"{state} ends in 3")
        return "four" if state == 4 else state


class Fragile(Total):
    """Breaks the contract: whether it takes a value depends on earlier values."""

    def add(self, state: Any, values: Any) -> Any:
        if state is not None:
            raise ValueError("one is enough")
        return int(values[-1])


class Hungry(Total):
    def add(self, state: Any, values: Any) -> Any:
        raise MemoryError


def skipping(window: Window, calls: dict[str, AggregateCall] = CALLS) -> Skipping:
    spec = AggregateSpec(StreamId("in"), window, {"key": "key"}, calls, OnError.SKIP)
    made = make(spec, SCHEMA)
    assert isinstance(made, Skipping)
    return made


def rejected(operator: Skipping, port: Sequence[Tuple], cuts: Sequence[int] = ()) -> tuple[list[Tuple], list[Rejected]]:
    feed = Run(operator, [SCHEMA])
    out, found = [], []
    for cut in [*sorted(set(cuts)), END_OF_TIME]:
        out += feed.slice([port], cut)
        found += operator.take_rejected()
    return out, found


def brief(found: Sequence[Rejected]) -> list[str]:
    return sorted(
        f"{'result' if one.port is None else 'row'} {one.number} {one.time} "
        f"{' '.join(map(str, one.values.values()))}: {one.reason.removeprefix(HERE)}"
        for one in found
    )


def test_value_refused_by_add_is_skipped_in_that_function_only() -> None:
    calls = {"count": AggregateCall("count"), "sum": AggregateCall("sum", "n"), "total": CALLS["total"]}
    out, found = rejected(skipping(TUMBLING, calls), tuples(SCHEMA, "0 a 1 \n 1 a 7 \n 2 a - \n 3 b 14 \n 3 a 1"))
    assert text(out) == "3 a 0 4 4 9 2\n3 b 0 4 1 14 -"
    assert brief(found) == [
        "row 1 1 a 7: :Total(n): ValueError: 7 is a multiple of 7",
        "row 2 3 b 14: :Total(n): ValueError: 14 is a multiple of 7",
    ]
    assert [one.row for one in found] == [1, 3]


def test_a_missing_result_leaves_out_the_row() -> None:
    out, found = rejected(skipping(TUMBLING), tuples(SCHEMA, "0 a 13 \n 1 b 1 \n 5 a 2 \n 5 b 4 \n 9 b 3"))
    assert text(out) == "3 b 0 4 1 1 1\n7 a 4 8 1 2 2"
    assert brief(found) == [
        "result 1 3 a 1970-01-01T00:00:00 1970-01-01T00:00:00.000004 1 None None: :Total(n): "
        "ArithmeticError: 13 ends in 3",
        "result 2 7 b 1970-01-01T00:00:00.000004 1970-01-01T00:00:00.000008 1 None None: :Total(n): "
        "Total.result returned what is no int64: invalid literal for int() with base 10: 'four'",
        "result 3 11 b 1970-01-01T00:00:00.000008 1970-01-01T00:00:00.000012 1 None None: :Total(n): "
        "ArithmeticError: 3 ends in 3",
    ]


def test_panes_that_cannot_be_merged_leave_out_the_row() -> None:
    calls = {"total": CALLS["total"]}
    out, found = rejected(skipping(SLIDING, calls), tuples(SCHEMA, "0 a 1 \n 2 a 5 \n 4 a 1"))
    assert text(out) == "1 a -4 2 1\n7 a 2 8 6\n9 a 4 10 1"
    assert [one.reason.removeprefix(HERE) for one in found] == [":Total(n): LookupError: 5 ends in 5"] * 2


def test_a_function_that_refuses_by_history_stops_the_replica() -> None:
    with pytest.raises(ValueError, match="one is enough"):
        rejected(
            skipping(TUMBLING, {"x": AggregateCall(f"{HERE}:Fragile", "n")}), tuples(SCHEMA, "0 a 1 \n 1 a 2"), [1]
        )


def test_an_error_of_the_machine_leaves_no_value_out() -> None:
    with pytest.raises(MemoryError):
        rejected(skipping(TUMBLING, {"x": AggregateCall(f"{HERE}:Hungry", "n")}), tuples(SCHEMA, "0 a 1"))


VALUES = st.sampled_from([None, 0, 1, 2, 3, 4, 5, 7, 11, 14, 20])
PORT = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["a", "b"]), VALUES), max_size=20).map(
    lambda rows: [(time, values) for time, *values in sorted(rows, key=lambda r: r[0])]
)
WINDOWS = st.sampled_from([TUMBLING, SLIDING, COUNT])


@given(PORT, WINDOWS, st.lists(st.integers(0, 14), max_size=4), st.booleans())
def test_the_rejected_values_do_not_depend_on_cuts(
    port: list[Tuple], window: Window, cuts: list[int], small: bool
) -> None:
    whole = rejected(skipping(window), port)
    if small:
        with step_sizes():
            cut = rejected(skipping(window), port, cuts)
    else:
        cut = rejected(skipping(window), port, cuts)
    assert cut[0] == whole[0]
    assert brief(cut[1]) == brief(whole[1])


@given(PORT, WINDOWS, st.lists(st.tuples(st.integers(0, 14), st.booleans()), max_size=3))
def test_skipping_operator_fulfils_contract(port: list[Tuple], window: Window, cuts: list[tuple[int, bool]]) -> None:
    check_contract(lambda: skipping(window), [SCHEMA], [port], sorted(dict(cuts).items()))
