"""Times as texts: ISO 8601 for any int64."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spe.stream.times import END_OF_TIME, format_timestamp, iso_timestamp, parse_duration, parse_timestamp


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "1970-01-01T00:00:00"),
        (-1, "1969-12-31T23:59:59.999999"),
        (-62_135_596_800_000_001, "0000-12-31T23:59:59.999999"),
        (-62_167_219_200_000_001, "-000001-12-31T23:59:59.999999"),
        (253_402_300_800_000_000, "+010000-01-01T00:00:00"),
        (2**63 - 1, "+294247-01-10T04:00:54.775807"),
        (-(2**63), "-290308-12-21T19:59:05.224192"),
    ],
)
def test_a_time_beyond_four_digit_years_is_iso_8601(us: int, text: str) -> None:
    assert iso_timestamp(us) == text
    assert parse_timestamp(text) == us


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_time_is_read_back_as_it_was_written(us: int) -> None:
    assert parse_timestamp(iso_timestamp(us)) == us
    assert parse_timestamp(iso_timestamp(us) + "Z") == us


def test_the_ends_of_time_are_shown_by_name() -> None:
    assert format_timestamp(END_OF_TIME) == "+inf"
    assert iso_timestamp(END_OF_TIME) == "+148108-07-06T00:06:09.551616" or iso_timestamp(END_OF_TIME)[0] == "+"


@pytest.mark.parametrize("digits", [17, 309, 5_000])
def test_a_duration_longer_than_time_is_refused(digits: int) -> None:
    with pytest.raises(ValueError, match=r"expected a duration below 145,\d+ years, got '999"):
        parse_duration("9" * digits + "s")
    assert parse_duration("145000d") == 145_000 * 86_400_000_000
