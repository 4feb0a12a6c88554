"""Top-k against sorting whole windows, under any cutting, snapshots, nulls and changing dictionaries."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from operators import topk
from spe.query.operators.topk import TopKSpec
from spe.query.windows import Window, WindowKind
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
    plain,
    require_exercised,
)

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


def precedence(value: Any, descending: bool) -> Any:
    """Null is smaller than everything, NaN larger than every number."""
    rank = (0, 0) if value is None else (2, 0) if value != value else (1, value)
    if not descending:
        return rank
    return _Reversed(rank)


class _Reversed:
    def __init__(self, rank: Any) -> None:
        self.rank = rank

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.rank < self.rank)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.rank == other.rank


def best(spec: TopKSpec, rows: list[Any]) -> list[Any]:
    """From rows in order of arrival, the first k of each group with their ranks."""
    taken: list[tuple[int, int, Any]] = []
    groups: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(tuple(row[INPUT.index(p)] for p in spec.partition_by), []).append(i)

    def order(i: int) -> Any:
        return [precedence(rows[i][INPUT.index(e)], d) for e, d in spec.order_by]

    ranked: list[list[tuple[int, int]]] = []
    for members in groups.values():
        ordered = sorted(members, key=order)
        rank, ranks = 0, []
        for position, i in enumerate(ordered, 1):
            if not spec.with_ties or position == 1 or order(i) != order(ordered[position - 2]):
                rank = position
            ranks.append((i, rank))
        ranked.append([(i, r) for i, r in ranks if r <= spec.k])
    for group in sorted(ranked, key=lambda g: min(i for i, _ in g)):
        taken += [(i, r, rows[i]) for i, r in group]
    return [tuple(plain(v) for v in (*row, r)) for _, r, row in taken]


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
    expected = [
        (time, values)
        for time in sorted({t for t, _ in rows})
        for values in best(spec, [v for t, v in rows if t == time])
    ]
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
    window = Window(WindowKind.SLIDING, size, slide, 3, on)
    spec = TopKSpec(StreamId("in"), k, order_by, partition_by, window, with_ties, "rank")
    members: dict[int, list[Any]] = {}
    for time, values in rows:
        at = time if on is None else values[0]
        if at is not None:
            first = (at - 3 - size) // slide
            for start in (3 + n * slide for n in range(first, first + size + 3)):
                if start <= at < start + size and time < start + size:
                    members.setdefault(start + size, []).append(values)
    expected = [
        (end - 1, (*row[:-1], end - size, end, row[-1])) for end in sorted(members) for row in best(spec, members[end])
    ]
    times = [t for t, _ in rows]
    within = any(a < cut <= b and b - a < size for cut, _ in cuts for a in times for b in times)
    restored = {"what is ranked together is restored in the middle": within}
    WINDOWS.example(meets(spec, list(members.values()), expected) | restored)
    with patch.object(topk, "_PRUNE_AT", 3):
        assert check_contract(lambda: make(spec, INPUT), [INPUT], [rows], cuts) == expected
