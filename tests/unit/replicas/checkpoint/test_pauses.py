"""How long a log rests between two slices (G7)."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from operators.steps import SPARE
from replicas.checkpoint import pauses as module
from replicas.checkpoint.extent import Extent
from replicas.checkpoint.pauses import AGAIN_US, EVERY_US, SYNC_US, Pauses
from spe.stream.times import END_OF_TIME

LATEST_US = module._LATEST_US
#: Shorter than any other pause.
QUICK_US = 10.0


def extent(behind: int, live: int = 100_000, held: int | None = None) -> Extent:
    """So many rows are behind T, and so many footprints count."""
    one = Extent()
    one.commit(10, live, 0, live)
    one.commit(20, 0, behind, 0)
    one.held = held
    return one


def after(one: Extent, took_us: float = QUICK_US, longest_us: int = END_OF_TIME) -> Pauses:
    pauses = Pauses()
    pauses.wrote(one, 20, took_us, longest_us)
    return pauses


def first(pauses: Pauses, rows: int, *, hurries: bool = False) -> int:
    """When the next slice comes, in steps of 10 ms."""
    return next(us for us in range(0, 20_000_000, 10_000) if pauses.is_over(us, rows, hurries=hurries))


def test_first_slice_is_immediate_and_next_ones_are_spaced() -> None:
    assert first(Pauses(), 0) == EVERY_US
    assert first(after(extent(0)), 1) == EVERY_US
    assert first(after(extent(0), 200_000), 1) == 800_000, "four times what it took"
    assert first(after(extent(0), 400), 1) == 200_000, "500 times"
    assert first(after(extent(0), 2_000), 1) == SYNC_US, "up to the next sync"


def test_next_slice_waits_for_sixteenth_of_upstream_rows() -> None:
    pauses = after(extent(1_600))
    assert first(pauses, 101) == EVERY_US
    assert first(pauses, 100) == LATEST_US


def test_rows_that_operators_keep_are_none_of_these() -> None:
    assert first(after(extent(1_600, held=10)), 1) == EVERY_US


def test_where_nothing_comes_a_slice_comes_in_the_end() -> None:
    """T may have gone on, and positions of inputs of which we have a part."""
    assert first(after(extent(0)), 0) == LATEST_US


def test_no_more_come_than_there_are_footprints() -> None:
    """All may begin and end a piece of state, which takes memory until the next slice."""
    pauses = after(extent(10**9, live=10_000))
    assert first(pauses, (10_000 + SPARE) // 2) == LATEST_US
    assert first(pauses, (10_000 + SPARE) // 2 + 1) == EVERY_US


def test_full_producer_waits_only_for_time_of_last_slice() -> None:
    pauses = after(extent(10**9), 50_000)
    assert first(pauses, 0, hurries=True) == 200_000


def test_postponed_rewriting_happens_soon() -> None:
    assert first(after(extent(10**9), longest_us=1_000_000), 0) == 1_000_000


def test_after_a_refusal_pauses_double_and_nothing_else_counts() -> None:
    pauses = after(extent(10**9))
    found = []
    for _ in range(8):
        pauses.refused()
        found.append(first(pauses, 0))
    assert found == [AGAIN_US * 2**n for n in range(6)] + [10_000_000] * 2
    pauses.wrote(extent(0), 20, QUICK_US, END_OF_TIME)
    assert first(pauses, 1) == EVERY_US


def test_skipped_slice_is_followed_at_once() -> None:
    pauses = after(extent(10**9))
    pauses.left_out()
    assert first(pauses, 0) == EVERY_US


def test_an_experiment_sets_the_pause() -> None:
    pauses = Pauses(25_000, rests=0)
    pauses.wrote(extent(10**9), 20, 1_000_000, END_OF_TIME)
    assert pauses.is_over(25_000, 0, hurries=False)
    assert not pauses.is_over(24_999, 0, hurries=False)


@pytest.mark.parametrize(("took_us", "waited_us"), [(QUICK_US, SYNC_US - EVERY_US), (1_000, 0)])
def test_slice_is_synced_at_once_if_next_comes_after_next_sync(took_us: float, waited_us: int) -> None:
    pauses = after(extent(0), took_us)
    assert pauses.syncs(waited_us)
    assert not pauses.syncs(waited_us - 1)


def test_slices_are_spread_where_a_join_keeps_rows_for_long() -> None:
    one = Extent()
    for end in np.arange(10) * 1_000_000:
        one.commit(int(end), 1, 0, 1)
    with patch.object(module, "SLICES_MOST", 4):
        pauses = Pauses()
        pauses.wrote(one, 9_000_000, QUICK_US, END_OF_TIME)
        assert first(pauses, 10**9) == 9_000_000 // 4 // 10_000 * 10_000
        pauses.wrote(one, END_OF_TIME, QUICK_US, END_OF_TIME)
        assert first(pauses, 10**9) == EVERY_US
