"""A source whose rows are mostly late reports it within seconds (S7: time of live input)."""

from __future__ import annotations

from replicas.source.lateness import AGAIN_US, ROWS_MIN, SPAN_US, Lateness, MostlyLate
from spe.stream.times import MILLISECOND, SECOND


def test_rows_that_are_all_late_are_reported_soon() -> None:
    one = Lateness()
    said = [one.took(n * 10 * MILLISECOND, 1, 1, 5 * SECOND + n) for n in range(ROWS_MIN)]
    assert said[:-1] == [None] * (ROWS_MIN - 1)
    assert said[-1] == MostlyLate(ROWS_MIN, ROWS_MIN, 5 * SECOND + ROWS_MIN - 1)
    assert str(said[-1]) == "5 of the last 5 rows came late; disorder 5.001s would have been enough"


def test_long_times_are_shown_in_seconds() -> None:
    assert str(MostlyLate(5, 7, 31_535_999_979_346)).endswith("disorder 365d would have been enough")


def test_a_source_with_a_row_per_minute_is_reported_too() -> None:
    one = Lateness()
    said = [one.took(n * 60 * SECOND, 1, 1, SECOND) for n in range(ROWS_MIN)]
    assert said[-1] == MostlyLate(ROWS_MIN, ROWS_MIN, SECOND)


def test_a_few_late_rows_are_only_counted() -> None:
    one = Lateness()
    assert [one.took(n * SECOND, 100, 50, SECOND) for n in range(100)] == [None] * 100


def test_a_source_that_becomes_late_is_reported_within_the_span() -> None:
    one = Lateness()
    for second in range(3600):
        assert one.took(second * SECOND, 100, 0, 0) is None
    said = [one.took((3600 + second) * SECOND, 100, 100, 7 * SECOND) for second in range(SPAN_US // SECOND)]
    told = [second for second, one in enumerate(said) if one is not None]
    assert told[0] * SECOND <= SPAN_US // 2 + SECOND
    assert said[told[0]] is not None
    assert said[told[0]].disorder_us == 7 * SECOND


def test_lateness_is_reported_each_minute_with_enough_disorder() -> None:
    one = Lateness()
    said = [one.took(second * SECOND, 10, 10, second * SECOND + 1) for second in range(2 * AGAIN_US // SECOND)]
    told = {second: s.disorder_us for second, s in enumerate(said) if s is not None}
    assert told == {0: 1, 60: 60 * SECOND + 1}


def test_stored_lateness_is_bounded() -> None:
    one = Lateness()
    for n in range(10_000):
        one.took(n * 100 * MILLISECOND, 3, 1, SECOND)
    assert len(one._cells) <= SPAN_US // SECOND + 1
