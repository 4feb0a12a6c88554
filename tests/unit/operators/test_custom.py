"""Operators and aggregates written by users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from operators.aggregate.custom import Aggregator
from operators.custom import CustomOperator
from spe.errors import QueryError
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.custom import CustomSpec
from spe.query.windows import SlidingWindow, TumblingWindow
from spe.stream.batch import Column, Rows
from spe.stream.names import StreamId
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import END_OF_TIME
from tests.support.operators import Run, check_contract, lines, make, run, text, tuples

READINGS = Schema.of(sensor="string", value="float64")
IN = StreamId("in")
HERE = "tests.unit.operators.test_custom"


class Changes(CustomOperator):
    """Passes a tuple when ``attribute`` differs from that of the tuple before by more than ``by``."""

    def __init__(self, inputs: Sequence[Schema], attribute: str, by: float) -> None:
        super().__init__(inputs, attribute=attribute, by=by)
        self._at = inputs[0].index(attribute)
        self._by = by
        self._last: float | None = None

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        if inputs[0][arguments["attribute"]].type is not AttributeType.FLOAT64:
            raise ValueError(f"{arguments['attribute']} is no float64")
        return inputs[0]

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None:
            return None
        values = rows.columns[self._at].values
        before = np.concatenate([[np.inf if self._last is None else self._last], values[:-1]])
        self._last = float(values[-1])
        return rows.select(np.abs(values - before) > self._by)

    def snapshot(self) -> Mapping[str, Any]:
        return {"last": self._last}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._last = state["last"]


class Span(Aggregator):
    """Largest − smallest."""

    returns = AttributeType.FLOAT64

    @classmethod
    def check(cls, argument: AttributeType) -> None:
        if argument is not AttributeType.FLOAT64:
            raise ValueError("expected float64")

    def create(self) -> Any:
        return None

    def add(self, state: Any, values: Any) -> Any:
        return self.merge(state, (float(values.min()), float(values.max())))

    def merge(self, state: Any, later: Any) -> Any:
        if state is None or later is None:
            return later if state is None else state
        return min(state[0], later[0]), max(state[1], later[1])

    def result(self, state: Any) -> Any:
        return None if state is None else state[1] - state[0]


class Early(Changes):
    """Breaks the contract: stamps everything 0."""

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        return None if rows is None else Rows(rows.time * 0, rows.time * 0, rows.columns)


class Narrow(Changes):
    """Breaks the contract: loses a column."""

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        return None if rows is None else rows.with_columns((Column(rows.time),))


class Listed(Changes):
    """Breaks the contract: times in a list."""

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        times: Any = [] if rows is None else list(rows.time)
        return None if rows is None else Rows(times, times, rows.columns)


class Plain(Changes):
    """Breaks the contract: tuples of Python instead of Rows."""

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Any:
        return None if ports[0] is None else ports[0].to_tuples()


def test_a_user_operator_keeps_state_like_any_other() -> None:
    spec = CustomSpec((IN,), f"{HERE}:Changes", {"attribute": "value", "by": 1.0})
    rows = tuples(READINGS, "1 a 1 \n 2 a 1.5 \n 3 a 4 \n 4 a 4 \n 5 a 0")
    out = check_contract(lambda: make(spec, READINGS), [READINGS], [rows], [(2, False), (4, True)])
    assert text(out) == "1 a 1\n3 a 4\n5 a 0"


def test_the_documented_session_window_keeps_the_contract() -> None:
    spec = CustomSpec((IN,), "configs.sessions:Sessions", {"key": "sensor", "gap": 3e-6})
    rows = tuples(READINGS, "1 a 1 \n 2 b 1 \n 3 a 1 \n 5 b 1 \n 5 c 1 \n 6 a 1 \n 7 - 1 \n 8 a 1 \n 12 b 1")
    cuts = [(3, False), (4, True), (5, False), (6, True), (8, False), (9, True), (11, False)]
    out = check_contract(lambda: make(spec, READINGS), [READINGS], [rows], cuts)
    assert text(out) == lines("""
        5 b 2 2 1
        6 a 1 3 2
        8 b 5 5 1
        8 c 5 5 1
        10 - 7 7 1
        11 a 6 8 2
        15 b 12 12 1
    """)


def test_the_documented_session_window_refuses_a_wrong_gap() -> None:
    with pytest.raises(QueryError, match="gap: expected seconds, above 0"):
        make(CustomSpec((IN,), "configs.sessions:Sessions", {"key": "sensor", "gap": 0}), READINGS)


def test_a_user_aggregate_works_in_sliding_windows() -> None:
    calls = {"span": AggregateCall(f"{HERE}:Span", "value")}
    spec = AggregateSpec(IN, SlidingWindow(4, 2), {"sensor": "sensor"}, calls)
    operator = make(spec, READINGS)
    assert operator.schema["span"] == Attribute("span", AttributeType.FLOAT64)
    rows = tuples(READINGS, "0 a 1 \n 3 a 5 \n 3 b - \n 4 a 2")
    out = check_contract(lambda: make(spec, READINGS), [READINGS], [rows], [(3, False), (4, True)])
    assert text(out) == "1 a -2 2 0\n3 a 0 4 4\n3 b 0 4 -\n5 a 2 6 3\n5 b 2 6 -\n7 a 4 8 0"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Early", "outside the slice"),
        ("Narrow", "returned 1 columns, the schema has 2"),
        ("Listed", "Rows.time is a list; expected a one-dimensional array of int64"),
        ("Plain", "returned a list; expected Rows or None"),
    ],
)
def test_output_that_breaks_the_contract_is_refused(name: str, message: str) -> None:
    spec = CustomSpec((IN,), f"{HERE}:{name}", {"attribute": "value", "by": 1.0})
    feed = Run(make(spec, READINGS), [READINGS])
    feed.slice([[]], 1)
    with pytest.raises((ValueError, TypeError), match=message):
        feed.slice([tuples(READINGS, "1 a 1")], END_OF_TIME)


@pytest.mark.parametrize(
    ("path", "arguments", "field", "message"),
    [
        ("nowhere", {}, "path", "expected an import path"),
        ("no.such.module:X", {}, "path", "ModuleNotFoundError"),
        (f"{HERE}:Missing", {}, "path", "AttributeError"),
        (f"{HERE}:HERE", {}, "path", "is no class"),
        (f"{HERE}:Span", {}, "path", "is no operator"),
        ("operators.custom:CustomOperator", {}, "path", "does not define output_schema, step"),
        (f"{HERE}:Changes", {"attribute": "sensor", "by": 1.0}, "arguments", "sensor is no float64"),
    ],
)
def test_an_unusable_class_is_refused_when_the_query_is_read(
    path: str, arguments: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(QueryError, match=message) as error:
        make(CustomSpec((IN,), path, arguments), READINGS)
    assert error.value.field == field


def test_an_aggregate_may_refuse_its_argument() -> None:
    spec = AggregateSpec(IN, TumblingWindow(4), {}, {"x": AggregateCall(f"{HERE}:Span", "sensor")})
    with pytest.raises(QueryError, match="expected float64") as error:
        run(make(spec, READINGS), [READINGS], [[]])
    assert error.value.field == "aggregates.x"
