"""The newest results of each output, as a client's status has them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from replicas.client.newest import COLUMNS_SHOWN, OUTPUTS_SHOWN, ROWS_KEPT, TEXT_SHOWN, NewestRows
from replicas.client.view import CurrentView
from spe.stream.batch import Batch, Rows, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema

OUT = StreamId("out")
NUMBERS = Schema.of(n="int64!")


def batch(kind: Kind, first: int, count: int) -> Batch:
    """Tuples with ids and values from ``first`` on."""
    values = range(first, first + count)
    rows = Rows.from_tuples(NUMBERS, list(values), [(n,) for n in values])
    return Batch(kind, first - 1, first + count - 1, None, rows)


def stable(first: int, count: int, partition: int = 0) -> Change:
    return Change(Channel(OUT, partition), batch(Kind.STABLE, first, count), 0)


def tentative(first: int, count: int, partition: int = 0) -> Change:
    return Change(Channel(OUT, partition), batch(Kind.TENTATIVE, first, count), 0)


def shown(*changes: Change) -> list[str]:
    """Values, the tentative ones with a question mark."""
    newest = NewestRows({OUT: NUMBERS})
    for change in changes:
        newest.apply(change)
    return [f"{'?' if row.tentative else ''}{row.values[0]}" for one in newest.status() for row in one.rows]


def test_the_last_rows_are_shown_in_order_of_arrival() -> None:
    assert shown() == []
    assert shown(stable(1, 3), stable(4, 100)) == ["99", "100", "101", "102", "103"]
    assert shown(stable(1, 3), stable(4, 1), tentative(5, 2)) == ["2", "3", "4", "?5", "?6"]


def test_an_undo_takes_the_tentative_rows_of_its_channel() -> None:
    changes = [stable(1, 2), tentative(3, 1), tentative(3, 1, partition=1), Change(Channel(OUT, 0), Undo(2), 0)]
    assert shown(*changes) == ["1", "2", "?3"]
    assert shown(*changes, stable(3, 1)) == ["1", "2", "?3", "3"]


@given(st.lists(st.tuples(st.sampled_from([stable, tentative, None]), st.integers(1, 9)), max_size=20))
def test_shown_rows_are_the_end_of_the_current_view(steps: list[tuple[Any, int]]) -> None:
    newest, view, position, held = NewestRows({OUT: NUMBERS}), CurrentView(), 0, 0
    for make, count in steps:
        if make is None or (make is stable and held):
            change, held = Change(Channel(OUT, 0), Undo(position), 0), 0
        else:
            change = make(position + held + 1, count)
            position, held = (position, held + count) if make is tentative else (position + count, 0)
        newest.apply(change)
        view.apply(change)
    rows, marks = view.rows(OUT)
    known = [] if rows is None else [(f"{n}", bool(t)) for (n,), t in zip(rows.to_tuples(), marks, strict=True)]
    found = [(row.values[0], row.tentative) for one in newest.status() for row in one.rows]
    assert found == known[len(known) - len(found) :]
    assert len(found) <= ROWS_KEPT
    assert len(found) >= min(ROWS_KEPT, held)


def test_values_are_short_texts_that_can_be_shown() -> None:
    schema = Schema.of(t="timestamp", f="float64", b="bool", s="string", l="string", z="string")
    row = (1_000_000, 0.1 + 0.2, True, "a\x1b[2J\u202eb", "x" * 100, None)
    newest = NewestRows({OUT: schema})
    newest.apply(Change(Channel(OUT, 0), Batch(Kind.STABLE, 0, 1, None, Rows.from_tuples(schema, [1], [row])), 0))
    ((values,),) = [[r.values for r in one.rows] for one in newest.status()]
    assert values[:4] == ("1970-01-01T00:00:01", "0.3", "true", "a·[2J·b")
    assert (values[4], values[5]) == ("x" * (TEXT_SHOWN - 1) + "…", "null")


def test_a_status_has_few_outputs_and_columns() -> None:
    schema = Schema.of(**{f"c{i}": "int64!" for i in range(100)})
    newest = NewestRows({StreamId(f"o{i}"): schema for i in range(100)})
    row = Batch(Kind.STABLE, 0, 1, None, Rows.from_tuples(schema, [1], [tuple(range(100))]))
    for i in range(100):
        newest.apply(Change(Channel(StreamId(f"o{i}"), 0), row, 0))
    found = newest.status()
    assert len(found) == OUTPUTS_SHOWN
    assert {(len(one.columns), len(one.rows[0].values)) for one in found} == {(COLUMNS_SHOWN, COLUMNS_SHOWN)}
