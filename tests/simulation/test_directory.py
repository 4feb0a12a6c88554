"""The directory changes while a cluster runs: all go by the new version, and no tuple is lost (rules D2, D3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import trio

from replicas.link.connection import Identity, dial
from spe.plan.deploy import Deployed
from spe.plan.directory import COORDINATOR, Directory, Role, Version
from spe.stream.history import DirectoryApplied, Received
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from spe.wire.messages import DirectoryAnswer
from tests.simulation.test_buffers import longer
from tests.simulation.test_cluster import make_plan
from tests.simulation.test_standbys import gone, runs, tentative, with_standbys
from tests.support.faulty_cluster import FaultyCluster
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
    """What each process goes by."""
    return {e.host: Version(e.epoch, e.number) for e in cluster.history if isinstance(e, DirectoryApplied)}


async def publish(
    cluster: FaultyCluster, change: Callable[[Directory], Directory], *, away: tuple[str, ...] = ()
) -> None:
    """Until all that run go by it."""
    assert cluster.coordinator is not None
    await cluster.coordinator.directories.publish(change)
    wanted = cluster.coordinator.directories.version
    await until(lambda: all(v == wanted for host, v in versions(cluster).items() if host not in away), within_s=3)
    assert len(versions(cluster)) == len(cluster.disks)


def consumers(cluster: FaultyCluster, replica: str) -> set[str]:
    """Those for whom the first output of a replica is kept."""
    return set(cluster.replicas()[replica].logs[0]._acks)


def test_an_added_standby_takes_over_and_a_removed_one_holds_no_log() -> None:
    plan, directory = two_units()
    with_n2c = directory.with_role(SECOND, N2C, Role.STANDBY)

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

    play(plan, directory, script, judged=with_n2c)


def test_an_added_replica_is_read_and_a_removed_one_is_not() -> None:
    """A move by hand: no gap, no duplicate (the client's ids), no tentative tuple."""
    plan, directory = two_units()
    moved = directory.with_role(SECOND, N2C, Role.ACTIVE).with_role(SECOND, N2A, None)

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

    met = play(plan, directory, script, judged=moved)
    read = [e.producer for e in met.history if isinstance(e, Received) and e.consumer == "client:c"]
    assert (read[0], read[-1]) == ("n2a", "n2c")
    assert tentative(met) == 0


def test_a_new_version_reaches_all_processes_also_those_that_were_away() -> None:
    """Who was dead, cut off or without power learns of it; who knew it knows it after a restart without being told."""
    plan, directory = two_units()
    changed = directory.with_role(SECOND, N2C, Role.STANDBY)

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

    play(plan, directory, script, judged=changed)


def test_a_coordinator_without_its_store_issues_what_the_nodes_know() -> None:
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

    play(plan, directory, script, judged=changed)


def test_older_versions_and_those_of_older_epochs_are_refused() -> None:
    """By sources as well: each is shown the version of before, and one with a larger number of an older epoch."""
    plan, directory = two_units()
    changed = directory.with_role(SECOND, N2C, Role.STANDBY)

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

    met = play(plan, directory, script, judged=changed)
    assert sum("directory_refused" in line for line in met.log) == 6


def test_a_standby_that_gets_the_active_role_runs() -> None:
    plan, directory = two_units()
    changed = directory.with_role(SECOND, N2B, Role.ACTIVE)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2.5)
        assert gone(cluster, "u2/0@n2b")
        await publish(cluster, lambda d: d.with_role(SECOND, N2B, Role.ACTIVE))
        await until(lambda: runs(cluster, "u2/0@n2b"))
        cluster.kill("n2a")
        await trio.sleep(2)
        cluster.restart("n2a")

    assert tentative(play(plan, directory, script, judged=changed)) == 0
