"""Windows, lateness and outer joins, each rule in its smallest case."""

from __future__ import annotations

import pytest

from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.topk import TopKSpec
from spe.query.windows import CountWindow, SlidingWindow, TumblingWindow, Window
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from spe.wire.state import decode_state, encode_state
from tests.support.operators import Run, lines, make, run, text, tuples

IN, LEFT, RIGHT = StreamId("in"), StreamId("left"), StreamId("right")
EVENTS = Schema.of(ts="timestamp!")
KEYED = Schema.of(key="string", value="int64")
COUNT = {"n": AggregateCall("count")}


def tumbling(size: int, offset: int = 0, on: str | None = None) -> Window:
    return TumblingWindow(size, offset, on)


@pytest.mark.parametrize("bucket", [10, 20])
def test_the_first_tuple_at_its_end_releases_a_window(bucket: int) -> None:
    """The tuple of time 12 is late for [0, 10) by attribute, though no boundary has come (U2, U7)."""
    operator = make(AggregateSpec(IN, tumbling(10, on="ts"), {}, COUNT), EVENTS)
    rows = tuples(EVENTS, "3 3 \n 12 9 \n 13 13")
    out = run(operator, [EVENTS], [rows], cuts=range(0, 21, bucket))
    assert text(out) == lines("""
         9  0 10 1
        19 10 20 1
    """)
    assert operator.counters() == {"late": 1, "dropped": 1, "without_time": 0}


def test_a_transferred_count_window_continues() -> None:
    """Received arrays are read-only: a tuple that opens no window must not write to them."""
    spec = AggregateSpec(IN, CountWindow(3), {"key": "key"}, COUNT)
    rows = tuples(KEYED, "1 a 1 \n 2 b 1 \n 3 a 1 \n 4 a 1")
    before, after = make(spec, KEYED), make(spec, KEYED)
    assert Run(before, [KEYED]).slice([rows], 3) == []
    after.restore(decode_state(encode_state(before.snapshot())))
    assert text(Run(after, [KEYED], 3).slice([rows], 9)) == "4 a 3"


def test_a_tuple_late_for_one_window_counts_in_its_others() -> None:
    """Size 10, slide 5: 9 at time 12 is too late for [0, 10) but not for [5, 15)."""
    operator = make(AggregateSpec(IN, SlidingWindow(10, 5, 0, "ts"), {}, COUNT), EVENTS)
    assert text(run(operator, [EVENTS], [tuples(EVENTS, "1 1 \n 12 9")])) == lines("""
         4 -5  5 1
         9  0 10 1
        14  5 15 1
    """)
    assert operator.counters() == {"late": 1, "dropped": 0, "without_time": 0}


def test_a_tuple_between_windows_with_gaps_is_not_late() -> None:
    operator = make(AggregateSpec(IN, SlidingWindow(2, 5), {}, COUNT), EVENTS)
    assert text(run(operator, [EVENTS], [tuples(EVENTS, "0 0 \n 1 1 \n 2 2 \n 4 4 \n 5 5")])) == lines("""
        1 0 2 2
        6 5 7 1
    """)
    assert operator.counters() == {"late": 0, "dropped": 0, "without_time": 0}


def test_an_offset_shifts_the_windows() -> None:
    operator = make(AggregateSpec(IN, tumbling(10, offset=3), {}, COUNT), EVENTS)
    assert text(run(operator, [EVENTS], [tuples(EVENTS, "2 2 \n 3 3 \n 12 12")])) == lines("""
         2 -7  3 1
        12  3 13 2
    """)


def test_groups_come_in_the_order_of_their_first_tuple() -> None:
    operator = make(AggregateSpec(IN, tumbling(10), {"key": "key"}, COUNT), KEYED)
    rows = tuples(KEYED, "1 b 1 \n 2 - 1 \n 3 a 1 \n 4 b 1")
    assert text(run(operator, [KEYED], [rows])) == "9 b 0 10 2\n9 - 0 10 1\n9 a 0 10 1"


def test_int64_sums_wrap_around() -> None:
    operator = make(AggregateSpec(IN, tumbling(10), {}, {"sum": AggregateCall("sum", "value")}), KEYED)
    rows = [(1, ("a", 2**63 - 1)), (2, ("a", 1))]
    assert run(operator, [KEYED], [rows]) == [(9, (0, 10, -(2**63)))]


def test_a_window_beyond_the_end_of_time_ends_there() -> None:
    operator = make(AggregateSpec(IN, tumbling(1000, on="ts"), {}, COUNT), EVENTS)
    rows = [(5, (END_OF_TIME - 1,)), (6, (2**63 - 1,))]
    feed = Run(operator, [EVENTS])
    assert feed.slice([rows], END_OF_TIME - 1) == []
    out = feed.slice([rows], END_OF_TIME)
    assert [(time, values[1:]) for time, values in out] == [(END_OF_TIME - 1, (END_OF_TIME, 2))]


def test_an_outer_row_leaves_when_it_can_match_no_more() -> None:
    """Left at 10 may meet right up to 15, and does not; right at 12 may meet left up to 14."""
    spec = JoinSpec(LEFT, RIGHT, JoinKind.FULL, (("key", "key"),), None, -2, 5)
    feed = Run(make(spec, KEYED, KEYED), [KEYED, KEYED])
    ports = [tuples(KEYED, "10 a 1"), tuples(KEYED, "12 b 2")]
    assert text(feed.slice(ports, 14)) == ""
    assert text(feed.slice(ports, 15)) == "14 - - b 2"
    assert text(feed.slice(ports, 16)) == "15 a 1 - -"


def test_interval_ends_are_included_and_null_keys_do_not_match() -> None:
    spec = JoinSpec(LEFT, RIGHT, JoinKind.INNER, (("key", "key"),), None, -2, 2)
    left = tuples(KEYED, "10 a 1 \n 10 - 2")
    right = tuples(KEYED, "7 a 3 \n 8 a 4 \n 10 - 5 \n 12 a 6 \n 13 a 7")
    assert text(run(make(spec, KEYED, KEYED), [KEYED, KEYED], [left, right])) == lines("""
        10 a 1 a 4
        12 a 1 a 6
    """)


def test_a_window_join_pairs_once_per_window_that_holds_both() -> None:
    spec = JoinSpec(LEFT, RIGHT, JoinKind.LEFT, (("key", "key"),), SlidingWindow(4, 2))
    left, right = tuples(KEYED, "3 a 1"), tuples(KEYED, "5 a 2")
    assert text(run(make(spec, KEYED, KEYED), [KEYED, KEYED], [left, right])) == lines("""
        3 a 1 - - 0 4
        5 a 1 a 2 2 6
    """)


def test_top_k_over_the_results_of_a_window_needs_no_state() -> None:
    schema = Schema.of(key="string", n="int64", window_start="timestamp!")
    spec = TopKSpec(IN, 1, (("n", True),), ("window_start",), None, True, "rank")
    operator = make(spec, schema)
    rows = tuples(schema, "9 a 2 0 \n 9 b 3 0 \n 9 c 3 0 \n 19 a 1 10")
    assert text(run(operator, [schema], [rows], cuts=[10])) == lines("""
         9 b 3  0 1
         9 c 3  0 1
        19 a 1 10 1
    """)
    assert operator.snapshot() == {}


def test_state_does_not_grow_with_expired_keys() -> None:
    """100,000 keys, 100 at a time: the state stays in proportion to the 100."""
    schema = Schema.of(key="int64", name="string")
    spec = AggregateSpec(IN, tumbling(10), {"key": "key", "name": "name"}, {"last": AggregateCall("last", "name")})
    operator = make(spec, schema)
    feed = Run(operator, [schema])
    for window in range(1000):
        rows = [(10 * window, (i, f"n{i}")) for i in range(100 * window, 100 * window + 100)]
        feed.slice([rows], 10 * window + 10, new_dictionary=True)
    held = operator.snapshot()["keys"]
    assert len(held["pairs"][0]["pairs"]["values"]) < 10_000
    assert len(held["attributes"][1]["ends"]) < 10_000
