"""Which rows a source accepts, and its warnings."""

from __future__ import annotations

import pytest

from replicas.source.admission import implausible
from spe.stream.times import parse_timestamp

NOON = parse_timestamp("2026-01-01T12:00:00")


def test_a_plausible_time_gives_no_warning() -> None:
    assert implausible(NOON, "iso") == ""


@pytest.mark.parametrize(
    ("meant", "given", "read_us"),
    [("s", "us", NOON // 1_000_000), ("ms", "s", NOON * 1_000), ("s", "ms", NOON // 1_000)],
)
def test_a_wrong_unit_is_named_with_the_right_one(meant: str, given: str, read_us: int) -> None:
    assert implausible(read_us, given).endswith(f"with timestamps: {meant} they would be 2026-01-01T12:00:00")


def test_a_number_that_fits_no_unit_gives_no_hint() -> None:
    assert implausible(5, "us") == (
        "event times around 1970-01-01T00:00:00.000005 are implausible; they were read as us since the epoch"
    )


def test_a_text_has_no_unit() -> None:
    assert implausible(0, "iso") == "event times around 1970-01-01T00:00:00 are implausible"
