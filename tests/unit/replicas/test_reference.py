"""The reference run gives the results of a run without failures, with the same ids, whatever its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.reference import collect_rows, compare, reference_rows, run_reference
from spe.config import load_plan_data
from spe.errors import RemoteProtocolError
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Boundary, Element, Rows
from spe.stream.hashing import partition_of
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.streams import parse, show

A, B = StreamId("a"), StreamId("b")
SCHEMA = Schema.of(ts="timestamp", k="string", n="int64")
SOURCE = {
    "schema": {"ts": "timestamp", "k": "string", "n": "int64"},
    "time": "ts",
    "from": {"jsonl": "none.jsonl"},
    "replay": {"max": True},
}


def plan(query: Mapping[str, Any], outputs: list[str], fragments: Mapping[str, Any] | None = None) -> Plan:
    data: dict[str, Any] = {"bucket": "10us", "sources": {"a": SOURCE, "b": SOURCE}, "query": query, "outputs": outputs}
    return load_plan_data(data if fragments is None else data | {"fragments": fragments})


MERGE = plan({"out": {"union": ["a", "b"]}}, ["out"])

#: Two sources, a first unit of three partitions by key, and a second unit that reads all of them.
CHAIN = plan(
    {
        "all": {"union": ["a", "b"]},
        "some": {"filter": {"from": "all", "where": "n > 1"}},
        "sums": {
            "aggregate": {
                "from": "some",
                "window": {"sliding": "20us", "slide": "10us"},
                "group_by": ["k"],
                "compute": {"total": "sum(n)", "rows": "count(*)"},
            }
        },
        "best": {"topk": {"from": "sums", "k": 2, "order_by": ["total desc", "k"], "rank_as": "place"}},
    },
    ["best", "sums"],
    {
        "front": {"operators": ["all", "some", "sums"], "key": ["k"], "partitions": 3},
        "back": {"operators": ["best"]},
    },
)


def stream(*texts: str) -> list[Element]:
    """``time key n`` per tuple; ``B20`` is a boundary, one that ends the stream is added."""
    words = []
    for text in texts:
        if text.startswith("B"):
            words.append(text)
        else:
            time, key, n = text.split()
            words.append(f"S/{time}:{time},{key},{n}")
    return parse(" ".join([*words, "Binf"]), SCHEMA)


def texts(rows: Rows, *attributes: int) -> list[str]:
    return [" ".join(str(v[i]) for i in attributes) for v in rows.to_tuples()]


def test_tuples_are_ordered_by_time_then_input_then_id() -> None:
    inputs = {A: stream("5 a 0", "B10"), B: stream("3 c 0", "5 b 0", "B10")}
    (ids, rows) = reference_rows(MERGE, inputs)[Channel(StreamId("out"), 0)]
    assert ids.tolist() == [1, 2, 3]
    assert texts(rows, 1) == ["c", "a", "b"]


def test_chain_of_partitioned_units_gives_answer_of_query() -> None:
    inputs = {
        A: stream("1 x 5", "2 y 1", "12 y 7", "B30"),
        B: stream("3 x 2", "4 z 4", "11 z 3"),
    }
    best = reference_rows(CHAIN, inputs)[Channel(StreamId("best"), 0)][1]
    names = CHAIN.query.schema_of(StreamId("best")).names
    columns = [names.index(n) for n in ("k", "total", "rows", "place")]
    assert list(zip(best.time.tolist(), texts(best, *columns), strict=True)) == [
        (9, "x 7 2 1"),
        (9, "z 4 1 2"),
        (19, "x 7 2 1"),
        (19, "y 7 1 2"),
        (29, "y 7 1 1"),
        (29, "z 3 1 2"),
    ]


def test_each_partition_gets_its_hashes_and_ids_per_channel() -> None:
    tuples = [f"{t} k{t % 7} {t}" for t in range(200)]
    found = reference_rows(CHAIN, {A: stream(*tuples), B: stream()})
    total = 0
    for p in range(3):
        ids, rows = found[Channel(StreamId("sums"), p)]
        assert ids.tolist() == list(range(1, len(rows) + 1))
        assert len(rows) > 0
        assert (partition_of([rows.columns[0]], 3) == p).all()
        total += len(rows)
    windows = {(t // 10 + e, t % 7) for t in range(2, 200) for e in (0, 1)}
    assert total == len(windows)


@st.composite
def _streams(draw: st.DrawFn) -> list[Element]:
    """Batches and boundaries of a source with disorder: no tuple behind a boundary."""
    elements: list[Element] = []
    bound, last = 0, 0
    for _ in range(draw(st.integers(0, 6))):
        times = draw(st.lists(st.integers(bound, bound + 40), min_size=1, max_size=5))
        rows = [(t, draw(st.sampled_from(["x", "y", "z", None])), draw(st.integers(0, 9))) for t in times]
        elements.append(Batch(Kind.STABLE, last, last + len(rows), None, Rows.from_tuples(SCHEMA, times, rows)))
        last += len(rows)
        bound += draw(st.integers(0, 30))
        elements.append(Boundary(Kind.STABLE, bound, last))
    if draw(st.booleans()):
        elements.append(Boundary(Kind.STABLE, END_OF_TIME, last))
    return elements


@given(_streams(), _streams(), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_the_reference_does_not_depend_on_the_steps(a: list[Element], b: list[Element], step_rows: int) -> None:
    inputs = {A: a, B: b}
    assert compare(reference_rows(CHAIN, inputs, step_rows=step_rows), reference_rows(CHAIN, inputs)) == []


def test_an_unfinished_source_leaves_its_last_windows_open() -> None:
    open_end = stream("1 x 5", "12 x 7", "B13(2)")[:-1]
    (ids, rows) = reference_rows(CHAIN, {A: open_end, B: stream()})[Channel(StreamId("best"), 0)]
    assert (ids.tolist(), rows.time.tolist()) == ([1], [9])


def test_boundaries_are_stable_and_end_with_the_inputs() -> None:
    elements = list(run_reference(MERGE, {A: stream("5 a 0", "B10"), B: stream("B10")}))
    assert show(element for _, element in elements if isinstance(element, Boundary)) == "Binf(1)"
    ends = list(run_reference(MERGE, {A: stream("5 a 0", "B12")[:-1], B: stream("B25")[:-1]}))
    assert show(element for _, element in ends if isinstance(element, Boundary)) == "B10(1)"


def test_the_source_that_is_furthest_behind_is_read_next() -> None:
    """Otherwise one input would be held in memory because another is not read."""
    frontier = {A: 0, B: 0}
    apart = []

    def pulled(name: StreamId, every: int) -> Iterator[Element]:
        for element in stream(*[w for t in range(1, 200, every) for w in (f"{t} x 1", f"B{t}")]):
            if isinstance(element, Boundary) and element.time < END_OF_TIME:
                frontier[name] = element.time
                apart.append(abs(frontier[A] - frontier[B]))
            yield element

    list(run_reference(MERGE, {A: pulled(A, 3), B: pulled(B, 10)}))
    assert max(apart) <= 10


def test_every_output_channel_is_present_without_rows() -> None:
    found = reference_rows(CHAIN, {A: stream(), B: stream()})
    assert sorted(map(str, found)) == ["best/0", "sums/0", "sums/1", "sums/2"]
    assert all(len(ids) == len(rows) == 0 for ids, rows in found.values())
    assert found[Channel(StreamId("best"), 0)][1].columns[0].to_list() == []


def test_tentative_elements_of_a_source_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=r"a/0: a source sends nothing tentative"):
        list(run_reference(MERGE, {A: parse("T/5:5,a,0", SCHEMA), B: stream()}))
    with pytest.raises(RemoteProtocolError, match=r"a/0: a source sends batches and boundaries only"):
        list(run_reference(MERGE, {A: parse("U(0)", SCHEMA), B: stream()}))


def test_every_source_of_the_plan_needs_an_input() -> None:
    with pytest.raises(KeyError):
        list(run_reference(MERGE, {A: stream()}))


def test_differently_cut_recordings_are_equal() -> None:
    inputs = {A: stream("5 a 0", "7 b 0", "B10", "12 c 0"), B: stream("3 c 0", "B10")}
    fine = collect_rows(MERGE, run_reference(MERGE, inputs, step_rows=1))
    assert compare(fine, reference_rows(MERGE, inputs)) == []
    ids, rows = fine[Channel(StreamId("out"), 0)]
    torn = {Channel(StreamId("out"), 0): (ids[:-1], rows.slice(0, len(rows) - 1))}
    (difference,) = compare(torn, reference_rows(MERGE, inputs))
    assert (difference.missing, difference.first) == (1, "id 4 is missing")
    assert compare(torn, reference_rows(MERGE, inputs), complete=False) == []
