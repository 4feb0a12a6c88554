"""Which directory a process goes by, what it keeps of it, and when it tells or asks (rule D2)."""

from __future__ import annotations

from pathlib import PurePosixPath
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from consistency.checking.counters import Counters
from consistency.checking.protocol.directories import check_directories
from replicas.link.connection import Identity
from replicas.link.directory import ASK_AGAIN_US, DirectoryExchange, DirectoryKeeper, revision_file
from replicas.simulation.world.disk import SimDisk
from spe.errors import OtherConfiguration, RemoteProtocolError
from spe.plan.directory import CONFIGURED, Directory, Role, Version
from spe.plan.revision import Revision, revised
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from spe.stream.history import DirectoryApplied, History
from spe.stream.names import NodeId
from spe.wire.messages.connection import DirectoryAnswer, DirectoryRequest
from tests.unit.spe.plan.test_revision import FIRST, N2, deployed

PATH = revision_file(PurePosixPath("nodes", "n1a"), deployed().plan)


class AtZero:
    def monotonic_us(self) -> int:
        return 0


def keeper(
    disk: SimDisk | None = None,
    configuration: Directory | None = None,
    history: History | None = None,
    me: Identity | None = None,
) -> DirectoryKeeper:
    nothing: Any = None
    clock: Any = AtZero()
    env = Env(clock, nothing, SimDisk() if disk is None else disk, nothing, Random(0), NullTrace(), history)
    configuration = deployed().directory if configuration is None else configuration
    return DirectoryKeeper(env, configuration, me or Identity("node", "n1a", 1), PATH)


def version(epoch: int, number: int, role: Role | None = Role.STANDBY) -> Revision:
    """n2a has this role for the first partition."""
    _, directory = deployed()
    return revised(directory, Version(epoch, number), directory.with_role(FIRST, N2, role))


async def test_a_newer_version_counts_and_an_older_one_does_not() -> None:
    """The versions that it went by, in its own words, are judged as those of a run are."""
    history, seen = History(), list[Version]()
    one = keeper(history=history)
    one.on_change(lambda directory: seen.append(directory.version))
    for epoch, number in ((1, 1), (1, 3), (1, 2), (1, 3), (2, 1), (1, 4)):
        await one.take(version(epoch, number))
    assert seen == [(1, 1), (1, 3), (2, 1)]
    assert one.current.standbys[FIRST].nodes == ("n2a",)
    assert one.me.directory == one.version == Version(2, 1)
    assert list(check_directories(history, Counters())) == []


async def test_a_process_never_returns_to_an_older_version() -> None:
    """An answer may come late; whether somebody goes by it is judged as in a run."""
    history = History()
    one = keeper(history=history)
    for number in (2, 1):
        await one.take(version(1, number))
    assert [finding.rule for finding in check_directories(history, Counters())] == []


async def test_version_of_older_epoch_is_refused() -> None:
    one = keeper()
    await one.take(version(3, 1))
    one.heard_of(9)
    assert not one.wants(Version(8, 70))
    await one.take(version(8, 70))
    assert one.version == Version(3, 1)
    await one.take(version(9, 2))
    assert one.version == Version(9, 2)


async def refused_while_written(one: DirectoryKeeper, disk: SimDisk) -> None:
    """It takes a version of epoch 3, and the next epoch begins meanwhile."""
    disk.sync_gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.take, version(3, 2))
        await trio.testing.wait_all_tasks_blocked()
        one.heard_of(4)
        disk.sync_gate.set()


async def test_version_whose_epoch_ends_during_write_is_refused() -> None:
    """A coordinator that began meanwhile was told of the version before, by which a restart goes as well."""
    disk = SimDisk()
    one = keeper(disk)
    await refused_while_written(one, disk)
    assert one.version == CONFIGURED
    assert keeper(disk.restarted()).version == CONFIGURED
    one = keeper(disk)
    await one.take(version(3, 1))
    await refused_while_written(one, disk)
    assert one.version == Version(3, 1)
    assert keeper(disk.restarted()).version == Version(3, 1)
    await one.take(version(4, 1))
    assert one.version == Version(4, 1)
    assert keeper(disk.restarted()).version == Version(4, 1)


async def test_restart_uses_the_version_on_disk() -> None:
    disk = SimDisk()
    await keeper(disk).take(version(4, 7))
    again = keeper(disk.restarted())
    assert (again.version, again.me.directory, again.epoch) == (Version(4, 7), Version(4, 7), 4)
    after_a_power_loss = keeper(disk.power_loss(lambda path, synced, written: synced))
    assert after_a_power_loss.version == Version(4, 7)


async def test_a_full_disk_or_a_damaged_file_does_not_stop_a_process() -> None:
    disk, history = SimDisk(), History()
    one = keeper(disk, history=history)
    await one.take(version(1, 1))
    disk.space_left = 0
    await one.take(version(1, 2))
    assert one.version == Version(1, 2)
    assert keeper(disk.restarted()).version == Version(1, 1)
    told = [(e.number, e.kept) for e in history if isinstance(e, DirectoryApplied)]
    assert told == [(0, False), (1, True), (2, False)]
    assert keeper(disk.with_file(PATH, b"\0" * 90)).version == CONFIGURED


async def test_restart_with_other_roles_in_file_says_what_to_do() -> None:
    disk, other = SimDisk(), deployed().directory.with_role(FIRST, NodeId("n1b"), None)
    assert keeper(disk, other).version == CONFIGURED, "nothing has changed yet, so nothing is compared"
    await keeper(disk).take(version(1, 1))
    with pytest.raises(OtherConfiguration, match="n1a: version 1/1 of the directory began with other roles") as error:
        keeper(disk.restarted(), other)
    assert "Put the roles in the file back" in str(error.value)
    assert str(PATH) in str(error.value)


async def test_a_version_of_another_configuration_is_refused_once(capsys: pytest.CaptureFixture[str]) -> None:
    one = keeper(configuration=deployed().directory.with_role(FIRST, NodeId("n1b"), None))
    exchange = DirectoryExchange(one, Version(1, 1))
    assert exchange.due(0) is not None
    await one.take(version(1, 1))
    assert one.version == CONFIGURED
    assert exchange.due(10 * ASK_AGAIN_US) is None, "the answer would be the same"
    assert "goes on with version 0/0 of the directory" in capsys.readouterr().err


async def test_agreeing_versions_are_not_sent() -> None:
    one = keeper()
    exchange = DirectoryExchange(one, CONFIGURED)
    assert [exchange.due(at) for at in range(5)] == [None] * 5
    await one.take(version(1, 1))
    assert exchange.due(6) == DirectoryRequest(1, 1), "the peer is told"
    assert exchange.due(7) is None, "once"
    assert exchange.requested(DirectoryRequest(0, 0)) == DirectoryAnswer(version(1, 1).encode())
    assert exchange.requested(DirectoryRequest(1, 1)) is None
    assert exchange.requested(DirectoryRequest(1, 2)) is None
    assert exchange.due(8) == DirectoryRequest(1, 1), "it is ahead: we ask"
    assert exchange.due(9) is None
    assert exchange.due(8 + ASK_AGAIN_US) == DirectoryRequest(1, 1), "nothing came"
    await one.take(version(1, 2))
    assert exchange.due(9 + ASK_AGAIN_US) == DirectoryRequest(1, 2), "the peer learns that they agree"
    assert exchange.due(10 + ASK_AGAIN_US) is None


async def test_two_peers_reach_the_same_version_from_either_end() -> None:
    for ahead in (0, 1):
        ends = keeper(), keeper()
        await ends[ahead].take(version(2, 5))
        talk = [DirectoryExchange(mine, other.version) for mine, other in (ends, ends[::-1])]
        for at in range(3):
            for mine in (0, 1):
                if (said := talk[mine].due(at)) is None:
                    continue
                if (answer := talk[1 - mine].requested(said)) is not None:
                    await ends[mine].take(Revision.decode(answer.revision))
        assert [one.version for one in ends] == [(2, 5), (2, 5)]
        assert [one.due(9) for one in talk] == [None, None]


async def test_client_hears_the_version_and_is_not_asked() -> None:
    one = keeper()
    exchange = DirectoryExchange(one, Version(9, 9), asks=False)
    assert exchange.due(0) == DirectoryRequest(0, 0)
    assert exchange.due(5 * ASK_AGAIN_US) is None
    await one.take(version(1, 1))
    assert exchange.due(6 * ASK_AGAIN_US) == DirectoryRequest(1, 1)


async def test_client_that_is_ahead_does_not_answer_its_producer() -> None:
    client = keeper(me=Identity("client", "client:c", 1))
    await client.take(version(1, 1))
    exchange = DirectoryExchange(client, CONFIGURED)
    assert exchange.requested(DirectoryRequest(0, 0)) is None
    assert exchange.theirs == CONFIGURED


def test_a_malformed_answer_breaks_the_protocol() -> None:
    with pytest.raises(RemoteProtocolError, match="director"):
        keeper().received(DirectoryAnswer(b"nonsense"))


async def test_no_heartbeat_waits_for_a_disk_that_stands_still() -> None:
    disk = SimDisk()
    one = keeper(disk)
    disk.stall(True)
    async with trio.open_nursery() as nursery:
        one.nursery = nursery
        for number in (1, 2):
            one.received(DirectoryAnswer(version(1, number).encode()))
        await trio.testing.wait_all_tasks_blocked()
        assert one.version == CONFIGURED, "it is not on disk yet"
        disk.stall(False)
    assert one.version == Version(1, 2)
