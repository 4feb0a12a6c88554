"""Filter, map and union, and the ids that all state rests on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.ids import IntegerIds, StringIds, stable_order
from operators.keys import KeyIndex, group_ids
from operators.steps import finished
from spe.query.query import FilterSpec, MapSpec, UnionSpec
from spe.stream.batch import Column
from spe.stream.names import StreamId
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringDictionary
from tests.support.operators import Cut, Tuple, check_contract, make

INPUT = Schema.of(name="string", number="int64")
CUTS: st.SearchStrategy[list[Cut]] = st.lists(
    st.tuples(st.integers(-8, 40), st.booleans()), max_size=6, unique_by=lambda c: c[0]
)
STREAMS = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from([None, "a", "b"]), st.one_of(st.none(), st.integers(-5, 5))),
    max_size=20,
).map(lambda rows: [(t, (name, n)) for t, name, n in sorted(rows, key=lambda r: r[0])])
IN = StreamId("in")


@settings(max_examples=50, deadline=None)
@given(STREAMS, CUTS)
def test_filter_passes_what_is_true_and_neither_false_nor_null(rows: list[Tuple], cuts: list[Cut]) -> None:
    out = check_contract(lambda: make(FilterSpec(IN, "number > 1"), INPUT), [INPUT], [rows], cuts)
    assert out == [(t, (name, n)) for t, (name, n) in rows if n is not None and n > 1]


@settings(max_examples=50, deadline=None)
@given(STREAMS, CUTS, st.booleans())
def test_map_computes_each_tuple_from_itself(rows: list[Tuple], cuts: list[Cut], keep: bool) -> None:
    spec = MapSpec(IN, {"next": "number + 1", "label": "name"}, keep)
    out = check_contract(lambda: make(spec, INPUT), [INPUT], [rows], cuts)
    kept = [(name, n) if keep else () for _, (name, n) in rows]
    made = [(None if n is None else n + 1, name) for _, (name, n) in rows]
    assert out == [(t, k + m) for (t, _), k, m in zip(rows, kept, made, strict=True)]


@settings(max_examples=50, deadline=None)
@given(st.lists(STREAMS, min_size=2, max_size=3), CUTS)
def test_union_merges_by_time_and_then_by_port(ports: list[list[Tuple]], cuts: list[Cut]) -> None:
    spec = UnionSpec(tuple(StreamId(f"in{i}") for i in range(len(ports))))
    out = check_contract(lambda: make(spec, *[INPUT] * len(ports)), [INPUT] * len(ports), ports, cuts)
    assert out == sorted((row for port in ports for row in port), key=lambda row: row[0])


INTEGERS = st.one_of(
    st.integers(0, 50), st.integers(-(2**63), 2**63 - 1), st.integers(0, 60).map(lambda i: i << 40),
    st.sampled_from([0, -1, 2**63 - 1, -(2**63), 2**61, -(2**61)]),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(INTEGERS, max_size=60), max_size=6), st.integers(0, 6), st.integers(0, 1))
def test_integers_get_ids_by_first_appearance(batches: list[list[int]], restored_at: int, start: int) -> None:
    """As a dict would give them; also after its tables were dropped, or it was restored."""
    ids, expected = IntegerIds(start), dict[int, int]()
    for i, batch in enumerate(batches):
        if i == restored_at:
            ids.close()
            ids = finished(IntegerIds.restoring(ids.snapshot()))
        wanted = [expected.setdefault(v, start + len(expected)) for v in batch]
        assert ids.ids(np.array(batch, np.int64)).tolist() == wanted
    assert ids.values()[start:].tolist() == list(expected)


@pytest.mark.parametrize("bound", [5, 1 << 16, (1 << 16) + 1, 1 << 32, 1 << 40])
def test_ids_are_ordered_stably_whatever_their_range(bound: int) -> None:
    ids = np.random.default_rng(2).integers(0, bound, 3000)
    ids[::3] = ids[0]
    assert (stable_order(ids, bound) == ids.argsort(kind="stable")).all()


def test_many_wide_integers_keep_distinct_ids() -> None:
    values = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 50_000)
    ids = IntegerIds()
    for part in np.array_split(values, 7):
        ids.ids(part)
    assert (ids.values()[ids.ids(values)] == values).all()
    assert ids.count == len(np.unique(values))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.text(max_size=2), max_size=10), max_size=5))
def test_strings_keep_their_ids_when_dictionaries_change(batches: list[list[str]]) -> None:
    ids, seen = StringIds(), dict[str, int]()
    for i, batch in enumerate(batches):
        column = Column.from_list(batch, AttributeType.STRING, StringDictionary([f"{i}", "x"]))
        for text, id_ in zip(batch, ids.ids(column).tolist(), strict=True):
            assert seen.setdefault(text, id_) == id_
        assert ids.adopt(column).to_list() == batch
    assert len(set(seen.values())) == len(seen)
    assert len(ids.dictionary) <= len({*seen, ""})


KEYS = st.tuples(
    st.sampled_from([None, "", "a", "b"]), st.sampled_from([None, True, False]),
    st.one_of(st.none(), st.integers(-2, 40)), st.sampled_from([None, 0.0, float("nan"), 1.5]),
)  # fmt: skip
TYPES = [AttributeType.STRING, AttributeType.BOOL, AttributeType.INT64, AttributeType.FLOAT64]


def columns(rows: list[Any], count: int) -> list[Column]:
    cells = list(zip(*rows, strict=True)) or [()] * len(TYPES)
    return [Column.from_list(c, t) for c, t in zip(cells[:count], TYPES, strict=False)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(KEYS, max_size=25), max_size=5), st.integers(0, 4), st.integers(0, 5))
def test_equal_keys_and_only_those_share_a_slot(batches: list[list[Any]], count: int, change: int) -> None:
    """Null is a value of its own and NaN equals NaN; a snapshot or a compaction changes nothing of that."""
    index, slots = KeyIndex(TYPES[:count]), dict[Any, int]()
    for i, batch in enumerate(batches):
        if i == change:
            index = finished(KeyIndex.restoring(TYPES[:count], index.snapshot()))
            live = np.array(sorted(set(slots.values())), np.intp)
            index, new = finished(index.compacted(live))
            assert (np.diff(new) > 0).all()
            renumbered = dict(zip(live.tolist(), new.tolist(), strict=True))
            slots = {key: renumbered[slot] for key, slot in slots.items()}
        found = index.slots(columns(batch, count), len(batch))
        for row, slot in zip(batch, found.tolist(), strict=True):
            assert slots.setdefault(repr(row[:count]), slot) == slot
        keys = zip(*[c.to_list() for c in index.columns(found)], strict=True)
        assert count == 0 or [repr(k) for k in keys] == [repr(row[:count]) for row in batch]
        assert index.size > max(slots.values(), default=-1)
    assert len(set(slots.values())) == len(slots)


@settings(max_examples=60, deadline=None)
@given(st.lists(KEYS, max_size=25), st.integers(0, 4))
def test_equal_rows_and_only_those_share_a_group(rows: list[Any], count: int) -> None:
    groups = dict[int, str]()
    numbers = group_ids(columns(rows, count), len(rows)).tolist()
    for row, number in zip(rows, numbers, strict=True):
        assert groups.setdefault(number, repr(row[:count])) == repr(row[:count])
    assert len(set(groups.values())) == len(groups)


def test_groups_of_many_wide_attributes_do_not_overflow() -> None:
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 2**60, (5000, 6))
    rows[2500:] = rows[:2500]
    groups = group_ids([Column(c) for c in rows.T], len(rows))
    assert (groups[:2500] == groups[2500:]).all()
    assert len(np.unique(groups)) == 2500
