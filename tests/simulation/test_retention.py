"""Clusters whose sources delete the oldest part of their logs: nothing that is needed goes, whoever dies (E1 to E4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
import trio

from consistency.checking.counters import Counters
from consistency.checking.logs.retained_logs import check_retained
from consistency.comparison import compare
from replicas.client.recorder import stable_rows
from replicas.simulation.scenarios.feature_set import Feature
from replicas.simulation.scenarios.random_scenario import random_scenario
from replicas.simulation.simulate import simulate
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from replicas.simulation.world.host import seeded_scheduling
from spe.log.log_start import read_kept
from spe.plan.deploy import Deployed
from spe.plan.nodes import Checkpoints
from spe.plan.plan import Retain
from spe.stream.history import Note
from tests.simulation.test_cluster import SECONDS, make_plan
from tests.support.faulty_cluster import FaultyCluster

RETAIN = Retain(for_us=100_000, unproved=True)


def retaining(depth: int = 1, retain: Retain = RETAIN, replicas: int = 2, every_us: int = 300_000) -> Deployed:
    """Three sources with short logs; every node has its state on its disk."""
    plan, directory = make_plan(depth, replicas=replicas)
    every = Checkpoints(every_us=every_us, disk=True)
    return Deployed(
        replace(plan, sources={n: replace(s, retain=retain) for n, s in plan.sources.items()}),
        replace(directory, nodes={n: replace(one, checkpoints=every) for n, one in directory.nodes.items()}),
    )


def begins(cluster: SimCluster) -> list[int]:
    """Id of the last tuple that each source has deleted."""
    return [read_kept(cluster.disks[f"source:{s}"], PurePosixPath(s)).last_id for s in cluster.plan.sources]


def assert_complete(cluster: SimCluster) -> None:
    """The client has what a run without failures gives from all that was ever logged."""
    reference = cluster.reference()
    changes = cluster.changes["c"]
    found = {
        channel: stable_rows([c for c in changes if c.channel == channel], cluster.plan.query.schema_of(channel.stream))
        for channel in reference
    }
    assert compare(found, reference) == []
    assert sum(len(ids) for ids, _ in reference.values()) > 100
    assert list(check_retained(cluster.history, cluster.plan, cluster.versions, Counters())) == []


async def restarted(cluster: SimCluster, hosts: Sequence[str], after_s: float) -> None:
    for host in hosts:
        cluster.kill(host, power=True)
    await trio.sleep(after_s)
    for host in hosts:
        cluster.restart(host)


@pytest.mark.parametrize("archive", ["", "/archive"], ids=["alone", "archived"])
async def test_all_replicas_die_after_deletion_and_resume(jump_clock: JumpClock, archive: str) -> None:
    """Twice, and the sources with them; each begins from its disk, for no log has its beginning any more.

    They die long after their last checkpoint, and after the source has looked what it may delete.
    """
    plan, directory = retaining(2, replace(RETAIN, archive=archive), every_us=2_000_000)
    hosts = [*directory.nodes, *(f"source:{s}" for s in plan.sources)]
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3.5)
            first = begins(cluster)
            assert all(first)
            await restarted(cluster, hosts, 0.5)
            await trio.sleep(3.5)
            assert all(a > b for a, b in zip(begins(cluster), first, strict=True))
            await restarted(cluster, hosts, 0.5)
            await trio.sleep(SECONDS + 6 - trio.current_time())
            assert_complete(cluster)


async def test_dead_replica_holds_log_and_is_named_until_it_returns(jump_clock: JumpClock) -> None:
    plan, directory = retaining(1)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.kill("n1a")
            await trio.sleep(1)
            before = begins(cluster)
            await trio.sleep(3)
            assert begins(cluster) == before
            status = cluster.sources[next(iter(plan.sources))].status()
            assert status.log is not None
            (held,) = status.log.held
            assert held.holder == "u1/0@n1a"
            assert held.bytes > 0
            assert held.since_us > 3_000_000
            assert cluster.sources[next(iter(plan.sources))].too_much() == "keeps for u1/0@n1a what is due"
            cluster.restart("n1a")
            await trio.sleep(SECONDS + 6 - trio.current_time())
            assert all(a > b for a, b in zip(begins(cluster), before, strict=True))
            assert [cluster.sources[s].too_much() for s in plan.sources] == ["", "", ""]
            assert_complete(cluster)


async def test_a_node_with_a_new_disk_takes_the_state_of_its_partner(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*retaining(1)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            assert all(begins(cluster))
            cluster.wipe("n1a")
            await trio.sleep(0.3)
            cluster.restart("n1a")
            await trio.sleep(SECONDS + 6 - trio.current_time())
            assert any("installed replica=u1/0@n1a origin=n1b" in line for line in cluster.log)
            assert_complete(cluster)


def test_replica_without_state_names_missing_input() -> None:
    """Nothing wrong comes out, and nothing at all."""
    notes: list[Note] = []

    async def main() -> None:
        async with SimCluster(*retaining(1, replicas=1), seed=1) as cluster:
            await cluster.start()
            await trio.sleep(4)
            assert all(begins(cluster))
            before = len(cluster.changes["c"])
            cluster.wipe("n1a")
            cluster.restart("n1a")
            await trio.sleep(6)
            assert len(cluster.changes["c"]) - before < 5
            notes.extend(e for e in cluster.history if isinstance(e, Note) and e.name == "stranded")

    with seeded_scheduling(1):
        trio.run(main, clock=JumpClock(60.0))
    (one,) = notes
    for name in "abc":
        assert f"{name}/0: source:{name} begins at id " in one.text


@pytest.mark.parametrize("seed", [2, 4, 5])
def test_random_runs_delete_and_hold(seed: int) -> None:
    outcome = simulate(random_scenario(seed, frozenset({Feature.RETENTION})))
    assert outcome.findings == []
    assert outcome.counters.amounts["times that a source deleted"] > 0


def test_without_retain_a_scenario_has_none_of_it() -> None:
    one, other = random_scenario(3), random_scenario(3, frozenset({Feature.RETENTION}))
    assert (one.heal_us, one.seed) == (other.heal_us, other.seed)
    assert "retain" not in str(one.config)
    assert "retain" in str(other.config)
