"""The connections of a consumer: what becomes of a feed that is given up at once."""

from __future__ import annotations

from collections.abc import Sequence

import trio
import trio.testing

from replicas.client_view import ClientPort
from replicas.inputs import MAIN, Action, Close, Input, Open
from replicas.links import Identity
from replicas.upstream import Upstream
from spe.batch import Element
from spe.plan import Channel
from spe.states import NodeId, StreamId
from spe.strings import StringPool
from spe.times import BEFORE_TIME
from tests.support.cluster import SimCluster
from tests.support.plans import SEQUENCE, chain, pass_on, source

CHANNEL = Channel(StreamId("s"), 0)


class Undecided:
    """An owner that opens a feed and closes it in the same breath."""

    name = "unit/0@n"

    def __init__(self) -> None:
        port = ClientPort(CHANNEL, self._forget)
        self.inputs: Sequence[Input] = [Input(CHANNEL, ["n1a"], port, consumer=self.name, stall_us=1, x_us=1)]

    def _forget(self, channel: Channel, element: Element) -> None:
        raise AssertionError("nothing was ever subscribed to")

    def choose(self, now: int) -> list[tuple[int, Action]]:
        opening = Open(1, "n1a", MAIN, 0, BEFORE_TIME, False, BEFORE_TIME)
        return [(0, opening), (0, Close(1, "another one is better"))]

    def acks(self) -> list[tuple[Channel, int]]:
        return []

    def substream(self, channel: Channel) -> tuple[int, int]:
        return (0, 1)

    def delivered(self) -> None:
        raise AssertionError("nothing was ever subscribed to")

    async def room(self) -> None:
        raise AssertionError("nothing was ever subscribed to")


async def test_a_feed_that_is_closed_before_its_task_has_run_is_no_more() -> None:
    """Two heartbeat answers in one step: the first makes a replica the best, the second makes it a bad one."""
    cluster = SimCluster(chain([source("a", reader={})], [("s", pass_on("a"), SEQUENCE)]))
    upstream = Upstream(cluster.env("n"), cluster.plan, Identity("node", "n", 1, ""), pool=StringPool())
    async with trio.open_nursery() as nursery:
        await nursery.start(upstream.run, {"n1a": cluster.plan.nodes[NodeId("n1a")].address})
        upstream.add(Undecided())
        upstream.choose()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    events = [line.split()[2] for line in cluster.log]
    assert [e for e in events if e != "unreachable"] == ["subscribe", "unsubscribe"]
