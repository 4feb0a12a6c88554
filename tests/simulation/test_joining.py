"""A node joins with another plan, the folder of an earlier time, or the disk of another cluster (D4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest
import trio

from replicas.checkpoint.store import decode_snapshot, encode_snapshot
from replicas.placement.joining import join
from replicas.simulation.features.ordered_moves import give_order
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from spe.errors import PeerRefused
from spe.plan.deploy import Deployed
from spe.plan.directory import COORDINATOR, Role
from spe.plan.nodes import Node
from spe.stream.history import DirectoryApplied, Note, ProcessUp
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState, UnitId
from spe.wire.messages.commands import MoveOrder
from tests.simulation.seldom import CONFIG
from tests.simulation.test_checkpoint_log import logged
from tests.simulation.test_directory import two_units
from tests.simulation.test_moves import alive, order, phases
from tests.simulation.test_standbys import tentative
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.situations import play, until

U1 = PartitionId(UnitId("u1"), 0)
N9 = NodeId("n9")
CHECKPOINT = PurePosixPath("nodes/n9/u1-0/000000000007.checkpoint")


def newcomer(cluster: Deployed) -> Node:
    standby = cluster.directory.nodes[list(cluster.directory.nodes)[1]]
    return replace(standby, id=N9, address="n9:1", spare=True)


def start(cluster: SimCluster) -> None:
    """As ``spe node --join`` does."""

    async def main() -> None:
        deployed = Deployed(cluster.plan, cluster.directory)
        await join(cluster.env(N9), *deployed, newcomer(deployed), "")
        await cluster._node(N9)

    cluster.launch(N9, main)


async def joins_and_is_moved_to(cluster: FaultyCluster, of: str, source: str) -> None:
    start(cluster)
    await until(lambda: N9 in alive(cluster))
    await order(cluster, "move", of, source, N9)


async def test_node_with_another_plan_is_refused_and_does_not_join(jump_clock: JumpClock) -> None:
    """Also where it has joined before, with the plan of the others."""
    plan, directory = two_units()
    other = replace(plan, bucket_us=2 * plan.bucket_us)
    async with FaultyCluster(plan, directory) as cluster:
        await cluster.start()
        await trio.sleep(1)
        env, asks = cluster.env(N9), newcomer(Deployed(plan, directory))
        why = f"the plan is another one: fingerprint {other.fingerprint}, coordinator has {plan.fingerprint}; both"
        with pytest.raises(PeerRefused, match=why):
            await join(env, other, directory, asks, "")
        assert N9 not in cluster.current.nodes
        assert cluster.disks[N9].files == {}
        await join(env, plan, directory, asks, "")
        assert N9 in cluster.current.joined
        with pytest.raises(PeerRefused, match=why):
            await join(env, other, directory, asks, "")
        assert len(cluster.disks[N9].files) == 1


@pytest.mark.parametrize("answers", long_but([False], [True, False]))
def test_a_folder_of_an_older_epoch_gives_way_to_the_newer(answers: bool) -> None:
    """There the node is to run a partition, by a coordinator that is gone, whose successor has taken that back.

    Where the coordinator answers, the node begins with what that says; else the others tell it.
    """
    plan, directory = two_units()

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(1)
        await joins_and_is_moved_to(cluster, "u1/0", "n1a")
        await until(lambda: phases(cluster) == ["install"])
        assert cluster.current.roles[U1][N9] is Role.STANDBY
        cluster.kill(N9)
        cluster.kill(COORDINATOR)
        await trio.sleep(1)
        cluster.restart(COORDINATOR)
        await trio.sleep(1)
        assert phases(cluster) == ["install"]
        assert cluster.coordinator is not None
        await cluster.coordinator.move(MoveOrder("cancel", "", "", "", 1))
        await until(lambda: phases(cluster) == ["dropped"])
        assert N9 not in cluster.current.roles[U1]
        await trio.sleep(1)
        if not answers:
            cluster.kill(COORDINATOR)
        cluster.restart(N9)
        newest = cluster.current.version
        await until(lambda: N9 in cluster.nodes and cluster.nodes[N9].hosting.directory.version == newest)
        hosting = cluster.nodes[N9].hosting
        assert (hosting.running, hosting.standbys) == ({}, {})
        if not answers:
            await trio.sleep(1)
            cluster.restart(COORDINATOR)

    met = play(plan, directory, script)
    *_, up_us = [e.at_us for e in met.history if isinstance(e, ProcessUp) and e.host == N9]
    began_with, *_ = [e for e in met.history if isinstance(e, DirectoryApplied) and e.host == N9 and e.at_us >= up_us]
    epochs = sorted({e.epoch for e in met.history if isinstance(e, DirectoryApplied)} - {0})
    assert began_with.epoch == epochs[1 if answers else 0]
    assert tentative(met) == 0


async def with_other_disk(cluster: SimCluster, of: str) -> None:
    """A checkpoint of the partition, further on than anything of ours, from another cluster with the same names.

    Args:
      of: in what that differs: its source ``logs`` or its ``plan``.
    """
    plan, held = cluster.plan, cluster.disks["n1b"]
    (name, *_) = sorted(p for p in held.files if p.suffix == ".checkpoint")
    found = decode_snapshot(plan, U1, held.read(name))
    found["positions"] = [int(p) + 1_000_000 for p in found["positions"]]
    if of == "logs":
        found["origins"] = ["another log"] * len(found["origins"])
    else:
        found["plan"] = "another plan"
    await cluster.env(N9).storage.write_atomic(CHECKPOINT, encode_snapshot(plan, U1, found))


def told(cluster: SimCluster, event: str) -> list[str]:
    return [line for line in cluster.log if f"{event} replica=u1/0@n9" in line]


@pytest.mark.parametrize("of", ["logs", "plan"])
def test_disk_of_another_cluster_gives_no_state_to_a_move(of: str) -> None:
    """The partner's is taken, though it is not as far on."""
    plan, directory = two_units()

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        await with_other_disk(cluster, of)
        await joins_and_is_moved_to(cluster, "u1/0", "n1a")
        await until(lambda: phases(cluster) == ["done"], within_s=6)
        (installed,) = told(cluster, "installed")
        assert installed.endswith("origin=n1a")
        refused = told(cluster, "checkpoint_refused")
        assert all(f"file={CHECKPOINT}" in line and "a snapshot of plan another plan" in line for line in refused)
        assert bool(refused) is (of == "plan")

    assert tentative(play(plan, directory, script)) == 0


@pytest.mark.parametrize("of", ["logs", "plan"])
def test_a_standby_does_not_move_to_a_disk_of_other_source_logs(of: str) -> None:
    """It would hold nothing of ours, and says so; what another plan left there is as good as nothing."""
    plan, directory = two_units()
    why = "u1/0@n9 holds results of the source logs"

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        await with_other_disk(cluster, of)
        await joins_and_is_moved_to(cluster, "u1/0", "n1b")
        assert cluster.coordinator is not None
        (move,) = cluster.coordinator.mover.orders.all()
        if of == "plan":
            await until(lambda: phases(cluster) == ["done"], within_s=9)
            return
        await trio.sleep(5)
        assert (move.phase.value, move.why) == ("follow", "n9 must hold 2 checkpoints first")
        standby = cluster.nodes[N9].hosting.standbys[U1].status()
        assert standby.trouble.startswith(why)
        await cluster.coordinator.move(MoveOrder("cancel", "", "", "", 1))
        await until(lambda: phases(cluster) == ["dropped"])
        assert cluster.current.roles[U1] == {NodeId("n1a"): Role.ACTIVE, NodeId("n1b"): Role.STANDBY}

    play(plan, directory, script)


@pytest.mark.parametrize(
    ("source", "phase", "why"),
    [("na", "install", "n9 recovers"), ("nb", "follow", "n9 must hold 2 checkpoints first")],
)
def test_move_onto_log_of_other_sources_is_reported(source: str, phase: str, why: str) -> None:
    """Its target would go on from that log, and reads nothing then (S6); the source stays until the move ends."""
    plan, directory = logged("tumbling", replicas=1, standbys=1)
    left: dict[PurePosixPath, bytes] = {}

    async def before(cluster: FaultyCluster) -> None:
        await trio.sleep(5)
        for path, file in cluster.disks["na"].files.items():
            if "log" in path.parts:
                left[PurePosixPath("nodes", N9, *path.parts[2:])] = bytes(file.written)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        for path, data in left.items():
            await cluster.env(N9).storage.write_atomic(path, data)
        await joins_and_is_moved_to(cluster, "f/0", source)
        await trio.sleep(3)
        assert cluster.coordinator is not None
        (move,) = cluster.coordinator.mover.orders.all()
        assert (move.phase.value, move.why) == (phase, why)
        if source == "na":
            (trouble,) = cluster.replicas()["f/0@n9"].inputs[0].selector.other_logs().values()
            assert "f/0@n9 has read log" in trouble
        else:
            status = cluster.nodes[N9].hosting.standbys[PartitionId(UnitId("f"), 0)].status()
            assert status.trouble.startswith("f/0@n9 holds results of the source logs")
        assert cluster.replicas()["f/0@na"].state is NodeState.STABLE
        await cluster.coordinator.move(MoveOrder("cancel", "", "", "", 1))
        await until(lambda: phases(cluster) == ["dropped"])

    play(plan, directory, before, seed=1)
    assert left
    assert tentative(play(plan, directory, script, seed=2)) == 0


@pytest.mark.parametrize("away", [False, True])
def test_running_node_that_has_not_joined_is_not_settled(away: bool) -> None:
    """Unless somebody took it out since it began."""
    plan, directory = two_units()

    async def script(cluster: FaultyCluster) -> None:
        cluster.absent.add(N9)
        await trio.sleep(1)
        cluster.kill(COORDINATOR)
        cluster.joins(newcomer(Deployed(plan, directory)))
        await trio.sleep(1)
        assert cluster.unsettled() == "n9 has not joined"
        cluster.restart(COORDINATOR)
        await until(lambda: N9 in alive(cluster))
        assert cluster.unsettled() == ""
        if away:
            cluster.kill(N9)
            assert cluster.coordinator is not None
            await until(lambda: N9 not in alive(cluster))
            taken = await give_order(cluster, MoveOrder("leave", "", N9, "", 0))
            assert taken
            assert cluster.unsettled() == "n9 has not joined"
            cluster.taken_out.add(N9)
            assert cluster.unsettled() == ""
            cluster.restart(N9)
            await until(lambda: N9 in alive(cluster))

    play(plan, directory, script)


def test_scenario_nodes_join_and_rejoin_with_and_without_folder() -> None:
    joins = [
        {"at_us": 1_000_000, "do": "join", "node": "new1", "own": {"capacity": 0.5}},
        {"at_us": 2_000_000, "do": "move", "node": "new1", "partition": "f1/0", "source": "n1b"},
        {"at_us": 6_000_000, "do": "join", "node": "new1", "own": {"capacity": 2, "x": "2s"}},
        {"at_us": 12_000_000, "do": "drain", "node": "new1"},
        {"at_us": 18_000_000, "do": "leave", "node": "new1"},
    ]
    faults = [
        {"at": "500ms", "kind": "kill", "target": "new1", "for": "100ms"},
        {"at": "6s", "kind": "kill", "target": "new1", "for": "1s"},
        {"at": "9s", "kind": "wipe", "target": "new1", "for": "1s"},
        {"at": "17s", "kind": "kill", "target": "new1", "for": "2s"},
    ]
    data = {"config": {**CONFIG, "coordinator": {}}, "options": {"joins": joins}, "faults": faults}
    scenario = Scenario.from_data({**data, "version": 1, "seed": 1, "heal_us": 24_000_000, "grace_us": 20_000_000})
    outcome = simulate(scenario)
    assert outcome.findings == []
    assert [one.partition(" ")[2] for one in outcome.skipped] == ["kill new1 for 100ms: kill new1: it does not run"]
    assert outcome.counters.amounts["nodes that joined"] == 4
    assert outcome.counters.amounts["times that a replica on a node that joined became STABLE"] == 3
    assert [e.text for e in outcome.history if isinstance(e, Note) and e.name == "left"] == ["node=new1"]
    assert scenario.newcomer(joins[0]).capacity == 0.5
    assert scenario.newcomer(joins[2]).x_us == 2_000_000
