"""A user operator that raises stops its replica with the reason, and everything else continues."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from replicas.node.replica import Replica
from replicas.simulation.world.clock import JumpClock
from spe.plan.deploy import Deployed
from spe.plan.directory import ClientSettings
from spe.plan.nodes import Reconcile
from spe.query.operators.custom import CustomSpec
from spe.query.query import QueryOperator
from spe.status import NodeStatus
from spe.stream.names import NodeState, StreamId
from spe.wire.messages.commands import Status, StatusRequest
from spe.wire.messages.connection import Welcome
from spe.wire.messages.feeds import NotReady
from spe.wire.messages.replicas import PartnerAnswer
from tests.simulation.test_bad_peers import hello, subscribe, visit
from tests.simulation.test_cluster import SCHEMA, SECONDS, Outcome, make_plan
from tests.support.faulty_cluster import FaultyCluster


def with_a_mistake() -> Deployed:
    """Unit u1 as usual; u2, on its own nodes, runs an operator that raises at n = 300."""
    plan, directory = make_plan(2, rate=100.0)
    first, second = plan.units
    spec = CustomSpec((StreamId("s1"),), "tests.support.operators_for_tests:RaisesAt", {"at": 300})
    wrong = QueryOperator(StreamId("s2"), spec, SCHEMA)
    return Deployed(
        replace(plan, units=(first, replace(second, operators=(wrong,)))),
        replace(directory, clients={"c": ClientSettings("c", (StreamId("s1"),))}),
    )


def with_operator(name: str, rate: float = 100.0, bucket_us: int = 100_000) -> Deployed:
    """One unit in two replicas, with a user operator."""
    plan, directory = make_plan(1, rate=rate, bucket_us=bucket_us)
    (unit,) = plan.units
    spec = CustomSpec((StreamId("a"),), f"tests.support.operators_for_tests:{name}")
    units = (replace(unit, operators=(QueryOperator(StreamId("s1"), spec, SCHEMA),)),)
    return Deployed(replace(plan, units=units), directory)


async def restart_the_first(cluster: FaultyCluster) -> None:
    """The restarted replica gets the state of its partner; then the sources end."""
    await cluster.start()
    await trio.sleep(2)
    cluster.kill("n1a")
    await trio.sleep(1)
    cluster.restart("n1a")
    await trio.sleep(SECONDS)


async def cut_a_source(cluster: FaultyCluster) -> None:
    """For longer than X; tentative results are corrected in the end."""
    await cluster.start()
    await trio.sleep(2)
    cluster.cut("source:a", "*")
    await trio.sleep(3)
    cluster.heal()
    await trio.sleep(5)


async def test_a_failing_operator_stops_only_its_replica(
    jump_clock: JumpClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FaultyCluster(*with_a_mistake()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(SECONDS + 2)
            peer = await visit(cluster, "n2a")
            await peer.say(hello(cluster, role="control", name="control"), StatusRequest())
            assert isinstance(await peer.hear(), Welcome)
            status = await peer.hear()
            assert isinstance(status, Status)
            assert isinstance(status.process, NodeStatus)
            (replica,) = status.process.replicas
            assert replica.error is not None
            assert "operator 's2' raised on the slice of" in replica.error
            assert "ZeroDivisionError: n is 300" in replica.error
            consumer = await visit(cluster, "n2a")
            await consumer.say(hello(cluster), subscribe(stream="s2"))
            assert isinstance(await consumer.hear(), Welcome)
            refused = await consumer.hear()
            assert isinstance(refused, NotReady)
            assert "ZeroDivisionError" in refused.reason
            Outcome(cluster).assert_complete_for("s1")
    assert "u2/0@n2a stopped: operator 's2' raised" in capsys.readouterr().err


async def test_a_state_that_cannot_be_stored_is_refused_to_partners(
    jump_clock: JumpClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FaultyCluster(*with_operator("Unstorable")) as cluster:
        await restart_the_first(cluster)
        assert cluster.replicas()["u1/0@n1b"].state is NodeState.STABLE
        assert sum("no_snapshot replica=u1/0@n1a" in line and "builtins.set" in line for line in cluster.log) > 1
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("u1/0@n1b: no partner can be given its state: ")
    assert "cannot store a builtins.set" in told


async def test_replicas_with_different_tuples_are_reported(jump_clock: JumpClock) -> None:
    """Which of the two is right is unknown, so the difference is only reported (invariant 4)."""
    async with FaultyCluster(*make_plan(1)) as same, FaultyCluster(*with_operator("Counts", rate=200.0)) as differing:
        await same.start()
        await differing.start()
        await trio.sleep(SECONDS + 14)
        assert all(r.agreement.compared >= 1 for r in same.replicas().values())
        assert not any(r.differs() for r in same.replicas().values())
        said = {r.id.node: r.differs() for r in differing.replicas().values()}
        assert said == {
            "n1a": ["s1/0 differs from n1b's by id 1000: operator 's1' is code of your own and must be deterministic"],
            "n1b": ["s1/0 differs from n1a's by id 1000: operator 's1' is code of your own and must be deterministic"],
        }
        assert sum("replicas_differ" in line for line in differing.log) == 2


async def test_differences_below_1000_results_are_reported(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*with_operator("Counts", rate=20.0)) as cluster:
        await cluster.start()
        await trio.sleep(SECONDS + 14)
        said = {r.id.node: r.differs() for r in cluster.replicas().values()}
        assert all("by id 160: operator 's1' is code of your own" in text for (text,) in said.values()), said
        assert set(said) == {"n1a", "n1b"}


async def test_a_state_that_an_operator_refuses_stops_only_its_replica(
    jump_clock: JumpClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FaultyCluster(*with_operator("TakesNoState")) as cluster:
        await restart_the_first(cluster)
        assert "raised on the state that it was given: KeyError" in str(cluster.nodes["n1a"].status().replicas)
        assert cluster.replicas()["u1/0@n1b"].state is NodeState.STABLE
        Outcome(cluster).assert_complete_for("s1")
    (told, *_) = capsys.readouterr().err.splitlines()
    assert told.startswith("u1/0@n1a stopped: operator 's1' raised on the state that it was given")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("CannotBeCleared", "raised on being brought back to where tentative data began: IndexError: nothing to clear"),
        ("NeedsWhatItCannotSay", "raised on being asked what it still needs of its input: IndexError: no oldest"),
    ],
)
async def test_an_error_during_undo_stops_only_its_replica(jump_clock: JumpClock, name: str, why: str) -> None:
    plan, directory = with_operator(name, bucket_us=40_000)
    directory = replace(
        directory, nodes={n: replace(one, reconcile=Reconcile.UNDO) for n, one in directory.nodes.items()}
    )
    async with FaultyCluster(plan, directory) as cluster:
        await cut_a_source(cluster)
        for node in ("n1a", "n1b"):
            (replica,) = cluster.nodes[node].status().replicas
            assert replica.error is not None
            assert why in replica.error


async def test_an_error_in_counters_is_logged_once(jump_clock: JumpClock, capsys: pytest.CaptureFixture[str]) -> None:
    """Counters are only for people, so an error in them must not stop replicas; also during a failure."""
    async with FaultyCluster(*with_operator("CannotCount")) as cluster:
        await cut_a_source(cluster)
        for _ in range(2):
            (replica,) = cluster.nodes["n1a"].status().replicas
            assert (replica.state, replica.error, replica.counters) == (NodeState.STABLE, None, {})
            assert replica.reconciliations == 1
    (told, where) = capsys.readouterr().err.splitlines()
    assert told.startswith("u1/0@n1a: no counters: operator 's1' raised on being asked what it counted: KeyError")
    assert "in counters: raise KeyError" in where


async def test_counters_may_be_numpy_integers(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*with_operator("CountsWithNumPy")) as cluster:
        await cluster.start()
        await trio.sleep(1)
        status = cluster.nodes["n1a"].status()
        assert Status(status).encode()
        assert status.replicas[0].counters["s1.seen"] == 7


async def test_a_stopped_replica_begins_no_correction(jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asked, stopped, and is granted; if it announced a correction, its partner would wait for ever."""
    granted: list[int] = []
    monkeypatch.setattr(Replica, "partner_grants", lambda self, number, now: granted.append(number))
    async with FaultyCluster(*make_plan(1)) as cluster:
        await cluster.start()
        await trio.sleep(2)
        node = cluster.nodes["n1a"]
        (host,) = node.hosting.running.values()
        unit, partition, _ = host.replica.id
        await node._other_message("n1b", PartnerAnswer(unit, partition, 1, granted=True))
        assert granted == [1]
        host.error = "an operator raised"
        await node._other_message("n1b", PartnerAnswer(unit, partition, 2, granted=True))
        assert granted == [1]
