"""Peers that break the protocol are refused or closed, without effect on others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import trio

from replicas.simulation.world.clock import JumpClock
from spe.errors import LinkBroken
from spe.stream.names import NodeId
from spe.wire.framing import FrameReader, FrameType, frame
from spe.wire.messages.commands import StatusRequest
from spe.wire.messages.connection import PROTOCOL, Hello, Refused, VersionRange, Welcome
from spe.wire.messages.feeds import Heartbeat, HeartbeatAnswer, NotReady, Subscribe, Truncated
from spe.wire.messages.message import Message, decode_message
from spe.wire.messages.replicas import SnapshotRequest
from tests.simulation.test_cluster import SECONDS, Outcome, make_plan
from tests.support.faulty_cluster import FaultyCluster


def hello(to: FaultyCluster, **other: Any) -> Hello:
    plan = to.plan
    good = Hello(*PROTOCOL, plan.cluster, "client", "client:c", 1, plan.fingerprint, "")
    return replace(good, **other)


class Peer:
    """A connection to n1a, byte by byte."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._frames = FrameReader()
        self._messages: list[Message] = []

    async def say(self, *messages: Message | bytes) -> None:
        for message in messages:
            await self.stream.send_all(message if isinstance(message, bytes) else message.encode())

    async def hear(self) -> Message | None:
        """The next control message; None when the node has hung up."""
        while not self._messages:
            try:
                with trio.fail_after(10):
                    data = await self.stream.receive_some()
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._messages += [decode_message(f.body) for f in self._frames.feed(data) if f.type is FrameType.CONTROL]
        return self._messages.pop(0)


async def visit(cluster: FaultyCluster, node: str = "n1a") -> Peer:
    return Peer(await cluster.env("stranger").network.connect(cluster.directory.nodes[NodeId(node)].address))


def subscribe(**other: Any) -> Subscribe:
    good = Subscribe("s1", 0, "client:c", "main", 0, 0, False, 0, 0, 1, "")  # type: ignore[arg-type]
    return replace(good, **other)


def heartbeat(*acks: tuple[str, int, str, int]) -> Heartbeat:
    return Heartbeat(1, 1, 100_000, acks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"role": "node"}, "'client:c' is no node of this cluster"),
        ({"name": "client:"}, "'client:' is no client of this cluster"),
        ({"role": "control", "name": ""}, "'' is no control of this cluster"),
        ({"role": "coordinator"}, "'client:c' is no coordinator of this cluster"),
        ({"lowest": 98, "highest": 99}, "the peer speaks versions 98 to 99, n1a speaks version 1"),
        ({"cluster": "elsewhere"}, "this is cluster 'test', not 'elsewhere'"),
        ({"fingerprint": "abc"}, "the plan is another one"),
        ({"token": "guess"}, "the token does not match"),
    ],
)
async def test_a_hello_of_another_cluster_is_refused_with_the_reason(
    jump_clock: JumpClock, other: dict[str, Any], why: str
) -> None:
    async with FaultyCluster(*make_plan()) as cluster:
        await cluster.start()
        await trio.sleep(1)
        peer = await visit(cluster)
        await peer.say(hello(cluster, **other))
        answer = await peer.hear()
        assert isinstance(answer, Refused)
        assert why in answer.reason
        assert await peer.hear() is None


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ([1, 1], Welcome),
        ([1, 3], Welcome),
        ([0, 3], Welcome),
        ([2, 3], Refused),
    ],
)
async def test_a_peer_of_another_release_gets_a_version_that_both_know(
    jump_clock: JumpClock, fields: list[int], answer: type[Message]
) -> None:
    """A later release may say more in its hello."""
    async with FaultyCluster(*make_plan()) as cluster:
        await cluster.start()
        await trio.sleep(1)
        peer = await visit(cluster)
        rest = [cluster.plan.cluster, "client", "client:c", 1, cluster.plan.fingerprint, "", 0, 0]
        later = ["more", 4] if fields[-1] > PROTOCOL.highest else []
        await peer.say(frame(FrameType.CONTROL, msgpack.packb([Hello.TAG, *fields, *rest, *later])))
        told = await peer.hear()
        assert isinstance(told, answer)
        if isinstance(told, Welcome):
            assert told.version == 1
            await peer.say(heartbeat())
            assert isinstance(await peer.hear(), HeartbeatAnswer)
        elif isinstance(told, Refused):
            assert f"the peer speaks {VersionRange(*fields)}, n1a speaks version 1" in told.reason


BAD: dict[str, Callable[[FaultyCluster], list[Message | bytes]]] = {
    "nonsense": lambda c: [b"GET / HTTP/1.1\r\n\r\n"],
    "an oversized frame before the hello": lambda c: [b"\x5b\xdc\x01\x00\xff\xff\xff\x7f"],
    "no hello": lambda c: [StatusRequest()],
    "two hellos": lambda c: [hello(c), hello(c)],
    "an oversized frame after the hello": lambda c: [hello(c), b"\x5b\xdc\x02\x00\xff\xff\xff\x7f"],
    "a message that its role must not send": lambda c: [hello(c), SnapshotRequest("u1", 0, 100_000)],
    "a subscription in another's name": lambda c: [hello(c), subscribe(consumer="client:other")],
    "an acknowledgement in another's name": lambda c: [hello(c, name="client:x"), heartbeat(("s1", 0, "client:c", 1))],
    "data where control is expected": lambda c: [hello(c), b"\x5b\xdc\x03\x00\x00\x00\x00\x00"],
}


@pytest.mark.parametrize("name", BAD)
async def test_a_peer_that_breaks_the_protocol_is_closed(jump_clock: JumpClock, name: str) -> None:
    async with FaultyCluster(*make_plan()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(1)
            peer = await visit(cluster)
            await peer.say(*BAD[name](cluster))
            while (answer := await peer.hear()) is not None:
                assert isinstance(answer, Welcome)
            await trio.sleep(SECONDS + 1)
            outcome = Outcome(cluster)
            outcome.assert_complete()
            assert outcome.tentative == 0


async def test_unfinished_frame_before_hello_is_abandoned(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan()) as cluster:
        await cluster.start()
        await trio.sleep(1)
        peer = await visit(cluster)
        await peer.say(hello(cluster).encode()[:10])
        assert await peer.hear() is None


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (subscribe(stream="nobody"), NotReady),
        (subscribe(partition=7), NotReady),
        (subscribe(substream_count=2), NotReady),
    ],
)
async def test_requests_for_missing_things_get_the_reason(
    jump_clock: JumpClock, message: Message, kind: type[Message]
) -> None:
    async with FaultyCluster(*make_plan()) as cluster:
        await cluster.start()
        await trio.sleep(1)
        peer = await visit(cluster)
        await peer.say(hello(cluster), message)
        assert isinstance(await peer.hear(), Welcome)
        assert isinstance(await peer.hear(), kind)


async def test_a_truncated_position_is_answered_with_truncated(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan()) as cluster:
        await cluster.start()
        await trio.sleep(5)
        peer = await visit(cluster)
        await peer.say(hello(cluster), subscribe())
        assert isinstance(await peer.hear(), Welcome)
        answer = await peer.hear()
        assert isinstance(answer, Truncated)
        assert answer.first > 1


async def test_acknowledgements_of_strangers_have_no_effect(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan()) as cluster:
        await cluster.start()
        await trio.sleep(1)
        for name in ("client:other", "client:another"):
            peer = await visit(cluster)
            await peer.say(hello(cluster, name=name), heartbeat(("s1", 0, name, 5)))
        await trio.sleep(1)
        (log,) = cluster.replicas()["u1/0@n1a"].logs
        assert log.unknown_acks == 2
        first = log.first
        await trio.sleep(SECONDS)
        assert log.first > first
        Outcome(cluster).assert_complete()


async def test_an_acknowledgement_of_a_future_id_is_ignored(jump_clock: JumpClock) -> None:
    """Otherwise a client with a wrong position could never be served again."""
    async with FaultyCluster(*make_plan()) as cluster:
        await cluster.start()
        await trio.sleep(1)
        peer = await visit(cluster)
        await peer.say(hello(cluster), heartbeat(("s1", 0, "client:c", 10**6)))
        await trio.sleep(SECONDS)
        Outcome(cluster).assert_complete()
        (log,) = cluster.replicas()["u1/0@n1a"].logs
        assert log.first <= log.last_id + 1


async def flooded(peers: int) -> tuple[Outcome, list[str]]:
    """A run in which this many peers connect to n1a repeatedly and misbehave in every way."""
    story: list[str] = []
    async with FaultyCluster(*make_plan()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(1)

            async def pester(number: int) -> None:
                dribble = hello(cluster).encode()
                guest = hello(cluster, name=f"client:guest{number}")
                while True:
                    with suppress(trio.BrokenResourceError, LinkBroken):
                        peer = await visit(cluster)
                        match number % 5:
                            case 0:  # one byte every 200 ms
                                for at in range(len(dribble)):
                                    await peer.say(dribble[at : at + 1])
                                    await trio.sleep(0.2)
                            case 1:  # sends nothing
                                await peer.hear()
                            case 2:
                                await peer.say(b"\x5b\xdc\x01\x00\xe0\x2e\x00\x00" + b"\xdc\x0f\xff" * 4_000)
                                await peer.hear()
                            case 3:  # sends requests and never reads
                                await peer.say(guest, *[heartbeat()] * 50)
                                await trio.sleep(60)
                            case _:  # stays idle
                                await peer.say(guest)
                                await trio.sleep(60)
                    await trio.sleep(1)

            async with trio.open_nursery() as nursery:
                for number in range(peers):
                    nursery.start_soon(pester, number)
                await trio.sleep(SECONDS + 1)
                story += cluster.log
                nursery.cancel_scope.cancel()
            return Outcome(cluster), story


async def test_three_hundred_bad_peers_do_not_delay_a_good_client(jump_clock: JumpClock) -> None:
    quiet, _ = await flooded(0)
    loud, story = await flooded(300)
    loud.assert_complete()
    assert loud.tentative == quiet.tentative == 0
    assert loud.longest_wait_us() <= quiet.longest_wait_us() + 1_000
    assert not any("sent_away peer=client:c" in line for line in story)
    told = [line for line in story if " n1a " in line and ("sent_away" in line or "bad_peer" in line)]
    assert len(told) < 20 * 2 * (SECONDS + 3), "a flood does not fill the trace"
