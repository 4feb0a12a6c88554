"""Which rows a source accepts, and its warnings."""

from __future__ import annotations

import pytest

from replicas.connectors import open_reader
from replicas.source.admission import implausible
from spe.stream.times import parse_timestamp
from tests.property.test_rows_accounted import Post, Served, configured, played, post_all

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


@pytest.mark.parametrize("bad_rows", ["refuse", "pass"])
def test_sender_hears_of_a_row_from_the_future(bad_rows: str) -> None:
    """Refused, it does not use up its key: the next request has it."""
    source = configured({"http": {"listen": "127.0.0.1:9000", "bad_rows": bad_rows}})
    done: list[Post] = []

    async def sends(served: Served) -> None:
        done.extend(await post_all(served, [("gf", True, False, 0), ("g", True, False, 0)]))

    found = played(source, open_reader(source), sends)
    bad = [{"row": 2, "reason": "ts: 2026-01-01T12:00:03 is too far ahead of the clock"}]
    why = "1 of 2 rows cannot be taken; nothing of the request was taken"
    replies = [(post.replies[0].status, post.replies[0].body) for post in done]
    if bad_rows == "refuse":
        assert replies == [(400, {"error": why, "rows": bad}), (200, {"rows": 1})]
        assert (list(found.logged), list(found.aside)) == ([2], [])
    else:
        assert replies == [(200, {"rows": 1, "left_out": bad}), (200, {"rows": 1})]
        assert (list(found.logged), list(found.aside)) == ([0, 2], [1])
