"""The producing side of a connection: answers."""

from __future__ import annotations

import trio

from replicas.link.connection import Identity
from replicas.link.directory import DirectoryKeeper
from replicas.producer.server import Bystander, Server
from replicas.simulation.clock import JumpClock
from spe.cli.polling import Poller
from spe.status import NodeStatus
from spe.stream.names import NodeId
from spe.wire.framing import CONTROL_BYTES
from spe.wire.messages import Status
from tests.support.faulty_cluster import FaultyCluster
from tests.support.plans import SEQUENCE, chain, pass_on, source
from tests.support.statuses import a_node, a_replica

CROWDED = a_node("n1a", *[a_replica()] * 1_000)


class Crowded(Bystander):
    """A node with more replicas than go into another message."""

    def status(self) -> NodeStatus:
        assert len(Status(CROWDED).encode()) > CONTROL_BYTES
        return CROWDED


async def test_a_status_of_many_replicas_arrives(jump_clock: JumpClock) -> None:
    cluster = FaultyCluster(*chain([source("a", reader={})], [("s", pass_on("a"), SEQUENCE)]))
    address, env = cluster.directory.nodes[NodeId("n1a")].address, cluster.env("n1a")
    server = Server(env, cluster.plan, DirectoryKeeper(env, cluster.directory, Identity("node", "n1a", 1)), Crowded())
    poller = Poller(cluster.env("control"), cluster.plan, {"n1a": address}, "")
    async with trio.open_nursery() as nursery:
        await nursery.start(env.network.serve, address, server.handle)
        assert await poller.ask_status("n1a"), poller.errors
        nursery.cancel_scope.cancel()
    status = poller.seen["n1a"].status
    assert isinstance(status, NodeStatus)
    assert status.replicas == CROWDED.replicas
