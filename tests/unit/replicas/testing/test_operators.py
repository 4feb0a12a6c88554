"""Operators and aggregates by themselves: what keeps its promises passes, and each that is broken is named."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.sessions import Sessions
from operators.aggregate.custom import Aggregator
from operators.custom import CustomOperator
from operators.keyed import KeyedOperator
from replicas.testing import OperatorHarness, PromiseBroken, check_aggregate, rows
from spe.errors import ConfigError
from spe.stream.batch import Column, Rows
from spe.stream.schema import Schema

READINGS = "sensor string, value float64!"
TABLE = """
    _time  sensor  value
    1s     a       1
    2s     a       0
    2s     b       5
    4s     -       7
"""


class Running(CustomOperator):
    """The sum of all values so far; its mistakes are made by subclasses."""

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._sum = np.zeros(1)

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        if arguments:
            raise ValueError("takes no arguments")
        return Schema.of(sum="float64")

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        given = [rows for rows in ports if rows is not None]
        if not given:
            return None
        sums = self._sum[0] + np.cumsum(given[0].columns[1].values)
        self._sum = sums[-1:].copy()
        return Rows(given[0].time, given[0].time, (Column(sums),))

    def snapshot(self) -> Mapping[str, Any]:
        return {"sum": self._sum}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._sum = state["sum"].copy()


class Forgetful(Running):
    def restore(self, state: Mapping[str, Any]) -> None:
        pass


class Shared(Running):
    """Writes to an array that is part of a snapshot."""

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None:
            return None
        sums = self._sum[0] + np.cumsum(rows.columns[1].values)
        self._sum[0] = sums[-1]
        return Rows(rows.time, rows.time, (Column(sums),))


class PerSlice(Running):
    """Forgets the sum in each slice."""

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        self._sum = np.zeros(1)
        return super().step(ports, boundary)


class Coded(Running):
    """Goes by the codes of texts."""

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        return None if rows is None else Rows(rows.time, rows.time, (Column(rows.columns[0].values.astype(float)),))


class Counted(Running):
    """Goes by something outside of its input."""

    made: ClassVar = itertools.count()

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        return None if rows is None else Rows(rows.time, rows.time, (Column(rows.time * 0.0 + next(self.made)),))


class Sets(Running):
    def snapshot(self) -> Mapping[str, Any]:
        return {"seen": {1}}


class Lists(KeyedOperator):
    """How many values a sensor has had; all of them are in a list, which is changed in place."""

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        return Schema.of(n="int64!")

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None:
            return None
        counts = [(self.count(sensor, value),) for sensor, value in rows.to_tuples()]
        return Rows.from_tuples(self.schema, rows.time.tolist(), counts)

    def count(self, sensor: Any, value: Any) -> int:
        values = self.state.setdefault(sensor, [])
        values.append(value)
        return len(values)


class Tuples(Lists):
    """The same as it should be."""

    def count(self, sensor: Any, value: Any) -> int:
        self.state[sensor] = values = (*self.state.get(sensor, ()), value)
        return len(values)


class Beside(Lists):
    """Keeps a part of its state beside the keys."""

    all = 0

    def count(self, sensor: Any, value: Any) -> int:
        self.all += 1
        return self.all


def test_rows_go_in_slice_by_slice() -> None:
    running = OperatorHarness(Running, READINGS)
    assert running.step(TABLE, upto="5s")[-1] == {"_time": "2026-01-01T00:00:04", "sum": 13.0}
    assert [row["sum"] for row in running.step([("6s", "c", 1.0)], upto="7s")] == [14.0]
    assert running.end() == []
    assert running.schema == Schema.of(sum="float64")


def test_an_operator_that_keeps_its_promises_passes() -> None:
    assert [row["sum"] for row in OperatorHarness(Running, READINGS).check(TABLE)] == [1, 1, 6, 13]
    assert [row["n"] for row in OperatorHarness(Tuples, READINGS).check(TABLE)] == [1, 2, 1, 1]


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (Forgetful, "Forgetful makes other output behind a snapshot of 2026-01-01T00:00:0"),
        (Shared, "Shared: the snapshot of 2026-01-01T00:00:01 has changed as the operator went on"),
        (PerSlice, "PerSlice makes other output when cut at 2026-01-01T00:00:01.000001: row 2 is "),
        (Coded, "Coded makes other output when cut at .*seed=0"),
        (Counted, "Counted makes other output of the same input: row 1 is"),
        (Lists, "Lists: the snapshot of 2026-01-01T00:00:01.000001 has changed as the operator went on"),
        (Beside, "Beside makes other output behind a snapshot of 2026-01-01T00:00:01.000001: row 2 is {'_time'"),
        (Sets, "Sets: a snapshot cannot be sent: .*cannot store a builtins.set"),
    ],
)
def test_each_broken_promise_is_named(operator: type[CustomOperator], message: str) -> None:
    with pytest.raises(PromiseBroken, match=f"(?s){message}"):
        OperatorHarness(operator, READINGS).check(TABLE)


def test_mistakes_name_the_line_of_the_test() -> None:
    running = OperatorHarness(Running, READINGS)
    here = r"test_operators\.py:\d+: "
    with pytest.raises(ConfigError, match=here + "Running: row 2 is before row 1"):
        running.step([("2s", "a", 1.0), ("1s", "a", 1.0)], upto="3s")
    with pytest.raises(ConfigError, match=here + "Running: a row of 2026-01-01T00:00:03 outside of the slice"):
        running.step([("3s", "a", 1.0)], upto="3s")
    with pytest.raises(ConfigError, match=here + "Running: row 1: value is null"):
        running.step([("1s", "a", None)], upto="3s")
    with pytest.raises(ConfigError, match=here + "Running has 1 ports, got rows of 2"):
        running.step([], [], upto="3s")
    with pytest.raises(ConfigError, match=here + "Running cannot be made: ValueError: takes no arguments"):
        OperatorHarness(Running, READINGS, by=1)
    with pytest.raises(ConfigError, match=here + r"value: no type 'flaot64' \(did you mean 'float64'\?\)"):
        OperatorHarness(Running, "value flaot64")


@given(rows(READINGS, most=6, span="5s"))
@settings(max_examples=30)
def test_random_rows_find_no_mistake_in_the_documented_operator(given: Any) -> None:
    found = OperatorHarness(Sessions, READINGS, key="sensor", gap=1.5).check(given)

    assert sum(row["n"] for row in found) == len(given)


@given(rows("n int64!, at timestamp, ok bool", values={"n": st.just(4)}, span="2s"))
def test_rows_fit_their_schema_and_are_in_order(given: Any) -> None:
    assert [row[0] for row in given] == sorted(row[0] for row in given)
    assert all(row[1] == 4 and row[3] in (True, False, None) for row in given)


class Span(Aggregator):
    returns = "float64"

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


class Rounded(Span):
    """Adds floats as NumPy does: pairwise, so that the result depends on the cut."""

    def add(self, state: Any, values: Any) -> Any:
        return (0.0, (0.0 if state is None else state[1]) + float(values.sum()))


class InPlace(Span):
    def create(self) -> Any:
        return [0.0]

    def add(self, state: Any, values: Any) -> Any:
        state[0] += float(len(values))
        return state

    def merge(self, state: Any, later: Any) -> Any:
        return [state[0] + later[0]]

    def result(self, state: Any) -> Any:
        return state[0]


def test_an_aggregate_is_checked_at_every_cut() -> None:
    assert check_aggregate(Span, [3.0, None, 1.0, 7.5]) == 6.5
    assert check_aggregate(Span, []) is None
    with pytest.raises(PromiseBroken, match=r"Rounded\.(add|merge) after \d+ of 3 values gives"):
        check_aggregate(Rounded, [0.1, 0.2, 0.3])
    with pytest.raises(PromiseBroken, match=r"InPlace\.add has changed a state in place"):
        check_aggregate(InPlace, [1.0, 2.0])
    with pytest.raises(ConfigError, match=r"test_operators\.py:\d+: Span: "):
        check_aggregate(Span, ["x"])
