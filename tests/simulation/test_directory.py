"""The directory changes while a cluster runs: all go by the new version, and no tuple is lost (rules D2, D3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import trio

from consistency.checking.counters import Counters
from consistency.checking.promises.completeness import check_completeness
from consistency.checking.promises.permanence import check_permanence
from consistency.checking.promises.switching import check_switching
from consistency.checking.protocol.directories import check_directories
from consistency.checking.protocol.feeds import check_feeds
from replicas.link.connection import Identity, dial
from replicas.simulation.simulate import is_quiet
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.host import seeded_scheduling
from spe.plan.deploy import Deployed
from spe.plan.directory import COORDINATOR, Directory, Role, Version
from spe.plan.revision import revised
from spe.stream.history import DirectoryApplied, Received
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, UnitId
from spe.wire.messages.connection import DirectoryAnswer
from tests.simulation.test_buffers import longer
from tests.simulation.test_cluster import make_plan
from tests.simulation.test_standbys import gone, runs, tentative, with_standbys
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.situations import play, until

FIRST, SECOND = PartitionId(UnitId("u1"), 0), PartitionId(UnitId("u2"), 0)
N2A, N2B, N2C = (NodeId(f"n2{letter}") for letter in "abc")
ME = Identity("node", "n1b", 1)


def two_units() -> Deployed:
    """u1 and u2 in a row, each with a replica and a standby; n2c has no role."""
    plan, directory = with_standbys(*longer(*make_plan(2, replicas=3), 14))
    for partition, node in ((FIRST, NodeId("n1c")), (SECOND, N2C)):
        directory = directory.with_role(partition, node, None)
    return Deployed(plan, directory)


def versions(cluster: FaultyCluster) -> dict[str, Version]:
    """The version of the directory that each process uses."""
    return {e.host: Version(e.epoch, e.number) for e in cluster.history if isinstance(e, DirectoryApplied)}


async def publish(
    cluster: FaultyCluster, change: Callable[[Directory], Directory], *, away: tuple[str, ...] = ()
) -> None:
    """Issues a version, and waits until all running processes use it."""
    assert cluster.coordinator is not None
    await cluster.coordinator.directories.publish(change)
    wanted = cluster.coordinator.directories.version
    await until(lambda: all(v == wanted for host, v in versions(cluster).items() if host not in away), within_s=3)
    assert len(versions(cluster)) == len(cluster.disks)


def consumers(cluster: FaultyCluster, replica: str) -> set[str]:
    """Consumers for which the first output of a replica is kept."""
    return set(cluster.replicas()[replica].logs[0]._acks)


def test_added_standby_takes_over_and_removed_one_holds_no_log() -> None:
    plan, directory = two_units()

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        await publish(cluster, lambda d: d.with_role(SECOND, N2C, Role.STANDBY))
        assert consumers(cluster, "u1/0@n1a") == {"u2/0@n2a", "u2/0@n2b", "u2/0@n2c"}
        await until(lambda: cluster.nodes["n2c"].status().standbys[0].checkpoints > 1)
        for node in ("n2a", "n2b"):
            cluster.kill(node)
        await until(lambda: runs(cluster, "u2/0@n2c"))
        for node in ("n2a", "n2b"):
            cluster.restart(node)
        await until(lambda: runs(cluster, "u2/0@n2a") and gone(cluster, "u2/0@n2c"))
        await publish(cluster, lambda d: d.with_role(SECOND, N2C, None))
        assert consumers(cluster, "u1/0@n1a") == {"u2/0@n2a", "u2/0@n2b"}
        assert cluster.nodes["n2c"].status().standbys == ()

    play(plan, directory, script)


def test_an_added_replica_is_read_and_a_removed_one_is_not() -> None:
    """A move by hand: no gap, no duplicate (the client's ids), no tentative tuple."""
    plan, directory = two_units()

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        await publish(cluster, lambda d: d.with_role(SECOND, N2C, Role.ACTIVE))
        await until(lambda: runs(cluster, "u2/0@n2c"))
        await publish(cluster, lambda d: d.with_role(SECOND, N2A, None))
        assert "u2/0@n2a" not in cluster.replicas()
        assert consumers(cluster, "u1/0@n1a") == {"u2/0@n2b", "u2/0@n2c"}
        await trio.sleep(2)
        cluster.kill("n1a")
        await until(lambda: runs(cluster, "u1/0@n1b"))
        cluster.restart("n1a")
        await until(lambda: gone(cluster, "u1/0@n1b"))

    met = play(plan, directory, script)
    read = [e.producer for e in met.history if isinstance(e, Received) and e.consumer == "client:c"]
    assert (read[0], read[-1]) == ("n2a", "n2c")
    assert tentative(met) == 0


def test_new_version_reaches_processes_that_were_away() -> None:
    """Who was dead, cut off or without power learns of it; who knew it knows it after a restart without being told."""
    plan, directory = two_units()

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        cluster.cut("source:b", "*")
        cluster.kill("n2b")
        await publish(cluster, lambda d: d.with_role(SECOND, N2C, Role.STANDBY), away=("source:b", "n2b"))
        assert {versions(cluster)[host] for host in ("source:b", "n2b")} == {Version(0, 0)}
        cluster.heal()
        cluster.restart("n2b")
        wanted = versions(cluster)[COORDINATOR]
        await until(lambda: set(versions(cluster).values()) == {wanted}, within_s=4)
        cluster.kill(COORDINATOR)
        for host in ("source:a", "n1b"):
            cluster.kill(host, power=True)
            at = len(cluster.history)
            cluster.cut(host, "*")
            cluster.restart(host)
            await trio.sleep(0.3)
            told = [e for e in list(cluster.history)[at:] if isinstance(e, DirectoryApplied) and e.host == host]
            assert [(e.epoch, e.number) for e in told] == [wanted], "from its disk"
            cluster.heal()
        cluster.restart(COORDINATOR)
        await until(lambda: set(versions(cluster).values()) == {Version(versions(cluster)[COORDINATOR].epoch, 2)})
        assert versions(cluster)[COORDINATOR] > wanted, "the next coordinator issues it again"

    play(plan, directory, script)


def test_coordinator_without_store_issues_what_nodes_know() -> None:
    """Its disk is lost: the nodes know, and it asks them before it could take anything back."""
    plan, directory = two_units()
    changed = directory.with_role(SECOND, N2C, Role.STANDBY)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        await publish(cluster, lambda d: d.with_role(SECOND, N2C, Role.STANDBY))
        before = versions(cluster)[COORDINATOR]
        cluster.ended(cluster.began("wipe", (COORDINATOR,)))
        cluster.wipe(COORDINATOR)
        cluster.restart(COORDINATOR)
        await until(lambda: min(versions(cluster).values()) > before)
        assert cluster.coordinator is not None
        assert cluster.coordinator.directories.current.roles == changed.roles
        assert len(set(versions(cluster).values())) == 1

    play(plan, directory, script)


def test_older_versions_and_those_of_older_epochs_are_refused() -> None:
    """By sources as well: each is shown the version of before, and one with a larger number of an older epoch."""
    plan, directory = two_units()

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        await publish(cluster, lambda d: d.with_role(SECOND, N2C, Role.STANDBY))
        assert cluster.coordinator is not None
        older = cluster.coordinator.directories.revision
        assert older is not None
        cluster.kill(COORDINATOR)
        cluster.restart(COORDINATOR)
        await until(lambda: min(versions(cluster).values()) > older.version)
        newest = versions(cluster)
        later = replace(older, version=Version(older.version.epoch, 99), roles=directory.roles)
        for host in ("n1a", "n2c", "source:a"):
            connection, _ = await dial(cluster.env("n1b"), plan, ME, host, directory.addresses()[host])
            for revision in (older, later):
                await connection.send(DirectoryAnswer(revision.encode()))
            await trio.sleep(0.2)
            await connection.aclose()
        assert versions(cluster) == newest

    met = play(plan, directory, script)
    assert sum("directory_refused" in line for line in met.log) == 6


def test_a_standby_that_gets_the_active_role_runs() -> None:
    plan, directory = two_units()

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2.5)
        assert gone(cluster, "u2/0@n2b")
        await publish(cluster, lambda d: d.with_role(SECOND, N2B, Role.ACTIVE))
        await until(lambda: runs(cluster, "u2/0@n2b"))
        cluster.kill("n2a")
        await trio.sleep(2)
        cluster.restart("n2a")

    assert tentative(play(plan, directory, script)) == 0


def test_recreated_replica_keeps_checkpoint_schedule() -> None:
    """Its tasks are those of the one before it; acknowledgements must not wait for checkpoints that nobody writes."""
    plan, directory = two_units()

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        await publish(cluster, lambda d: d.with_role(SECOND, N2B, Role.ACTIVE))
        await until(lambda: runs(cluster, "u2/0@n2b"))
        node, epoch = cluster.nodes["n2b"], versions(cluster)[COORDINATOR].epoch
        assert directory.disk_us(ReplicaId(*SECOND, N2B)) is not None, "as a standby it would write some"
        await node._keeper.take(revised(directory, Version(epoch, 50), directory))
        made = node.hosting.host(ReplicaId(*SECOND, N2B))
        assert made.replica.recovery.stores_every_us is None
        await until(lambda: gone(cluster, "u2/0@n2b"))

    play(plan, directory, script)


class Changes:
    """Random changes of roles, deaths, power failures and cuts.

    Roles are given at any time, and taken only where another active replica is STABLE; so do processes die.
    """

    def __init__(self, cluster: FaultyCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(seed)
        self._down: set[str] = set()

    async def play(self, until_s: float) -> None:
        while trio.current_time() < until_s:
            await trio.sleep(self._random.uniform(0.05, 1.2))
            step = self._random.choices([self._change, self._die_or_return, self._cut, self._heal], [11, 6, 2, 1])[0]
            await step()
        self._cluster.heal()
        for host in sorted(self._down | self._cluster.ended_alone):
            self._cluster.restart(host)

    async def _change(self) -> None:
        coordinator = self._cluster.coordinator
        partition = self._random.choice([FIRST, SECOND])
        node = NodeId(f"n{partition.unit[1]}{self._random.choice('abc')}")
        role = self._random.choice([Role.ACTIVE, Role.ACTIVE, Role.STANDBY, None])
        if coordinator is None or COORDINATOR in self._down or not coordinator.epoch:
            return
        if role is Role.ACTIVE or self._replaceable(partition, node):
            await coordinator.directories.publish(lambda d: d.with_role(partition, node, role))

    async def _die_or_return(self) -> None:
        cluster = self._cluster
        host = self._random.choice([*cluster.directory.nodes, COORDINATOR, COORDINATOR, "source:a", "source:b"])
        if host in self._down:
            self._down.remove(host)
            cluster.restart(host)
        elif not host.startswith("n") or self._replaceable(FIRST if host.startswith("n1") else SECOND, NodeId(host)):
            self._down.add(host)
            cluster.kill(host, power=self._random.random() < 0.5)

    async def _cut(self) -> None:
        cluster = self._cluster
        host = self._random.choice([*cluster.directory.nodes, COORDINATOR, "source:a", "source:b", "client:c"])
        cluster.cut(host, "*")

    async def _heal(self) -> None:
        self._cluster.heal()

    def _replaceable(self, partition: PartitionId, node: NodeId) -> bool:
        coordinator = self._cluster.coordinator
        assert coordinator is not None
        others = set(coordinator.directories.current.placement[partition]) - {node, *self._down}
        return any(runs(self._cluster, f"{partition}@{other}") for other in others)


@pytest.mark.parametrize("seed", long_but([7], [4, 7, 10]))
def test_random_changes_lose_no_tuple(seed: int) -> None:
    """All processes end with one version; versions never go back; the client has the whole stable stream."""
    plan, directory = with_standbys(*longer(*make_plan(2, replicas=3), 25))

    async def main() -> None:
        async with FaultyCluster(plan, directory, seed=seed) as cluster:
            with cluster.explain():
                await cluster.start()
                await trio.sleep(1.5)
                await Changes(cluster, seed).play(22)
                await until(lambda: is_quiet(cluster) and len(set(versions(cluster).values())) == 1, within_s=60)
                reference = cluster.reference()
                assert cluster.coordinator is not None
                last = cluster.coordinator.directories.current
                assert last.version.number > 1
                found = [
                    *check_directories(cluster.history, Counters()),
                    *check_permanence(cluster.history, plan, Counters()),
                    *check_feeds(cluster.history, plan, Counters()),
                    *check_switching(cluster.history, plan, reference, Counters()),
                    *check_completeness(cluster.history, plan, last, reference, Counters()),
                ]
                assert found == []

    with seeded_scheduling(seed):
        trio.run(main, clock=JumpClock(120.0))
