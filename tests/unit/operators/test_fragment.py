"""A fragment takes an input in the parts that the SUnion holds; its operators see the same rows in any division."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from operators.fragment import Fragment
from operators.sunion.slice import Slice
from operators.sunion.sunion import SUnion
from spe.errors import OperatorFailed
from spe.plan.plan import InputStream, Unit
from spe.query import query
from spe.query.declaration import OnError
from spe.query.operators.custom import CustomSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.union import UnionSpec
from spe.query.query import QueryOperator
from spe.stream import text_size
from spe.stream.batch import Batch, Boundary, Column, Rows, concat_rows
from spe.stream.names import Kind, StreamId, UnitId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool

SCHEMA = Schema.of(x="int64!", name="string!")
NUMBERS = Schema.of(n="int64!")
A, B, OUT, FEW = (StreamId(n) for n in ("a", "b", "out", "few"))
END = 100


def unit(*operators: query.QueryOperator, outputs: tuple[StreamId, ...]) -> Unit:
    inputs = tuple(InputStream(s, SCHEMA, 1, None) for s in (A, B))
    return Unit(UnitId("u"), "f", inputs, operators, outputs, partitions=1)


UNION = QueryOperator(OUT, UnionSpec((A, B)), SCHEMA)
FILTER = QueryOperator(FEW, FilterSpec(A, "x % 2 = 0"), SCHEMA)


def rows(*times: int, first: int, pool: StringPool | None = None) -> Rows:
    """Rows numbered by x."""
    made = [(first + n, f"s{(first + n) % 3}") for n in range(len(times))]
    return Rows.from_tuples(SCHEMA, times, made, pool)


def cells(found: Rows | None) -> list[tuple[int, int, str]]:
    return [] if found is None else [(t, *c) for t, c in zip(found.time.tolist(), found.to_tuples(), strict=True)]


def as_they_come(*parts: Rows) -> list[tuple[int, int, str]]:
    """Sorted by time, then by part and place: the order that every replica must give."""
    return sorted((row for part in parts for row in cells(part)), key=lambda row: row[0])


def step(piece: list[list[Rows]], *, watched: bool, of: Unit) -> list[list[tuple[int, int, str]]]:
    watch = (lambda *_: None) if watched else None
    return [cells(found) for found in Fragment(of).step(Slice(piece, END, Kind.STABLE), watch)]


@pytest.mark.parametrize("watched", [False, True])
def test_a_result_with_too_much_text_names_operator_and_limit(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_size, "ROW_TEXT_BYTES", 20)
    wide = QueryOperator(OUT, MapSpec(A, {"long": "concat(name, name)"}, keep=False), Schema.of(long="string!"))
    made = unit(wide, outputs=(OUT,))
    long_enough = Rows.from_tuples(SCHEMA, [1, 2], [(1, "s" * 9), (2, "s" * 10)])
    assert [len(t[1]) for t in step([[long_enough], []], watched=watched, of=made)[0]] == [18, 20]
    with pytest.raises(OperatorFailed, match=r"operator 'out' .*: 22 bytes of text in one row; at most 20 can be sent"):
        step([[Rows.from_tuples(SCHEMA, [1], [(3, "s" * 11)])], []], watched=watched, of=made)


@pytest.mark.parametrize("watched", [False, True])
def test_with_skip_a_result_with_too_much_text_is_left_out(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside the unit; otherwise results would depend on how the query is divided into fragments."""
    monkeypatch.setattr(text_size, "ROW_TEXT_BYTES", 20)
    spec = MapSpec(A, {"long": "concat(name, name)"}, False, OnError.SKIP)
    wide = QueryOperator(StreamId("wide"), spec, Schema.of(long="string!"))
    short = MapSpec(wide.name, {"n": "length(long)"}, keep=False)
    fragment = Fragment(unit(wide, QueryOperator(OUT, short, Schema.of(n="int64!")), outputs=(OUT,)))
    texts = ["s" * 9, "s" * 11, "s" * 10, "s" * 2000]
    given = Rows.from_tuples(SCHEMA, [1, 2, 2, 3], list(enumerate(texts)))
    watch = (lambda *_: None) if watched else None
    (made,) = fragment.step(Slice([[given], []], END, Kind.STABLE), watch)
    assert made is not None
    assert made.columns[0].to_list() == [18, 20]
    first, second = fragment.take_rejections()
    assert (first.operator, first.result, first.number, first.time, first.id) == ("wide", True, 1, 2, None)
    assert first.values == {"long": "s" * 22}
    assert first.reason == "22 bytes of text in one row; at most 20 can be sent"
    assert second.values == {"long": "s" * 1024 + "… (4,000 characters)"}
    assert fragment.counters() == {"wide.rejected": 0, "wide.rejected_results": 2}
    assert fragment.take_rejections() == []


def test_a_rejected_row_keeps_its_id() -> None:
    """Also of a source out of order, in several chunks, of several inputs, cut by a slice."""
    sunion = SUnion(inputs=[(0, False), (0, False)], streams=1, bucket_us=10)
    batches = [(0, [5, 1, 12, 3], [4, 7, 7, 7]), (0, [3, 14], [7, 8]), (1, [3, 2], [7, 1])]
    for at, times, values in batches:
        made = Rows.from_tuples(NUMBERS, times, [(v,) for v in values])
        one = sunion.inputs[at]
        one.add_stable(Batch(Kind.STABLE, one.position, one.position + len(times), None, made), 0)
    spec = CustomSpec((A,), "tests.support.operators_for_tests:Picky", {"bad": 7}, OnError.SKIP)
    one_input = InputStream(A, NUMBERS, 2, None)
    fragment = Fragment(
        replace(unit(outputs=(OUT,)), inputs=(one_input,), operators=(QueryOperator(OUT, spec, NUMBERS),))
    )
    found = []
    for end in (10, 20):
        for at in (0, 1):
            sunion.inputs[at].add_boundary(Boundary(Kind.STABLE, end, sunion.inputs[at].position), 0)
        piece = sunion.release_stable(100)
        assert piece is not None
        fragment.step(piece)
        found += [(one.time, one.input, one.id) for one in fragment.take_rejections()]
    assert found == [(1, "a/0", 2), (3, "a/0", 4), (3, "a/0", 5), (3, "a/1", 1), (12, "a/0", 3)]


@pytest.mark.parametrize("watched", [False, True])
class TestParts:
    def test_a_union_merges_inputs_in_parts(self, watched: bool) -> None:
        a = [rows(1, 3, 3, first=0), rows(3, 9, first=10)]
        b = [rows(3, 4, first=20), rows(2, 3, 9, first=30)]
        assert step([a, b], watched=watched, of=unit(UNION, outputs=(OUT,))) == [as_they_come(*a, *b)]

    def test_a_part_out_of_order_is_sorted(self, watched: bool) -> None:
        """Such as the only chunk of a source that sends out of order."""
        a = [rows(5, 1, 1, 3, first=0)]
        made = step([a, []], watched=watched, of=unit(UNION, FILTER, outputs=(OUT, FEW)))
        assert made == [as_they_come(*a), [row for row in as_they_come(*a) if not row[1] % 2]]

    def test_a_union_merges_results_and_parts(self, watched: bool) -> None:
        a = [rows(4, 2, 4, first=0), rows(1, 4, first=10)]
        b = [rows(4, 3, first=20), rows(4, first=30)]
        both = QueryOperator(OUT, UnionSpec((B, FEW)), SCHEMA)
        made = step([a, b], watched=watched, of=unit(FILTER, both, outputs=(FEW, OUT)))
        few = [row for row in as_they_come(*a) if not row[1] % 2]
        assert made == [few, sorted([*as_they_come(*b), *few], key=lambda row: row[0])]

    def test_nulls_and_t_max_may_be_of_some_parts_only(self, watched: bool) -> None:
        """An operator's results keep the newest time that went into them, a source's rows their own."""
        one, other = rows(2, 6, first=0), rows(4, 6, first=10)
        x, name = other.columns
        other = Rows(other.time, other.time + 5, (Column(x.values, np.array([False, True])), name))
        for parts in ([one, other], [other, one]):
            for piece in ([parts, []], [parts[:1], parts[1:]]):
                of = Fragment(unit(UNION, outputs=(OUT,)))
                (made,) = of.step(Slice(piece, END, Kind.STABLE), (lambda *_: None) if watched else None)
                assert made is not None
                found = sorted(zip(made.time.tolist(), made.t_max.tolist(), [c[0] for c in made.to_tuples()]), key=str)
                assert found == [(2, 2, 0), (4, 9, None), (6, 11, 11), (6, 6, 1)]

    def test_strings_of_several_dictionaries_are_merged(self, watched: bool) -> None:
        a = [rows(1, 5, first=0, pool=StringPool()), rows(2, 5, first=10, pool=StringPool())]
        b = [rows(5, 6, first=20, pool=StringPool())]
        assert step([a, b], watched=watched, of=unit(UNION, outputs=(OUT,))) == [as_they_come(*a, *b)]

    def test_results_do_not_depend_on_where_a_slice_is_cut(self, watched: bool) -> None:
        a, b = rows(*range(40), first=0), rows(*range(0, 80, 2), first=100)
        of = unit(UNION, FILTER, outputs=(OUT, FEW))
        whole = step([[a], [b]], watched=watched, of=of)
        for cuts in ([0, 1, 40], [0, 20, 21, 40], list(range(0, 41, 8))):
            pieces = [[one.slice(low, high) for low, high in pairwise(cuts)] for one in (a, b)]
            assert [cells(concat_rows(p)) for p in pieces] == [cells(a), cells(b)]
            assert step(pieces, watched=watched, of=of) == whole


def test_operators_without_output_make_no_pause() -> None:
    """A pause is a turn for others: one for each operator, in each slice without rows, and a node of many replicas
    falls behind and stays RECOVERING (seed 1796246440)."""
    of = Fragment(unit(FILTER, outputs=(FEW,)))
    assert list(of.work(Slice([[], []], END, Kind.STABLE))) == []
    assert list(of.work(Slice([[rows(101, first=1)], []], 2 * END, Kind.STABLE))) == []
