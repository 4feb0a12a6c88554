"""Samples of load that heartbeat answers bring (L1)."""

from __future__ import annotations

from replicas.placement.heard_loads import HeardLoads
from replicas.planning.load import SAMPLE_US, LoadSample
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from spe.wire.messages import Load
from tests.simulation.test_cluster import make_plan

A, B, ELSEWHERE = NodeId("n1a"), NodeId("n1b"), NodeId("n9")
PARTITION = PartitionId(UnitId("u1"), 0)


def load(cpu: float, unit: str = "u1") -> Load:
    return Load(unit, 0, cpu, 4e6, 1e5, 300.0, 2e6)


def sample(cpu: float) -> LoadSample:
    return LoadSample(cpu, 4e6, 1e5, 300.0, 2e6)


def test_larger_load_of_two_replicas_counts() -> None:
    heard = HeardLoads(make_plan(1)[1])
    heard.heard(A, [load(0.2)], SAMPLE_US)
    heard.heard(B, [load(0.3)], SAMPLE_US + 5)
    assert heard.history.mean(PARTITION, 2 * SAMPLE_US) == sample(0.3)


def test_a_heartbeat_without_a_sample_changes_nothing() -> None:
    heard = HeardLoads(make_plan(1)[1])
    heard.heard(A, [load(0.2)], SAMPLE_US)
    heard.heard(A, [], 2 * SAMPLE_US)
    assert heard.history.mean(PARTITION, 2 * SAMPLE_US) == sample(0.2)


def test_loads_of_partitions_of_other_nodes_are_ignored() -> None:
    heard = HeardLoads(make_plan(1)[1])
    heard.heard(ELSEWHERE, [load(0.9)], SAMPLE_US)
    heard.heard(A, [load(0.9, "u9")], SAMPLE_US)
    assert heard.history.mean(PARTITION, SAMPLE_US) is None
