"""A partition moves while a cluster runs: no gap, no duplicate, and without a failure no tentative tuple (M1-M6)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import trio

from replicas.placement.joining import join
from replicas.planning.load import LoadSample
from replicas.simulation.world.clock import JumpClock, now_us
from replicas.simulation.world.cluster import SimCluster
from spe.plan.deploy import Deployed
from spe.plan.directory import COORDINATOR, Role
from spe.plan.revision import Revision, encode_node
from spe.stream.history import Received
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState, UnitId
from spe.wire.messages.commands import JoinCluster, JoinClusterAnswer, MoveAnswer, MoveOrder
from tests.simulation.test_buffers import longer
from tests.simulation.test_cluster import make_plan
from tests.simulation.test_standbys import tentative
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.situations import play, until


def two_units(bucket_us: int = 100_000) -> Deployed:
    """u1 and u2 in a row, each with one replica; the other nodes are spare."""
    plan, directory = longer(*make_plan(2, replicas=3, bucket_us=bucket_us), 16)
    for unit in ("1", "2"):
        for letter in "bc":
            node = NodeId(f"n{unit}{letter}")
            directory = directory.with_role(PartitionId(UnitId(f"u{unit}"), 0), node, None)
            spare = replace(directory.nodes[node], spare=True)
            directory = replace(directory, nodes={**directory.nodes, node: spare})
    return Deployed(plan, directory)


async def order(cluster: SimCluster, verb: str, partition: str, source: str, target: str) -> MoveAnswer:
    assert cluster.coordinator is not None
    return await cluster.coordinator.move(MoveOrder(verb, partition, source, target, 0))  # type: ignore[arg-type]


def phases(cluster: SimCluster) -> list[str]:
    assert cluster.coordinator is not None
    return [move.phase.value for move in cluster.coordinator.mover.orders.all()]


def test_a_partition_moves_without_a_gap_or_a_tentative_tuple() -> None:
    plan, directory = two_units()

    async def script(cluster: SimCluster) -> None:
        await trio.sleep(3)
        assert (await order(cluster, "move", "u1/0", "n1a", "n1c")) == MoveAnswer(1, 1, "")
        await until(lambda: phases(cluster) == ["done"], within_s=6)
        assert {name for name in cluster.replicas() if name.startswith("u1/")} == {"u1/0@n1c"}
        await order(cluster, "move", "u2/0", "n2a", "n2b")
        await until(lambda: phases(cluster) == ["done", "done"], within_s=6)

    met = play(plan, directory, script)
    read = [e.producer for e in met.history if isinstance(e, Received) and e.consumer == "client:c"]
    assert (read[0], read[-1]) == ("n2a", "n2b")
    assert tentative(met) == 0


def test_a_node_is_drained_and_its_roles_come_back() -> None:
    plan, directory = two_units()

    async def script(cluster: SimCluster) -> None:
        await trio.sleep(3)
        answer = await order(cluster, "drain", "", "n1a", "")
        assert answer == MoveAnswer(1, 1, "")
        await until(lambda: phases(cluster) == ["done"], within_s=6)
        assert not [name for name in cluster.replicas() if name.endswith("@n1a")]
        assert cluster.coordinator is not None
        (moved,) = cluster.coordinator.mover.orders.all()
        await order(cluster, "move", "u1/0", moved.target, "n1a")
        await until(lambda: phases(cluster) == ["done", "done"], within_s=6)

    assert tentative(play(plan, directory, script)) == 0


@pytest.mark.parametrize(
    ("phase", "dead"),
    long_but(
        [("join", "n1c"), ("install", "n1a"), ("leave", COORDINATOR)],
        product(["join", "install", "follow", "leave"], [COORDINATOR, "n1c", "n1a"]),
    ),
)
def test_a_death_during_a_move_loses_nothing(phase: str, dead: str) -> None:
    """Where the only replica dies before the target has its state, the last resort is the sources' logs (H8)."""
    plan, directory = two_units()

    async def script(cluster: SimCluster) -> None:
        await trio.sleep(3)
        await order(cluster, "move", "u1/0", "n1a", "n1c")
        await until(lambda: phases(cluster) == [phase], within_s=6)
        cluster.kill(dead)
        await trio.sleep(1)
        cluster.restart(dead)
        await until(lambda: phases(cluster)[0] in ("done", "dropped"), within_s=20)

    play(plan, directory, script)


@pytest.mark.parametrize(
    ("fails", "dead"),
    long_but([(False, COORDINATOR)], product([False, True], [COORDINATOR, "n1c", "n1a"])),
)
def test_a_death_while_a_move_waits_loses_nothing(fails: bool, dead: str) -> None:
    """It waits for another move, or for its replica, which is not STABLE; the next coordinator knows of it (M1)."""
    plan, directory = two_units()

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        if fails:
            cluster.cut("source:a", "*")
            await until(lambda: cluster.replicas()["u1/0@n1a"].state is not NodeState.STABLE, within_s=6)
        else:
            await order(cluster, "move", "u2/0", "n2a", "n2c")
        await order(cluster, "move", "u1/0", "n1a", "n1c")
        await until(lambda: phases(cluster) == (["wait"] if fails else ["install", "wait"]), within_s=6)
        cluster.kill(dead)
        await trio.sleep(1)
        cluster.restart(dead)
        if fails:
            await trio.sleep(1)
            assert phases(cluster) == ["dropped" if dead == "n1c" else "wait"], "nothing begins in a failure"
            cluster.heal()
        await until(lambda: phases(cluster) and set(phases(cluster)) <= {"done", "dropped"}, within_s=20)
        if dead == COORDINATOR:
            assert phases(cluster) == ["done"] * (1 if fails else 2)

    play(plan, directory, script)


#: From where, to where, and the roles in the end.
ONTO = ("n1a", "n1b", {"n1b": Role.ACTIVE, "n1a": Role.STANDBY})
OF = ("n1b", "n1c", {"n1a": Role.ACTIVE, "n1c": Role.STANDBY})
BESIDE = ("n1a", "n1c", {"n1b": Role.STANDBY, "n1c": Role.ACTIVE})


@pytest.mark.parametrize(
    ("source", "target", "roles", "kills"),
    long_but(
        [(*ONTO, True), (*BESIDE, False)], [(*way, kills) for kills in (False, True) for way in (ONTO, OF, BESIDE)]
    ),
)
def test_moves_end_with_a_standby_that_budget_keeps_running(
    source: str, target: str, roles: dict[str, Role], kills: bool
) -> None:
    """Onto it, of it, and beside it: then the first standby that stays runs (H7); so says the next coordinator."""
    plan, directory = two_units()
    u1, u2 = (PartitionId(UnitId(u), 0) for u in ("u1", "u2"))
    directory = directory.with_role(u1, NodeId("n1b"), Role.STANDBY).with_role(u2, NodeId("n2b"), Role.ACTIVE)
    directory = replace(directory, coordinator=replace(directory.coordinator, budget=1), checkpoint_us={u1: 1_000_000})

    async def script(cluster: SimCluster) -> None:
        await trio.sleep(1)
        await until(lambda: {n for n in cluster.replicas() if n.startswith("u1/")} == {"u1/0@n1a", "u1/0@n1b"})
        await trio.sleep(2)
        await order(cluster, "move", "u1/0", source, target)
        if kills:
            await until(lambda: phases(cluster) == ["leave"], within_s=9, look_s=0.05)
            cluster.kill(COORDINATOR)
            await trio.sleep(1)
            cluster.restart(COORDINATOR)
        await until(lambda: phases(cluster) == ["done"], within_s=9)
        assert cluster.current.roles[u1] == roles
        await until(lambda: {n for n in cluster.replicas() if n.startswith("u1/")} == {f"u1/0@{n}" for n in roles})

    assert tentative(play(plan, directory, script)) == 0


def test_opposite_orders_are_refused_until_the_first_is_done() -> None:
    plan, directory = two_units()

    async def script(cluster: SimCluster) -> None:
        await trio.sleep(3)
        assert (await order(cluster, "drain", "", "n1a", "")).error == ""
        (move,) = (move.target for move in cluster.coordinator.mover.orders.all()) if cluster.coordinator else ("",)
        first = f"move 1 (u1/0 from n1a to {move})"
        later = "take that back first, or wait until it is over"
        back = await order(cluster, "move", "u1/0", move, "n1a")
        assert back.error == f"u1/0 cannot move from {move} to n1a: {first} has not ended"
        again = await order(cluster, "drain", "", "n1a", "")
        assert again.error == f"n1a is being drained already: {first} has not ended"
        there = await order(cluster, "move", "u2/0", "n2a", "n1a")
        assert there.error == f"u2/0 cannot move from n2a to n1a: n1a is being drained by {first}; {later}"
        target = await order(cluster, "drain", "", move, "")
        assert target.error == f"{move} cannot be drained: {first} has not ended; {later}"
        await until(lambda: phases(cluster) == ["done"], within_s=6)
        assert (await order(cluster, "move", "u2/0", "n2a", "n1a")).error == ""
        await until(lambda: phases(cluster) == ["done", "done"], within_s=6)

    assert tentative(play(plan, directory, script)) == 0


async def test_joining_node_asks_again_if_coordinator_is_silent(
    jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, directory = two_units()
    newcomer = replace(directory.nodes[NodeId("n1b")], id=NodeId("n9"), address="n9:1")
    asked = 0
    async with FaultyCluster(plan, directory) as cluster:
        await cluster.start()
        await trio.sleep(1)
        assert cluster.coordinator is not None
        answers = cluster.coordinator.join

        async def at_first_silent(peer: str, message: JoinCluster) -> JoinClusterAnswer:
            nonlocal asked
            asked += 1
            if asked == 1:
                await trio.sleep_forever()
            return await answers(peer, message)

        monkeypatch.setattr(cluster.coordinator, "join", at_first_silent)
        with trio.fail_after(60):
            await join(cluster.env("n9"), plan, directory, newcomer, "")
        assert asked == 2
        assert NodeId("n9") in cluster.coordinator.directories.current.joined


@pytest.mark.parametrize("kills", long_but([True], [False, True]))
def test_a_node_joins_and_leaves_again(kills: bool) -> None:
    """Something moves there and back; a coordinator that begins meanwhile knows of both."""
    plan, directory = two_units()
    newcomer = replace(directory.nodes[NodeId("n1b")], id=NodeId("n9"), address="n9:1")

    async def leave(cluster: SimCluster) -> str:
        return (await order(cluster, "leave", "", "n9", "")).error

    async def script(cluster: SimCluster) -> None:
        await trio.sleep(1)
        assert cluster.coordinator is not None
        answer = await cluster.coordinator.join("n9", JoinCluster(encode_node(newcomer)))
        cluster.directories["n9"] = Revision.decode(answer.revision).over(directory)
        cluster.launch("n9", partial(cluster._node, NodeId("n9")))
        await until(lambda: "n9" in alive(cluster))
        await order(cluster, "move", "u1/0", "n1a", "n9")
        assert "has not ended" in await leave(cluster)
        await until(lambda: phases(cluster) == ["done"], within_s=6)
        assert await leave(cluster) == "n9 cannot leave: it hosts u1/0; drain it first"
        await order(cluster, "drain", "", "n9", "")
        await until(lambda: phases(cluster) == ["done", "done"], within_s=6)
        assert await leave(cluster) == "n9 cannot leave: it runs; stop its process first"
        cluster.kill("n9")
        if kills:
            cluster.kill(COORDINATOR)
            await trio.sleep(1)
            cluster.restart(COORDINATOR)
        await until(lambda: cluster.runs(COORDINATOR) and len(alive(cluster)) > 5 and "n9" not in alive(cluster))
        assert await leave(cluster) == ""
        await trio.sleep(1)
        assert not any("n9" in node.hosting.directory.nodes for node in cluster.nodes.values())
        assert await leave(cluster) == f"there is no node n9; there are {', '.join(directory.nodes)}".replace(
            ", n2c", " and 1 more"
        )
        cluster.restart("n9")  # who left and is started again as it was disturbs nobody

    play(plan, directory, script)


def alive(cluster: SimCluster) -> Collection[str]:
    assert cluster.coordinator is not None
    return cluster.coordinator.view.alive


def one_node() -> Deployed:
    """u1 and u2 on one node, of which one is enough for it; loads are looked at each 2 s."""
    plan, directory = two_units()
    for node, role in (("n1a", Role.ACTIVE), ("n2a", None)):
        directory = directory.with_role(PartitionId(UnitId("u2"), 0), NodeId(node), role)
    return Deployed(
        plan, replace(directory, coordinator=replace(directory.coordinator, balance_us=2_000_000, idle=0.0))
    )


async def measured(cluster: SimCluster, seconds: int) -> None:
    """Each partition needs half a core, as its replica says once per second."""
    for _ in range(seconds):
        if (coordinator := cluster.coordinator) is not None:
            for unit in ("u1", "u2"):
                load = LoadSample(0.5, memory=1e6, rows=100.0, state=1e5)
                coordinator.mover.balance.sampled(PartitionId(UnitId(unit), 0), load, now_us())
        await trio.sleep(1)


@pytest.mark.parametrize("kills", long_but([True], [False, True]))
def test_a_full_node_is_relieved_by_the_coordinator_itself(kills: bool) -> None:
    plan, directory = one_node()

    async def script(cluster: SimCluster) -> None:
        await measured(cluster, 2)
        answer = await order(cluster, "propose", "", "", "")
        assert [one.source for one in answer.proposed] == ["n1a"]
        assert answer.first > answer.last, "nothing is ordered"
        await measured(cluster, 4)
        if kills:  # its move is on disk; the next one goes on with it, and begins to measure anew
            cluster.kill(COORDINATOR)
            await trio.sleep(1)
            cluster.restart(COORDINATOR)
        await measured(cluster, 7)
        hosts = {name.partition("@")[2] for name in cluster.replicas()}
        assert len(hosts) == 2, "one partition has a node of its own"
        await measured(cluster, 4)
        assert phases(cluster) == ["done"], "and there it stays"

    assert tentative(play(plan, directory, script)) == 0


def test_full_nodes_are_relieved_on_request() -> None:
    plan, directory = one_node()
    directory = replace(directory, coordinator=replace(directory.coordinator, balance_us=None))

    async def script(cluster: SimCluster) -> None:
        await measured(cluster, 6)
        assert phases(cluster) == []
        answer = await order(cluster, "balance", "", "", "")
        assert (answer.first, answer.last, len(answer.proposed)) == (1, 1, 1)
        assert answer.remarks[0].text == "n1a needs 1.00 of 1 cores and 2 MB"
        await until(lambda: phases(cluster) == ["done"], within_s=6)
        refused = await order(cluster, "move", answer.proposed[0].unit + "/0", answer.proposed[0].target, "n1a")
        assert refused.error.endswith("0.50 of a core is free, and 0.50 would never catch up")

    assert tentative(play(plan, directory, script)) == 0


@pytest.mark.parametrize("state", long_but([1e9], [1e9, 1e3]))
def test_the_state_comes_from_where_it_is_sooner(state: float) -> None:
    """A large one from the checkpoint that the target holds, a small one from the replica that runs (L4)."""
    plan, directory = two_units()
    directory = directory.with_role(PartitionId(UnitId("u1"), 0), NodeId("n1b"), Role.STANDBY)
    origin = "disk" if state > 1e6 else "n1a"

    async def script(cluster: SimCluster) -> None:
        await trio.sleep(6)
        assert cluster.coordinator is not None
        load = LoadSample(0.1, rows=100.0, state=state)
        cluster.coordinator.mover.balance.sampled(PartitionId(UnitId("u1"), 0), load, now_us())
        await order(cluster, "move", "u1/0", "n1a", "n1b")
        await until(lambda: phases(cluster) == ["done"], within_s=6)
        (moved,) = cluster.coordinator.mover.orders.all()
        assert moved.state_from == ("checkpoint" if origin == "disk" else "partner")
        assert [line for line in cluster.log if "installed replica=u1/0@n1b" in line][-1].endswith(f"origin={origin}")
        assert cluster.current.roles[PartitionId(UnitId("u1"), 0)] == {
            NodeId("n1b"): Role.ACTIVE,
            NodeId("n1a"): Role.STANDBY,
        }

    assert tentative(play(plan, directory, script)) == 0


async def test_client_locates_partition_that_moved_in_its_absence(jump_clock: JumpClock) -> None:
    """D2: it was cut off from all, and the only node that it knows is dead; any other process knows who serves."""
    plan, directory = two_units()
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.cut("client:c", "*")
            await order(cluster, "move", "u2/0", "n2a", "n2b")
            await until(lambda: phases(cluster) == ["done"], within_s=10)
            cluster.kill("n2a")
            seen = len(cluster.changes["c"])
            cluster.heal()
            await until(lambda: len(cluster.changes["c"]) > seen, within_s=10)
