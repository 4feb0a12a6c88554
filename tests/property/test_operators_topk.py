"""Top-k against sorting whole windows, under any cutting, snapshots, nulls and changing dictionaries."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from operators import topk
from spe.query.operators.topk import TopKSpec
from spe.query.windows import SlidingWindow
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support.distribution import Situations, cuts_among
from tests.support.operators import (
    EXERCISED,
    Cut,
    Tuple,
    check_contract,
    lists_of_all_sizes,
    make,
    require_exercised,
)
from tests.support.row_operators import Ranking, Windows, members_of, plain, ranked_at_once, ranked_in

INPUT = Schema.of(ts="timestamp", key="string", number="int64", amount="float64")
ORDERS = st.lists(st.tuples(st.sampled_from(["number", "amount", "key"]), st.booleans()), min_size=1, max_size=3).map(
    tuple
)


@st.composite
def streams(draw: st.DrawFn) -> list[Tuple]:
    time, rows = draw(st.integers(-5, 5)), []
    for gap in draw(lists_of_all_sizes(st.sampled_from([0, 0, 0, 1, 5]), 20)):
        time += gap
        ts = draw(st.one_of(st.none(), st.integers(-9, 3).map(lambda d, t=time: t + d), st.just(time)))
        key = draw(st.sampled_from([None, "", "a", "b", "é"]))
        number = draw(st.sampled_from([None, 1, 2, -(2**63), 2**63 - 1]))
        rows.append((time, (ts, key, number, draw(st.sampled_from([None, 0.5, -1.0, math.nan, -math.inf])))))
    return rows


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[list[Tuple], list[Cut]]:
    rows = draw(streams())
    return rows, draw(cuts_among(t for t, _ in rows))


def ranking(spec: TopKSpec) -> Ranking:
    orders = [(itemgetter(INPUT.index(name)), descending) for name, descending in spec.order_by]
    partition = [INPUT.index(name) for name in spec.partition_by]
    return Ranking(spec.k, orders, lambda values: tuple(values[at] for at in partition), spec.with_ties)


def test_tuples_of_one_instant_are_ranked_together() -> None:
    EXERCISED.clear()
    check_instants()
    require_exercised({"pauses": 101, "slices released in pieces": 2, "instants cut": 11})


_LEAST = {
    "some are left out": 0.1,
    "two of one rank, or next to it, are equal": 0.1,
    "a null or NaN among what is ordered by": 0.25,
}
INSTANTS = Situations(_LEAST)
WINDOWS = Situations({**_LEAST, "what is ranked together is restored in the middle": 0.1})


def meets(spec: TopKSpec, ranked: list[list[Any]], out: list[Tuple]) -> dict[str, object]:
    """``ranked``: rows that are ranked together."""
    attributes = [INPUT.index(name) for name, _ in spec.order_by]
    orders = [[repr([row[i] for i in attributes]) for row in rows] for rows in ranked]
    return {
        "some are left out": len(out) < sum(map(len, ranked)),
        "two of one rank, or next to it, are equal": any(len(set(each)) < len(each) for each in orders),
        "a null or NaN among what is ordered by": any("None" in o or "nan" in o for each in orders for o in each),
    }


@INSTANTS.required
@settings(max_examples=60, deadline=None)
@given(cut_streams(), ORDERS, st.sampled_from([(), ("key",)]), st.integers(1, 3), st.booleans())
def check_instants(
    stream: tuple[list[Tuple], list[Cut]], order_by: Any, partition_by: tuple[str, ...], k: int, with_ties: bool
) -> None:
    rows, cuts = stream
    spec = TopKSpec(StreamId("in"), k, order_by, partition_by, None, with_ties, "rank")
    expected = [(t, tuple(map(plain, (*values, rank)))) for t, values, rank in ranked_at_once(ranking(spec), rows)]
    together = [[v for t, v in rows if t == time] for time in sorted({t for t, _ in rows})]
    INSTANTS.example(meets(spec, together, expected))
    assert check_contract(lambda: make(spec, INPUT), [INPUT], [rows], cuts) == expected


def test_tuples_of_one_window_are_ranked_together() -> None:
    """Also where a pane drops rows that can no longer be among the first k."""
    EXERCISED.clear()
    check_windows()
    require_exercised({"pauses": 101, "slices released in pieces": 2, "texts forgotten": 11, "dictionaries begun": 11})


@WINDOWS.required
@settings(max_examples=70, deadline=None)
@given(
    cut_streams(), ORDERS, st.sampled_from([(), ("key",)]), st.integers(1, 3), st.booleans(), st.integers(1, 12),
    st.integers(1, 12), st.sampled_from([None, "ts"]),
)  # fmt: skip
def check_windows(
    stream: tuple[list[Tuple], list[Cut]], order_by: Any, partition_by: tuple[str, ...], k: int, with_ties: bool,
    size: int, slide: int, on: str | None,
) -> None:  # fmt: skip
    rows, cuts = stream
    window = SlidingWindow(size, slide, 3, on)
    spec = TopKSpec(StreamId("in"), k, order_by, partition_by, window, with_ties, "rank")
    windows = Windows(size, slide, 3, None if on is None else itemgetter(0))
    members = dict(members_of(rows, windows))
    expected = [
        (end - 1, tuple(map(plain, (*values, end - size, end, rank))))
        for end, values, rank in ranked_in(ranking(spec), rows, windows)
    ]
    times = [t for t, _ in rows]
    within = any(a < cut <= b and b - a < size for cut, _ in cuts for a in times for b in times)
    restored = {"what is ranked together is restored in the middle": within}
    WINDOWS.example(meets(spec, [[v for _, v in each] for each in members.values()], expected) | restored)
    with patch.object(topk, "_PRUNE_AT", 3):
        assert check_contract(lambda: make(spec, INPUT), [INPUT], [rows], cuts) == expected
