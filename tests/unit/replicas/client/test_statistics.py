"""Delay, gaps and counts of a client; Delay_new as DPC defines it (under "Design goals")."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.client.statistics import ChannelStats
from spe.plan.delays import ReplayEpoch
from spe.status import ChannelStatus
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.times import BEFORE_TIME
from tests.support.streams import parse

CHANNEL = Channel(StreamId("out"), 0)
LIVE = ReplayEpoch()


def feed(stats: ChannelStats, *arrivals: tuple[int, str]) -> ChannelStats:
    """Feeds the elements of each text at one wall time; texts in order of arrival."""
    for now, text in arrivals:
        for element in parse(text, position=stats.position):
            stats.apply(Change(CHANNEL, element, now))
    return stats


def test_counts_follow_the_stream() -> None:
    stats = feed(ChannelStats(CHANNEL), (100, "S1/5a S2/6b B10(2) T/12c T/13d b20"))
    assert (stats.stable_count, stats.tentative_count, stats.tentative_held, stats.undone_count) == (2, 2, 2, 0)
    feed(stats, (200, "U(2) S3/12c S4/13d B20(4) R+"))
    assert (stats.stable_count, stats.tentative_count, stats.tentative_held, stats.undone_count) == (4, 2, 0, 2)
    assert (stats.position, stats.frontier, stats.ended) == (4, 20, False)
    assert feed(stats, (300, "Binf(4)")).ended


def test_the_delay_is_that_of_the_tuple_that_waited_longest() -> None:
    stats = feed(ChannelStats(CHANNEL, epoch=LIVE), (100, "S1/40a S2/70b"))
    assert (stats.delay_us, stats.delay_max_us) == (60, 60)
    feed(stats, (110, "S3/90c"))
    assert (stats.delay_us, stats.delay_max_us) == (20, 60)


def test_the_time_of_creation_follows_the_replay_speed() -> None:
    epoch = ReplayEpoch(event_start_us=1_000, wall_start_us=50_000, speed=10.0)
    assert epoch.created_us(1_000) == 50_000
    assert epoch.created_us(2_000) == 50_100
    assert feed(ChannelStats(CHANNEL, epoch=epoch), (50_250, "S1/2000a")).delay_max_us == 150


def test_without_an_epoch_there_is_no_delay() -> None:
    assert feed(ChannelStats(CHANNEL), (100, "S1/40a")).delay_max_us is None


def test_corrections_of_tentative_tuples_are_not_new() -> None:
    stats = feed(ChannelStats(CHANNEL, epoch=LIVE), (50, "B10(0) T/40a b45"), (900, "U(0) S1/40a"))
    assert stats.delay_max_us == 10


def test_tuples_below_a_tentative_boundary_are_not_new() -> None:
    """The tentative boundary 45 was sent without the tuple at 42, which comes with the corrections."""
    stats = feed(ChannelStats(CHANNEL, epoch=LIVE), (50, "T/40a b45"), (900, "U(0) S1/40a S2/42b B45(2)"))
    assert stats.delay_max_us == 10


def test_new_tuples_in_the_same_batch_as_corrections_count() -> None:
    stats = feed(ChannelStats(CHANNEL, epoch=LIVE), (50, "T/40a b45"), (900, "U(0) S1/40a S2/800b"))
    assert (stats.delay_us, stats.delay_max_us) == (100, 100)


def test_figures_can_leave_out_the_first_seconds() -> None:
    stats = ChannelStats(CHANNEL, epoch=LIVE, skip_us=1_000)
    feed(stats, (5_000, "S1/100a"), (5_900, "S2/5700b"))
    assert stats.delay_max_us is None
    feed(stats, (6_100, "S3/6000c"))
    assert stats.delay_max_us == 100


def test_a_gap_counts_from_the_end_of_the_excluded_seconds() -> None:
    stats = ChannelStats(CHANNEL, skip_us=1_000)
    feed(stats, (5_000, "S1/1a"), (6_300, "S2/2b"))
    assert stats.gap_max_us == 300


def test_tentative_output_ends_a_gap_but_no_stable_gap() -> None:
    stats = feed(ChannelStats(CHANNEL), (100, "S1/1a B10(1)"), (150, "T/12b b20"), (400, "b30"), (480, "U(1) S2/12c"))
    assert stats.gap_max_us == 250
    assert stats.stable_gap_max_us == 380


def test_a_lasting_silence_counts_as_a_gap() -> None:
    stats = feed(ChannelStats(CHANNEL), (100, "S1/1a B10(1)"))
    assert stats.status(100, None).gap_max_us == 0
    assert stats.status(900, None).gap_max_us == 800
    assert stats.status(900, None).stable_gap_max_us == 800
    assert stats.gap_max_us == 0


def test_after_the_end_silence_is_no_gap() -> None:
    stats = feed(ChannelStats(CHANNEL), (100, "S1/1a Binf(1)"))
    assert stats.status(10**9, None).gap_max_us == 0


def test_the_status_of_a_channel_has_all_figures() -> None:
    stats = ChannelStats(CHANNEL, epoch=LIVE)
    assert stats.status(100, None) == ChannelStatus(
        channel="out/0",
        producer=None,
        stable=0,
        tentative=0,
        undone=0,
        switches=0,
        position=0,
        frontier=BEFORE_TIME,
        held=False,
        delay_us=None,
        delay_max_us=None,
        gap_max_us=0,
        stable_gap_max_us=0,
        last_arrival_us=None,
        ended=False,
    )
    stats.switches = 3
    for element in parse("S1/40a B50(1) T/60b"):
        stats.apply(Change(CHANNEL, element, 100))
    assert stats.status(100, "n1") == ChannelStatus(
        channel="out/0",
        producer="n1",
        stable=1,
        tentative=1,
        undone=0,
        switches=3,
        position=1,
        frontier=50,
        held=True,
        delay_us=40,
        delay_max_us=60,
        gap_max_us=0,
        stable_gap_max_us=0,
        last_arrival_us=100,
        ended=False,
    )


@given(
    st.lists(st.integers(0, 5_000), min_size=1, max_size=20).map(sorted),
    st.integers(0, 20_000),
    st.integers(1, 4_000),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_delays_relative_to_x_are_counted_as_one_by_one(times: list[int], now: int, bound: int, speed: float) -> None:
    epoch = ReplayEpoch(event_start_us=100, wall_start_us=0, speed=speed)
    stats = ChannelStats(CHANNEL, epoch=epoch)
    stats.bound_us = bound
    feed(stats, (now, " ".join(f"S{i + 1}/{t}a" for i, t in enumerate(times))))
    delays = [(now - (t - 100) / speed) / bound for t in times]
    found = stats.x_used.status()

    assert sum(found.counts) == len(times)
    for at, one in enumerate(found.bounds):
        below = sum(found.counts[: at + 1])
        slack = 2 / bound  # microseconds are rounded
        assert sum(d <= one - slack for d in delays) <= below <= sum(d <= one + slack for d in delays)
    assert found.sum == pytest.approx(sum(delays), abs=2 * len(times) / bound)


def test_delays_relative_to_x_are_of_new_tuples_only() -> None:
    stats = ChannelStats(CHANNEL, epoch=LIVE)
    stats.bound_us = 100
    feed(stats, (50, "T/40a b45"), (900, "U(0) S1/40a S2/890b"))

    assert sum(stats.x_used.status().counts) == 2
    assert stats.x_used.sum == pytest.approx(0.2)


def test_without_a_bound_or_an_epoch_no_delay_is_counted() -> None:
    for epoch, bound in ((None, 100), (LIVE, None)):
        stats = ChannelStats(CHANNEL, epoch=epoch)
        stats.bound_us = bound
        feed(stats, (50, "S1/40a"))
        assert sum(stats.x_used.status().counts) == 0
