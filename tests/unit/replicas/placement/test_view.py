"""The news that a coordinator hears: samples of load (L1), who is alive and who is gone (H5)."""

from __future__ import annotations

from dataclasses import replace

from replicas.placement.view import ClusterView
from replicas.planning.load import SAMPLE_US, LoadSample
from spe.plan.directory import Version
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState, UnitId
from spe.wire.messages.feeds import HeartbeatAnswer, Load, OutputStatus
from tests.simulation.test_cluster import make_plan
from tests.support.placement_world import answer as made_answer
from tests.unit.replicas.placement.test_install import plan as plan_with_standbys

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


def view_of_standbys() -> ClusterView:
    return ClusterView(*plan_with_standbys(), 0, recovery_us=1_000)


def test_outputs_that_a_node_no_longer_makes_are_forgotten() -> None:
    """H8: a replay would be ordered from a node that runs nothing."""
    view = cluster_view()
    view.heard(A, made_answer([output()]), 10)
    assert set(view.made[PARTITION]) == {A}
    view.heard(A, made_answer([]), 20)
    assert view.made[PARTITION] == {}


def test_only_an_answering_source_with_its_first_row_has_a_log() -> None:
    """H8, E5: the input could not be made again from another one."""
    view = cluster_view()
    view.heard("source:s0", made_answer([output(stream="s0", origin="x")]), 10)
    assert view.logs == {"s0": "x"}
    view.heard("source:s0", made_answer([output(stream="s0", origin="x", first=5)]), 20)
    assert view.logs == {}
    view.heard("source:s0", made_answer([output(stream="s0", origin="x")]), 30)
    view.lost("source:s0", 40)
    assert view.logs == {}


def test_after_silence_of_all_nodes_each_gets_time_to_answer() -> None:
    """H5: the coordinator may have been cut off, for as long as it likes."""
    view = cluster_view()
    for node in (A, B):
        view.heard(node, answer(), 10)
    for node in (A, B):
        view.lost(node, 5_000)
    assert not view.is_gone(A, 5_999)
    assert view.is_gone(A, 6_000)


def test_a_lack_counts_since_it_was_first_heard() -> None:
    """H8: each heartbeat tells of it again."""
    view = view_of_standbys()
    for now in (10, 500):
        view.heard(A, made_answer([output(NodeState.RECOVERING, lacking=True)]), now)
    assert view.partitions[PARTITION].lacking_since == {A: 10}
    view.heard(A, made_answer([output(NodeState.RECOVERING)]), 600)
    assert view.partitions[PARTITION].lacking_since == {}


def test_a_node_whose_role_went_does_not_serve() -> None:
    """H5, D3: it still runs the partition, and is about to end it."""
    view = view_of_standbys()
    view.heard(B, made_answer([output()]), 10)
    assert view.partitions[PARTITION].unserved_since is None
    view.redirect(view.directory.with_role(PARTITION, B, None), 20)
    partition = view.partitions[PARTITION]
    assert (partition.running, partition.unserved_since) == ({}, 20)


def test_a_lost_node_with_the_name_of_a_source_is_not_that() -> None:
    """H8: the source answers, and its log is the one that all would replay from."""
    view = cluster_view()
    view.heard(A, answer(), 10)
    view.heard(f"source:{A}", made_answer([output(stream=A, origin="x")]), 10)
    view.lost(A, 20)
    assert view.logs == {A: "x"}


def test_checkpoints_of_a_silent_node_are_unknown() -> None:
    """L4, M4: nothing can be restored from them."""
    view = cluster_view()
    view.heard(A, made_answer([], {PARTITION: 2}), 10)
    assert (list(view.held()), view.checkpoints(PARTITION, A)) == ([(PARTITION, A)], 2)
    view.lost(A, 20)
    assert (list(view.held()), view.checkpoints(PARTITION, A)) == ([], None)
