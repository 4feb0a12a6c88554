"""``on_error: skip`` of user operators (U15: rows that fail): which rows are rejected, however the input is cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.custom import CustomOperator
from operators.skipping import Rejected, Skipping
from spe.query.declaration import OnError
from spe.query.operators.custom import CustomSpec
from spe.stream.batch import Rows
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.operators import Run, Tuple, check_contract, make, text, tuples

NUMBERS = Schema.of(n="int64")
HERE = "tests.unit.operators.test_trials"
IN = (StreamId("in"),)


class Sums(CustomOperator):
    """A running sum over all ports that must not exceed ``limit``; a row is released two instants later.

    Null raises; so does time, from ``until`` on.
    """

    def __init__(self, inputs: Sequence[Schema], limit: int = 100, until: int = END_OF_TIME) -> None:
        super().__init__(inputs)
        self._limit, self._until = limit, until
        self._sum = 0
        self._due: list[tuple[int, int]] = []
        self.calls = 0

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        return inputs[0]

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        self.calls += 1
        came = [
            (time, port, value)
            for port, rows in enumerate(ports)
            if rows is not None
            for time, value in zip(rows.time.tolist(), rows.columns[0].to_list())
        ]
        for time, _, value in sorted(came, key=lambda c: c[:2]):
            self._sum += value
            if self._sum > self._limit:
                raise ValueError(f"{self._sum} is more than {self._limit}")
            self._due.append((time + 2, self._sum))
        if self._until < boundary < END_OF_TIME:
            raise ZeroDivisionError("time is up")
        out = [(time, value) for time, value in self._due if time < boundary]
        self._due = [d for d in self._due if d[0] >= boundary]
        return Rows.from_tuples(NUMBERS, [t for t, _ in out], [(v,) for _, v in out]) if out else None

    def snapshot(self) -> Mapping[str, Any]:
        return {"sum": self._sum, "due": list(self._due)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._sum, self._due = state["sum"], [(int(t), int(v)) for t, v in state["due"]]


class Narrow(Sums):
    """Returns an invalid result for a 6."""

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        return rows if rows is None or 6 not in rows.columns[0].to_list() else rows.with_columns(())


class OutOfMemory(Sums):
    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        if ports[0] is not None:
            raise MemoryError
        return None


def skipping(ports: int = 1, name: str = "Sums", **arguments: Any) -> Skipping:
    spec = CustomSpec(IN * ports, f"{HERE}:{name}", arguments, OnError.SKIP)
    made = make(spec, *[NUMBERS] * ports)
    assert isinstance(made, Skipping)
    return made


def rejected(
    operator: Skipping, ports: Sequence[Sequence[Tuple]], cuts: Sequence[int] = ()
) -> tuple[list[Tuple], list[Rejected]]:
    """Results, and rejected rows."""
    feed = Run(operator, [NUMBERS] * len(ports))
    out, found = [], []
    for cut in [*sorted(set(cuts)), END_OF_TIME]:
        out += feed.slice(ports, cut)
        found += operator.take_rejected()
    return out, found


def brief(found: Sequence[Rejected]) -> list[str]:
    return [f"{one.number} port {one.port} {one.time} {one.values['n']}: {one.reason}" for one in found]


def test_a_row_that_makes_it_raise_is_left_out() -> None:
    out, found = rejected(skipping(), [tuples(NUMBERS, "1 50 \n 2 60 \n 3 - \n 4 50 \n 5 1")])
    assert text(out) == "3 50\n6 100"
    assert brief(found) == [
        "1 port 0 2 60: ValueError: 110 is more than 100",
        "2 port 0 3 None: TypeError: unsupported operand type(s) for +=: 'int' and 'NoneType'",
        "3 port 0 5 1: ValueError: 101 is more than 100",
    ]


def test_rows_of_one_time_are_tried_in_order() -> None:
    left = tuples(NUMBERS, "7 40 \n 7 70 \n 7 30")
    right = tuples(NUMBERS, "7 30 \n 7 31 \n 7 0")
    out, found = rejected(skipping(2), [left, right])
    assert text(out) == "9 40\n9 70\n9 100\n9 100"
    assert [(one.port, one.row, one.values["n"]) for one in found] == [(0, 1, 70), (1, 1, 31)]


def test_a_refused_result_counts_as_an_exception() -> None:
    out, found = rejected(skipping(name="Narrow"), [tuples(NUMBERS, "1 5 \n 2 6 \n 2 7")])
    assert text(out) == "1 5\n2 7"
    assert brief(found) == ["1 port 0 2 6: ValueError: returned 0 columns, the schema has 1"]


def test_an_exception_without_rows_stops_the_replica() -> None:
    operator = skipping(until=5)
    with pytest.raises(RuntimeError, match=r"given no row, up to .*: ZeroDivisionError: time is up"):
        rejected(operator, [tuples(NUMBERS, "1 1 \n 4 1 \n 6 1")], [7])
    with pytest.raises(RuntimeError, match="given no row"):
        rejected(skipping(until=5), [[]], [7])


def test_an_error_of_the_machine_rejects_no_row() -> None:
    with pytest.raises(MemoryError):
        rejected(skipping(name="OutOfMemory"), [tuples(NUMBERS, "1 1")])


def test_counts_are_part_of_the_state() -> None:
    operator = skipping()
    port = tuples(NUMBERS, "1 50 \n 2 60 \n 3 1")
    feed = Run(operator, [NUMBERS])
    feed.slice([port], 2)
    before = operator.snapshot()
    feed.slice([port], END_OF_TIME)
    assert operator.counters() == {"rejected": 1, "rejected_results": 0}
    operator.restore(before)
    assert operator.counters() == {"rejected": 0, "rejected_results": 0}


@pytest.mark.parametrize(("bad", "least", "most"), [(1, 0, 0), (64, 4, 30)])
def test_skipping_operator_pauses_after_some_trials(bad: int, least: int, most: int) -> None:
    """B8: steps are bounded.  A pause costs a turn; with one per trial the replica never caught up."""
    operator = skipping(limit=0)
    rows = Rows.from_tuples(NUMBERS, list(range(64)), [(1,)] * bad + [(0,)] * (64 - bad))
    pauses = sum(portion is None for portion in operator.work([rows], 64))
    assert least <= pauses <= most
    assert operator.counters()["rejected"] == bad


VALUES = st.sampled_from([None, 0, 0, 1, 30, 60, 200])
PORT = st.lists(st.tuples(st.integers(0, 8), VALUES), max_size=12).map(
    lambda rows: [(time, (n,)) for time, n in sorted(rows, key=lambda r: r[0])]
)


def one_by_one(ports: Sequence[Sequence[Tuple]], limit: int = 100) -> Iterator[tuple[int, int, int, Any]]:
    """The rule as it is written: time, port, place and value of each row that is rejected."""
    total = 0
    placed = [(t, p, i, v[0]) for p, port in enumerate(ports) for i, (t, v) in enumerate(port)]
    for row in sorted(placed, key=lambda r: r[:3]):
        if row[3] is None or total + row[3] > limit:
            yield row
        else:
            total += row[3]


@given(st.lists(PORT, min_size=1, max_size=3), st.lists(st.integers(0, 10), max_size=4))
def test_the_rejected_rows_do_not_depend_on_cuts(ports: list[list[Tuple]], cuts: list[int]) -> None:
    whole = rejected(skipping(len(ports)), ports)
    cut = rejected(skipping(len(ports)), ports, cuts)
    assert cut[0] == whole[0]
    assert brief(cut[1]) == brief(whole[1])
    assert [(one.time, one.port, one.row, one.values["n"]) for one in whole[1]] == list(one_by_one(ports))


@given(st.lists(PORT, min_size=1, max_size=2), st.lists(st.tuples(st.integers(0, 10), st.booleans()), max_size=3))
def test_skipping_operator_fulfils_contract(ports: list[list[Tuple]], cuts: list[tuple[int, bool]]) -> None:
    distinct = sorted(dict(cuts).items())
    check_contract(lambda: skipping(len(ports)), [NUMBERS] * len(ports), ports, distinct)
