"""A failure during a correction, a recovery or a switch; partners that die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from consistency.faults.kind import LinkFaults
from replicas.node.replica import Replica
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.plan import Limits, Plan
from spe.stream.batch import RecDone
from spe.stream.history import FaultBegan, Received
from spe.stream.names import Kind, NodeState
from tests.simulation.test_buffers import longer
from tests.simulation.test_cluster import make_plan
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.situations import inside, play, until

#: With this a correction lasts for more than a second.
LITTLE = Limits(slice_rows=5)
TURN_US = 20_000
#: With this a switch takes time.
FAR = LinkFaults(delay_us=15_000)
REPLICAS = ("u1/0@n1a", "u1/0@n1b")

UP_FAILURE, STABILIZATION, STABLE = NodeState.UP_FAILURE, NodeState.STABILIZATION, NodeState.STABLE


async def fail(cluster: FaultyCluster, host: str = "source:b", *, begin: float = 2, end: float = 5) -> None:
    await trio.sleep_until(begin)
    cluster.cut(host, "*")
    await trio.sleep_until(end)
    cluster.heal()


def in_state(cluster: FaultyCluster, state: NodeState, unit: str = "u1") -> Callable[[], list[Replica]]:
    """The replicas in a state now."""
    return lambda: [r for name, r in cluster.replicas().items() if name.startswith(unit) and r.state is state]


# --- while it is corrected ---


@pytest.mark.parametrize(
    ("source", "replicas"),
    long_but([("source:b", 1), ("source:a", 2)], [("source:b", 1), ("source:b", 2), ("source:a", 2)]),
)
def test_an_input_fails_while_a_replica_corrects(source: str, replicas: int) -> None:
    """R7: the correction ends and the new failure follows in the same step, without a STABLE in between."""

    async def script(cluster: FaultyCluster) -> None:
        await fail(cluster)
        await until(in_state(cluster, STABILIZATION))
        cluster.cut(source, "*")
        await trio.sleep(3)
        cluster.heal()

    # slower than LITTLE: the correction is still going on when the new failure is noticed
    plan, directory = longer(
        *make_plan(2, rate=50.0, replicas=replicas, limits=Limits(slice_rows=3)),
        12,
    )
    met = play(plan, directory, script, turn_us=TURN_US)
    again = [e.at_us for e in met.history if isinstance(e, FaultBegan) and e.kind == "cut"][1]
    (name,) = {n for n in REPLICAS if any(inside(s, again) for s in met.spans(n, STABILIZATION))}
    (span,) = [s for s in met.spans(name, STABILIZATION) if inside(s, again)]
    assert span[1] in [begin for begin, _ in met.spans(name, UP_FAILURE)]
    assert len(met.spans(name, STABILIZATION)) == 2


@pytest.mark.parametrize("how", long_but(["kill"], ["kill", "freeze", "cut off"]))
def test_a_replica_fails_while_it_corrects(how: str) -> None:
    """K5: the other replica stops waiting for it, and corrects alone, beside live results."""
    correcting: list[str] = []

    async def script(cluster: FaultyCluster) -> None:
        await fail(cluster)
        await until(in_state(cluster, STABILIZATION))
        (replica,) = in_state(cluster, STABILIZATION)()
        node = str(replica.id.node)
        correcting.append(node)
        await trio.sleep(0.3)
        match how:
            case "kill":
                cluster.kill(node)
            case "freeze":
                cluster.freeze(node)
            case "cut off":
                cluster.cut(node, "*")
        await trio.sleep(3.5)
        cluster.heal()
        if how == "kill":
            cluster.restart(node)
        if how == "freeze":
            cluster.thaw(node)

    met = play(
        *longer(*make_plan(2, rate=50.0, limits=LITTLE), 12),
        script,
        turn_us=TURN_US,
    )
    (other,) = {"n1a", "n1b"} - set(correcting)
    assert met.spans(f"u1/0@{other}", STABILIZATION, fresh=True)


# --- while it catches up ---


@pytest.mark.parametrize("source", long_but(["source:a"], ["source:b", "source:a"]))
def test_an_input_fails_between_rec_done_and_stable(source: str) -> None:
    """The downstream node has received all corrections, and still processes them when the next failure begins."""

    async def script(cluster: FaultyCluster) -> None:
        await fail(cluster)
        await until(lambda: any(corrected(r) for r in in_state(cluster, STABILIZATION, "u2")()))
        cluster.cut(source, "*")
        await trio.sleep(3)
        cluster.heal()

    def corrected(replica: Replica) -> bool:
        """Is its input STABLE, and read over one feed?"""
        (one,) = replica.inputs
        return one.main is not None and one.corr is None and one.producers[one.main.producer].state is STABLE

    # steps large enough that the correction gains on the input, so that it ends between the failures
    met = play(
        *longer(
            *make_plan(2, rate=50.0, limits=Limits(slice_rows=8)),
            12,
        ),
        script,
        turn_us=TURN_US,
    )
    again = [e.at_us for e in met.history if isinstance(e, FaultBegan) and e.kind == "cut"][1]
    late = [n for n in ("u2/0@n2a", "u2/0@n2b") if any(inside(s, again) for s in met.spans(n, STABILIZATION))]
    done = {
        e.consumer: e.at_us
        for e in reversed(list(met.history))
        if isinstance(e, Received) and e.mode == "corrections" and isinstance(e.element, RecDone)
    }
    assert late
    assert any(done[n] < again for n in late)
    assert all(len(met.spans(n, STABILIZATION)) == 2 for n in late)


def test_an_input_fails_while_a_restarted_replica_catches_up() -> None:
    """A3: it leaves RECOVERING during the failure, and serves the content of its partner's snapshot."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep_until(3)
        cluster.kill("n1b")
        await trio.sleep_until(5)
        cluster.restart("n1b")
        await until(lambda: any(r.reading.installed for r in in_state(cluster, NodeState.RECOVERING)()))
        cluster.cut("source:b", "*")
        await trio.sleep(2.5)
        cluster.kill("n1a")  # now only the restarted replica is left
        await trio.sleep(1.5)
        cluster.heal()
        await trio.sleep(2.5)
        cluster.restart("n1a")

    met = play(
        *longer(*make_plan(2, rate=50.0, limits=LITTLE), 12),
        script,
        turn_us=TURN_US,
        link=FAR,
    )
    cut = next(e.at_us for e in met.history if isinstance(e, FaultBegan) and e.kind == "cut")
    (span,) = [s for s in met.spans("u1/0@n1b", NodeState.RECOVERING) if inside(s, cut)]
    assert any(begin < 9_500_000 for begin, _ in met.spans("u1/0@n1b", UP_FAILURE))
    assert span[1] > cut


# --- during a switch ---


def switching(cluster: FaultyCluster) -> str | None:
    """The producer to which n2a is switching."""
    (one,) = cluster.replicas()["u2/0@n2a"].inputs
    return one.main.producer if one.main is not None and not one.main.opened else None


async def begin_switch(cluster: FaultyCluster) -> tuple[str, str]:
    """Kills the producer of n2a; returns it and the next one, at the moment of the switch."""
    (one,) = cluster.replicas()["u2/0@n2a"].inputs
    assert one.main is not None
    old = one.main.producer
    cluster.kill(old)
    await until(lambda: switching(cluster) is not None, look_s=0.0001)
    new = switching(cluster)
    assert new is not None
    assert new != old
    return old, new


@pytest.mark.parametrize("how", long_but(["freeze"], ["freeze", "kill"]))
def test_the_replica_to_which_a_consumer_switches_fails_as_well(how: str) -> None:
    """The third replica takes over, without an effect on results."""
    found: list[str] = []

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep_until(3)
        old, new = await begin_switch(cluster)
        begin, end = (cluster.freeze, cluster.thaw) if how == "freeze" else (cluster.kill, cluster.restart)
        begin(new)
        found.extend([old, new])
        await trio.sleep(3)
        cluster.restart(old)
        end(new)

    met = play(*longer(*patient(*make_plan(2, rate=50.0, replicas=3)), 8), script, link=FAR)
    assert [o.producer for o in met.opened("u2/0@n2a", "main")[1:3]] == [found[1], third(found)]
    assert all(not met.spans(n, UP_FAILURE) for n in ("u2/0@n2a", "u2/0@n2b", "u2/0@n2c"))


def patient(plan: Plan, directory: Directory) -> Deployed:
    nodes = {n: replace(one, x_us=4_000_000) for n, one in directory.nodes.items()}
    return Deployed(plan, replace(directory, nodes=nodes))


def third(two: list[str]) -> str:
    (one,) = {"n1a", "n1b", "n1c"} - set(two)
    return one


@pytest.mark.parametrize("tentative", [False, True], ids=["from stable", "between diverged replicas"])
def test_a_source_fails_during_a_switch(tentative: bool) -> None:
    """Also where both producers have their own tentative results; then t_max decides (V3, F1)."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep_until(2)
        if tentative:
            cluster.cut("source:c", "n1a")
            cluster.cut("source:b", "n1b")
        await trio.sleep_until(5)
        old, _ = await begin_switch(cluster)
        cluster.cut("source:a", "*")
        await trio.sleep(3)
        cluster.heal()
        cluster.restart(old)

    met = play(*longer(*make_plan(2, rate=50.0), 10), script, link=FAR)
    cut = [e.at_us for e in met.history if isinstance(e, FaultBegan) and e.kind == "cut"][-1]
    switch = [e for e in met.opened("u2/0@n2a", "main") if e.at_us <= cut][-1]
    assert cut - switch.at_us < 1_000
    assert switch.held == tentative
    assert met.spans("u2/0@n2a", UP_FAILURE)


# --- two inputs ---


@pytest.mark.parametrize("first", long_but(["source:b"], ["source:a", "source:b"]))
def test_two_inputs_fail_and_heal_at_different_times(first: str) -> None:
    """No redo begins before both inputs are back; then one redo covers everything (R1)."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep_until(2)
        cluster.cut("source:a", "*")
        await trio.sleep_until(3.5)
        cluster.cut("source:b", "*")
        await trio.sleep_until(6)
        heal(cluster, first)
        await trio.sleep_until(8.5)
        cluster.heal()

    def heal(cluster: FaultyCluster, source: str) -> None:
        (other,) = {"source:a", "source:b"} - {source}
        cluster.heal()
        cluster.cut(other, "*")

    met = play(
        *longer(*make_plan(2, rate=50.0, limits=LITTLE), 12),
        script,
        turn_us=TURN_US,
    )
    for name in REPLICAS:
        (span,) = met.spans(name, UP_FAILURE)
        assert span[0] < 3_500_000
        assert span[1] > 8_500_000
        assert met.corrected(name)[0] == span[1]
    # The healed input continued with fresh tuples while the other one was out.
    assert met.longest_gap_us("c", (4_000_000, 12_000_000)) < 250_000


# --- partners ---


def test_a_partner_that_granted_dies() -> None:
    """R5, K5: it was to serve fresh results; the correcting replica continues with its own."""
    waiting: list[str] = []

    async def script(cluster: FaultyCluster) -> None:
        await fail(cluster)
        await until(in_state(cluster, STABILIZATION))
        (replica,) = in_state(cluster, UP_FAILURE)()
        assert replica.state is UP_FAILURE
        waiting.append(str(replica.id.node))
        await trio.sleep(0.3)
        cluster.kill(waiting[0])
        await trio.sleep(3)
        cluster.restart(waiting[0])

    met = play(
        *longer(*make_plan(2, rate=50.0, limits=LITTLE), 12),
        script,
        turn_us=TURN_US,
    )
    (other,) = {"n1a", "n1b"} - set(waiting)
    (span,) = met.spans(f"u1/0@{other}", STABILIZATION, fresh=True)
    whole = met.corrected(f"u1/0@{other}")
    assert whole[0] < span[0]  # it paused at first
    assert span[1] == whole[1]
    assert met.rows("u2/0@n2a", "main", Kind.TENTATIVE, span) > 0
    assert met.longest_gap_us("c", (3_000_000, 12_000_000)) < 700_000  # four heartbeats, a connection
