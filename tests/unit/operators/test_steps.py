"""What one step copies, fills or releases is bounded however large the state is (B8): counted in entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from operators import steps
from operators.operator import Operator
from spe.query.query import AggregateCall, AggregateSpec, Window, WindowKind
from spe.stream.batch import Column, Rows
from spe.stream.frozen import Frozen
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support.operators import make

SCHEMA = Schema.of(key="int64!", value="float64!")
#: Groups: many times what a step may do.
GROUPS = 2_000
ROWS = 16


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("COPIED", 64), ("INDEXED", 32), ("RELEASED", 24)):
        monkeypatch.setattr(steps, name, size)


class Counter:
    """How many entries are copied in a step: of whole arrays, by slices; and saved for snapshots."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.saved = 0
        save = Frozen.save

        def counted(frozen: Frozen, at: Any) -> int:
            found = save(frozen, at)
            self.saved += found
            return found

        monkeypatch.setattr(Frozen, "save", counted)


def rows(keys: npt.NDArray[np.int64], time: int) -> Rows:
    stamps = np.full(len(keys), time, np.int64)
    return Rows(stamps, stamps, (Column(keys), Column(keys * 0.5)))


def aggregate(window: Window) -> Operator:
    calls = {
        "n": AggregateCall("count"),
        **{f: AggregateCall(f, "value") for f in ("sum", "min", "first", "count_distinct")},
        "own": AggregateCall("tests.unit.operators.test_custom:Span", "value"),
    }
    return make(AggregateSpec(StreamId("in"), window, {"key": "key"}, calls), SCHEMA)


TUMBLING = Window(WindowKind.TUMBLING, 1000, 1000)
COUNTED = Window(WindowKind.COUNT, count=1_000_000)
SLIDING = Window(WindowKind.SLIDING, 1000, 500)


def filled(window: Window) -> Operator:
    operator = aggregate(window)
    keys = np.random.default_rng(1).permutation(np.arange(GROUPS) << 40)
    for at in range(0, GROUPS, ROWS):
        operator.step([rows(keys[at : at + ROWS], 1)], 2)
    return operator


def pauses(work: Iterator[Any]) -> int:
    return sum(one is None for one in work)


@pytest.mark.parametrize("window", [TUMBLING, SLIDING, COUNTED])
def test_a_write_after_a_snapshot_saves_what_it_writes(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups anywhere in the state; only their cells are saved, each once."""
    operator, counter = filled(window), Counter(monkeypatch)
    snapshot = operator.snapshot()
    some = np.random.default_rng(2).choice(GROUPS, ROWS, replace=False) << 40
    operator.step([rows(some, 3)], 4)
    assert counter.saved == ROWS
    operator.step([rows(some, 4)], 5)
    assert counter.saved == ROWS
    del snapshot
    operator.step([rows((np.arange(ROWS) << 40), 6)], 7)
    assert counter.saved == ROWS  # nobody needs them


@pytest.mark.parametrize("window", [TUMBLING, SLIDING, COUNTED])
def test_a_restore_is_divided_into_steps(window: Window) -> None:
    operator = filled(window)
    restored = aggregate(window)
    restored.restore(operator.snapshot())
    portions = 1
    while restored.load():
        portions += 1
    # at least: the keys, their table, and the arrays of the cells
    assert portions > GROUPS // steps.INDEXED + 4 * GROUPS // steps.COPIED
    last = [rows(np.arange(ROWS) << 40, 3)]
    assert pauses(restored.work(last, 4)) <= 2 * (2 * GROUPS // steps.INDEXED + GROUPS // steps.COPIED) + 1
    for one in (operator, restored):
        one.step(last, 4)
    assert pauses(restored.work(last, 4)) == 0


def test_a_window_with_many_groups_leaves_in_bounded_pieces() -> None:
    operator = filled(TUMBLING)
    released = [one for one in operator.work([None], 1000) if one is not None]
    assert sum(map(len, released)) == GROUPS
    assert max(map(len, released)) <= steps.RELEASED
    again = filled(TUMBLING).step([None], 1000)
    assert again is not None
    assert [r for rows in released for r in rows.to_tuples()] == again.to_tuples()
