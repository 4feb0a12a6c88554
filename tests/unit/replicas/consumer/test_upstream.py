"""The connections of a consumer: feeds that close at once, and producers that do not answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from replicas.client.client import Client
from replicas.client.view import ClientPort
from replicas.consumer.feed import MAIN, Action, Close, Feed, Open
from replicas.consumer.heartbeats import ACKS_MAX, ATTEMPTS
from replicas.consumer.input import Input, choose_among
from replicas.consumer.upstream import Upstream
from replicas.link.connection import Connection, Identity, dial
from replicas.link.directory import DirectoryKeeper
from replicas.producer.server import AT_WORK_S, Server, fetch_snapshot
from replicas.producer.service import Service
from replicas.simulation.world.clock import JumpClock
from spe.errors import LinkBroken, LinkClosed, SpeError
from spe.plan.directory import Directory
from spe.runtime.env import Clock
from spe.stream.batch import Element
from spe.stream.ids import Channel
from spe.stream.names import NodeId, NodeState, StreamId
from spe.stream.times import BEFORE_TIME
from spe.wire.messages.connection import PROTOCOL, Welcome
from spe.wire.messages.feeds import Heartbeat, HeartbeatAnswer, OtherLog, OutputStatus, Subscribed, Truncated
from spe.wire.messages.message import Message
from spe.wire.messages.replicas import SnapshotPart, SnapshotRequest
from tests.support.faulty_cluster import FaultyCluster
from tests.support.plans import SEQUENCE, chain, pass_on, source
from tests.support.statuses import a_node

CHANNEL = Channel(StreamId("s"), 0)


Answer = Callable[[Message], Message | None]


def one_stage() -> FaultyCluster:
    """A source, and a unit that reads it, on n1a and others."""
    return FaultyCluster(*chain([source("a", reader={})], [("s", pass_on("a"), SEQUENCE)]))


async def greeted(stream: trio.abc.Stream, name: str = "n1a", incarnation: int = 1) -> Connection:
    """A producer's end of a connection whose hello it has answered."""
    connection = Connection(stream)
    connection.allow(1 << 20)
    await connection.receive_message()
    await connection.send(Welcome(PROTOCOL.highest, name, incarnation))
    return connection


async def converse(connection: Connection, answer: Answer) -> None:
    """Answers what the consumer says, until it hangs up."""
    with suppress(LinkBroken, LinkClosed):
        while True:
            if (said := answer(await connection.receive_message())) is not None:
                await connection.send(said)


def to_heartbeats(message: Message) -> HeartbeatAnswer | None:
    """Of a producer without outputs."""
    return HeartbeatAnswer(message.number, 1, []) if isinstance(message, Heartbeat) else None


def upstream_of(cluster: FaultyCluster, me: Identity) -> Upstream:
    env = cluster.env(me.name)
    return Upstream(env, cluster.plan, DirectoryKeeper(env, cluster.directory, me))


class Opening:
    """An owner that opens one feed."""

    name = "unit/0@n"

    def __init__(self) -> None:
        port = ClientPort(CHANNEL, self._forget)
        self.inputs: Sequence[Input] = [
            Input(CHANNEL, ["n1a"], port, consumer=self.name, stall_us=1, useless_us=1, x_us=1)
        ]
        self._wanted: list[tuple[int, Action]] = [(0, Open(1, "n1a", MAIN, 0, BEFORE_TIME, False, BEFORE_TIME))]

    def _forget(self, channel: Channel, element: Element) -> None:
        raise AssertionError("nothing was ever subscribed to")

    def choose(self, now: int, peer: str | None) -> list[tuple[int, Action]]:
        wanted, self._wanted = self._wanted, []
        return wanted

    def redirect(self, directory: Directory, now: int) -> list[tuple[int, Action]]:
        return []

    def acks(self) -> list[tuple[Channel, int]]:
        return []

    def substream(self, channel: Channel) -> tuple[int, int]:
        return (0, 1)

    def delivered(self, rows: int, nbytes: int, step_ns: int) -> None:
        raise AssertionError("nothing was ever subscribed to")

    async def room(self, index: int) -> None:
        """Never blocks."""


class Undecided(Opening):
    """An owner that opens a feed and closes it at once."""

    def choose(self, now: int, peer: str | None) -> list[tuple[int, Action]]:
        return [*super().choose(now, peer), (0, Close(1, "another one is better"))]


async def test_a_feed_closed_before_its_task_ran_is_not_opened() -> None:
    """Two heartbeat answers in one step: the first makes a replica the choice, the second rules it out."""
    cluster = one_stage()
    upstream = upstream_of(cluster, Identity("node", "n", 1, ""))
    async with trio.open_nursery() as nursery:
        await nursery.start(upstream.run, {"n1a": cluster.directory.nodes[NodeId("n1a")].address})
        upstream.add(Undecided())
        upstream.choose()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    events = [line.split()[2] for line in cluster.log]
    assert [e for e in events if e != "unreachable"] == ["subscribe", "unsubscribe"]


@pytest.mark.parametrize("connect_us", [200_000, 2_000_000])
async def test_a_connection_may_take_the_configured_time(jump_clock: JumpClock, connect_us: int) -> None:
    plan, directory = chain([source("a", reader={})], [("s", pass_on("a"), SEQUENCE)])
    plan = replace(plan, timing=replace(plan.timing, connect_us=connect_us))
    cluster = FaultyCluster(plan, directory)
    me, address = Identity("node", "n", 1, ""), directory.nodes[NodeId("n1a")].address

    async def silent(stream: trio.abc.Stream) -> None:
        raise AssertionError("across a cut")

    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, silent)
        cluster.cut("source:a", "n1a")
        with pytest.raises(LinkBroken, match=f"no answer within {connect_us / 1e6:g} s"):
            await dial(cluster.env("source:a"), plan, me, "n1a", address)
        nursery.cancel_scope.cancel()
    assert trio.current_time() == pytest.approx(connect_us / 1e6)


@pytest.mark.parametrize("connect_us", [100_000, 600_000, 3_000_000])
@pytest.mark.parametrize("healed_after", [0.0, 0.05, 0.3, 0.55, 0.95])
async def test_the_end_of_a_cut_is_noticed_during_an_attempt(
    jump_clock: JumpClock, connect_us: int, healed_after: float
) -> None:
    """Packets sent during the cut are lost, however long a connection may take."""
    plan, directory = chain([source("a", reader={})], [("s", pass_on("a"), SEQUENCE)])
    plan = replace(plan, timing=replace(plan.timing, connect_us=connect_us))
    cluster, address = FaultyCluster(plan, directory), directory.nodes[NodeId("n1a")].address
    reached: list[float] = []

    async def listen(stream: trio.abc.Stream) -> None:
        reached.append(trio.current_time())
        await trio.sleep_forever()

    upstream = upstream_of(cluster, Identity("source", "source:a", 1, ""))
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, listen)
        cluster.cut("source:a", "n1a")
        await nursery.start(upstream.run, {"n1a": address})
        await trio.sleep(5 + healed_after)
        assert not reached
        cluster.heal()
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    wait_us = max(2 * plan.timing.heartbeat_us, connect_us / 3)
    assert 0 <= reached[0] - (5 + healed_after) <= wait_us / 1e6 + 1e-6


async def test_a_frozen_process_is_not_flooded_with_connections(jump_clock: JumpClock) -> None:
    """The kernel accepts connections and bytes for it; after the freeze all of them are answered at once."""
    cluster = one_stage()
    address, moves, opened = cluster.directory.nodes[NodeId("n1a")].address, trio.Event(), 0
    now: set[Connection] = set()
    most: list[int] = []

    async def stand_still(stream: trio.abc.Stream) -> None:
        nonlocal opened
        opened += 1
        connection = Connection(stream)
        now.add(connection)
        most.append(len(now))
        try:
            await connection.receive_message()
            async with trio.open_nursery() as nursery:

                async def answer() -> None:
                    await moves.wait()
                    await connection.send(Welcome(PROTOCOL.highest, "n1a", 1))
                    await trio.sleep_forever()

                nursery.start_soon(answer)
                while True:
                    await connection.receive_message()
        except* (LinkBroken, LinkClosed):
            now.discard(connection)

    upstream = upstream_of(cluster, Identity("node", "n", 1, ""))
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, stand_still)
        await nursery.start(upstream.run, {"n1a": address})
        await trio.sleep(9.5)  # not exactly as one attempt ends and another begins
        assert opened > ATTEMPTS
        assert max(most) == len(now) == ATTEMPTS
        moves.set()
        await trio.sleep(0.1)
        assert len(now) == 1
        nursery.cancel_scope.cancel()


async def test_a_refusal_is_logged_on_both_sides_repeatedly(jump_clock: JumpClock) -> None:
    """At once, and once a minute on the refused side; the other side counts its refusals."""
    cluster = one_stage()
    address = cluster.directory.nodes[NodeId("n1a")].address
    env = cluster.env("n1a")
    keeper = DirectoryKeeper(env, cluster.directory, Identity("node", "n1a", 1, "secret"))
    server = Server(env, cluster.plan, keeper, Service("n1a", lambda: a_node("n1a")))
    me = Identity("client", "client:c", 1, "guess")
    upstream = upstream_of(cluster, me)
    async with trio.open_nursery() as nursery:
        await nursery.start(env.network.serve, address, server.handle)
        await nursery.start(upstream.run, {"n1a": address})
        await trio.sleep(130)
        nursery.cancel_scope.cancel()
    refused = [line for line in cluster.log if "n1a " in line and "refused peer=client:c" in line]
    assert len(refused) > 100
    assert all("the token does not match" in line for line in refused)
    told = [line for line in cluster.log if "unreachable peer=n1a" in line]
    assert len(told) == 3
    assert all("the token does not match" in line for line in told)


async def test_producer_not_answering_subscription_is_abandoned(jump_clock: JumpClock) -> None:
    """A connection may become half open after the hello; heartbeats, on another one, go on."""
    cluster = one_stage()
    address = cluster.directory.nodes[NodeId("n1a")].address

    async def silent(stream: trio.abc.Stream) -> None:
        await greeted(stream)
        await trio.sleep_forever()

    upstream = upstream_of(cluster, Identity("node", "n", 1, ""))
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, silent)
        await nursery.start(upstream.run, {"n1a": address})
        upstream.add(Opening())
        upstream.choose()
        await trio.sleep(10)
        nursery.cancel_scope.cancel()

    assert any("feed_lost" in line and "did not answer the subscription" in line for line in cluster.log)


class LateClock:
    """Of a process that is busy: each sleep takes four times as long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(4 * seconds)


@pytest.mark.parametrize("answers", [True, False])
async def test_reader_late_in_every_round_notices_a_silent_peer(jump_clock: JumpClock, answers: bool) -> None:
    """The time in which it did not run is not the peer's; that in which it ran adds up (T1)."""
    cluster = one_stage()
    address = cluster.directory.nodes[NodeId("n1a")].address
    env = cluster.env("n")
    env = replace(env, clock=LateClock(env.clock))

    async def listen(stream: trio.abc.Stream) -> None:
        await converse(await greeted(stream), to_heartbeats if answers else lambda _: None)

    keeper = DirectoryKeeper(env, cluster.directory, Identity("node", "n", 1, ""))
    upstream = Upstream(env, cluster.plan, keeper)
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, listen)
        await nursery.start(upstream.run, {"n1a": address})
        await trio.sleep(10)
        nursery.cancel_scope.cancel()

    assert any("peer_lost" in line and "without an answer" in line for line in cluster.log) is not answers


class Reading(Opening):
    """An owner that has read five tuples."""

    def acks(self) -> list[tuple[Channel, int]]:
        return [(CHANNEL, 5)]


async def test_restarted_producer_of_another_log_is_acknowledged_again(jump_clock: JumpClock) -> None:
    """Its output is kept for whoever does not acknowledge it; started anew it has what we have read (S6)."""
    cluster = one_stage()
    address = cluster.directory.nodes[NodeId("n1a")].address
    incarnation, acknowledged = 1, dict[int, list[int]]()

    def answer(message: Message) -> Message:
        if not isinstance(message, Heartbeat):
            return OtherLog("another log")
        acknowledged.setdefault(incarnation, []).append(len(message.acks))
        return HeartbeatAnswer(message.number, incarnation, [])

    async def listen(stream: trio.abc.Stream) -> None:
        await converse(await greeted(stream, incarnation=incarnation), answer)

    upstream = upstream_of(cluster, Identity("node", "n", 1, ""))
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, listen)
        await nursery.start(upstream.run, {"n1a": address})
        upstream.add(Reading())
        await trio.sleep(1)
        upstream.choose()
        await trio.sleep(1)
        incarnation = 2
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert (acknowledged[1][0], acknowledged[1][-1], acknowledged[2][-1]) == (1, 0, 1)


async def test_a_producer_that_continues_our_log_is_acknowledged(jump_clock: JumpClock) -> None:
    """S6, A1: it has installed a snapshot since, in the same process."""
    cluster = one_stage()
    address = cluster.directory.nodes[NodeId("n1a")].address
    is_ours, acknowledged = False, list[int]()

    def answer(message: Message) -> Message:
        if not isinstance(message, Heartbeat):
            ours = Subscribed(NodeState.STABLE, False, 5, BEFORE_TIME, BEFORE_TIME, 1, 1, "")
            return ours if is_ours else OtherLog("another log")
        acknowledged.append(len(message.acks))
        return HeartbeatAnswer(message.number, 1, [])

    async def listen(stream: trio.abc.Stream) -> None:
        await converse(await greeted(stream), answer)

    upstream, owner = upstream_of(cluster, Identity("node", "n", 1, "")), Reading()
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, listen)
        await nursery.start(upstream.run, {"n1a": address})
        upstream.add(owner)
        upstream.choose()
        await trio.sleep(1)
        assert acknowledged[-1] == 0
        is_ours = True
        owner._wanted = [(0, Open(2, "n1a", MAIN, 0, BEFORE_TIME, False, BEFORE_TIME))]
        upstream.choose()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert acknowledged[-1] == 1


async def test_a_process_that_does_not_name_a_stream_does_not_make_it() -> None:
    """F3: it answers, and has ended that replica."""
    upstream, owner = upstream_of(one_stage(), Identity("node", "n", 1, "")), Opening()
    upstream.add(owner)
    output = OutputStatus(*CHANNEL, NodeState.STABLE, False, 0, 0, 0, 1, 0.0)
    alive = []
    for outputs in ([output], []):
        upstream._tell_inputs("n1a", HeartbeatAnswer(1, 1, outputs))
        alive.append(owner.inputs[0].producers["n1a"].alive)
    assert alive == [True, False]


async def test_a_client_whose_place_is_lost_gets_an_error(jump_clock: JumpClock) -> None:
    """All producers have lost what follows the place where it left (F8)."""
    cluster = one_stage()
    nodes = {name: cluster.directory.nodes[NodeId(name)].address for name in ("n1a", "n1b")}

    def answer(message: Message) -> Message:
        if not isinstance(message, Heartbeat):
            return Truncated(8)
        output = OutputStatus("s", 0, NodeState.STABLE, False, 9, 90, BEFORE_TIME, 8, 0.5, sequence=1)
        return HeartbeatAnswer(message.number, 1, [output])

    async def listen(name: str, stream: trio.abc.Stream) -> None:
        await converse(await greeted(stream, name), answer)

    (name,) = cluster.directory.clients
    client = Client(cluster.env(f"client:{name}"), cluster.plan, cluster.directory, name, start="left")
    async with trio.open_nursery() as nursery:
        for node, address in nodes.items():
            await nursery.start(cluster.env(node).network.serve, address, partial(listen, node))
        await nursery.start(client.run)
        with trio.fail_after(60), pytest.raises(SpeError, match=r"s/0 is stored from id 8 on, for spill files are dam"):
            await client.next_change()
        nursery.cancel_scope.cancel()


def connected(monkeypatch: pytest.MonkeyPatch, module: str) -> Connection:
    """The producer's end of the connection that the module makes next."""
    ours, theirs = trio.testing.memory_stream_pair()

    async def dialled(*_: object, **__: object) -> tuple[Connection, Welcome]:
        return Connection(ours), Welcome(PROTOCOL.highest, "n1a", 1)

    monkeypatch.setattr(f"replicas.consumer.{module}.dial", dialled)
    return Connection(theirs)


@pytest.mark.parametrize("breaks", [False, True], ids=["refused", "broken"])
async def test_late_elements_of_a_closed_feed_are_ignored(monkeypatch: pytest.MonkeyPatch, breaks: bool) -> None:
    """Else a new owner of the same name would acknowledge nothing to that producer."""
    cluster = one_stage()
    producer, upstream = connected(monkeypatch, "upstream"), upstream_of(cluster, Identity("node", "n", 1, ""))
    async with trio.open_nursery() as nursery:
        await nursery.start(upstream.run, {})
        upstream.add(Opening())
        upstream.choose()
        await producer.receive_message()
        if breaks:
            await producer.aclose()
        else:
            await producer.send(OtherLog("another log"))
        upstream.remove(Opening.name)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert [line.split()[2] for line in cluster.log] == ["subscribe"]


async def test_an_answer_that_comes_as_its_process_leaves_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = one_stage()
    producer, told = connected(monkeypatch, "heartbeats"), list[str]()
    env = cluster.env("n")
    keeper = DirectoryKeeper(env, cluster.directory, Identity("node", "n", 1, ""))
    upstream = Upstream(
        env,
        cluster.plan,
        keeper,
        heard=lambda peer, answer: told.append(f"heard {answer.number}"),
        gone=lambda peer: told.append("gone"),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(upstream.run, {"n1a": "x:1"})
        await producer.receive_message()
        for number in (1, 2):
            await producer.send(HeartbeatAnswer(number, 1, []))
            if number == 1:
                await trio.testing.wait_all_tasks_blocked()
        upstream.redirect(cluster.directory, {})
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert told == ["heard 1", "gone"]


async def test_peer_with_another_protocol_is_asked_again(jump_clock: JumpClock) -> None:
    """A proxy, or another process that has the address for a moment, breaks no rule of a producer (B7)."""
    cluster = one_stage()
    address = cluster.directory.nodes[NodeId("n1a")].address

    async def other(stream: trio.abc.Stream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")

    upstream = upstream_of(cluster, Identity("node", "n", 1, ""))
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, other)
        await nursery.start(upstream.run, {"n1a": address})
        upstream.add(Opening())
        upstream.choose()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert any("feed_lost" in line and "while connecting" in line for line in cluster.log)
    assert not any("quarantine" in line for line in cluster.log)


async def test_heartbeats_go_to_the_processes_of_the_new_directory(jump_clock: JumpClock) -> None:
    """One comes, one is at another address, one leaves; who stays keeps its connection."""
    cluster = one_stage()
    reached: list[str] = []
    gone: list[str] = []

    async def listen(name: str, stream: trio.abc.Stream) -> None:
        connection = await greeted(stream, name.partition(" ")[0])
        reached.append(name)
        await converse(connection, to_heartbeats)

    env, me = cluster.env("n"), Identity("node", "n", 1, "")
    keeper = DirectoryKeeper(env, cluster.directory, me)
    upstream = Upstream(env, cluster.plan, keeper, gone=gone.append)
    async with trio.open_nursery() as nursery:
        for address, name in {"x:1": "x", "y:1": "y", "y:2": "y elsewhere", "z:1": "z"}.items():
            await nursery.start(cluster.env(address[0]).network.serve, address, partial(listen, name))
        await nursery.start(upstream.run, {"x": "x:1", "y": "y:1"})
        await trio.sleep(1)
        assert sorted(reached) == ["x", "y"]
        upstream.redirect(cluster.directory, {"x": "x:1", "y": "y:2", "z": "z:1"})
        await trio.sleep(1)
        assert sorted(reached[2:]) == ["y elsewhere", "z"]
        assert gone == ["y"]
        upstream.redirect(cluster.directory, {"x": "x:1"})
        await trio.sleep(1)
        assert sorted(gone[1:]) == ["y", "z"]
        assert len(reached) == 4
        nursery.cancel_scope.cancel()


class Counting(Opening):
    """An owner that records its knowledge at each choice."""

    def __init__(self) -> None:
        super().__init__()
        self.knew: list[NodeState] = []

    def choose(self, now: int, peer: str | None) -> list[tuple[int, Action]]:
        self.knew.append(self.inputs[0].producers["n1a"].state)
        return super().choose(now, peer)


async def test_inputs_that_do_not_read_a_peer_ignore_its_heartbeats() -> None:
    inputs = [
        Input(
            channel,
            [producer],
            ClientPort(channel, lambda channel, element: None),
            consumer="c",
            stall_us=1,
            useless_us=1,
            x_us=1,
        )
        for channel, producer in ((CHANNEL, "n1a"), (Channel(StreamId("t"), 0), "n2a"))
    ]
    for one in inputs:
        for name in one.producers:
            status = OutputStatus(*one.channel, NodeState.STABLE, False, 0, 0, 0, 1, 0.0)
            one.selector.heard(name, 1, status, 0)
    assert [at for at, _ in choose_among(inputs, 0, "n2a")] == [1]
    assert choose_among(inputs, 0, "n3") == []
    assert [at for at, _ in choose_among(inputs, 0, None)] == [0]


async def test_the_first_frame_of_a_subscription_causes_a_choice(
    jump_clock: JumpClock,
) -> None:
    """There are no heartbeats here, so only the first frame (F2) can cause a new choice."""
    cluster = one_stage()
    address = cluster.directory.nodes[NodeId("n1a")].address

    async def failing(stream: trio.abc.Stream) -> None:
        connection = await greeted(stream)
        await connection.receive_message()
        await connection.send(Subscribed(NodeState.UP_FAILURE, False, 0, BEFORE_TIME, BEFORE_TIME, 1, 1, ""))
        await trio.sleep_forever()

    upstream = upstream_of(cluster, Identity("node", "n", 1, ""))
    owner = Counting()
    owner.inputs[0].main = Feed(1, "n1a", MAIN, 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, failing)
        await nursery.start(upstream.run, {"nobody": "nobody:1"})
        upstream.add(owner)
        upstream.choose()
        with trio.move_on_after(1):
            await trio.sleep_forever()
        nursery.cancel_scope.cancel()

    assert owner.knew == [NodeState.RECOVERING, NodeState.UP_FAILURE]


async def test_late_heartbeat_does_not_replace_first_frame(jump_clock: JumpClock) -> None:
    cluster = one_stage()
    address = cluster.directory.nodes[NodeId("n1a")].address
    before = OutputStatus("s", 0, NodeState.STABLE, False, 0, 0, 0, 1, 0.0, sequence=1)

    def answer(message: Message) -> Message:
        if isinstance(message, Heartbeat):
            return HeartbeatAnswer(message.number, 1, [before])
        return Subscribed(NodeState.UP_FAILURE, False, 0, BEFORE_TIME, BEFORE_TIME, 1, 2, "")

    async def failing(stream: trio.abc.Stream) -> None:
        await converse(await greeted(stream), answer)

    upstream = upstream_of(cluster, Identity("node", "n", 1, ""))
    owner = Counting()
    owner.inputs[0].main = Feed(1, "n1a", MAIN, 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, failing)
        await nursery.start(upstream.run, {"n1a": address})
        upstream.add(owner)
        upstream.choose()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert owner.knew.count(NodeState.UP_FAILURE) > 5
    assert owner.knew[-1] is NodeState.UP_FAILURE


async def test_partner_that_stops_inside_a_snapshot_is_abandoned(
    jump_clock: JumpClock,
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await Connection(theirs).send(SnapshotPart(0, False, b"half"))
    with pytest.raises(LinkBroken, match="nothing more of the snapshot"):
        await fetch_snapshot(Connection(ours), SnapshotRequest("u1", 0, 100_000), 1.0)


async def test_partner_that_never_ends_its_snapshot_is_abandoned(jump_clock: JumpClock) -> None:
    """Its disk hangs: it lives, says so, and another partner may have a snapshot."""
    ours, theirs = trio.testing.memory_stream_pair()

    async def at_work() -> None:
        maker = Connection(theirs)
        for _ in range(round(2 * AT_WORK_S)):
            await trio.sleep(0.9)
            await maker.send(SnapshotPart(0, False, b""))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(at_work)
        with pytest.raises(LinkBroken, match="at work on it"):
            await fetch_snapshot(Connection(ours), SnapshotRequest("u1", 0, 100_000), 1.0)
        assert AT_WORK_S <= trio.current_time() <= AT_WORK_S + 1
        nursery.cancel_scope.cancel()


async def test_a_partner_that_prepares_a_snapshot_is_waited_for(jump_clock: JumpClock) -> None:
    ours, theirs = trio.testing.memory_stream_pair()

    async def slow_maker() -> None:
        maker = Connection(theirs)
        for _ in range(60):
            await trio.sleep(0.9)
            await maker.send(SnapshotPart(0, False, b""))
        await maker.send(SnapshotPart(0, True, b"all"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow_maker)
        assert await fetch_snapshot(Connection(ours), SnapshotRequest("u1", 0, 100_000), 1.0) == b"all"


@pytest.mark.parametrize("connect_us", [300_000, 5_000_000])
async def test_the_answer_to_a_hello_may_take_as_long_as_a_connection(jump_clock: JumpClock, connect_us: int) -> None:
    plan, directory = chain([source("a", reader={})], [("s", pass_on("a"), SEQUENCE)])
    plan = replace(plan, timing=replace(plan.timing, connect_us=connect_us))
    cluster = FaultyCluster(plan, directory)
    me, address = Identity("node", "n", 1, ""), directory.nodes[NodeId("n1a")].address

    async def answering(stream: trio.abc.Stream) -> None:
        connection = Connection(stream)
        await connection.receive_message()
        await trio.sleep(connect_us / 1e6 * factor)
        with suppress(LinkBroken):
            await connection.send(Welcome(PROTOCOL.highest, "n1a", 1))

    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, answering)
        factor = 0.9
        connection, _ = await dial(cluster.env("n"), plan, me, "n1a", address)
        await connection.aclose()
        factor = 1.1
        with pytest.raises(LinkBroken, match="did not answer the hello"):
            await dial(cluster.env("n"), plan, me, "n1a", address)
        nursery.cancel_scope.cancel()


async def test_a_frame_cut_short_by_a_crash_is_no_fault() -> None:
    """Such as by kill -9 while sending: its incarnation is not quarantined for that."""
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(Welcome(PROTOCOL.highest, "n1a", 1).encode()[:-3])
    await theirs.aclose()
    with pytest.raises(LinkBroken, match="ended inside a frame"):
        await Connection(ours).receive()


class Backing(Opening):
    """An owner that acknowledges more than goes into one heartbeat, and opens nothing."""

    def choose(self, now: int, peer: str | None) -> list[tuple[int, Action]]:
        return []

    def acks(self) -> list[tuple[Channel, int]]:
        channel = Channel(StreamId("s"), 0)
        return [(channel, at) for at in range(2 * ACKS_MAX + 5)]


async def test_many_acknowledgements_are_sent_in_turn(jump_clock: JumpClock) -> None:
    cluster = one_stage()
    address = cluster.directory.nodes[NodeId("n1a")].address
    told: list[list[int]] = []

    async def listening(stream: trio.abc.Stream) -> None:
        connection = await greeted(stream)
        while True:
            heartbeat = await connection.receive_message()
            assert isinstance(heartbeat, Heartbeat)
            told.append([ack.id for ack in heartbeat.acks])
            assert heartbeat.period_us == 3 * cluster.plan.timing.heartbeat_us
            await connection.send(HeartbeatAnswer(heartbeat.number, 1, ()))

    upstream = upstream_of(cluster, Identity("node", "n", 1, ""))
    upstream.add(Backing())
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.env("n1a").network.serve, address, listening)
        await nursery.start(upstream.run, {"n1a": address})
        await trio.sleep(2)
        nursery.cancel_scope.cancel()

    assert list(map(len, told[:4])) == [ACKS_MAX, ACKS_MAX, 5, ACKS_MAX]
    assert [id for ids in told[:3] for id in ids] == list(range(2 * ACKS_MAX + 5))
