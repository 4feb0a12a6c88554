"""The part of a log that a replica reads and replays after a crash, and the slices to rewrite (G2, G5, G7)."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from operators.footprints import LiveFootprints
from replicas.checkpoint import extent as module
from replicas.checkpoint.extent import SLICE_RECORDS, Choices, Extent, Pacing, counted
from replicas.checkpoint.targets import ASSUMED, SLICES_MOST, to_rewrite
from spe.plan.log_targets import Continuous
from spe.stream.times import END_OF_TIME


def times(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def yes(count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.ones(count, bool)


def replace(extent: Extent, when: np.ndarray[Any, Any], not_final: np.ndarray[Any, Any]) -> None:
    """Footprints of these times count no more; in two parts."""
    middle = len(when) // 2
    parts = [LiveFootprints(when[at], not_final[at]) for at in (slice(middle), slice(middle, None))]
    extent.replace(*counted(extent.ends, parts))


def trace_15() -> Extent:
    """Live footprints: 40 @10, 10 @20, 30 @30; q from there 500, 350, 150; u 900, 600, 200."""
    extent = Extent()
    for time, records, rows, dead in ((10, 150, 100, 110), (20, 200, 400, 190), (30, 150, 800, 120)):
        extent.commit(time, records, rows, records)
        replace(extent, np.full(dead, time), yes(dead))
    extent.commit(40, 0, 1000, 0)
    return extent


def test_rewriting_as_in_trace_15() -> None:
    choices = trace_15().choices()
    assert choices.below.tolist() == [10, 20, 30, 40, 41]
    assert choices.cells.tolist() == [0, 40, 50, 80, 80]
    assert choices.slices.tolist() == [4, 3, 2, 1, 1]
    assert (choices.records - SLICE_RECORDS * choices.slices).tolist() == [500, 390, 200, 80, 80]
    assert choices.rows.tolist() == [900, 600, 200, 0, 0]
    seconds = choices.seconds(10e-6, 2e-6) - 10e-6 * SLICE_RECORDS * choices.slices
    assert seconds[:3].tolist() == pytest.approx([6.8e-3, 5.1e-3, 2.4e-3])
    chosen = module.threshold(seconds <= 4e-3, seconds)
    assert (choices.below[chosen], choices.cells[chosen]) == (30, 50)


def test_rewriting_with_little_time_begins_with_the_oldest() -> None:
    """40 @10, 10 @20, 30 @30."""
    choices = trace_15().choices()
    within = [choices.within(2, most) for most in (0, 39, 40, 45, 50, 99)]
    assert within == [(10, 0), (10, 39), (20, 0), (20, 5), (30, 0), (30, 0)]
    assert choices.within(4, 79) == (30, 29)
    assert choices.within(4, 80) == (41, 0)


def test_limits_of_the_experiments() -> None:
    choices = trace_15().choices()
    records = choices.records - SLICE_RECORDS * choices.slices
    assert module.threshold((records <= 400) & (choices.rows <= 700), choices.records * 1.0) == 1


def test_an_unreachable_target_gets_the_least_time() -> None:
    choices = trace_15().choices()
    seconds = choices.seconds(10e-6, 2e-6)
    assert module.threshold(seconds <= 1e-9, seconds) == int(np.argmin(seconds))


def test_replay_begins_at_the_oldest_that_is_not_final() -> None:
    """a and b at 10, c at 20; a closes in the slice to 30."""
    extent = Extent()
    extent.commit(10, 2, 2, 2)
    extent.commit(20, 1, 4, 1)
    replace(extent, times(10), yes(1))
    extent.commit(30, 0, 6, 0)
    assert (extent.replay_from(), extent.needs()) == (10, 10)
    assert (extent.choices().records[0], extent.choices().rows[0]) == (3 + 3 * SLICE_RECORDS, 4)


def test_final_cells_hold_the_log_but_no_replay() -> None:
    """Slices to 10, 20, 30: panes at 20 and 30 are final."""
    extent = Extent()
    for time in (10, 20, 30):
        extent.commit(time, 1, time, 0)
    replace(extent, times(10), ~yes(1))
    assert (extent.replay_from(), extent.needs()) == (30, 20)
    extent.cut()
    assert (extent.replay_from(), extent.needs()) == (30, 20)
    assert extent.choices().below.tolist() == [20, 30, 31]


def test_row_keepers_hold_replay_regardless_of_rewriting() -> None:
    extent = Extent()
    for time in (10, 20, 30):
        extent.commit(time, 0, time * 2, 0)
    extent.held = 25
    assert (extent.replay_from(), extent.needs()) == (20, 20)
    assert extent.choices().rows.tolist() == [20] * 4
    extent.held = 20  # a slice holds the rows before its end
    assert extent.replay_from() == 20
    extent.held = 5
    assert extent.replay_from() == 10


@pytest.mark.parametrize("seed", range(30))
def test_choices_are_those_of_a_count_cell_by_cell(seed: int) -> None:
    random = Random(seed)
    extent, cells, log, rows = Extent(), [], [], {}
    for time in range(10, 10 * random.randint(2, 12), 10):
        new = [(time, random.random() < 0.6) for _ in range(random.randint(0, 5))]
        dead = [c for c in cells if random.random() < 0.3]
        replace(extent, times(*(t for t, _ in dead)), np.array([o for _, o in dead], bool))
        for one in dead:
            cells.remove(one)
        rows[time] = rows.get(time - 10, 0) + random.randint(0, 9)
        extent.commit(time, len(new), rows[time], sum(o for _, o in new))
        cells += new
        log += [time] * len(new)
    choices = extent.choices()
    for k, below in enumerate(choices.below.tolist()):
        left = [c for c in cells if c[0] >= below]
        rewritten = len(cells) - len(left)
        oldest = min((t for t, _ in left), default=time + 1)
        replay = min((t for t, is_open in left if is_open), default=time)
        assert choices.cells[k] == rewritten
        assert choices.slices[k] == sum(t >= min(oldest, replay) for t in rows)
        assert choices.records[k] == rewritten + sum(t >= oldest for t in log) + SLICE_RECORDS * choices.slices[k]
        assert choices.rows[k] == rows[time] - rows[replay]


@pytest.mark.parametrize(
    ("log", "most"), [(Continuous(200_000), 2_000), (Continuous(None, records=1 << 60), SLICES_MOST)]
)
def test_slices_without_anything_are_counted(log: Continuous, most: int) -> None:
    """Little comes while one window stays open: it is written anew before too many slices would be read."""
    extent, read = Extent(), []
    extent.commit(0, 1, 0, 1)
    for time in range(1, 2 * SLICES_MOST):
        extent.commit(time, 0, time // 100, 0)
        if time % 100 == 0:
            choices = extent.choices()
            read.append(int(choices.slices[0]))
            if to_rewrite(choices, log, ASSUMED):
                extent.commit(time, 1, time // 100, 1)
                replace(extent, times(extent.needs()), yes(1))
        extent.cut()
    assert most <= max(read) <= most + 101
    assert extent.replay_from() >= SLICES_MOST


def test_slices_ascend() -> None:
    extent = Extent()
    extent.commit(10, 0, 0, 0)
    with pytest.raises(ValueError, match="slice 9 after slice 10"):
        extent.commit(9, 0, 0, 0)


def test_one_additional_slice_may_be_written() -> None:
    extent = Extent()
    extent.commit(10, 3, 5, 2)
    extent.commit(20, 1, 9, 1)
    extent.commit(20, 2, 9, 1)
    replace(extent, np.array([10, 10]), np.array([True, True]))
    assert extent.counts() == {10: (1, 0), 20: (3, 2)}
    choices = extent.choices()
    records = choices.records - SLICE_RECORDS * choices.slices
    assert (records.tolist(), choices.rows.tolist()) == ([6, 4, 4], [0, 0, 0])


def test_behind_the_end_of_time_nothing_comes() -> None:
    extent = Extent()
    extent.commit(END_OF_TIME, 3, 5, 2)
    assert extent.choices().below.tolist() == [END_OF_TIME, END_OF_TIME]


def test_rewriting_takes_its_share_of_the_time() -> None:
    pacing = Pacing(0.05, 0)
    assert pacing.allowed_us(100_000) == pytest.approx(5_000)
    pacing.spent(8_000)
    assert pacing.allowed_us(100_000) == 0
    assert pacing.allowed_us(200_000) == pytest.approx(2_000)
    assert pacing.allowed_us(60_000_000) == pytest.approx(50_000), "no more than one second's share is kept"


def test_an_experiment_spends_an_interval_in_each_period() -> None:
    pacing = Pacing(0.05, 0, period_us=100_000)
    assert pacing.allowed_us(60_000_000) == pytest.approx(5_000)
    pacing.spent(5_000)
    assert pacing.allowed_us(60_050_000) == pytest.approx(2_500)


def test_choices_name_their_seconds() -> None:
    one = Choices(times(10), times(0), times(4), times(6), times(1))
    assert one.seconds(0.5, 0.25).tolist() == [3.5]
