"""Filter, map and union, and the ids of groups and keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.ids import IntegerIds, StringIds, stable_order
from operators.keys import KeyIndex, group_ids
from operators.steps import finished
from spe.query.operators.filter import FilterSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.union import UnionSpec
from spe.stream.batch import Column
from spe.stream.names import StreamId
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringDictionary
from tests.support.distribution import FEW_OR_MANY, Situations, cuts_among
from tests.support.operators import Cut, Tuple, check_contract, make

INPUT = Schema.of(name="string", number="int64")


@st.composite
def streams(draw: st.DrawFn) -> list[Tuple]:
    row = st.tuples(st.integers(0, 30), st.sampled_from([None, "a", "b"]), st.one_of(st.none(), st.integers(-5, 5)))
    rows = draw(st.lists(row, min_size=draw(FEW_OR_MANY), max_size=20))
    return [(t, (name, n)) for t, name, n in sorted(rows, key=lambda r: r[0])]


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[list[Tuple], list[Cut]]:
    rows = draw(streams())
    return rows, draw(cuts_among(t for t, _ in rows))


IN = StreamId("in")


FILTERED = Situations({"true, false and null": 0.1, "a cut between rows": 0.15})


def cuts_rows(rows: list[Tuple], cuts: list[Cut]) -> bool:
    return any(rows[0][0] < cut <= rows[-1][0] for cut, _ in cuts) if rows else False


@FILTERED.required
@settings(max_examples=50, deadline=None)
@given(cut_streams())
def test_filter_passes_only_rows_for_which_the_condition_is_true(stream: tuple[list[Tuple], list[Cut]]) -> None:
    rows, cuts = stream
    out = check_contract(lambda: make(FilterSpec(IN, "number > 1"), INPUT), [INPUT], [rows], cuts)
    assert out == [(t, (name, n)) for t, (name, n) in rows if n is not None and n > 1]
    kinds = {None if n is None else n > 1 for _, (_, n) in rows}
    FILTERED.example({"true, false and null": len(kinds) == 3, "a cut between rows": cuts_rows(rows, cuts)})


MAPPED = Situations({"a null beside a number": 0.28, "a cut between rows": 0.15, "all attributes are kept": 0.18})


@MAPPED.required
@settings(max_examples=50, deadline=None)
@given(cut_streams(), st.booleans())
def test_map_computes_each_row_alone(stream: tuple[list[Tuple], list[Cut]], keep: bool) -> None:
    rows, cuts = stream
    spec = MapSpec(IN, {"next": "number + 1", "label": "name"}, keep)
    out = check_contract(lambda: make(spec, INPUT), [INPUT], [rows], cuts)
    kept = [(name, n) if keep else () for _, (name, n) in rows]
    made = [(None if n is None else n + 1, name) for _, (name, n) in rows]
    assert out == [(t, k + m) for (t, _), k, m in zip(rows, kept, made, strict=True)]
    nulls = {n is None for _, (_, n) in rows}
    MAPPED.example(
        {
            "a null beside a number": len(nulls) == 2,
            "a cut between rows": cuts_rows(rows, cuts),
            "all attributes are kept": keep,
        }
    )


MERGED = Situations({"a tie between two ports": 0.28, "a port without rows": 0.05, "a cut between rows": 0.15})


@MERGED.required
@settings(max_examples=50, deadline=None)
@given(st.lists(streams(), min_size=2, max_size=3), st.data())
def test_union_merges_by_time_and_then_by_port(ports: list[list[Tuple]], data: st.DataObject) -> None:
    cuts = data.draw(cuts_among(t for port in ports for t, _ in port))
    spec = UnionSpec(tuple(StreamId(f"in{i}") for i in range(len(ports))))
    out = check_contract(lambda: make(spec, *[INPUT] * len(ports)), [INPUT] * len(ports), ports, cuts)
    assert out == sorted((row for port in ports for row in port), key=lambda row: row[0])
    times = [{t for t, _ in port} for port in ports]
    MERGED.example(
        {
            "a tie between two ports": any(a & b for i, a in enumerate(times) for b in times[:i]),
            "a port without rows": not all(ports),
            "a cut between rows": cuts_rows(out, cuts),
        }
    )


INTEGERS = st.one_of(
    st.integers(0, 50), st.integers(-(2**63), 2**63 - 1), st.integers(0, 60).map(lambda i: i << 40),
    st.sampled_from([0, -1, 2**63 - 1, -(2**63), 2**61, -(2**61)]),
)  # fmt: skip


INTEGER_IDS = Situations(
    {"restored in the middle": 0.06, "one that was known before the restore comes again": 0.04, "a wide integer": 0.37}
)


@INTEGER_IDS.required
@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(INTEGERS, max_size=60), max_size=6), st.integers(0, 6), st.integers(0, 1))
def test_integers_get_ids_by_first_appearance(batches: list[list[int]], restored_at: int, start: int) -> None:
    """As a dict gives them; also after the tables were dropped or restored."""
    ids, expected = IntegerIds(start), dict[int, int]()
    for i, batch in enumerate(batches):
        if i == restored_at:
            ids.close()
            ids = finished(IntegerIds.restoring(ids.snapshot()))
        wanted = [expected.setdefault(v, start + len(expected)) for v in batch]
        assert ids.ids(np.array(batch, np.int64)).tolist() == wanted
    assert ids.values()[start:].tolist() == list(expected)
    before = {v for batch in batches[:restored_at] for v in batch}
    after = {v for batch in batches[restored_at:] for v in batch}
    INTEGER_IDS.example(
        {
            "restored in the middle": before and after,
            "one that was known before the restore comes again": before & after,
            "a wide integer": any(abs(v) >= 1 << 40 for v in before | after),
        }
    )


@pytest.mark.parametrize("bound", [5, 1 << 16, (1 << 16) + 1, 1 << 32, 1 << 40])
def test_sorting_ids_is_stable_for_any_range(bound: int) -> None:
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


STRING_IDS = Situations({"a text in two dictionaries": 0.15, "the empty text": 0.3, "two batches": 0.31})


@STRING_IDS.required
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
    each = [set(batch) for batch in batches]
    STRING_IDS.example(
        {
            "a text in two dictionaries": any(a & b for i, a in enumerate(each) for b in each[:i]),
            "the empty text": "" in seen,
            "two batches": sum(map(bool, batches)) >= 2,
        }
    )


KEYS = st.tuples(
    st.sampled_from([None, "", "a", "b"]), st.sampled_from([None, True, False]),
    st.one_of(st.none(), st.integers(-2, 40)), st.sampled_from([None, 0.0, float("nan"), 1.5]),
)  # fmt: skip
TYPES = [AttributeType.STRING, AttributeType.BOOL, AttributeType.INT64, AttributeType.FLOAT64]


def columns(rows: list[Any], count: int) -> list[Column]:
    cells = list(zip(*rows, strict=True)) or [()] * len(TYPES)
    return [Column.from_list(c, t) for c, t in zip(cells[:count], TYPES, strict=False)]


SLOTS = Situations(
    {"changed in the middle": 0.1, "a key of before the change comes again": 0.05, "two attributes or more": 0.08}
)


@SLOTS.required
@settings(max_examples=100, deadline=None)
@example([[("a", None, None, None)], [("", None, None, None)], []], 1, 2)  # the empty text comes second
@given(
    st.one_of(
        st.lists(st.lists(KEYS, max_size=25), max_size=5),
        st.lists(st.lists(KEYS, min_size=4, max_size=25), min_size=4, max_size=5),
    ),
    st.sampled_from([0, 1, 2, 3, 4, 4]),
    st.sampled_from([0, 1, 2, 2, 3, 3, 5]),
)
def test_only_equal_keys_share_a_slot(batches: list[list[Any]], count: int, change: int) -> None:
    """Null is a separate value and NaN equals NaN, also after a snapshot or a compaction."""
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
    before = {repr(row[:count]) for batch in batches[:change] for row in batch}
    after = {repr(row[:count]) for batch in batches[change:] for row in batch}
    SLOTS.example(
        {
            "changed in the middle": before and after,
            "a key of before the change comes again": before & after,
            "two attributes or more": count >= 2,
        }
    )


GROUPS = Situations({"two equal rows": 0.29, "two rows that differ": 0.18, "no number": 0.02})


@GROUPS.required
@settings(max_examples=60, deadline=None)
@given(
    st.one_of(st.lists(KEYS, max_size=25), st.lists(KEYS, min_size=8, max_size=25)), st.sampled_from([0, 1, 2, 3, 4, 4])
)
def test_only_equal_rows_share_a_group(rows: list[Any], count: int) -> None:
    groups = dict[int, str]()
    numbers = group_ids(columns(rows, count), len(rows)).tolist()
    for row, number in zip(rows, numbers, strict=True):
        assert groups.setdefault(number, repr(row[:count])) == repr(row[:count])
    assert len(set(groups.values())) == len(groups)
    GROUPS.example(
        {
            "two equal rows": len(groups) < len(rows),
            "two rows that differ": len(groups) > 1,
            "no number": count == 4 and any("nan" in repr(row) for row in rows),
        }
    )


def test_groups_of_many_wide_attributes_do_not_overflow() -> None:
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 2**60, (5000, 6))
    rows[2500:] = rows[:2500]
    groups = group_ids([Column(c) for c in rows.T], len(rows))
    assert (groups[:2500] == groups[2500:]).all()
    assert len(np.unique(groups)) == 2500
