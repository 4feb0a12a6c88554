"""Measured speeds and rates of a checkpoint log, and what its status says (G7)."""

from __future__ import annotations

import math
from pathlib import PurePosixPath

import pytest

from replicas.checkpoint.extent import SLICE_RECORDS, Extent
from replicas.checkpoint.log import CheckpointLog, LogKind
from replicas.checkpoint.meter import WINDOW_US, LogMeter
from replicas.checkpoint.targets import ASSUMED, Workload, least, targets
from replicas.simulation.world.disk import SimDisk
from spe.plan.log_targets import Continuous
from spe.stream.times import SECOND
from tests.unit.replicas.checkpoint.test_extent import trace_15


def test_speeds_are_assumed_until_they_are_measured() -> None:
    meter = LogMeter()
    assert meter.speeds == pytest.approx(ASSUMED)
    meter.recovered(99_000, 198_000, 0, 0)
    meter.rewrote(9_000, 1 << 20, 27_000)
    meter.processed(999_000, 250_000)
    assert meter.speeds == pytest.approx((2.03, 0.251, 3.2), rel=0.01)


def test_few_rows_tell_nothing_of_a_replay() -> None:
    """To begin a slice takes 100 µs, a row a quarter."""
    meter = LogMeter()
    for _ in range(100_000):
        meter.processed(10, 102.5)
    assert meter.speeds == pytest.approx(ASSUMED)
    for _ in range(1_000):
        meter.processed(2_000, 600)
    assert meter.speeds.replay_us == pytest.approx(0.3, rel=0.01)


def test_the_next_replay_is_expected_to_be_like_the_last_ones() -> None:
    """Live rows come in small slices, each of which takes time of its own; targets go by them, to be safe."""
    meter = LogMeter()
    meter.processed(100_000, 40_000)
    meter.recovered(0, 0, 100, 1_000)
    meter.recovered(1_000_000, 800_000, 900_000, 90_000)
    meter.processed(5_000_000, 2_000_000)
    assert meter.speeds.replay_us == pytest.approx(0.37, abs=0.03)
    meter.recovered(1_000_000, 800_000, 1_000_000, 120_000)
    assert meter.expected_us == pytest.approx(900_000, rel=0.01)


def test_a_machine_that_becomes_slower_is_noticed() -> None:
    meter = LogMeter()
    for _ in range(10):
        meter.processed(1_000_000, 500_000)
    for _ in range(5):
        meter.processed(1_000_000, 2_000_000)
    assert meter.speeds.replay_us == pytest.approx(2.0, rel=0.05)


def test_recovery_is_compared_with_earlier_expectation() -> None:
    meter = LogMeter()
    assert (meter.recovered_us, meter.expected_us) == (None, None)
    meter.recovered(1_000_000, 2_000_000, 500_000, 100_000)
    assert (meter.recovered_us, meter.expected_us) == (2_100_000, 653_000), "what is typical, not what is safe"
    meter.recovered(1_000_000, 2_000_000, 500_000, 100_000)
    assert meter.expected_us == pytest.approx(2_100_000, rel=0.01)


def test_rates_are_of_the_last_seconds() -> None:
    meter = LogMeter()
    assert meter.workload(7, 3, 0) == Workload(7, held_rows=3)
    for tenth in range(200):
        busy = tenth < 50
        meter.committed(tenth * SECOND // 10, 100 if busy else 10, 5_000 if busy else 500)
    now = 199 * SECOND // 10
    assert meter.workload(7, 3, now) == pytest.approx((7, 100, 5_000, 3, math.inf))
    assert meter.workload(7, 3, now + WINDOW_US) == Workload(7, held_rows=3), "silence is no rate"


async def test_status() -> None:
    disk = SimDisk()
    log = await CheckpointLog.open(disk, PurePosixPath("log"))
    log.write(10, [(LogKind.FOOTPRINTS, b"a(1,5)")], b"C10")
    meter = LogMeter()
    meter.rewrote(0, 77, 0)
    for second in range(3):
        meter.committed(second * SECOND, 10, 100)
    status = meter.status(Continuous(2_000_000), trace_15(), log, "", 2 * SECOND)
    assert (status.records, status.rows, status.live) == (500 + 4 * SLICE_RECORDS, 900, 80)
    assert status.recovery_us == round(3_000 + 0.5 * status.records + 0.3 * 900)
    assert status.least_us == round(1e6 * least(ASSUMED, Workload(80, 10, 100), 0.05).seconds)
    assert (status.recovered_us, status.expected_us) == (None, None)
    assert (status.written_bytes, status.kept_bytes, status.rewritten_bytes) == (
        log.written_bytes,
        log.kept_bytes,
        77,
    )
    assert log.kept_bytes > log.written_bytes > 0
    assert (status.load_us, status.replay_us, status.write_us) == pytest.approx(ASSUMED)
    assert status.trouble == ""


def test_fixed_recovery_time_does_not_count_in_load_speed() -> None:
    """It is three milliseconds: so one of little is a guide to a large one; one of next to nothing is none."""
    meter = LogMeter()
    meter.recovered(10_000, 7_000, 0, 0)
    meter.recovered(10, 4_000, 0, 0)
    meter.recovered(1_000_000, 403_000, 0, 0)
    assert meter.expected_us == 403_000


def test_expected_recovery_time_follows_measurements() -> None:
    """Also after a restart; a thousand records at what is assumed would double the time of these."""
    before, after = LogMeter(), LogMeter()
    after.learn(before.learnt)
    for meter in (before, after):
        meter.recovered(5_000, 5_000, 0, 0)
        meter.recovered(5_000, 5_000, 0, 0)
        assert meter.expected_us == 5_000
    assert before.speeds.load_us > 1, "targets stay on the safe side"


async def test_status_before_the_log_holds_a_state() -> None:
    log = await CheckpointLog.open(SimDisk(), PurePosixPath("log"))
    status = LogMeter().status(Continuous(2_000_000), Extent(), log, "0: no room", 0)
    assert (status.recovery_us, status.records, status.rows, status.live) == (0, 0, 0, 0)
    assert status.trouble == "0: no room"


def test_measurements_from_before_a_restart_count() -> None:
    before, after = LogMeter(), LogMeter()
    before.processed(100_000, 40_000)
    after.learn(before.learnt)
    assert after.speeds == before.speeds
    before.recovered(1_000_000, 2_000_000, 10_000, 1_000)
    after.learn(before.learnt)
    after.learn([])
    assert after.speeds == before.speeds
    for meter in (before, after):
        meter.recovered(1_000_000, 2_000_000, 1_000_000, 100_000)
    assert (after.expected_us, before.expected_us) == pytest.approx((2_100_000, 2_100_000), rel=0.01)


def test_measured_speeds_give_other_targets() -> None:
    quick = LogMeter()
    quick.recovered(10_000_000, 20_000_000, 0, 0)
    slow, fast = (targets(8.0, one, Workload(1e6, 0, 50_000)) for one in (ASSUMED, quick.speeds))
    assert slow is not None
    assert fast is not None
    assert fast.rows > 1.9 * slow.rows
