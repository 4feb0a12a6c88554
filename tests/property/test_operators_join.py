"""Joins against a tuple-at-a-time reference, under any cutting, snapshots, nulls and changing dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators import steps
from operators.join import steps as join_steps
from operators.keys import KeyIndex
from operators.strings import KeptStrings
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.windows import SlidingWindow
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support.distribution import Situations, cuts_among
from tests.support.operators import EXERCISED, Cut, Tuple, check_contract, lists_of_all_sizes, make, require_exercised
from tests.support.row_operators import Join, Windows, joined_in, joined_within

SIDE = Schema.of(ts="timestamp", key="string", other="int64", value="int64")


@st.composite
def streams(draw: st.DrawFn) -> list[Tuple]:
    time, rows = draw(st.integers(-5, 5)), []
    for i, gap in enumerate(draw(lists_of_all_sizes(st.integers(0, 4), 14))):
        time += gap
        ts = draw(st.one_of(st.none(), st.integers(-9, 3).map(lambda d, t=time: t + d), st.just(time)))
        rows.append(
            (time, (ts, draw(st.sampled_from([None, "", "a", "b", "b"])), draw(st.sampled_from([None, 1, 1, 2])), i))
        )
    return rows


@st.composite
def cut_pairs(draw: st.DrawFn) -> tuple[list[Tuple], list[Tuple], list[Cut]]:
    left, right = draw(streams()), draw(streams())
    return left, right, draw(cuts_among(t for t, _ in left + right))


KINDS = st.sampled_from(list(JoinKind))
KEYS = st.sampled_from([(), (("key", "key"),), (("key", "key"), ("other", "other"))])
#: Part of the join condition: a pair that fails it is no match, for outer joins too.
CONDITIONS: dict[str | None, Callable[[Any, Any], bool]] = {
    None: lambda left, right: True,
    "l_value < r_value": lambda left, right: left[3] < right[3],
    "l_key < r_key": lambda left, right: None not in (left[1], right[1]) and left[1] < right[1],
}
WHERE = st.sampled_from(list(CONDITIONS))


def condition(spec: JoinSpec) -> Join:
    """The condition of a join as the reference takes it."""
    left, right = ([SIDE.index(pair[side]) for pair in spec.on] for side in (0, 1))
    kept = (spec.kind in (JoinKind.FULL, JoinKind.LEFT), spec.kind in (JoinKind.FULL, JoinKind.RIGHT))
    width, where = len(SIDE), CONDITIONS[spec.where]
    return Join(
        (lambda values: tuple(values[at] for at in left), lambda values: tuple(values[at] for at in right)),
        kept,
        (width, width),
        lambda values: where(values[:width], values[width:]),
    )


def interval_reference(spec: JoinSpec, left: list[Tuple], right: list[Tuple]) -> list[Tuple]:
    assert spec.lower_us is not None
    assert spec.upper_us is not None
    times = [None if name is None else itemgetter(0) for name in (spec.left_time, spec.right_time)]
    return joined_within(condition(spec), left, right, (spec.lower_us, spec.upper_us), times)


def window_reference(spec: JoinSpec, left: list[Tuple], right: list[Tuple]) -> list[Tuple]:
    assert spec.window is not None
    window = spec.window
    windows = Windows(window.size_us, window.slide_us, window.offset_us, None if window.on is None else itemgetter(0))
    return joined_in(condition(spec), left, right, [windows, windows])


def test_interval_joins_equal_the_reference_for_any_cuts() -> None:
    demand_small_steps(check_interval_joins)


def demand_small_steps(check: Callable[[], None]) -> None:
    EXERCISED.clear()
    check()
    require_exercised({"pauses": 101, "slices released in pieces": 2, "texts forgotten": 11, "dictionaries begun": 11})


def meets(left: list[Tuple], right: list[Tuple], out: list[Tuple], cuts: list[Cut]) -> dict[str, object]:
    """Properties of a result; values are numbered, so that a pair names its rows."""
    times = [{values[3]: time for time, values in side} for side in (left, right)]
    pairs = [(times[0][v[3]], times[1][v[7]]) for _, v in out if v[3] is not None and v[7] is not None]
    return {
        "a pair": pairs,
        "a pair that a restore comes between": any(min(p) < cut <= max(p) for p in pairs for cut, _ in cuts),
        "a row without a partner": len(pairs) < len(out),
        "a tie between the sides": {t for t, _ in left} & {t for t, _ in right},
        "a null in a key": any(v[1] is None or v[2] is None for _, v in left + right),
    }


_LEAST = {
    "a pair": 0.04,
    "a pair that a restore comes between": 0.005,
    "a row without a partner": 0.13,
    "a tie between the sides": 0.1,
    "a null in a key": 0.3,
}
INTERVALS, WINDOWS = Situations(_LEAST), Situations(_LEAST)


#: A pair with a cut between its rows.
APART: tuple[list[Tuple], list[Tuple], list[Cut]] = (
    [(0, (None, "a", 1, 0))],
    [(2, (None, "a", 1, 0))],
    [(1, False)],
)


@INTERVALS.required
@settings(max_examples=100, deadline=None)
@given(cut_pairs(), KINDS, KEYS, WHERE, st.integers(-8, 8), st.integers(0, 9), st.booleans())
@example(APART, JoinKind.INNER, (("key", "key"),), None, -3, 9, False)
def check_interval_joins(
    sides: tuple[list[Tuple], list[Tuple], list[Cut]], kind: JoinKind, on: tuple[tuple[str, str], ...],
    where: str | None, lower: int, width: int, by_attribute: bool,
) -> None:  # fmt: skip
    left, right, cuts = sides
    attribute = "ts" if by_attribute else None
    spec = JoinSpec(
        StreamId("left"), StreamId("right"), kind, on, None, lower, lower + width, attribute, attribute, where
    )
    out = check_contract(lambda: make(spec, SIDE, SIDE), [SIDE, SIDE], [left, right], cuts)
    INTERVALS.example(meets(left, right, out, cuts))
    assert out == interval_reference(spec, left, right)


def test_window_joins_equal_the_reference_for_any_cuts() -> None:
    demand_small_steps(check_window_joins)


@WINDOWS.required
@settings(max_examples=100, deadline=None)
@given(
    cut_pairs(), KINDS, KEYS, WHERE, st.integers(1, 9), st.integers(1, 12), st.integers(-3, 9), st.booleans(),
)  # fmt: skip
@example(APART, JoinKind.INNER, (("key", "key"),), None, 9, 9, 0, False)
def check_window_joins(
    sides: tuple[list[Tuple], list[Tuple], list[Cut]], kind: JoinKind, on: tuple[tuple[str, str], ...],
    where: str | None, size: int, slide: int, offset: int, by_attribute: bool,
) -> None:  # fmt: skip
    left, right, cuts = sides
    window = SlidingWindow(size, slide, offset, "ts" if by_attribute else None)
    spec = JoinSpec(StreamId("left"), StreamId("right"), kind, on, window, where=where)
    out = check_contract(lambda: make(spec, SIDE, SIDE), [SIDE, SIDE], [left, right], cuts)
    WINDOWS.example(meets(left, right, out, cuts))
    assert out == window_reference(spec, left, right)


MANY_STEPS = Situations(
    {
        "fifty pairs": 0.2,
        "ten steps with rows": 0.16,
        "a row without a partner": 0.13,
        "keys are compacted": 0.2,
        "texts are compacted": 0.2,
    }
)


@pytest.mark.long
@MANY_STEPS.required
@settings(max_examples=8, deadline=None)
@given(
    st.randoms(use_true_random=False), KINDS, st.integers(1, 60), st.integers(1, 40),
    st.sampled_from([(("key", "key"),), (("key", "key"), ("other", "other"))]),
)  # fmt: skip
def test_a_join_over_many_steps_equals_the_reference(
    random: Any, kind: JoinKind, every: int, reach: int, on: tuple[tuple[str, str], ...]
) -> None:
    """Hundreds of tuples with keys that appear and expire; operators with small bounds equal the reference."""

    def stream() -> list[Tuple]:
        times = sorted(random.randrange(270) for _ in range(100))
        return [
            (t, (t, random.choice([f"k{(t + random.randrange(9)) // 8}"] * 7 + [""]), random.choice([None, 1]), i))
            for i, t in enumerate(times)
        ]

    left, right = stream(), stream()
    spec = JoinSpec(StreamId("left"), StreamId("right"), kind, on, None, -reach, reach)
    cuts = [(c, c % 3 == 0) for c in range(every, 9 * every + 1, every)]
    with (
        patch.object(join_steps, "_STEP_ROWS", 20),
        patch.object(steps, "PAIRED", 15),
        patch.object(steps, "SPARE", 2),
        patch.object(KeyIndex, "compacted", autospec=True, side_effect=KeyIndex.compacted) as compacted,
        patch.object(KeptStrings, "compacted", autospec=True, side_effect=KeptStrings.compacted) as texts_compacted,
    ):
        out = check_contract(lambda: make(spec, SIDE, SIDE), [SIDE, SIDE], [left, right], cuts)
    pairs = sum(v[3] is not None and v[7] is not None for _, v in out)
    MANY_STEPS.example(
        {
            "fifty pairs": pairs >= 50,
            "ten steps with rows": len({t // every for t, _ in left + right}) >= 10,
            "a row without a partner": pairs < len(out),
            "keys are compacted": compacted.called,
            "texts are compacted": texts_compacted.called,
        }
    )
    assert out == interval_reference(spec, left, right)
