"""The news that a coordinator hears: samples of load (L1), who is alive and who is gone (H5)."""

from __future__ import annotations

from dataclasses import replace

from replicas.placement.view import ClusterView
from replicas.planning.load import SAMPLE_US, LoadSample
from spe.plan.directory import Version
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState, UnitId
from spe.wire.messages import HeartbeatAnswer, Load, OutputStatus
from tests.simulation.test_cluster import make_plan
from tests.support.placement_world import answer as made_answer

A, B, ELSEWHERE = NodeId("n1a"), NodeId("n1b"), NodeId("n9")
PARTITION = PartitionId(UnitId("u1"), 0)


def load(cpu: float, unit: str = "u1") -> Load:
    return Load(unit, 0, cpu, 4e6, 1e5, 300.0, 2e6)


def answer(*loads: Load) -> HeartbeatAnswer:
    return HeartbeatAnswer(1, 1, [], [], loads)


def cluster_view() -> ClusterView:
    return ClusterView(*make_plan(1), 0, recovery_us=1_000)


def sample(cpu: float) -> LoadSample:
    return LoadSample(cpu, 4e6, 1e5, 300.0, 2e6)


def test_larger_load_of_two_replicas_counts() -> None:
    view = cluster_view()
    view.heard(A, answer(load(0.2)), SAMPLE_US)
    view.heard(B, answer(load(0.3)), SAMPLE_US + 5)
    assert view.loads.mean(PARTITION, 2 * SAMPLE_US) == sample(0.3)


def test_a_heartbeat_without_a_sample_changes_nothing() -> None:
    view = cluster_view()
    view.heard(A, answer(load(0.2)), SAMPLE_US)
    view.heard(A, answer(), 2 * SAMPLE_US)
    assert view.loads.mean(PARTITION, 2 * SAMPLE_US) == sample(0.2)


def test_loads_of_partitions_of_other_nodes_are_ignored() -> None:
    view = cluster_view()
    view.heard(ELSEWHERE, answer(load(0.9)), SAMPLE_US)
    view.heard(A, answer(load(0.9, "u9")), SAMPLE_US)
    assert view.loads.mean(PARTITION, SAMPLE_US) is None


def test_a_silent_node_is_gone_once_it_was_heard_or_had_time() -> None:
    view = cluster_view()
    assert not view.is_gone(A, 999), "it may be about to start"
    assert view.is_gone(A, 1_000)
    view.heard(A, answer(), 10)
    assert not view.is_gone(A, 5_000)
    view.heard(B, answer(), 20)
    view.lost(A, 30)
    assert view.is_gone(A, 31)
    view.lost(B, 40)
    assert not view.is_gone(A, 41), "we may have been cut off ourselves"


def test_a_process_behind_the_directory_is_named() -> None:
    view = cluster_view()
    view.heard(A, answer(), 10)
    view.heard("source:s0", answer(), 10)
    view.redirect(replace(view.directory, version=Version(1, 2)), 20)
    view.versions = {A: Version(1, 1), "source:s0": Version(1, 2), B: Version(1, 1)}
    assert view.behind([A, B, "source:s0"]) == [A], "who does not answer is not waited for"
    assert view.know(PARTITION, B)
    assert not view.know(PARTITION, A)

def output(state: NodeState = NodeState.STABLE, *, stream: str = "s1", **other: object) -> OutputStatus:
    return OutputStatus(stream, 0, state, False, 9, 90, 0, 1, 0.0)._replace(**other)


def test_a_lost_node_with_the_name_of_a_source_is_not_that() -> None:
    """H8: the source answers, and its log is the one that all would replay from."""
    view = cluster_view()
    view.heard(A, answer(), 10)
    view.heard(f"source:{A}", made_answer([output(stream=A, origin="x")]), 10)
    view.lost(A, 20)
    assert view.logs == {A: "x"}
