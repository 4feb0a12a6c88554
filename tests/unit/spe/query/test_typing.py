"""Output schemas of operators, and what is refused when a query is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spe.errors import ExpressionError, QueryError
from spe.query.declaration import OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.topk import TopKSpec
from spe.query.operators.union import UnionSpec
from spe.query.windows import MAX_OVERLAP, CountWindow, SlidingWindow, TumblingWindow
from spe.stream.names import StreamId
from spe.stream.schema import Schema

A, B = StreamId("a"), StreamId("b")
BIDS = Schema.of(ts="timestamp!", key="string!", price="float64", n="int64!", ok="bool")
MINUTE = TumblingWindow(60)
AGGREGATE = AggregateSpec(A, MINUTE, {"key": "key"}, {"n": AggregateCall("count")})
JOIN = JoinSpec(A, B, JoinKind.INNER, (("key", "key"),), MINUTE)
INTERVAL = JoinSpec(A, B, JoinKind.INNER, (("key", "key"),), None, -5, 5)
TOPK = TopKSpec(A, 3, (("price", True),), ("key",))


@pytest.mark.parametrize(
    ("spec", "schema"),
    [
        (FilterSpec(A, "price > 1"), str(BIDS)),
        (MapSpec(A, {"x": "n * 2", "p": "price"}), "x int64 not null, p float64"),
        (MapSpec(A, {"x": "n"}, keep=True), f"{BIDS}, x int64 not null"),
        (
            AGGREGATE,
            "key string not null, window_start timestamp not null, window_end timestamp not null, n int64 not null",
        ),
        (
            replace(
                AGGREGATE,
                window=CountWindow(3),
                aggregates={
                    "s": AggregateCall("sum", "n"),
                    "a": AggregateCall("avg", "n"),
                    "m": AggregateCall("max", "price"),
                    "d": AggregateCall("count_distinct", "ok"),
                    "l": AggregateCall("last", "ts"),
                },
            ),
            "key string not null, s int64 not null, a float64 not null, m float64, d int64 not null, "
            "l timestamp not null",
        ),
        (TOPK, str(BIDS)),
        (
            replace(TOPK, window=MINUTE, rank_as="rank"),
            f"{BIDS}, window_start timestamp not null, window_end timestamp not null, rank int64 not null",
        ),
    ],
)
def test_operators_have_the_expected_output_schemas(spec: OperatorSpec, schema: str) -> None:
    assert str(spec.output_schema([BIDS])) == schema


def test_optional_side_of_outer_join_is_nullable() -> None:
    small = Schema.of(key="string!")
    assert str(replace(JOIN, kind=JoinKind.LEFT).output_schema([small, small])) == (
        "l_key string not null, r_key string, window_start timestamp not null, window_end timestamp not null"
    )
    assert str(replace(INTERVAL, kind=JoinKind.FULL).output_schema([small, small])) == "l_key string, r_key string"


def test_a_union_is_nullable_where_any_input_is() -> None:
    inputs = [Schema.of(x="int64!", y="bool!"), Schema.of(x="int64!", y="bool")]
    assert str(UnionSpec((A, B)).output_schema(inputs)) == "x int64 not null, y bool"


def test_windowed_top_k_keeps_the_windows_that_its_input_has() -> None:
    schema = Schema.of(n="int64", window_start="timestamp!", window_end="timestamp!")
    assert TopKSpec(A, 1, (("n", True),), (), MINUTE).output_schema([schema]) == schema


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        (MapSpec(A, {}), "columns", "at least one"),
        (MapSpec(A, {"key": "n"}, keep=True), "", "'key' would be in the output twice"),
        (replace(AGGREGATE, window=replace(MINUTE, size_us=0)), "window.size", "more than 0"),
        (replace(AGGREGATE, window=SlidingWindow(60, 0)), "window.slide", "more than 0"),
        (
            replace(AGGREGATE, window=SlidingWindow(10 * MAX_OVERLAP, 9)),
            "window.slide",
            "more than 10000 windows",
        ),
        (replace(AGGREGATE, window=replace(MINUTE, on="key")), "window.on", "is string; expected a timestamp"),
        (replace(AGGREGATE, window=replace(MINUTE, on="tz")), "window.on", "no attribute 'tz'; there are: ts, key"),
        (replace(AGGREGATE, window=CountWindow(0)), "window.count", "at least 1"),
        (replace(AGGREGATE, group_by={}, aggregates={}), "aggregates", "at least one"),
        (replace(AGGREGATE, group_by={"window_end": "ts"}), "", "'window_end' would be in the output twice"),
        (replace(AGGREGATE, aggregates={"key": AggregateCall("count")}), "", "'key' would be in the output twice"),
        (replace(AGGREGATE, aggregates={"x": AggregateCall("median", "n")}), "aggregates.x", "no aggregate 'median'"),
        (replace(AGGREGATE, aggregates={"x": AggregateCall("sum")}), "aggregates.x", "sum needs an argument"),
        (
            replace(AGGREGATE, aggregates={"x": AggregateCall("sum", "ok")}),
            "aggregates.x",
            "int64 or float64, got bool",
        ),
        (replace(AGGREGATE, aggregates={"x": AggregateCall("avg", "ts")}), "aggregates.x", "got timestamp"),
        (replace(TOPK, k=0), "k", "at least 1"),
        (replace(TOPK, order_by=()), "order_by", "at least one"),
        (replace(TOPK, partition_by=("key", "kex")), "partition_by.1", "no attribute 'kex'"),
        (replace(TOPK, rank_as="n"), "", "'n' would be in the output twice"),
    ],
)
def test_operators_that_do_not_fit_their_input_are_refused(spec: OperatorSpec, field: str, message: str) -> None:
    with pytest.raises(QueryError, match=message) as error:
        spec.output_schema([BIDS])
    assert error.value.field == field


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"on": (("key", "key"), ("n", "price"))}, "on.1", "'n' is int64, but 'price' is float64"),
        ({"on": (("kex", "key"),)}, "on.0", "no attribute 'kex' on the left"),
        ({"on": (("key", "kex"),)}, "on.0", "no attribute 'kex' on the right"),
        ({"on": (("left", "key"),)}, "on.0", "expected a name that both sides have, or"),
        ({"window": None}, "window", "needs a window, or an interval"),
        ({"lower_us": 1, "upper_us": 2}, "window", "and not both"),
        ({"window": None, "lower_us": 3, "upper_us": 2}, "lower", "is more than upper"),
        ({"window": None, "lower_us": 3}, "upper", "needs both ends"),
        ({"window": None, "lower_us": 1, "upper_us": 2, "left_time": "ts"}, "left_time", "or neither"),
        ({"window": None, "lower_us": 1, "upper_us": 2, "right_time": "n"}, "right_time", "is int64"),
        ({"prefix": ("", "")}, "", "'ts' would be in the output twice; set prefixes"),
    ],
)
def test_a_join_that_does_not_fit_its_inputs_is_refused(changes: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(QueryError, match=message) as error:
        replace(JOIN, **changes).output_schema([BIDS, BIDS])
    assert error.value.field == field


def test_inputs_of_a_union_have_equal_names_and_types() -> None:
    with pytest.raises(QueryError, match="expected the same names and types") as error:
        UnionSpec((A, B)).output_schema([BIDS, Schema.of(x="int64")])
    assert error.value.field == "inputs"


@pytest.mark.parametrize(
    "spec",
    [
        FilterSpec(A, "n"),
        FilterSpec(A, "missing > 1"),
        MapSpec(A, {"x": "n +"}),
        replace(AGGREGATE, group_by={"x": "nope"}),
        replace(TOPK, order_by=(("nope", False),)),
    ],
)
def test_expressions_are_checked_with_the_schema_of_their_input(spec: OperatorSpec) -> None:
    with pytest.raises(ExpressionError):
        spec.output_schema([BIDS])
