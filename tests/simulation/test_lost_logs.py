"""After the loss of a source log, no earlier consumer reads the new one (S6: rows have an origin)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from random import Random
from typing import Any

import pytest
import trio

from consistency.comparison import compare
from replicas.client.process import ClientProcess
from replicas.client.recorder import recorded_stable, stable_rows
from replicas.consumer.input import Input
from replicas.producer.feed import Accepted
from replicas.simulation.simulate import simulate
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.disk import SimDisk
from replicas.source.process import SourceProcess
from replicas.source.proxy import SourceProxy
from spe.errors import LogCorrupt
from spe.log.recording import client_folder
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.nodes import Checkpoints
from spe.plan.plan import Plan
from spe.stream.history import Note
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, NodeState, StreamId, UnitId
from spe.wire.messages.feeds import OtherLog, Subscribe
from tests.simulation.test_client_process import OUT, plan_with_sinks, runs_client, start_with
from tests.simulation.test_cluster import SECONDS, make_plan
from tests.simulation.test_simulate import scenario, story
from tests.simulation.test_standbys import longer, runs, seen, spoil, until, with_standbys
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.plans import placed

A = Channel(StreamId("a"), 0)
NODES = ("n1a", "n1b")


def position(cluster: FaultyCluster, node: str) -> int:
    return next(i.port.position for i in cluster.replicas()[f"u1/0@{node}"].inputs if i.channel == A)


def notes(cluster: FaultyCluster, host: str, name: str) -> list[str]:
    return [e.text for e in cluster.history if isinstance(e, Note) and (e.host, e.name) == (host, name)]


async def lose(cluster: FaultyCluster, kept: SimDisk | None = None) -> SimDisk:
    """Restarts the source with an empty folder, or with the copy ``kept``; returns the former folder."""
    lost = cluster.disks["source:a"]
    cluster.wipe("source:a")
    if kept is not None:
        cluster.disks["source:a"] = kept
    await trio.sleep(0.2)
    cluster.restart("source:a")
    return lost


async def test_lost_log_is_reported_on_both_sides_until_restored(jump_clock: JumpClock) -> None:
    """1. the folder is lost; 2. nobody reads the new log, and both sides report it; 3. the folder is restored"""
    plan, directory = make_plan(rate=50.0)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(4)
            before = {n: position(cluster, n) for n in NODES}
            lost = await lose(cluster)
            await trio.sleep(0.3)
            for node in NODES:
                assert position(cluster, node) == before[node]
                assert any("is not mounted" in text for text in notes(cluster, node, "other_log"))
                assert any(f"@{node}" in text for text in notes(cluster, "source:a", "reader_of_other_log"))
            await trio.sleep(3)
            states = [r.state for r in cluster.replicas().values()]
            assert states == [NodeState.UP_FAILURE] * 2
            (shown,) = cluster.nodes["n1a"].status().replicas
            assert [list(one.other_logs) for one in shown.inputs] == [["source:a"], [], []]

            await lose(cluster, lost)
            cluster.lost_logs.clear()  # the folder is restored
            await trio.sleep(SECONDS + 4)
            assert compare({OUT: delivered(cluster)}, cluster.reference()) == []


def delivered(cluster: FaultyCluster) -> Any:
    return stable_rows(cluster.changes["c"], cluster.plan.query.schema_of(OUT.stream))


def on_disk(plan: Plan, directory: Directory) -> Deployed:
    nodes = {n: replace(one, checkpoints=Checkpoints(200_000, disk=True)) for n, one in directory.nodes.items()}
    return Deployed(plan, replace(directory, nodes=nodes))


async def test_a_checkpoint_stores_its_origin(jump_clock: JumpClock) -> None:
    """All nodes stop, and restart from their disks after the loss of the log."""
    plan, directory = on_disk(*make_plan(rate=50.0))
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(4)
            for node in NODES:
                cluster.kill(node)
            await lose(cluster)
            for node in NODES:
                cluster.restart(node)
            await trio.sleep(6)
            assert any("origin=disk" in line for line in cluster.log)
            for node in NODES:
                assert notes(cluster, node, "other_log")
                assert 100 < position(cluster, node) < 202


async def test_a_snapshot_stores_its_origin(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan(rate=50.0)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(4)
            cluster.kill("n1b")
            await lose(cluster)
            await trio.sleep(1)
            cluster.restart("n1b")
            await trio.sleep(3)
            assert len(notes(cluster, "n1b", "other_log")) > 0
            assert 150 < position(cluster, "n1b") <= position(cluster, "n1a") < 202


async def test_a_client_does_not_continue_the_results_of_other_logs(jump_clock: JumpClock) -> None:
    """Nodes start from nothing with a new log; the client's recording has results of the lost one."""
    (plan, directory), kept = plan_with_sinks(), list[ClientProcess]()
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, kept))
            await trio.sleep(4)
            reference = cluster.reference()
            for node in NODES:
                cluster.wipe(node)
            cluster.kill("client:c")
            await lose(cluster)
            for host in (*NODES, "client:c"):
                cluster.restart(host)
            await trio.sleep(6)
            texts = notes(cluster, "client:c", "other_log")
            assert any("what client:c holds follows from" in text for text in texts)
            schemas = {OUT: plan.query.schema_of(OUT.stream)}
            ids, _ = recorded_stable(cluster.disks["client:c"], client_folder("c"), schemas)[OUT]
            assert 0 < len(ids) <= len(reference[OUT][0])
            assert not kept[-1].status().channels[0].held


@pytest.mark.parametrize("late", ["nobody", "a source"])
async def test_an_output_announces_its_origin_once_known(jump_clock: JumpClock, late: str) -> None:
    """Until all sources were reached, subscriptions are accepted without an origin; they restart when it is known."""
    async with FaultyCluster(*make_plan(rate=50.0)) as cluster:
        with cluster.explain():
            if late == "a source":
                cluster.cut("source:a", "*")
            await cluster.start()
            await trio.sleep(3)
            client = cluster.clients["c"]
            replicas = cluster.replicas().values()
            known = {r.serving.origin for r in replicas}
            assert (known == {""}) is (late == "a source")
            assert {client.inputs[0].origin} == known
            cluster.heal()
            await trio.sleep(SECONDS)
            assert {client.inputs[0].origin} == {r.serving.origin for r in cluster.replicas().values()} != {""}
            assert compare({OUT: delivered(cluster)}, cluster.reference()) == []


async def test_log_identities_follow_seed_and_change_with_disk(jump_clock: JumpClock) -> None:
    drawn = []
    for lost in (0, 0, 1):
        async with FaultyCluster(*make_plan(), seed=7) as cluster:
            await cluster.start()
            await trio.sleep(0.1)
            if lost:
                await lose(cluster)
                await trio.sleep(0.1)
            drawn.append(cluster.disks["source:a"].read(PurePosixPath("a/identity")))
    assert drawn[0] == drawn[1] != drawn[2]


async def test_a_log_shorter_than_the_consumers_position_is_refused(jump_clock: JumpClock) -> None:
    """Only synced records are sent, so the folder was truncated, or is an older copy."""
    cluster = FaultyCluster(*make_plan())
    async with trio.open_nursery() as nursery:
        process = SourceProcess(
            cluster.env("source:a"), cluster.plan, cluster.directory, A.stream, folder=PurePosixPath("a")
        )
        await nursery.start(process.run)
        proxy = process._proxy
        assert proxy is not None
        asked = Subscribe("a", 0, "u1/0@n1a", "main", 10**9, 0, False, 0, 0, 1, proxy.identity)
        refused = process.subscribe(asked)
        assert isinstance(refused, OtherLog)
        assert "is an older copy" in refused.reason
        assert isinstance(process.subscribe(replace(asked, position=0)), Accepted)
        nursery.cancel_scope.cancel()


async def test_a_log_with_only_its_identity_is_an_error(jump_clock: JumpClock) -> None:
    cluster = FaultyCluster(*make_plan())
    source, folder = cluster.plan.sources[A.stream], PurePosixPath("a")
    proxy = await SourceProxy.open(cluster.env("source:a"), source, folder)
    proxy.close()
    disk = cluster.disks["source:a"] = cluster.disks["source:a"].restarted()
    for path in [p for p in disk.files if p.name.startswith("mark.")]:
        disk.remove(path)
    with pytest.raises(LogCorrupt, match=f"the log is gone, and only its identity {proxy.identity} is left"):
        await SourceProxy.open(cluster.env("source:a"), source, folder)


@pytest.mark.parametrize("seed", long_but([0], range(3)))
def test_a_lost_log_never_loses_rows_silently(seed: int) -> None:
    """With a random kill and cut beside it."""
    random = Random(seed)
    faults = [
        {"at": f"{random.randint(1500, 6000)}ms", "kind": "wipe", "target": "source:a", "for": "500ms"},
        {"at": f"{random.randint(1000, 6000)}ms", "kind": "kill", "target": "n1", "for": "700ms"},
        {"at": f"{random.randint(1000, 5000)}ms", "kind": "cut", "target": "source:b", "for": "1s"},
    ]
    outcome = simulate(scenario(seed, faults))
    assert outcome.holds, story(outcome)
    assert outcome.counters.amounts["readers of a lost log"] > 0


def test_consumer_that_reads_another_log_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceProcess, "_other_log", lambda *_: "")
    monkeypatch.setattr(Input, "greeted", lambda *_: None)
    outcome = simulate(scenario(1, [{"at": "4s", "kind": "wipe", "target": "source:a", "for": "500ms"}]))
    assert {f.rule for f in outcome.findings} >= {"another log is not read", "a replaced log is reported"}


@pytest.mark.parametrize("lost_before", [True, False], ids=["before the order", "after it"])
async def test_nothing_replays_behind_a_lost_log(jump_clock: JumpClock, lost_before: bool) -> None:
    """H8: n3b lacks a state.  The others keep theirs, or get it again; once the log is restored, they replay."""
    plan, directory = with_standbys(*longer(*make_plan(3, rate=50.0), 60))
    u1 = PartitionId(UnitId("u1"), 0)
    both = {u1: (NodeId("n1a"), NodeId("n1b"))}
    standbys = {id: one for id, one in directory.standbys.items() if id != u1}
    directory = placed(directory, {**directory.placement, **both}, standbys)
    others = {"u1/0@n1a", "u1/0@n1b", "u2/0@n2a"}
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(6.3)
            if lost_before:
                lost = await lose(cluster)
            spoil(cluster, "n3b")
            cluster.kill("n3a")
            if lost_before:
                await trio.sleep(20)
                assert not any("ordered verb=replay" in line for line in cluster.log)
            else:
                await seen(cluster, "order verb=replay replica=u1/0@n1b")
                lost = await lose(cluster)
                await seen(cluster, "installed replica=u1/0@n1b origin=n1a")
            await until(lambda: all(serves(cluster, r) for r in others), within_s=20)
            await trio.sleep(5)
            assert all(serves(cluster, r) for r in others)
            assert notes(cluster, "n1b", "other_log"), "it does not read the new one"

            await lose(cluster, lost)
            cluster.lost_logs.clear()  # the folder is restored
            await until(lambda: runs(cluster, "u3/0@n3b"), within_s=40)


async def test_replica_without_replay_continues_from_its_state(jump_clock: JumpClock) -> None:
    """H8: n1a dies, and continues from its disk; n3a is back, so that nothing is ordered any more."""
    plan, directory = on_disk(*with_standbys(*longer(*make_plan(3, rate=50.0), 40)))
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(6.3)
            spoil(cluster, "n3b")
            cluster.kill("n3a")
            await seen(cluster, "order verb=replay replica=u1/0@n1a")
            for node in ("n1a", "n3a"):
                cluster.kill(node)
                cluster.restart(node)
            await until(lambda: all(runs(cluster, f"u{n}/0@n{n}a") for n in (1, 2, 3)), within_s=20)


def serves(cluster: FaultyCluster, replica: str) -> bool:
    return replica in cluster.replicas() and cluster.replicas()[replica].state is not NodeState.RECOVERING
