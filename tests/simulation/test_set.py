"""X, α and policies change while a cluster runs (X1-X5)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from replicas.simulation.world.cluster import SimCluster
from spe.plan.directory import COORDINATOR
from spe.plan.nodes import Policy
from spe.stream.history import StateChanged
from spe.stream.names import NodeId, NodeState
from spe.wire.messages.commands import SetAnswer, SetOrder, Setting
from tests.simulation.test_buffers import longer
from tests.simulation.test_cluster import make_plan
from tests.simulation.test_moves import order, phases, two_units
from tests.simulation.test_standbys import tentative
from tests.support.faulty_cluster import FaultyCluster
from tests.support.situations import Met, play, until

N1A = NodeId("n1a")


async def change(cluster: SimCluster, node: str, *changes: str) -> SetAnswer:
    assert cluster.coordinator is not None
    settings = [Setting(*one.split("=")) for one in changes]
    return await cluster.coordinator.set(SetOrder(node, settings))


def x_of(cluster: SimCluster, replica: str) -> int:
    return cluster.replicas()[replica].node.x_us


def failed_at(met: Met, replica: str) -> list[float]:
    """When a replica found that something is missing, seconds."""
    return [
        e.at_us / 1e6
        for e in met.history
        if isinstance(e, StateChanged) and e.replica == replica and e.state is NodeState.UP_FAILURE
    ]


@pytest.mark.parametrize(("x", "tentative_at"), [("500ms", 4.5), ("4s", None)])
def test_a_node_waits_for_the_new_x(x: str, tentative_at: float | None) -> None:
    """A cut of 1.5 s under X = 1 s makes results tentative after 0.9 s; under 0.5 s sooner, under 4 s not at all."""
    plan, directory = longer(*make_plan(1, replicas=1), 10)
    directory = replace(directory, coordinator=replace(directory.coordinator, configured=True))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        answer = await change(cluster, "n1a", f"x={x}")
        assert answer.error == ""
        await until(lambda: cluster.replicas()["u1/0@n1a"].node.x_us != directory.nodes[N1A].x_us, within_s=2)
        await trio.sleep_until(4)
        cluster.cut("source:a", "*")
        await trio.sleep(1.5)
        cluster.heal()

    met = play(plan, directory, script)
    at = [seconds for seconds in failed_at(met, "u1/0@n1a") if seconds < 6]
    if tentative_at is None:
        assert at == []
        assert tentative(met) == 0
    else:
        (found,) = at
        assert found == pytest.approx(tentative_at, abs=0.3)


def test_a_move_changes_the_shares_of_units_that_stay() -> None:
    """X1: when the standby that reads it comes the share is half, at once; when it leaves it is whole again."""
    plan, directory = two_units()

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        whole = x_of(cluster, "u1/0@n1a")
        assert (await order(cluster, "move", "u2/0", "n2a", "n1a")).error == ""
        await until(lambda: phases(cluster) == ["join"], within_s=6)
        await until(lambda: x_of(cluster, "u1/0@n1a") == whole // 2, within_s=1)
        await until(lambda: phases(cluster) == ["done"], within_s=6)
        assert x_of(cluster, "u2/0@n1a") == whole // 2
        await order(cluster, "move", "u1/0", "n1a", "n1c")
        await until(lambda: phases(cluster) == ["done", "done"], within_s=6)
        await until(lambda: x_of(cluster, "u2/0@n1a") == whole, within_s=1)

    assert tentative(play(plan, directory, script)) == 0


def test_a_change_that_check_would_refuse_changes_nothing() -> None:
    plan, directory = two_units(bucket_us=40_000)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        before = cluster.current
        for changes, why in ((["x=80ms"], "too short for unit 'u1'"), (["x=soon"], "expected a duration")):
            answer = await change(cluster, "n1a", *changes)
            assert why in answer.error
        assert (await change(cluster, "n9", "x=1s")).error.startswith("there is no node n9")
        assert cluster.current is before
        assert (await change(cluster, "n1b", "x=150ms")).error == "", "it hosts nothing"
        assert (await order(cluster, "move", "u1/0", "n1a", "n1b")).error == ""
        assert (await order(cluster, "move", "u2/0", "n2a", "n1b")).error == "", "nothing is there yet"
        await until(lambda: phases(cluster) == ["done", "dropped"], within_s=20)
        assert cluster.coordinator is not None
        assert "the share of one unit there, is too short for unit" in cluster.coordinator.mover.orders.all()[1].why

    play(plan, directory, script)


def test_absent_node_gets_new_x_and_keeps_it_over_restarts() -> None:
    """Also when the coordinator is away, and the next one issues it again."""
    plan, directory = two_units()

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        cluster.kill("n1a")
        assert (await change(cluster, "n1a", "x=3s", "policy=delay")).error == ""
        cluster.restart("n1a")
        await until(lambda: "n1a" in cluster.nodes and x_of(cluster, "u1/0@n1a") == 3_000_000, within_s=3)
        cluster.kill(COORDINATOR)
        cluster.kill("n1a", power=True)
        cluster.restart("n1a")
        await until(lambda: "u1/0@n1a" in cluster.replicas(), within_s=2)
        assert cluster.replicas()["u1/0@n1a"].node.during_failure is Policy.DELAY
        cluster.restart(COORDINATOR)
        await until(lambda: COORDINATOR not in cluster.ended_alone and cluster.current.version.number > 1, within_s=3)
        assert (await change(cluster, "n1a", "x=file", "policy=file")).error == ""
        await until(lambda: x_of(cluster, "u1/0@n1a") == directory.nodes[N1A].x_us, within_s=3)
        assert cluster.current.settings == {}

    play(plan, directory, script)


POLICIES = [
    ("suspend", "process"),
    ("process", "suspend"),
    pytest.param(("delay", "process"), marks=pytest.mark.long),
]


@pytest.mark.parametrize("policies", POLICIES)
def test_another_policy_counts_in_the_middle_of_a_failure(policies: tuple[str, str]) -> None:
    """X3: who begins to suspend gives nothing more; who stops suspending gives what is due, and corrects it."""
    first, then = policies
    plan, directory = longer(*make_plan(1, replicas=1, failure=Policy(first)), 12)
    directory = replace(directory, coordinator=replace(directory.coordinator, configured=True))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        cluster.cut("source:a", "*")
        await trio.sleep(2)
        assert (tentative_now(cluster) == 0) == (first == "suspend")
        assert (await change(cluster, "n1a", f"failure={then}")).error == ""
        await trio.sleep(0.5)
        at = tentative_now(cluster)
        await trio.sleep(1.5)
        assert (tentative_now(cluster) == at) == (then == "suspend")
        cluster.heal()

    play(plan, directory, script)


def tentative_now(cluster: SimCluster) -> int:
    """Tentative tuples made so far."""
    return sum(one.serving.tentative_count for one in cluster.replicas().values())
