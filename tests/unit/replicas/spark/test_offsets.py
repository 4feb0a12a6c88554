"""Offsets: what a checkpoint holds, whose it is, and how far a micro-batch goes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.spark.offsets import Offset, ahead, offset_of
from spe.errors import SpeError

HERE = Offset("best", "stable", "f00d", {0: 4, 1: 7}, {0: "a", 1: "b"}, 17, begins={0: 2, 1: 7})


@pytest.mark.parametrize("one", [HERE, replace(HERE, mode="changes", session="s", change=9)])
def test_checkpoint_returns_its_offset(one: Offset) -> None:
    assert offset_of(json.loads(json.dumps(one.to_json())), one) == one


def test_equal_places_are_equal_texts() -> None:
    other = replace(HERE, ids={1: 7, 0: 4}, origins={1: "b", 0: "a"})
    assert json.dumps(other.to_json()) == json.dumps(HERE.to_json())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"query": "beef"}, r"another query \(beef\) than the one that makes 'best' now \(f00d\)"),
        ({"output": "worst"}, "of output 'worst', and 'best' is to be read"),
        ({"mode": "changes"}, "of mode 'changes', and 'stable' is"),
        ({"ids": {"0": 4}, "origins": {}}, "another query"),
        ({"begins": {"0": 4}}, "another query"),
        ({"ids": 4}, "not of an output of a running cluster"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpeError, match=said):
        offset_of({**HERE.to_json(), **change}, HERE)


def test_a_checkpoint_of_files_is_refused() -> None:
    with pytest.raises(SpeError, match="not of an output of a running cluster"):
        offset_of({"0": "12:1:64:100"}, HERE)


@given(
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1),
    st.integers(1, 200) | st.none(),
)
def test_batch_is_bounded_moves_forward_and_takes_all(places: dict[int, tuple[int, int]], rows: int | None) -> None:
    ids, latest = {p: a for p, (a, _) in places.items()}, {p: b for p, (_, b) in places.items()}
    found = ahead(ids, latest, rows)
    taken = {p: found[p] - ids[p] for p in ids}
    wanted = {p: max(0, latest[p] - ids[p]) for p in ids}

    assert all(0 <= taken[p] <= wanted[p] for p in ids)
    assert sum(taken.values()) == (sum(wanted.values()) if rows is None else min(rows, sum(wanted.values())))
    left_behind = [p for p in ids if taken[p] < wanted[p]]  # only for others that take as much, or nearly
    assert all(taken[p] + 1 >= max(taken.values()) for p in left_behind)


def test_a_partition_of_which_nothing_is_known_stays_where_it_is() -> None:
    assert ahead({0: 4, 1: 7}, {0: 9}, None) == {0: 9, 1: 7}
