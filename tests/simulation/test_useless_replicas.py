"""Consumers leave a live replica without results for one with results (F4, K6, A3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import product

import pytest
import trio

from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.nodes import Policy
from spe.plan.plan import Limits, Plan
from spe.stream.names import NodeId, NodeState
from spe.wire.messages.message import Message
from spe.wire.messages.replicas import SnapshotRefused, SnapshotRequest
from tests.simulation.test_buffers import longer
from tests.simulation.test_cluster import X_US, make_plan
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.situations import Met, play, until

SOURCES = "abc"
SECOND = 1_000_000
#: Longest time between two results: X, and less than a bucket.
GAP_US = X_US + 80_000


def during(from_s: float, to_s: float) -> tuple[int, int]:
    return round(from_s * SECOND), round(to_s * SECOND)


def with_policy(plan: Plan, directory: Directory, node: str, policy: Policy) -> Deployed:
    name = NodeId(node)
    changed = replace(directory.nodes[name], during_failure=policy, during_stabilization=policy)
    return Deployed(plan, replace(directory, nodes=dict(directory.nodes) | {name: changed}))


@pytest.mark.parametrize(
    ("isolated", "apart_s"),
    long_but([("n1a", 0.0), ("n1b", 3.0)], product(["n1a", "n1b"], [0.0, 0.5, 3.0])),
)
def test_a_replica_that_lost_all_inputs_is_left(isolated: str, apart_s: float) -> None:
    """One replica loses all sources, the other a single one; the client reads the one with results."""
    other = {"n1a": "n1b", "n1b": "n1a"}[isolated]
    plan, directory = longer(*make_plan(1, rate=100.0, replicas=2), 12)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep_until(4)
        for source in SOURCES:
            cluster.cut(f"source:{source}", isolated)
        await trio.sleep(apart_s)
        cluster.cut("source:b", other)
        await trio.sleep_until(10)
        cluster.heal()

    met = play(plan, directory, script)
    assert met.longest_gap_us("c", during(4, 10)) <= GAP_US


@pytest.mark.parametrize("suspends", long_but(["n1a"], ["n1a", "n1b"]))
def test_a_suspending_replica_is_left(suspends: str) -> None:
    plan, directory = with_policy(*longer(*make_plan(1, rate=100.0, replicas=2), 12), suspends, Policy.SUSPEND)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep_until(4)
        cluster.cut("source:b", "*")
        await trio.sleep_until(10)
        cluster.heal()

    met = play(plan, directory, script)
    assert met.longest_gap_us("c", during(4, 10)) <= GAP_US


def slowly_corrected(partner: Callable[[FaultyCluster], None]) -> Met:
    """n1b corrects ten seconds of input for about four seconds; ``partner``: the state of n1a before that."""
    plan, directory = longer(
        *make_plan(1, rate=100.0, replicas=2, limits=Limits(slice_rows=4)),
        22,
    )

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep_until(4)
        cluster.cut("source:b", "n1b")
        await trio.sleep_until(4.4)
        partner(cluster)
        await trio.sleep_until(14)
        cluster.mend("source:b", "n1b")
        await until(lambda: cluster.replicas()["u1/0@n1b"].state is NodeState.STABLE, within_s=15)
        cluster.heal()
        if "n1a" not in cluster.nodes:
            cluster.restart("n1a")

    return play(plan, directory, script, turn_us=10_000)


def test_a_partner_without_inputs_grants_no_correction() -> None:
    """K6: no replica would have fresh results during the correction."""

    def isolate(cluster: FaultyCluster) -> None:
        for source in SOURCES:
            cluster.cut(f"source:{source}", "n1a")

    met = slowly_corrected(isolate)
    begin, end = met.corrected("u1/0@n1b")
    assert end - begin > 2 * X_US, "the correction is to be longer than X"
    assert met.spans("u1/0@n1b", NodeState.STABILIZATION, fresh=True), "live results go on beside redo"
    assert met.longest_gap_us("c", (begin, end)) <= GAP_US


def test_live_results_continue_while_only_replica_corrects() -> None:
    met = slowly_corrected(lambda cluster: cluster.kill("n1a"))
    begin, end = met.corrected("u1/0@n1b")
    assert met.longest_gap_us("c", (begin, end)) <= GAP_US


def test_partners_with_slow_answers_take_turns() -> None:
    """K1: a grant counts though the next request is under way."""
    plan, directory = make_plan(1, rate=50.0, replicas=2)
    plan = replace(plan, timing=replace(plan.timing, request_us=200_000))

    async def script(cluster: FaultyCluster) -> None:
        cluster.delay("n1a", "n1b", 0.15)
        await trio.sleep_until(2)
        cluster.cut("source:b", "*")
        await trio.sleep_until(5)
        cluster.mend("source:b", "n1a")
        cluster.mend("source:b", "n1b")
        replicas = cluster.replicas().values()
        await until(lambda: all(r.state is NodeState.STABLE for r in replicas), within_s=5)
        cluster.heal()

    met = play(plan, directory, script, turn_us=10_000)
    first, second = sorted(met.corrected(f"u1/0@{node}") for node in ("n1a", "n1b"))
    assert first[1] <= second[0]


def test_a_lagging_producer_does_not_delay_recovery() -> None:
    """A3: a consumer must reach its own MAIN, not a faster replica."""
    plan, directory = longer(
        *make_plan(2, rate=50.0, replicas=2, limits=Limits(slice_rows=4)),
        30,
    )

    async def script(cluster: FaultyCluster) -> None:
        for source in SOURCES:
            cluster.delay(f"source:{source}", "n1a", 0.15)
        await trio.sleep(0.05)
        for node in ("n1a", "n1b", "n2a", "n2b"):
            cluster.kill(node)
        await trio.sleep_until(10)
        for node in ("n1a", "n2a", "n2b"):
            cluster.restart(node)
        await trio.sleep_until(13)
        cluster.restart("n1b")
        await trio.sleep_until(25)
        states = {name: replica.state for name, replica in cluster.replicas().items()}
        assert states.keys() == {"u1/0@n1a", "u1/0@n1b", "u2/0@n2a", "u2/0@n2b"}
        assert NodeState.RECOVERING not in states.values(), states
        cluster.heal()

    play(plan, directory, script, turn_us=5_000)


def refuse_snapshots(*nodes: str) -> Callable[[FaultyCluster], Awaitable[None]]:
    """n1a restarts, and ``nodes``, although live and STABLE, never give it a snapshot."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep_until(4)
        cluster.kill("n1a")
        await trio.sleep(1)

        async def refuse(_message: SnapshotRequest) -> Message:
            return SnapshotRefused("too busy")

        for node in nodes:
            cluster.nodes[node].snapshot = refuse  # type: ignore[method-assign, assignment]
        cluster.restart("n1a")
        await until(lambda: cluster.replicas().get("u1/0@n1a"))
        await until(lambda: cluster.replicas()["u1/0@n1a"].state is NodeState.STABLE, within_s=8)

    return script


@pytest.mark.parametrize("busy", long_but(["n1b"], ["n1b", "n1c"]))
def test_recovery_asks_the_third_replica(busy: str) -> None:
    met = play(
        *longer(*make_plan(1, rate=50.0, replicas=3), 12),
        refuse_snapshots(busy),
    )
    asked = [line for line in met.log if "no_snapshot" in line]
    assert len(asked) <= 3, "a partner that refuses is not asked all the time"


def test_without_a_snapshot_recovery_starts_from_the_sources() -> None:
    met = play(
        *longer(*make_plan(1, rate=50.0, replicas=3), 12),
        refuse_snapshots("n1b", "n1c"),
    )
    assert any("installed" in line and "nothing" in line for line in met.log)
