"""Load samples (L1): CPU is divided by the steps of each replica; a replica that was not STABLE has no sample."""

from __future__ import annotations

import pytest

from replicas.node.load_meter import LOOK_US, NodeMeter, ReplicaMeasure, ReplicaMeter
from replicas.planning.load import SAMPLE_US, LoadSample
from spe.stream.names import NodeState

STABLE = NodeState.STABLE
BEGIN_US = 3_000_000


class World:
    """A node that measures its replicas; ``sampled`` ends a sample's time, with so much CPU of the process in it."""

    def __init__(self, replicas: int = 1, begin_us: int = BEGIN_US) -> None:
        self.meters = [ReplicaMeter() for _ in range(replicas)]
        self.node = NodeMeter(begin_us, cpu_ns=0)
        self.now = begin_us
        self.cpu_ns = 0
        self.memory = self.state = 0

    def stable(self) -> World:
        """All replicas are STABLE for longer than a sample."""
        for meter in self.meters:
            meter.became(STABLE)
        self.sampled()
        return self

    def sampled(self, cpu_s: float = 0.0, *, late_us: int = 0, times: int = 1) -> list[LoadSample | None]:
        """The sample that each replica reports."""
        self.now = (self.now // SAMPLE_US + times) * SAMPLE_US + late_us
        self.cpu_ns += round(cpu_s * 1e9)
        assert self.node.due(self.now)
        self.node.look(self.now, self.cpu_ns, [ReplicaMeasure(m, self.memory, self.state) for m in self.meters])
        return [meter.news(self.now) for meter in self.meters]


def cpu(samples: list[LoadSample | None]) -> list[float | None]:
    return [None if sample is None else pytest.approx(sample.cpu) for sample in samples]


def test_sample_has_input_and_output_per_second() -> None:
    world = World().stable()
    (meter,) = world.meters
    meter.received(rows=3_000, nbytes=80_000, step_ns=2_000_000)
    meter.received(rows=2_000, nbytes=60_000, step_ns=1_000_000)
    meter.worked(step_ns=5_000_000)
    meter.sent(nbytes=10_000, step_ns=1_000_000)
    world.memory, world.state = 9_000, 7_000
    assert world.sampled(2.0) == [LoadSample(pytest.approx(0.2), 9_000.0, 15_000.0, 500.0, 7_000.0)]
    assert world.sampled(2.0) == [LoadSample(0.0, 9_000.0, 0.0, 0.0, 7_000.0)], "each counts once"


def test_the_cpu_of_the_process_is_shared_out_by_steps() -> None:
    """CPU outside of steps is shared out too, however long steps waited for the CPU."""
    world = World(2).stable()
    world.meters[0].worked(step_ns=30_000_000)
    world.meters[1].received(rows=1, nbytes=1, step_ns=5_000_000)
    world.meters[1].sent(nbytes=1, step_ns=5_000_000)
    assert cpu(world.sampled(4.0)) == [0.3, 0.1]


def test_correcting_replica_uses_its_share_and_has_no_sample() -> None:
    world = World(2).stable()
    world.meters[0].became(NodeState.UP_FAILURE)
    for meter in world.meters:
        meter.worked(step_ns=1_000)
    assert cpu(world.sampled(4.0)) == [None, 0.2]


@pytest.mark.parametrize("state", [s for s in NodeState if s is not STABLE])
def test_interval_not_entirely_stable_gives_no_sample(state: NodeState) -> None:
    world = World().stable()
    assert world.sampled() == [LoadSample(0.0)]
    world.meters[0].became(state)
    world.meters[0].became(STABLE)
    assert world.sampled() == [None]
    assert world.sampled() == [LoadSample(0.0)]


def test_a_replica_begins_without_a_sample() -> None:
    world = World()
    assert world.sampled() == [None], "it was never STABLE"
    world.meters[0].became(STABLE)
    assert world.sampled() == [None], "it was not at the beginning"
    assert world.sampled() == [LoadSample(0.0)]


def test_a_late_look_does_not_move_the_next_one() -> None:
    world = World(begin_us=0).stable()
    world.meters[0].received(rows=1_050, nbytes=0, step_ns=0)
    assert world.sampled(late_us=500_000) == [LoadSample(0.0, rows=100.0)]
    world.meters[0].received(rows=950, nbytes=0, step_ns=0)
    assert world.sampled() == [LoadSample(0.0, rows=100.0)]


def test_time_in_which_the_process_was_stopped_gives_no_sample() -> None:
    world = World().stable()
    assert world.sampled(late_us=6_000_000) == [None]
    assert world.sampled() == [None], "too short: it began late"
    assert world.sampled() == [LoadSample(0.0)]
    assert world.sampled(times=3) == [None]


def test_held_bytes_are_the_largest_of_several_measurements() -> None:
    """A window that ends at each sample would seem to hold nothing."""
    world = World().stable()
    for held in (100, 700, 300):
        world.now += LOOK_US
        assert world.node.due(world.now)
        world.node.look(world.now, 0, [ReplicaMeasure(world.meters[0], held + 50, held)])
        assert not world.node.due(world.now + LOOK_US - 1)
        assert world.meters[0].news(world.now) is None
    assert world.sampled() == [LoadSample(0.0, memory=750.0, state=700.0)]
    assert world.sampled() == [LoadSample(0.0)]


def test_a_sample_is_reported_once_unless_it_is_old() -> None:
    world = World().stable()
    assert world.sampled() == [LoadSample(0.0)]
    assert world.meters[0].news(world.now) is None
    world.node.look(world.now + SAMPLE_US, 0, [ReplicaMeasure(world.meters[0], 0, 0)])
    assert world.meters[0].news(world.now + 2 * SAMPLE_US) is None
    assert world.meters[0].latest == LoadSample(0.0)
