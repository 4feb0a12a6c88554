"""A replica reports lost partners (K5) and acknowledges upstream what survives a restart (A1, A8, H3)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from replicas.checkpoint.store import decode_snapshot, encode_snapshot
from replicas.node.replica import Replica
from spe.plan.directory import Directory, Role
from spe.plan.plan import Plan
from spe.plan.settings import NodeSettings
from spe.stream.batch import Batch, Boundary, Rows
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import Kind, NodeId, NodeState, UnitId
from spe.wire.messages.feeds import OutputStatus
from tests.simulation.test_cluster import make_plan
from tests.support.effects import NoEffects
from tests.support.plans import SEQUENCE
from tests.unit.replicas.node import test_validation as validation
from tests.unit.replicas.placement.test_install import PARTITION, plan


def replica(plan: Plan, directory: Directory, node: str) -> Replica:
    id = ReplicaId(*PARTITION, NodeId(node))
    return Replica(plan, directory, id, random=Random(0), now=0, effects=NoEffects())


def helper() -> Replica:
    """A standby that was told to run, and has installed its checkpoint."""
    one = replica(*plan(), "n1b")
    one.reading.installed = True
    for port, position in zip(one.sunion.inputs, (90, 90, 90), strict=True):
        port.position = position
    return one


def test_x_and_its_shares_follow_the_directory() -> None:
    """X1: in all parts; who reads its partition on the same node halves it, and gives it back."""
    found, directory = make_plan(2)
    one = replica(found, directory, "n1a")
    node, u2 = directory.nodes[NodeId("n1a")], PartitionId(UnitId("u2"), 0)
    assert parts(one) == {(node.x_us, node.alpha_x_us)}
    shared = directory.with_role(u2, node.id, Role.STANDBY)
    one.redirect(shared, 1)
    assert parts(one) == {(node.x_us // 2, round(node.alpha * (node.x_us // 2)))}
    one.redirect(shared.with_settings(node, NodeSettings(x_us=4_000_000, alpha=0.5)), 2)
    assert parts(one) == {(2_000_000, 1_000_000)}
    one.redirect(directory, 3)
    assert parts(one) == {(node.x_us, node.alpha_x_us)}


def parts(one: Replica) -> set[tuple[int, int]]:
    """X and αX as each part of a replica goes by it."""
    assert one.sunion.clocks.old_us == 2 * one.node.x_us
    assert one.recovery._turns.longest_us == one.node.x_us
    skew = one.reading._skew
    nodes = (one.node, one.core._run.node, one.reading._node, one.recovery._node)
    inputs = {(i._x_us, max(i.selector._useless_us, i.selector.stall_us)) for i in one.inputs}
    stall = one.inputs[0].selector.stall_us
    assert inputs == {(one.node.x_us, max(one.node.alpha_x_us // 2, stall))}
    return {(n.x_us, n.alpha_x_us) for n in nodes} | {(skew.x_us, skew.alpha_x_us)}


def positions(one: Replica) -> list[int]:
    return [upto for _, upto in one.recovery.acks()]


def test_a_helper_acknowledges_the_older_of_two_checkpoints() -> None:
    """H3: the newest one may be damaged."""
    one = helper()
    one.recovery.written({"positions": [5, 6, 7]})
    assert positions(one) == [0, 0, 0]
    one.recovery.written({"positions": [8, 8, 9]})
    assert positions(one) == [5, 6, 7]


def test_a_placed_replica_acknowledges_the_newest_checkpoint() -> None:
    """A8: its partners have its state too."""
    found, directory = plan()
    every = {
        id: replace(one, checkpoints=replace(one.checkpoints, every_us=1, disk=True))
        for id, one in directory.nodes.items()
    }
    one = replica(found, replace(directory, nodes=every), "n1a")
    one.reading.installed = True
    for port in one.sunion.inputs:
        port.position = 90
    assert positions(one) == [0, 0, 0]
    one.recovery.written({"positions": [5, 6, 7]})
    assert positions(one) == [5, 6, 7]


def test_a_silent_partner_no_longer_counts() -> None:
    """K5: it can neither grant nor stand in."""
    one = replica(*plan(), "n1a")
    log = one.logs[0]
    one.partner_told(
        "n1b", {log.channel: OutputStatus("s1", 0, NodeState.STABLE, False, 0, 0, 0, 1, 0.0, stands_in=True)}
    )
    assert one.partners.serves("n1b")
    one.partners.lost("n1b")
    assert one.partners.told["n1b"] is None


def test_a_freeze_of_the_node_ages_no_input() -> None:
    """T1: input that came during the freeze may lie in the sockets."""
    one = replica(*plan(), "n1a")
    one.sunion.clocks.arrived(5, 100)
    one.shift(1000, 1200)
    assert one.sunion.clocks.waited(1200) == 100


def test_installed_snapshot_leaves_input_positions_open() -> None:
    """A3: its maker has read further on one of them than the snapshot goes, and that comes again."""
    maker = validation.replica()
    bucket, of = maker.plan.bucket_us, maker.id.of
    ahead = maker.sunion.inputs[0]
    ahead.add_boundary(Boundary(Kind.STABLE, 9 * bucket, 2), 3)
    state = maker.snapshot()
    assert state is not None
    assert (state["restart"], state["positions"]) == (2 * bucket, [1, 1])
    found, directory = validation.plan()
    other = Replica(found, directory, ReplicaId(*of, NodeId("n1b")), random=Random(0), now=4, effects=NoEffects())
    other.install(decode_snapshot(found, of, encode_snapshot(found, of, state)), 4)
    made = []
    for port in reversed(other.sunion.inputs):  # who was behind is first
        row = Rows.from_tuples(SEQUENCE, [3 * bucket + 1], [(2, 2.0)])
        port.add_stable(Batch(Kind.STABLE, 1, 2, None, row), 5)
        port.add_boundary(Boundary(Kind.STABLE, 9 * bucket, 2), 5)
        while other.advance(5)[0]:
            pass
        made.append(other.logs[0].last_id)
    assert made == [2, 4]
