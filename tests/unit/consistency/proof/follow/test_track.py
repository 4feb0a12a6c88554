"""The rules of P4 that an element by itself can break."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from consistency.proof.follow.track import ChannelTrack, Heard, Wrong
from consistency.proof.report.model import Flaw


def stable(first: int, last: int, time: int) -> Heard:
    return Heard(50, "stable", first, last, last - first + 1, time, time)


def tentative(first: int, last: int, time: int) -> Heard:
    return Heard(60, "tentative", first, last, last - first + 1, time, time)


def undo(kept: int) -> Heard:
    return Heard(70, "undo", 0, kept)


def heard(*elements: Heard) -> tuple[ChannelTrack, list[Wrong]]:
    track, found = ChannelTrack(), list[Wrong]()
    for one in elements:
        found += track.hear(one)
    return track, found


def test_a_correction_is_counted_and_nothing_is_wrong() -> None:
    track, found = heard(
        stable(1, 3, 10), Heard(50, "stable_boundary", 0, 3, 0, 20, 20), tentative(4, 6, 30), undo(3), stable(4, 6, 30)
    )
    assert found == track.ended() == []
    assert (track.stable, track.tentative, track.undone, track.corrections) == (6, 3, 3, 1)
    assert (track.passed_id, track.frontier_us, track.live) == (6, 20, 0)


def test_undo_of_stable_tuples_is_reported_with_their_number() -> None:
    _, found = heard(stable(1, 5, 10), undo(3))
    assert found == [Wrong(Flaw.UNDONE, 2, 4, 10, 70)]


def test_tentative_tuples_that_stable_ones_follow_are_overtaken() -> None:
    _, found = heard(tentative(1, 2, 30), stable(1, 1, 30), tentative(3, 3, 40), undo(1))
    assert found == [Wrong(Flaw.OVERTAKEN, 2, 1, 30, 60)]  # the third came after the stable one


def test_tentative_tuples_that_stay_are_wrong_in_the_end() -> None:
    track, found = heard(stable(1, 1, 10), tentative(2, 4, 30))
    assert found == []
    assert track.ended() == [Wrong(Flaw.UNCORRECTED, 3, 2, 30, 60)]


def test_track_size_does_not_depend_on_its_input() -> None:
    few, _ = heard(stable(1, 1, 10))
    many, _ = heard(*(e for n in range(1, 500) for e in (stable(n, n, n), tentative(n + 1, n + 1, n), undo(n))))
    assert len(many.model_dump_json()) <= len(few.model_dump_json()) + 40
