"""first and last follow the order of arrival, also after a restore inside a window (U3: cuts do not matter)."""

from __future__ import annotations

from operators.operator import Operator
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.windows import CountWindow, TumblingWindow, Window
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.operators import Run, Tuple, make, text, tuples

INPUT = Schema.of(key="string", number="int64")
CALLS = {"first": AggregateCall("first", "number"), "last": AggregateCall("last", "number")}
ROWS = tuples(INPUT, "1 a 1\n2 a 2\n3 b 7\n4 a 3\n5 b 8\n6 a 4")


def restored_in_the_middle(window: Window) -> list[Tuple]:
    """Results when the operator is restored between the third and the fourth row."""
    spec = AggregateSpec(StreamId("in"), window, {"key": "key"}, CALLS)

    def started() -> Operator:
        return make(spec, INPUT)

    before = Run(started(), [INPUT])
    assert before.slice([ROWS], 4) == []
    after = Run(started(), [INPUT], previous=4)
    after.operator.restore(before.operator.snapshot())
    return after.slice([ROWS], END_OF_TIME)


def test_a_restored_time_window_continues() -> None:
    made = restored_in_the_middle(TumblingWindow(10))
    assert text(made) == "9 a 0 10 1 4\n9 b 0 10 7 8"


def test_a_restored_count_window_continues() -> None:
    made = restored_in_the_middle(CountWindow(4))
    assert text(made) == "6 a 1 4"
