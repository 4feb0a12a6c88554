"""Most records to load, most rows to replay, and the least time to recover (G7)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from replicas.checkpoint import targets as choosing
from replicas.checkpoint.extent import Choices
from replicas.checkpoint.targets import ASSUMED, REPLAY_PART, LogSpeeds, Workload, least, targets
from spe.plan.log_targets import Continuous
from tests.unit.replicas.checkpoint.test_extent import trace_15

#: 10 µs per record, 2 µs per row.
TRACE_15 = LogSpeeds(10.0, 2.0, 10.0)
#: 100,000 ids, count windows of 10, 60,000 rows a second: 90,000 are open, 6,000 begin a second (NUMBERS, section 5).
PAPER = Workload(cells=90_000, begun_per_s=6_000, rows_per_s=60_000)

speeds = st.builds(LogSpeeds, st.floats(0.1, 100), st.floats(0.01, 50), st.floats(0.1, 100))
workloads = st.builds(
    Workload,
    cells=st.one_of(st.just(0.0), st.floats(1, 1e7)),
    begun_per_s=st.floats(0, 1e6),
    rows_per_s=st.floats(0, 1e6),
    held_rows=st.floats(0, 1e7),
    lifetime_s=st.one_of(st.just(math.inf), st.floats(0.1, 1e5)),
)
shares = st.floats(0.001, 1)
NEAR = 1 + 1e-6


def seconds(machine: LogSpeeds, records: float, rows: float) -> float:
    return 1e-6 * (machine.load_us * records + machine.replay_us * rows)


def test_groups_that_never_close_are_rewritten_in_turn() -> None:
    """A round takes 10⁶ · 5 µs / 5 % = 100 s; meanwhile 5 million rows come in at 50,000 a second."""
    workload = Workload(cells=1e6, rows_per_s=50_000)
    found = least(ASSUMED, workload, 0.05)
    assert (found.load_s, found.replay_s) == pytest.approx((5.0, 5.0))
    wanted = targets(8.0, ASSUMED, workload)
    assert wanted is not None
    assert wanted == pytest.approx((1e6, 3e6, 1e6 * 5e-6 / 60))


def test_windows_that_can_be_replayed_need_no_rewriting() -> None:
    workload = Workload(cells=1e6, rows_per_s=50_000, lifetime_s=60.0)
    assert least(ASSUMED, workload, 0.05).seconds < 8.0
    wanted = targets(60.0, ASSUMED, workload)
    assert wanted == pytest.approx((1e6, 3e6, 0.0))


def test_stored_rows_are_replayed_whatever_is_written() -> None:
    join = Workload(rows_per_s=50_000, held_rows=500_000)
    found = least(ASSUMED, join, 0.05)
    assert (found.load_s, found.replay_s) == pytest.approx((0.0, 0.5))
    assert targets(0.49, ASSUMED, join) is None
    wanted = targets(2.0, ASSUMED, join)
    assert wanted == pytest.approx((0.0, 0.5e6 + 0.2e6, 0.0)), "and a tenth of the time for what came since"


def test_trace_15_in_seconds() -> None:
    """Q and U share what there is: 200 records and 200 rows take 2.4 ms, and 4 ms would hold 80 and 1,600."""
    assert seconds(TRACE_15, 200, 200) == pytest.approx(2.4e-3)
    wanted = targets(4e-3, TRACE_15, Workload(cells=80, rows_per_s=400))
    assert wanted is not None
    assert (wanted.records, wanted.rows) == pytest.approx((80, 1_600))


def test_only_slow_windows_of_the_paper_are_rewritten() -> None:
    """At their speeds (28 to 54 µs a record) Q = 1 x is out of reach; 2 x asks for a tenth of what 1.1 x does."""
    theirs = LogSpeeds(load_us=40.0, replay_us=1e-9, write_us=10.0)
    shares_of = {}
    for times in (1.0, 1.1, 2.0, 4.0):
        wanted = targets(times * 90_000 * 40e-6, theirs, PAPER)
        assert wanted is not None
        shares_of[times] = wanted.share
        assert wanted.records == pytest.approx(times * 90_000, rel=0.01)
    assert shares_of[1.0] > 1
    assert shares_of[2.0] < shares_of[1.1] / 10
    assert shares_of[4.0] < 1e-3


@pytest.mark.parametrize(
    ("log", "below", "cells"),
    [
        (Continuous(20_000), 10, 0),  # 6.8 ms as it is, 1.8 of them for 900 rows
        (Continuous(8_000), 30, 50),  # rows get 0.8 ms
        (Continuous(4_000), 30, 50),
        (Continuous(1), 40, 80),  # out of reach: the best there is
        (Continuous(None, records=450), 20, 40),
        (Continuous(None, rows=600), 20, 40),
        (Continuous(None, records=450, rows=599), 30, 50),
        (Continuous(None, records=1, rows=1), 40, 80),
        (Continuous(None, rows=900), 10, 0),
    ],
)
def test_trace_15_rewrites_expected_cells(log: Continuous, below: int, cells: int) -> None:
    choices = trace_15().choices()
    chosen = choosing.to_rewrite(choices, log, TRACE_15)
    assert (choices.below[chosen], choices.cells[chosen]) == (below, cells)


@given(speeds, workloads, st.floats(0.001, 1e4), shares)
def test_few_rows_stay_upstream_as_far_as_share_allows(
    machine: LogSpeeds, workload: Workload, recovery_s: float, share: float
) -> None:
    wanted = targets(recovery_s, machine, workload, share)
    assume(wanted is not None)
    assert wanted is not None
    any_rows = targets(recovery_s, machine, workload)
    assert any_rows is not None
    assert seconds(machine, wanted.records, wanted.rows) <= recovery_s * NEAR
    assert wanted.rows <= any_rows.rows * NEAR
    few = workload.held_rows + REPLAY_PART * recovery_s / (1e-6 * machine.replay_us)
    assert wanted.rows <= few * NEAR or wanted.share >= share / 1.001
    assert wanted.share <= max(share * 1.001, any_rows.share * NEAR)


def test_rows_are_replayed_if_rewriting_would_miss_the_target() -> None:
    """Rewriting all leaves more records to read than there is time for."""
    choices = Choices(*(np.array(c) for c in ([10, 20, 30], [0, 50, 90], [100, 120, 250], [400, 300, 0], [3, 2, 1])))
    assert choosing.to_rewrite(choices, Continuous(2_000), TRACE_15) == 0
    assert choosing.to_rewrite(choices, Continuous(3_000), TRACE_15) == 2


@given(speeds, workloads, st.floats(0.001, 1e4))
def test_targets_use_up_the_time_or_more_is_of_no_use(
    machine: LogSpeeds, workload: Workload, recovery_s: float
) -> None:
    wanted = targets(recovery_s, machine, workload)
    if wanted is None:
        assert recovery_s * NEAR >= 0
        assert seconds(machine, workload.cells, workload.held_rows) * NEAR >= recovery_s
        return
    took = seconds(machine, wanted.records, wanted.rows)
    assert took <= recovery_s * NEAR
    assert took >= recovery_s / NEAR or wanted.share < 1e-6 or not workload.cells


@given(speeds, workloads, st.floats(0.001, 1e4), st.floats(1, 10))
def test_more_time_allows_more_and_asks_for_less(
    machine: LogSpeeds, workload: Workload, recovery_s: float, more: float
) -> None:
    short, long = targets(recovery_s, machine, workload), targets(recovery_s * more, machine, workload)
    assume(short is not None)
    assert short is not None
    assert long is not None
    assert long.records * NEAR >= short.records
    assert long.rows * NEAR >= short.rows
    assert long.share <= short.share * NEAR


@given(speeds, workloads, shares, st.floats(1, 100))
def test_a_larger_share_reaches_less_time(machine: LogSpeeds, workload: Workload, share: float, more: float) -> None:
    assert least(machine, workload, min(share * more, 1)).seconds <= least(machine, workload, share).seconds * NEAR


@given(speeds, workloads, shares, st.sampled_from(Workload._fields[:4]), st.floats(0, 1e6))
def test_more_of_anything_takes_no_less(
    machine: LogSpeeds, workload: Workload, share: float, what: str, more: float
) -> None:
    if what == "begun_per_s":  # pieces close as often as they begin: what closes need not be rewritten
        share = 1e-9
        assume(math.isfinite(workload.lifetime_s))
    larger = workload._replace(**{what: getattr(workload, what) + more})
    assert least(machine, larger, share).seconds * NEAR + 1e-9 >= least(machine, workload, share).seconds


@given(speeds, workloads, shares, st.sampled_from(LogSpeeds._fields), st.floats(1, 10))
def test_a_slower_machine_takes_longer(
    machine: LogSpeeds, workload: Workload, share: float, what: str, times: float
) -> None:
    slower = machine._replace(**{what: getattr(machine, what) * times})
    assert least(slower, workload, share).seconds * NEAR >= least(machine, workload, share).seconds


@given(speeds, workloads, shares)
def test_least_time_is_reached_with_its_share_and_none_below(
    machine: LogSpeeds, workload: Workload, share: float
) -> None:
    found = least(machine, workload, share).seconds
    assert found * NEAR >= seconds(machine, workload.cells, workload.held_rows)
    wanted = targets(found * NEAR + 1e-9, machine, workload)
    assert wanted is not None
    assert wanted.share <= share * 1.001 + 1e-9
    below = targets(found * 0.99, machine, workload)
    assert below is None or below.share >= share / 1.001 or not workload.cells
