"""Times (S1) and promises (S2) that a source gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.source.stamping import Stamper, admitted, peaks_of
from spe.errors import LocalProtocolError
from spe.stream.batch import Batch
from spe.stream.times import BEFORE_TIME, END_OF_TIME


def stamped(stamper: Stamper, *events: int) -> Batch:
    return stamper.stamp(np.array(events, np.int64), ())


def times(stamper: Stamper, *events: int) -> list[int]:
    result: list[int] = stamped(stamper, *events).rows.time.tolist()
    return result


def test_times_follow_rule_s1() -> None:
    """With disorder 4, W before each tuple is −, 6, 16, 16, 16; a boundary may be 26."""
    stamper = Stamper(disorder_us=4, boundary_us=1)
    assert times(stamper, 10, 20, 12, 17, 30) == [10, 20, 16, 17, 30]
    assert stamper.bound_us == 26
    assert stamper.late_count == 1


def test_a_restart_stays_above_a_lease_that_was_logged() -> None:
    """A lease of 40 was logged before the crash; event 35 gets time 40 (S2)."""
    stamper = Stamper(disorder_us=4, boundary_us=1)
    stamped(stamper, 10, 20, 12, 17, 30)
    assert stamper.lease(44)
    assert stamper.bound_us == 40

    again = Stamper(
        disorder_us=4,
        boundary_us=1,
        last_id=stamper.last_id,
        max_event_us=stamper.max_event_us,
        lease_us=stamper.lease_us,
    )
    batch = stamped(again, 35)
    assert (batch.from_id, batch.upto_id, batch.rows.time.tolist()) == (5, 6, [40])


def test_a_late_tuple_keeps_its_event_time_in_its_attributes() -> None:
    """With disorder 1, event 9 behind 13 is stamped 12."""
    assert times(Stamper(disorder_us=1, boundary_us=1), 3, 13, 9, 13) == [3, 13, 12, 13]


def test_ids_count_from_one_and_t_max_is_the_time() -> None:
    stamper = Stamper(disorder_us=0, boundary_us=1)
    first, second = stamped(stamper, 5, 6), stamped(stamper, 7)
    assert first.row_ids().tolist() == [1, 2]
    assert second.row_ids().tolist() == [3]
    assert second.rows.t_max is second.rows.time


def test_before_the_first_tuple_only_a_lease_may_be_promised() -> None:
    stamper = Stamper(disorder_us=5, boundary_us=10)
    assert stamper.bound_us == BEFORE_TIME
    assert stamper.lease(47)
    assert stamper.bound_us == 40


def test_boundaries_are_multiples_of_the_interval() -> None:
    stamper = Stamper(disorder_us=5, boundary_us=10)
    stamped(stamper, 37)
    assert stamper.bound_us == 30


def test_lease_implied_by_tuples_is_not_logged_again() -> None:
    stamper = Stamper(disorder_us=0, boundary_us=10)
    stamped(stamper, 40)
    assert not stamper.lease(40)
    assert not stamper.lease(49)
    assert stamper.lease(50)
    assert not stamper.lease(50)


def test_the_end_is_promised_once_and_nothing_follows_it() -> None:
    stamper = Stamper(disorder_us=7, boundary_us=10)
    stamped(stamper, 40)
    assert stamper.end()
    assert not stamper.end()
    assert stamper.bound_us == END_OF_TIME
    with pytest.raises(LocalProtocolError):
        stamped(stamper, 50)


def test_event_times_beyond_the_bound_ahead_are_refused() -> None:
    events = np.array([90, 100, 111, 110], np.int64)
    assert admitted(events, wall_us=100, ahead_us=None) is None
    mask = admitted(events, wall_us=100, ahead_us=10)
    assert mask is not None
    assert mask.tolist() == [True, True, False, True]


def test_event_times_near_the_ends_of_time_are_never_admitted() -> None:
    mask = admitted(np.array([0, END_OF_TIME, BEFORE_TIME], np.int64), wall_us=0, ahead_us=None)
    assert mask is not None
    assert mask.tolist() == [True, False, False]


EVENTS = st.lists(st.integers(-50, 200), min_size=1, max_size=40)


def one_by_one(events: list[int], disorder: int, lease: int) -> list[int]:
    """Stamps (S1), row by row: the largest of event time, watermark and last logged promise."""
    out = []
    for i, event in enumerate(events):
        floor = max(events[:i]) - disorder if i else BEFORE_TIME
        out.append(max(event, floor, lease))
    return out


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=6))
def test_peaks_are_the_largest_so_far(events: list[int]) -> None:
    found: list[int] = peaks_of(np.array(events, np.int64)).tolist()
    assert found == [max(events[: i + 1]) for i in range(len(events))]


@settings(max_examples=100, deadline=None)
@given(EVENTS, st.integers(0, 30), st.integers(-60, 60), st.data())
def test_stamps_do_not_depend_on_chunks(events: list[int], disorder: int, lease: int, data: st.DataObject) -> None:
    """Also with a restart at any cut, and equal to the rule applied tuple by tuple."""
    stamper = Stamper(disorder_us=disorder, boundary_us=1, lease_us=lease)
    out: list[int] = []
    at = 0
    while at < len(events):
        stop = data.draw(st.integers(at + 1, len(events)))
        if data.draw(st.booleans()):
            stamper = Stamper(
                disorder_us=disorder,
                boundary_us=1,
                last_id=stamper.last_id,
                max_event_us=stamper.max_event_us,
                lease_us=stamper.lease_us,
            )
        out += times(stamper, *events[at:stop])
        at = stop
    assert out == one_by_one(events, disorder, lease)
    assert stamper.last_id == len(events)


@settings(max_examples=100, deadline=None)
@given(EVENTS, st.integers(0, 30), st.integers(1, 20), st.data())
def test_leases_change_no_stamp_and_every_promise_holds(
    events: list[int], disorder: int, boundary: int, data: st.DataObject
) -> None:
    """A replayed source knows its next event time, so its pace does not affect the stream."""
    stamper = Stamper(disorder_us=disorder, boundary_us=boundary)
    out = []
    for event in events:
        if data.draw(st.booleans()):
            stamper.lease(min(event, data.draw(st.integers(-50, 250))))
        promised = stamper.bound_us
        out += times(stamper, event)
        assert out[-1] >= promised
    assert out == one_by_one(events, disorder, BEFORE_TIME)
