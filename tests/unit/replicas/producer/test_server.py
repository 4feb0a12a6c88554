"""The producing side of a connection: answers that are large, and answers that wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, cast

import pytest
import trio
import trio.testing

from replicas.link.connection import Connection, Identity
from replicas.link.directory import DirectoryKeeper
from replicas.local.polling import Poller
from replicas.producer.server import ANSWER_SECONDS, WRITER_TOLD_S, Server, _SentAnnouncements, _Visit
from replicas.producer.service import Service, Visitor
from replicas.simulation.world.clock import JumpClock
from spe.errors import LinkBroken
from spe.status import NodeStatus
from spe.stream.names import NodeId
from spe.wire.framing import CONTROL_BYTES
from spe.wire.messages.commands import MoveAnswer, MoveOrder, Status
from spe.wire.messages.connection import PROTOCOL, Hello, Refused, Welcome
from spe.wire.messages.feeds import ANNOUNCEMENTS_MAX, Announced, Announcement, SetMode
from spe.wire.messages.message import MESSAGES, Message
from spe.wire.messages.pushes import PushCommitted, PushWaits
from tests.support.faulty_cluster import FaultyCluster
from tests.support.plans import SEQUENCE, chain, pass_on, source
from tests.support.statuses import a_node, a_replica

CROWDED = a_node("n1a", *[a_replica()] * 1_000)


def serving(service: Service) -> tuple[FaultyCluster, Server]:
    """The server of n1a, and where it runs."""
    cluster = FaultyCluster(*chain([source("a", reader={})], [("s", pass_on("a"), SEQUENCE)]))
    env = cluster.env("n1a")
    keeper = DirectoryKeeper(env, cluster.directory, Identity("node", "n1a", 1))
    return cluster, Server(env, cluster.plan, keeper, service)


def crowded() -> Service:
    """A node with more replicas than go into another message."""
    assert len(Status(CROWDED).encode()) > CONTROL_BYTES
    return Service("n1a", lambda: CROWDED)


async def test_a_status_of_many_replicas_arrives(jump_clock: JumpClock) -> None:
    cluster, server = serving(crowded())
    address = cluster.directory.nodes[NodeId("n1a")].address
    poller = Poller(cluster.env("control"), cluster.plan, {"n1a": address}, "")
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, server.handle)
        assert await poller.ask_status("n1a"), poller.errors
        nursery.cancel_scope.cancel()
    status = poller.seen["n1a"].status
    assert isinstance(status, NodeStatus)
    assert status.replicas == CROWDED.replicas


@pytest.mark.parametrize(
    ("certified", "other", "why"),
    [
        ("control", {}, None),
        ("control", {"name": "supervisor"}, None),
        ("n7", {"name": "n7"}, "'n7' is no control of this cluster"),
        ("source:old", {"name": "source:old"}, "'source:old' is no control of this cluster"),
        ("n7", {}, "the certificate is that of 'n7', the hello that of 'control'"),
        ("control", {"lowest": 98, "highest": 99}, "no common protocol: the peer speaks versions 98 to 99"),
        ("control", {"token": "guess"}, "the token does not match"),
    ],
)
async def test_a_certificate_gives_the_role_of_its_holder(
    jump_clock: JumpClock, certified: str, other: dict[str, Any], why: str | None
) -> None:
    cluster, server = serving(crowded())
    ours, theirs = trio.testing.memory_stream_pair()
    theirs.certified = certified  # type: ignore[attr-defined]
    visitor = Connection(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.handle, theirs)
        hello = Hello(*PROTOCOL, cluster.plan.cluster, "control", "control", 1, cluster.plan.fingerprint, "")
        await visitor.send(replace(hello, **other))
        answer = await visitor.receive_message()
        await visitor.aclose()
    if why is None:
        assert isinstance(answer, Welcome)
    else:
        assert isinstance(answer, Refused)
        assert why in answer.reason


async def test_each_message_that_a_peer_may_send_is_answered() -> None:
    """By the server, by a handler of the process, or by a refusal; a hello and a change of mode have their places."""
    _, server = serving(crowded())
    sent = {kind for kind in MESSAGES.values() if kind.SENDERS} - {Hello, SetMode}
    refused = {kind for kind in MESSAGES.values() if kind.refusal is not Message.refusal}
    assert sent <= server._table.keys() | refused
    assert not refused - sent


async def test_a_process_without_a_handler_refuses_by_its_name(jump_clock: JumpClock) -> None:
    _, server = serving(crowded())
    ours, theirs = trio.testing.memory_stream_pair()
    visitor = Connection(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.handle, theirs)
        await visitor.send(
            Hello(*PROTOCOL, server._plan.cluster, "control", "control", 1, server._plan.fingerprint, "")
        )
        assert isinstance(await visitor.receive_message(), Welcome)
        await visitor.send(MoveOrder("drain", "", "n1a", "", 0))
        assert await visitor.receive_message() == MoveAnswer(1, 0, "n1a is not the coordinator, which moves partitions")
        await visitor.aclose()


class Unread:
    """A stream that takes nothing while its peer does not read."""

    async def send_all(self, data: bytes) -> None:
        await trio.sleep_forever()


async def test_nothing_follows_half_a_message_to_a_writer_that_waits(jump_clock: JumpClock) -> None:
    """What it waits for is done all the same: it will ask again."""
    _, server = serving(crowded())
    done = False

    async def commit() -> PushCommitted:
        await trio.sleep(3 * ANSWER_SECONDS)
        nonlocal done
        done = True
        return PushCommitted(1, "")

    connection = Connection(cast("trio.abc.Stream", Unread()))
    with pytest.raises(LinkBroken, match="does not read what it asked for"):
        await server._in_touch(connection, commit(), WRITER_TOLD_S, lambda: PushWaits("the disk"))
    assert done


SETTINGS: Final[tuple[Any, ...]] = (1, 1, 40, 40, 0.5, "process", "process", "checkpoint", 0)
MANY: Final = [Announcement(f"n{at}", "u1", *SETTINGS) for at in range(ANNOUNCEMENTS_MAX + 1)]


async def test_announcements_that_do_not_fit_follow_the_next_heartbeat(jump_clock: JumpClock) -> None:
    """T8: else a peer would get the last of many a long time after the first."""

    def announced(version: int) -> tuple[int, list[Announcement]]:
        items = MANY[version : version + ANNOUNCEMENTS_MAX]
        return version + len(items), items

    _, server = serving(Service("n1a", lambda: CROWDED, announced=announced))
    ours, theirs = trio.testing.memory_stream_pair()
    visitor = Connection(ours)
    visitor.allow(1 << 20)
    visit = _Visit(
        cast("Hello", None), Visitor("c", Connection(theirs)), cast("Any", None), _SentAnnouncements(0, None)
    )
    received = []
    async with trio.open_nursery() as nursery:
        for _ in range(3):  # heartbeats at one time
            nursery.start_soon(server._announce, visit)
            await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            received.append(await visitor.receive_message())
    assert [len(message.items) for message in received if isinstance(message, Announced)] == [ANNOUNCEMENTS_MAX, 1]
