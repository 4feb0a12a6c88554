"""The coordinator stores a version of the directory before it sends it, under its own epoch (D2, H6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from replicas.link.connection import Identity
from replicas.placement.issuing import DirectoryIssuer
from replicas.placement.store import REVISIONS, CoordinatorStore
from replicas.simulation.world.clock import SimClock
from replicas.simulation.world.disk import SimDisk
from spe.errors import OtherConfiguration
from spe.log.issued_directories import PATH
from spe.plan.directory import CONFIGURED, COORDINATOR, Directory, Role, Version
from spe.plan.revision import revised
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from tests.unit.spe.plan.test_revision import FIRST, N1, N2, deployed

Beginning = Callable[..., DirectoryIssuer]


@pytest.fixture
def begin() -> Iterator[Beginning]:
    """Begins a coordinator's epoch on a disk; what it opened is closed after the test."""
    with ExitStack() as opened:

        def one(
            disk: SimDisk, epoch: int, configuration: Directory | None = None, *, bucket_us: int | None = None
        ) -> DirectoryIssuer:
            nothing: Any = None
            env = Env(SimClock(), nothing, disk, nothing, Random(0), NullTrace())
            store = opened.enter_context(CoordinatorStore(env))
            plan, directory = deployed()
            plan = replace(plan, bucket_us=plan.bucket_us if bucket_us is None else bucket_us)
            configuration = directory if configuration is None else configuration
            return DirectoryIssuer(env, plan, configuration, Identity("coordinator", COORDINATOR, epoch), store)

        yield one


def with_n2a(directory: Directory) -> Directory:
    return directory.with_role(FIRST, N2, Role.STANDBY)


async def test_next_coordinator_issues_stored_version_in_own_epoch(begin: Beginning) -> None:
    disk = SimDisk()
    first = begin(disk, 5)
    await first.begin()
    assert first.version == CONFIGURED, "what the configuration says is not issued"
    await first.publish(with_n2a)
    await first.publish(lambda d: d.with_role(FIRST, N1, Role.STANDBY))
    assert first.version == Version(5, 2)
    second = begin(disk.power_loss(lambda path, synced, written: synced), 8)
    assert second.version == Version(5, 2)
    await second.begin()
    assert second.version == second.me.directory == Version(8, 3)
    assert second.current.roles == first.current.roles


async def test_a_version_that_cannot_be_stored_is_not_issued(begin: Beginning) -> None:
    disk = SimDisk()
    one, seen = begin(disk, 5), list[Version]()
    one.on_change(lambda directory: seen.append(directory.version))
    disk.space_left = 0
    with pytest.raises(OSError, match="No space"):
        await one.publish(with_n2a)
    assert (seen, one.version) == ([], CONFIGURED)
    disk.space_left = None
    await one.publish(lambda d: d.with_role(FIRST, N1, Role.STANDBY))
    assert begin(disk.restarted(), 6).current.roles == one.current.roles
    assert N2 not in one.current.roles[FIRST], "what was refused is not in it"


async def test_a_newer_version_of_another_process_is_issued_again(begin: Beginning) -> None:
    _, directory = deployed()
    one = begin(SimDisk(), 7)
    await one.take(revised(directory, Version(5, 4), with_n2a(directory)))
    assert (one.version, one.current.standbys[FIRST].nodes) == (Version(7, 5), ("n2a",))
    await one.take(revised(directory, Version(6, 9), directory))
    assert one.version == Version(7, 5), "it is older: another coordinator of before made it"
    assert one.later == 0
    await one.take(revised(directory, Version(8, 1), directory))
    assert (one.version, one.later) == (Version(7, 5), 8), "somebody has begun after us"


async def test_a_store_of_another_configuration_is_refused_by_name(begin: Beginning) -> None:
    disk = SimDisk()
    await begin(disk, 5).publish(with_n2a)
    other = deployed().directory.with_role(FIRST, N1, None)
    with pytest.raises(OtherConfiguration, match="coordinator: version 5/1 of the directory began with other roles"):
        begin(disk.restarted(), 6, other)


async def test_a_damaged_revision_is_replaced_by_the_one_before(begin: Beginning) -> None:
    disk = SimDisk()
    one = begin(disk, 5)
    for _ in range(REVISIONS + 3):
        await one.publish(with_n2a)
    kept = disk.read(PATH)
    newest = one.revision
    assert newest is not None
    damaged = kept.replace(newest.encode(), b"\0" * len(newest.encode()))
    assert damaged != kept
    assert begin(disk.with_file(PATH, damaged), 6).version == Version(5, REVISIONS + 2)
    assert len(kept) < 2 * REVISIONS * len(newest.encode()) + 64_000


async def test_another_plan_begins_with_its_configuration(begin: Beginning) -> None:
    """The query was changed, and the coordinator's folder kept: the partitions of before mean nothing."""
    disk = SimDisk()
    await begin(disk, 5).publish(with_n2a)
    other = deployed().directory.with_role(FIRST, N1, None)
    changed = begin(disk.restarted(), 6, other, bucket_us=7)
    assert changed.version == CONFIGURED
    await changed.publish(with_n2a)
    assert begin(disk.restarted(), 7).version == Version(5, 1)
