"""Slow consumers, frozen replicas, an hour without an input: nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from consistency.dpc.undo import UndoInstance
from replicas.client import client
from replicas.simulation.world.host import HOST, SimCompute
from spe.config import load_data
from spe.plan.deploy import Deployed, with_addresses
from spe.plan.directory import ClientSettings, Directory
from spe.plan.plan import Limits, Plan, Timing
from spe.stream.batch import Undo
from spe.stream.history import Closed, FaultBegan, FaultEnded
from spe.stream.names import NodeState
from tests.simulation.test_buffers import Memory, longer
from tests.simulation.test_cluster import make_plan
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.situations import play, until

#: Buffers that fill in a few seconds.
SMALL = Limits(output_bytes=60_000, input_bytes=30_000, suffix_bytes=60_000, spill_bytes=0)


def test_a_slowly_encoded_snapshot_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A3: the time-out is on progress.  The partner reports that it works on the snapshot, so it is not asked again."""

    async def slowly(compute: SimCompute, function: Callable[[], Any]) -> Any:
        await trio.sleep(15 if HOST.get() == "n1a" else 0)
        return function()

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep_until(1)
        cluster.kill("n1b")
        await trio.sleep_until(2)
        monkeypatch.setattr(SimCompute, "run", slowly)
        cluster.began("busy", ["n1a"], amount=15)
        cluster.restart("n1b")
        await trio.sleep(1)
        await until(lambda: cluster.replicas()["u1/0@n1b"].reading.installed, within_s=35)

    met = play(*longer(*make_plan(rate=20.0), 40), script)
    assert sum("installed" in line and "origin=n1a" in line for line in met.log) == 1
    assert not any("no_snapshot" in line for line in met.log)


# --- consumers ---


def with_a_second_client(plan: Plan, directory: Directory) -> Deployed:
    clients = {**directory.clients, "d": ClientSettings("d", directory.clients["c"].reads)}
    return Deployed(plan, replace(directory, clients=clients))


def lag(cluster: FaultyCluster, name: str, seconds: float) -> None:
    """The application of a client takes this long for each change; 0 ends it."""
    for fault in [e for e in cluster.history if isinstance(e, FaultBegan) and e.kind == "lag"]:
        cluster.ended(fault)
    cluster.lag_s = {name: seconds} if seconds else {}
    if seconds:
        cluster.began("lag", (f"client:{name}",))


@pytest.mark.parametrize("lag_s", [0.6, 14.0], ids=["slow", "does not read"])
def test_a_slow_client_does_not_delay_others(monkeypatch: pytest.MonkeyPatch, lag_s: float) -> None:
    """A2, A9: unread output waits in spill files; the other client gets everything at once."""
    monkeypatch.setattr(client, "WAITING_CHANGES", 20)
    limits = replace(SMALL, spill_bytes=Limits().spill_bytes)
    memories: list[Memory] = []

    async def script(cluster: FaultyCluster) -> None:
        memories.append(memory := Memory(cluster))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(memory.watch)
            lag(cluster, "c", lag_s)
            await trio.sleep_until(9)
            assert cluster.clients["d"].finished
            assert cluster.clients["c"].inputs[0].port.position * 2 < cluster.clients["d"].inputs[0].port.position
            assert memory.spilled() > 20
            lag(cluster, "c", 0)
            await until(lambda: cluster.clients["c"].finished)
            nursery.cancel_scope.cancel()

    met = play(*with_a_second_client(*make_plan(rate=200.0, limits=limits)), script)
    (memory,) = memories
    assert memory.most["log"] <= limits.output_bytes * 1.2
    assert not any(isinstance(e.element, Undo) for e in met.deliveries("c"))


def test_slow_client_blocks_sources_without_spilling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A2, A9: full buffers block everything up to the sources; this is no failure, and nothing is lost."""
    monkeypatch.setattr(client, "WAITING_CHANGES", 20)

    async def script(cluster: FaultyCluster) -> None:
        memory = Memory(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(memory.watch)
            lag(cluster, "c", 12.0)
            await trio.sleep_until(9)
            taken = positions(cluster)
            assert sum(taken.values()) < 2 * 3 * 200 * 9 * 0.8  # the total without the bound
            await trio.sleep_until(11)
            assert positions(cluster) == taken
            assert not any(r.state is not NodeState.STABLE for r in cluster.replicas().values())
            assert memory.most["log"] <= SMALL.output_bytes * 1.2
            assert memory.most["redo data"] <= SMALL.input_bytes * 2
            lag(cluster, "c", 0)
            await until(lambda: cluster.clients["c"].finished)
            nursery.cancel_scope.cancel()

    def positions(cluster: FaultyCluster) -> dict[str, int]:
        return {name: sum(i.port.position for i in r.inputs) for name, r in cluster.replicas().items()}

    play(*longer(*make_plan(rate=200.0, limits=SMALL), 11), script)


def test_a_frozen_last_node_fills_the_chain_without_a_failure() -> None:
    """T2, F4: a full producer is silent, but neither dead nor stalled, so nothing switches or becomes tentative."""
    full: set[str] = set()

    async def script(cluster: FaultyCluster) -> None:
        memory = Memory(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(memory.watch)
            await trio.sleep_until(2)
            for host in ("n3a", "n3b"):
                cluster.freeze(host)
            await trio.sleep_until(14)
            full.update(name for name, r in cluster.replicas().items() if r.serving.full())
            assert not any(r.state is not NodeState.STABLE for r in cluster.replicas().values())
            assert memory.most["log"] <= SMALL.output_bytes * 1.2
            assert memory.most["redo data"] <= SMALL.input_bytes * 2
            for host in ("n3a", "n3b"):
                cluster.thaw(host)
            nursery.cancel_scope.cancel()

    met = play(
        *longer(*make_plan(3, rate=150.0, limits=SMALL), 14),
        script,
    )
    assert full == {"u1/0@n1a", "u1/0@n1b", "u2/0@n2a", "u2/0@n2b"}
    left = [e for e in met.history if isinstance(e, Closed) and e.consumer in full]
    assert left == []
    for name in full:  # nor once there is room again: held input has not waited for an input (T1)
        assert met.spans(name, NodeState.UP_FAILURE) == []


# --- replicas that stand still ---


def test_thawed_tentative_replica_undoes_nothing_stable() -> None:
    """It freezes in UP_FAILURE; when it thaws, all others are ahead, and its consumers have switched."""
    frozen: list[str] = []

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep_until(2)
        cluster.cut("source:b", "*")
        await trio.sleep_until(4)
        (one,) = cluster.clients["c"].inputs
        assert one.main is not None
        frozen.append(one.main.producer)
        cluster.freeze(frozen[0])
        await trio.sleep_until(4.5)
        cluster.heal()
        await trio.sleep_until(9)
        replica = cluster.replicas()[f"u2/0@{frozen[0]}"]
        assert replica.state is NodeState.UP_FAILURE
        assert not replica.logs[0].suffix.untouched
        assert replica.logs[0].last_id < one.port.position  # the position of its undo is far behind
        cluster.thaw(frozen[0])

    met = play(*longer(*make_plan(2, rate=50.0), 12), script)
    (froze,) = [e.at_us for e in met.history if isinstance(e, FaultBegan) and e.kind == "freeze"]
    (woke,) = [e.at_us for e in met.history if isinstance(e, FaultEnded) and e.at_us > 8_000_000]
    given = met.deliveries("c")
    assert sum(isinstance(e.element, Undo) for e in given) == 1
    assert all(froze < e.at_us < woke for e in given if isinstance(e.element, Undo))
    (own,) = [s for s in met.spans(f"u2/0@{frozen[0]}", NodeState.UP_FAILURE) if s[0] < froze]
    assert own[1] >= woke


def test_a_host_at_a_tenth_of_its_speed_still_goes_tentative() -> None:
    """T1: time in which it did not run does not count, time in which it ran does."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep_until(2)
        for host in ("n1a", "n1b"):
            cluster.slow(host, 10)
        cluster.cut("source:b", "*")
        await until(lambda: all(r.state is NodeState.UP_FAILURE for r in cluster.replicas().values()), within_s=12)
        for host in ("n1a", "n1b"):
            cluster.slow(host, 1)
        cluster.heal()

    play(*longer(*make_plan(rate=20.0), 14), script)


@pytest.mark.parametrize("begins_s", long_but([2.025], [2.005, 2.025, 2.049]))
def test_a_freeze_during_a_sleep_is_noticed(begins_s: float) -> None:
    """T1: it freezes for longer than X with data in its sockets, thaws, and nothing is late."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep_until(begins_s)
        for host in ("n1a", "n1b"):
            cluster.freeze(host)
        await trio.sleep(3)
        for host in ("n1a", "n1b"):
            cluster.thaw(host)

    met = play(*longer(*make_plan(rate=20.0), 8), script)
    for name in ("u1/0@n1a", "u1/0@n1b"):
        assert met.spans(name, NodeState.UP_FAILURE) == []


# --- a long failure ---


def finite_windows() -> Deployed:
    """A window and an interval join on one node, at low rates, so that an hour is cheap to simulate."""
    generator = {"name": "orders", "rate": 1, "keys": 3, "duration": "3700s"}
    data: dict[str, Any] = {
        "cluster": "hour",
        "bucket": "2s",
        "defaults": {"x": "20s", "alpha": 0.8, "reconcile": "undo"},
        "sources": {
            n: {"from": {"generator": {**generator, "seed": at}}, "boundary": "2s"} for at, n in enumerate("ab")
        },
        "query": {
            "pairs": {"join": {"left": "a", "right": "b", "on": "key", "within": ["-5s", "5s"]}},
            "sums": {
                "aggregate": {
                    "from": "pairs",
                    "window": "10s",
                    "group_by": "l_key",
                    "compute": {"n": "count(*)", "total": "sum(l_price)"},
                }
            },
        },
        "outputs": ["sums"],
        "fragments": {"f": {"operators": ["pairs", "sums"], "replicas": ["n1"]}},
        "nodes": ["n1"],
        "clients": {"c": {"reads": ["sums"]}},
    }
    plan, directory = load_data(data)
    plan = replace(
        plan,
        limits=Limits(output_bytes=20_000, input_bytes=10_000, suffix_bytes=20_000),
        timing=Timing(tick_us=1_000_000, heartbeat_us=1_000_000, request_us=2_000_000, connect_us=2_000_000),
    )
    return Deployed(plan, with_addresses(directory, {n: f"{n.replace(':', '-')}:1" for n in directory.addresses()}))


@pytest.mark.long
def test_an_hour_of_failure_takes_no_more_memory_than_15_minutes() -> None:
    """A9, R9: finite windows need finite state, and redo data are in spill files."""
    most: list[dict[str, int]] = []

    async def script(cluster: FaultyCluster) -> None:
        memory, buffered = Memory(cluster), 0
        await trio.sleep_until(60)
        cluster.cut("source:b", "*")
        while trio.current_time() < 3_660:
            await trio.sleep(10)
            memory.look()
            (replica,) = cluster.replicas().values()
            live = replica.core._run.live
            assert isinstance(live, UndoInstance)
            buffered = max(buffered, live.buffered_rows)
            if trio.current_time() in (960, 3_660):
                most.append({**memory.most, "operators' buffers": buffered})
        assert memory.spilled() > 0
        cluster.heal()

    play(*finite_windows(), script, grace_s=120)
    early, late = most
    assert late["operators' buffers"] > 0
    assert late == early
