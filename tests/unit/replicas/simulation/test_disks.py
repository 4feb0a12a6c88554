"""Disks that are slow, lie about syncs, or are lost: the faults work, and the cluster tolerates them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import PurePosixPath
from random import Random
from typing import Any

import pytest
import trio

from replicas.faults.model import read_faults
from replicas.simulation.driver import FaultDriver
from replicas.simulation.simulate import simulate
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from replicas.simulation.world.disk import SimDisk, torn
from spe.problems import Problems
from spe.stream.history import Note
from tests.simulation.test_cluster import make_plan
from tests.simulation.test_simulate import CONFIG, scenario, story

PATH = PurePosixPath("log/1")


def synced_only(_: PurePosixPath, synced: bytes, written: bytes) -> bytes:
    return synced


@pytest.mark.parametrize("lies", [False, True])
async def test_a_sync_of_a_lying_disk_saves_nothing(lies: bool) -> None:
    disk = SimDisk()
    disk.lies = lies
    file = disk.open(PATH)
    file.append(b"abc")
    await file.sync()
    assert disk.power_loss(synced_only).read(PATH) == (b"" if lies else b"abc")
    assert disk.restarted().power_loss(synced_only).read(PATH) == (b"" if lies else b"abc")


@pytest.mark.parametrize("lies", [False, True])
async def test_a_file_replaced_on_a_lying_disk_may_be_torn(lies: bool) -> None:
    disk = SimDisk()
    await disk.write_atomic(PATH, b"old")
    disk.lies = lies
    await disk.write_atomic(PATH, b"abcdef")
    random = Random(1)
    left = {disk.power_loss(lambda _, synced, written: torn(random, synced, written)).read(PATH) for _ in range(50)}
    assert (left == {b"abcdef"}) is not lies


async def test_a_disk_that_stops_lying_saves_earlier_writes() -> None:
    disk = SimDisk()
    disk.lies = True
    file = disk.open(PATH)
    file.append(b"abc")
    await file.sync()
    disk.lies = False
    await file.sync()
    assert disk.power_loss(synced_only).read(PATH) == b"abc"


async def test_a_slow_disk_delays_syncs(jump_clock: JumpClock) -> None:
    disk = SimDisk()
    disk.sync_s = 0.3
    file = disk.open(PATH)
    file.append(b"abc")
    await file.sync()
    await disk.write_atomic(PATH, b"x")
    assert trio.current_time() == pytest.approx(0.6)


async def test_a_wiped_disk_is_empty_at_the_restart(jump_clock: JumpClock) -> None:
    async with SimCluster(*make_plan()) as cluster:
        await cluster.start()
        await trio.sleep(1)
        assert cluster.disks["n1a"].files
        cluster.wipe("n1a")
        assert not cluster.disks["n1a"].files
        cluster.restart("n1a")


async def test_faults_of_disks_reach_the_disks_and_end(jump_clock: JumpClock) -> None:
    """Also where the process restarts meanwhile."""
    async with SimCluster(*make_plan()) as cluster:
        await cluster.start()
        driver = FaultDriver(cluster, Random(1))
        problems = Problems()
        data = [
            {"at": "1s", "kind": "slow-disk", "target": ["n1a", "source:a"], "by": "50ms", "for": "4s"},
            {"at": "1s", "kind": "lie", "target": "n1a", "for": "4s"},
            {"at": "2s", "kind": "restart", "target": "n1a"},
        ]
        faults = tuple(read_faults(data, (), cluster.directory, problems))
        assert not problems.found
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run, faults)
            for at in (1.5, 3):
                await trio.sleep_until(at)
                assert [cluster.disks[host].sync_s for host in ("n1a", "n1b", "source:a")] == [0.05, 0, 0.05]
                assert [cluster.disks[host].lies for host in ("n1a", "n1b")] == [True, False]
            await trio.sleep_until(5.5)
            assert not any(disk.sync_s or disk.lies for disk in cluster.disks.values())
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("kind", "target"), [("lie", "source:a"), ("lie", "coordinator"), ("wipe", "coordinator")])
def test_only_disks_of_nodes_and_clients_lose_anything(kind: str, target: str) -> None:
    directory = replace(scenario(1, []), config=standing_by()).deployed().directory
    problems = Problems()
    read_faults([{"at": "1s", "kind": kind, "target": target, "for": "1s"}], (), directory, problems)
    assert [p.message for p in problems.found] == [f"the disk of {target} is outside the fault model"]


def standing_by() -> dict[str, Any]:
    config = deepcopy(CONFIG)
    config["fragments"]["all"] |= {"replicas": ["n1"], "standby": ["n2"], "checkpoint": "300ms"}
    return config


def on_disk() -> dict[str, Any]:
    return {**CONFIG, "defaults": {**CONFIG["defaults"], "checkpoint": {"every": "300ms", "disk": True}}}


@pytest.mark.parametrize("config", [on_disk(), standing_by()], ids=["checkpoints", "standby"])
def test_data_lost_by_a_lying_disk_come_from_a_partner(config: dict[str, Any]) -> None:
    """A torn checkpoint is refused; the state comes from a partner, or from the sources' logs."""
    faults = [
        {"at": "1s", "kind": "lie", "target": ["n1", "n2"], "for": "5s"},
        {"at": "4s", "kind": "power", "target": "n1", "for": "1s"},
    ]
    if "standby" in config["fragments"]["all"]:
        faults.append({"at": "4s", "kind": "power", "target": "n2", "for": "1s"})
    refused = 0
    for seed in range(2):
        outcome = simulate(replace(scenario(seed, faults), config=config))
        assert outcome.finished, "\n".join(outcome.story[-40:])
        assert outcome.holds, story(outcome)
        assert outcome.skipped == []
        refused += sum(isinstance(e, Note) and e.name == "checkpoint_refused" for e in outcome.history)
    assert refused > 0


@pytest.mark.parametrize("config", [on_disk(), standing_by()], ids=["checkpoints", "standby"])
def test_a_node_that_lost_its_disk_recovers(config: dict[str, Any]) -> None:
    outcome = simulate(replace(scenario(1, [{"at": "4s", "kind": "wipe", "target": "n1", "for": "1s"}]), config=config))
    assert outcome.finished, "\n".join(outcome.story[-40:])
    assert outcome.holds, story(outcome)
    assert outcome.skipped == []
