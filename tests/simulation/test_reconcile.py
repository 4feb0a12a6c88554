"""Corrections and restarts of a cluster with every setting of reconcile and checkpoint."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import product
from pathlib import PurePosixPath
from random import Random
from typing import Any

import pytest
import trio

from replicas.simulation.world.clock import JumpClock
from spe.config import load_data
from spe.plan.deploy import Deployed, with_addresses
from tests.simulation.test_cluster import run
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but

SECONDS = 8


def make_plan(**defaults: Any) -> Deployed:
    """Two units with windows, a join, a ranking and count windows, each on two nodes."""
    generator = {"name": "orders", "rate": 60, "keys": 5, "duration": f"{SECONDS}s", "disorder": "60ms"}
    data = {
        "cluster": "reconcile",
        "bucket": "100ms",
        "defaults": {"x": "1s", "alpha": 0.9, **defaults},
        "nodes": ["n1a", "n1b", "n2a", "n2b"],
        "sources": {
            name: {"from": {"generator": {**generator, "seed": at}}, "boundary": "100ms"}
            for at, name in enumerate("ab")
        },
        "query": {
            "pairs": {
                "join": {
                    "left": "a",
                    "right": "b",
                    "kind": "full",
                    "on": "key",
                    "within": ["-300ms", "200ms"],
                }
            },
            "sums": {
                "aggregate": {
                    "from": "pairs",
                    "window": {"sliding": "400ms", "slide": "100ms"},
                    "group_by": "l_key",
                    "compute": {"n": "count(*)", "total": "sum(l_price * r_qty)"},
                }
            },
            "top": {"topk": {"from": "sums", "k": 3, "order_by": ["total desc"]}},
            "tens": {
                "aggregate": {
                    "from": "top",
                    "window": {"count": 10},
                    "group_by": "l_key",
                    "compute": {"total": "sum(total)"},
                }
            },
        },
        "outputs": ["top", "tens"],
        "fragments": {
            "f1": {"operators": ["pairs", "sums"], "replicas": ["n1a", "n1b"]},
            "f2": {"operators": ["top", "tens"], "replicas": ["n2a", "n2b"]},
        },
        "clients": {"c": {"reads": ["top", "tens"]}},
    }
    plan, directory = load_data(data)
    return Deployed(plan, with_addresses(directory, {n: f"{n.replace(':', '-')}:1" for n in directory.addresses()}))


@pytest.mark.parametrize(
    ("reconcile", "options"),
    long_but(
        [("checkpoint", {}), ("undo", {"policy": "delay"}), ("undo", {"checkpoint": {"every": "500ms"}})],
        product(
            ["checkpoint", "undo"],
            [{}, {"policy": "delay"}, {"checkpoint": {"every": "500ms"}}, {"checkpoint": {"every": "30ms"}}],
        ),
    ),
)
async def test_checkpoint_and_undo_both_end_complete_in_a_chain(
    jump_clock: JumpClock, reconcile: str, options: dict[str, Any]
) -> None:
    async with FaultyCluster(*make_plan(reconcile=reconcile, **options)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.cut("source:b", "*")
            await trio.sleep(2.5)
            cluster.heal()
            outcome = await run(cluster, SECONDS + 8)
            outcome.assert_complete()
            assert outcome.tentative > 20
            replicas = [r.core for node in cluster.nodes.values() for r in node.replicas().values()]
            assert sum(r.counts.redone_rows for r in replicas) > 100
            assert (sum(r.counts.rebuilt_rows for r in replicas) > 0) == (reconcile == "undo")


async def test_a_replica_with_undo_gives_a_partner_its_state(jump_clock: JumpClock) -> None:
    """In UP_FAILURE it has no snapshot, and rebuilds the state at its marks for the partner."""
    async with FaultyCluster(*make_plan(reconcile="undo")) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2)
            cluster.kill("n1b")
            cluster.cut("source:b", "*")
            await trio.sleep(2)
            cluster.restart("n1b")
            await trio.sleep(1)
            assert origins(cluster, 3.9) == {"n1b": "n1a"}
            cluster.heal()
            await trio.sleep(3)
            cluster.kill("n1a")
            outcome = await run(cluster, SECONDS + 8)
            outcome.assert_complete()


DISK = {"every": "500ms", "disk": True}
NODES = ("n1a", "n1b", "n2a", "n2b")


def origins(cluster: FaultyCluster, since: float) -> dict[str, str]:
    """The origin of the state of each replica that was installed after ``since`` seconds."""
    words = [line.split() for line in cluster.log if " installed " in line]
    return {w[1]: w[4].removeprefix("origin=") for w in words if float(w[0]) > since}


def stop_all(cluster: FaultyCluster) -> None:
    for node in NODES:
        cluster.kill(node)


@pytest.mark.parametrize("reconcile", long_but(["undo"], ["checkpoint", "undo"]))
async def test_a_stopped_cluster_continues_from_its_disks(jump_clock: JumpClock, reconcile: str) -> None:
    """A3, A8: all replicas of all units stop at once; only the client has more than the disks."""
    async with FaultyCluster(*make_plan(reconcile=reconcile, checkpoint=DISK)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(4)
            stop_all(cluster)
            await trio.sleep(1)
            for node in NODES:
                cluster.restart(node)
            await trio.sleep(2)
            assert origins(cluster, 4) == dict.fromkeys(NODES, "disk")
            outcome = await run(cluster, SECONDS + 6)
            outcome.assert_complete()
            for node in cluster.nodes.values():
                for replica in node.replicas().values():
                    assert all(one.port.position > 0 for one in replica.inputs)


async def test_a_unit_continues_from_disk_after_upstream_truncation(
    jump_clock: JumpClock,
) -> None:
    """Without checkpoints on disk its state could not be rebuilt."""
    async with FaultyCluster(*make_plan(checkpoint=DISK)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(4)
            assert all(log.first > 1 for r in cluster.nodes["n1a"].replicas().values() for log in r.logs)
            cluster.kill("n2a")
            cluster.kill("n2b")
            await trio.sleep(1)
            cluster.restart("n2a")
            cluster.restart("n2b")
            outcome = await run(cluster, SECONDS + 6)
            assert origins(cluster, 4) == {"n2a": "disk", "n2b": "disk"}
            outcome.assert_complete()


async def test_upstream_keeps_everything_after_the_checkpoint(jump_clock: JumpClock) -> None:
    """A8: acknowledgements never pass the checkpoint on disk."""
    async with FaultyCluster(*make_plan(checkpoint={"every": "2s", "disk": True})) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(1.8)
            (log,) = (log for r in cluster.nodes["n1a"].replicas().values() for log in r.logs)
            assert log.last_id > 10
            assert log.first == 1
            await trio.sleep(1)
            assert log.first > 1


async def test_a_live_partner_is_asked_before_the_disk(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan(checkpoint=DISK)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.kill("n1a")
            await trio.sleep(1)
            cluster.restart("n1a")
            await trio.sleep(1)
            assert origins(cluster, 3) == {"n1a": "n1b"}
            cluster.kill("n1b")
            outcome = await run(cluster, SECONDS + 6)
            outcome.assert_complete()


async def test_a_damaged_checkpoint_is_reported_and_the_older_one_used(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan(checkpoint=DISK)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(4)
            stop_all(cluster)
            for node in NODES:
                storage = cluster.disks[node]
                path = max(p for p in storage.files if p.suffix == ".checkpoint")
                cluster.disks[node] = storage.with_file(path, storage.read(path)[:-9])
                cluster.restart(node)
            await trio.sleep(2)
            assert origins(cluster, 4) == dict.fromkeys(NODES, "disk")
            assert sum("checkpoint_refused" in line for line in cluster.log) == len(NODES)
            outcome = await run(cluster, SECONDS + 6)
            outcome.assert_complete()


async def test_with_a_full_disk_a_node_continues_without_acknowledging(
    jump_clock: JumpClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FaultyCluster(*make_plan(checkpoint=DISK)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2.2)
            for node in ("n2a", "n2b"):

                async def full(path: PurePosixPath, data: bytes) -> None:
                    raise OSError(errno.ENOSPC, "No space left on device")

                cluster.disks[node].write_atomic = full  # type: ignore[method-assign]
            await trio.sleep(0.2)
            (log,) = (log for r in cluster.nodes["n1a"].replicas().values() for log in r.logs)
            kept = log.first
            outcome = await run(cluster, SECONDS + 4)
            outcome.assert_complete()
            assert log.first == kept < log.last_id
            assert "no checkpoint: [Errno 28] No space left on device" in capsys.readouterr().err


async def test_a_stop_while_tentative_loses_nothing(jump_clock: JumpClock) -> None:
    """The disk has the state before the failure; after the restart the failure still lasts."""
    async with FaultyCluster(*make_plan(checkpoint=DISK)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2.5)
            cluster.cut("source:b", "*")
            await trio.sleep(2)
            stop_all(cluster)
            for node in NODES:
                cluster.restart(node)
            await trio.sleep(1.5)
            cluster.heal()
            outcome = await run(cluster, SECONDS + 8)
            outcome.assert_complete()


@pytest.mark.parametrize("seed", long_but(range(2), range(5)))
async def test_a_cluster_survives_stops_at_any_time(jump_clock: JumpClock, seed: int) -> None:
    """Twice, at any moment of a start, failure, correction or recovery, with disks of different ages."""
    random = Random(seed)
    plan, directory = make_plan(reconcile=random.choice(["checkpoint", "undo"]), checkpoint=DISK)
    async with FaultyCluster(plan, directory, seed=seed) as cluster:
        with cluster.explain():
            await cluster.start()
            for _ in range(2):
                await trio.sleep(random.uniform(0.2, 2.5))
                cluster.cut("source:b", "*")
                await trio.sleep(random.uniform(0.1, 2))
                cluster.heal()
                await trio.sleep(random.uniform(0, 1))
                stop_all(cluster)
                await trio.sleep(random.uniform(0, 1))
                for node in random.sample(NODES, len(NODES)):
                    cluster.restart(node)
                    await trio.sleep(random.uniform(0, 0.5))
            outcome = await run(cluster, SECONDS + 14)
            outcome.assert_complete()


@pytest.mark.parametrize("reconcile", long_but(["checkpoint"], ["checkpoint", "undo"]))
async def test_a_checkpoint_on_disk_is_preferred_to_a_partner_behind(jump_clock: JumpClock, reconcile: str) -> None:
    """A2, A3: the partner was given up as a dead one, so upstream has forgotten what it needs, and it is asked
    before it can know.  With its state both would wait for ever; ours on disk serves both."""
    plan, directory = make_plan(checkpoint=DISK, reconcile=reconcile)
    async with FaultyCluster(replace(plan, limits=replace(plan.limits, output_bytes=20_000)), directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(1.5)
            for upstream in ("n1a", "n1b"):
                cluster.cut(upstream, "n2a")
            await trio.sleep(5)
            assert any(" evicted " in line and "n2a" in line for line in cluster.log)
            cluster.kill("n2b")
            cluster.restart("n2b")
            await trio.sleep(0.5)
            assert origins(cluster, 4) == {"n2b": "disk"}
            cluster.heal()
            outcome = await run(cluster, SECONDS + 10)
            outcome.assert_complete()
            assert origins(cluster, 4)["n2a"] == "n2b"
