"""Promises of a live source that do not follow from rows (S7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.source.watermark import STOPPED_US, ByClock, ByData
from spe.stream.times import BEFORE_TIME, MILLISECOND, SECOND

STEP = 100 * MILLISECOND
LAST_YEAR = -365 * 86_400 * SECOND


def by_data(idle_us: int | None = SECOND, *, to_now: bool = False) -> ByData:
    return ByData(idle_us, to_now=to_now, step_us=STEP, now_us=0)


def looked_until(one: ByData, first: int, last: int, stands: int) -> int | None:
    """The promise at ``last``, when asked at every step from ``first`` on."""
    said = None
    for now in range(first, last + 1, STEP):
        said = one.reached_us(now, stands)
    return said


def test_by_the_clock_the_promise_ignores_rows() -> None:
    one = ByClock()
    one.heard(5)
    assert one.reached_us(7, BEFORE_TIME) == 7


def test_steady_rows_need_no_further_promises() -> None:
    one = by_data()
    for now in range(0, 60 * SECOND, STEP):
        one.heard(now)
        assert one.reached_us(now, LAST_YEAR + now) is None


def test_promise_after_silence_continues_at_clock_speed() -> None:
    one = by_data()
    one.heard(2 * SECOND)
    assert looked_until(one, 2 * SECOND, 3 * SECOND - STEP, LAST_YEAR) is None
    assert one.reached_us(3 * SECOND, LAST_YEAR) == LAST_YEAR
    # Promises made meanwhile raise the start of the next silence, and must not count twice.
    assert looked_until(one, 3 * SECOND, 5 * SECOND, LAST_YEAR + SECOND) == LAST_YEAR + 2 * SECOND


def test_a_row_ends_the_silence() -> None:
    one = by_data()
    assert looked_until(one, 0, 4 * SECOND, LAST_YEAR) == LAST_YEAR + 3 * SECOND
    one.heard(4 * SECOND)
    assert looked_until(one, 4 * SECOND, 5 * SECOND - STEP, LAST_YEAR + 3 * SECOND) is None
    assert one.reached_us(5 * SECOND, LAST_YEAR + 3 * SECOND) == LAST_YEAR + 3 * SECOND


def test_before_the_first_row_nothing_is_promised() -> None:
    assert looked_until(by_data(), 0, 60 * SECOND, BEFORE_TIME) is None
    assert looked_until(by_data(to_now=True), 0, 60 * SECOND, BEFORE_TIME) is None


def test_the_present_is_promised_on_request() -> None:
    one = by_data(to_now=True)
    assert looked_until(one, 0, SECOND - STEP, LAST_YEAR) is None
    assert one.reached_us(SECOND, LAST_YEAR) == SECOND


def test_without_idle_no_silence_counts() -> None:
    assert looked_until(by_data(None), 0, 60 * SECOND, LAST_YEAR) is None


@pytest.mark.parametrize("silent_before", [0, 5 * SECOND])
def test_time_in_which_the_process_was_stopped_is_no_silence(silent_before: int) -> None:
    one = by_data()
    before = looked_until(one, 0, silent_before, LAST_YEAR)
    woken = silent_before + 60 * SECOND
    # Rows in the socket are read first.
    assert looked_until(one, woken, woken + SECOND - STEP, LAST_YEAR) is None
    # No row came, so it was silence, and other sources have advanced meanwhile.
    said = one.reached_us(woken + SECOND, LAST_YEAR)
    assert said == LAST_YEAR + woken
    assert before is None or said > before


def test_a_small_delay_does_not_count_as_a_stop() -> None:
    one = by_data()
    looked_until(one, 0, 2 * SECOND, LAST_YEAR)
    assert one.reached_us(2 * SECOND + STEP + STOPPED_US, LAST_YEAR) is not None


@given(st.lists(st.tuples(st.integers(0, 3 * SECOND), st.booleans()), max_size=60))
def test_promise_between_two_rows_is_no_faster_than_clock(steps: list[tuple[int, bool]]) -> None:
    """So after a pause of P, a continued replay is late by at most P less the idle time."""
    one, now, stands, row_at, row_stands = by_data(), 0, 1000, 0, 1000
    for wait, row in steps:
        now += wait
        if row:
            one.heard(now)
            row_at, row_stands = now, stands
            continue
        said = one.reached_us(now, stands)
        if said is not None:
            assert row_stands <= said <= row_stands + max(0, now - row_at - SECOND)
            assert said >= stands
            stands = said
