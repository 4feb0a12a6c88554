"""The node process: replicas and standbys of one node, and the answers to its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import trio

from replicas.checkpoint.log_taker import LogTaker
from replicas.checkpoint.taker import CheckpointTaker
from replicas.consumer.upstream import Upstream
from replicas.link.announcements import Announcements
from replicas.link.connection import Identity
from replicas.link.directory import DirectoryKeeper, revision_file
from replicas.link.incarnation import claim
from replicas.node.checkpoint_task import CheckpointTask
from replicas.node.hosting import Hosting
from replicas.node.log_task import LogTask, log_status
from replicas.node.orders import OrderFollower
from replicas.node.recovery_task import RecoveryTask
from replicas.node.replica import Replica
from replicas.node.replica_host import ReplicaHost
from replicas.node.snapshots import Snapshots
from replicas.node.work_task import WorkTask
from replicas.producer.feed import Accepted
from replicas.producer.server import Injector, Server
from replicas.producer.service import Service, Visitor
from spe.errors import OperatorFailed, RemoteProtocolError
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.status import NodeStatus, ReplicaStatus, SettingsStatus
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, StreamId, UnitId
from spe.wire.messages.feeds import (
    ANNOUNCEMENTS_MAX,
    Announced,
    Announcement,
    Heartbeat,
    HeartbeatAnswer,
    Held,
    Load,
    NotReady,
    OtherLog,
    Subscribe,
    Truncated,
)
from spe.wire.messages.message import Message
from spe.wire.messages.replicas import Order, PartnerAnswer, PartnerRequest, SnapshotRequest


class NodeProcess:
    """Runs what the plan places on one node.

    Args:
      env: clock, network, randomness, trace.
      plan: the cluster.
      node: the node of this process.
      token: shared secret of the cluster.
      injector: makes faults happen in this process, for experiments.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        directory: Directory,
        node: NodeId,
        *,
        token: str = "",
        injector: Injector | None = None,
    ) -> None:
        #: Set once the process runs.
        self.server: Server | None = None
        self._injector = injector
        self._env = env
        self._plan = plan
        self._node = node
        self._me = Identity("node", node, env.clock.wall_us(), token)
        self._keeper = DirectoryKeeper(env, directory, self._me, revision_file(PurePosixPath("nodes", node), plan))
        #: Announcements of X and waits: our own, and those that we pass on (T8).
        self._announcements = Announcements(plan, self._keeper.current)
        self._began_us, self._began_with = env.clock.wall_us(), self._keeper.version
        #: Newest announcement of each unit that has run here.
        self._announced: dict[UnitId, Announcement] = {}
        upstream = Upstream(
            env,
            plan,
            self._keeper,
            heard=self._heard,
            gone=self._gone,
            other_message=self._other_message,
        )
        self.hosting = Hosting(env, plan, self._keeper, node, upstream)
        self.snapshots = Snapshots(self.hosting, self._me)
        self._recovery = RecoveryTask(self.hosting, self.snapshots)
        self._work = WorkTask(self.hosting, self._recovery)
        self._checkpoints = CheckpointTask(self.hosting, self.snapshots)
        self._logs = LogTask(self.hosting)
        self.orders: OrderFollower

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; ``task_status`` gets the bound address."""
        env, hosting = self._env, self.hosting
        self._me.incarnation = await claim(env, PurePosixPath("nodes", self._node, "incarnation"))
        self.orders = OrderFollower(hosting, self._keeper, self._run_replica, self._stand_by)
        self.server = server = Server(env, self._plan, self._keeper, self.service(), self._injector)
        async with trio.open_nursery() as nursery:
            hosting.nursery = nursery
            began_with = hosting.directory
            listens_at = began_with.nodes[self._node].address
            address = await nursery.start(env.network.serve, listens_at, server.handle)
            await nursery.start(hosting.upstream.run, self._peers())
            await hosting.open_spill()
            for id in hosting.directory.replicas_on(self._node):
                self.orders.run(id)
            for id in hosting.directory.standbys_on(self._node):
                self.orders.stand_by(id)
            self._keeper.on_change(self._redirect)
            if hosting.directory is not began_with:
                self._redirect(hosting.directory)
            nursery.start_soon(hosting.ticks.run)
            env.trace.event("node_started", node=self._node, address=address)
            task_status.started(address)

    def service(self) -> Service:
        return Service(
            self._node,
            self.status,
            {
                Subscribe: self._subscribe,
                Heartbeat: self._heartbeat,
                PartnerRequest: self._partner_request,
                SnapshotRequest: lambda visitor, message: self.snapshots.give(message),
                Order: lambda visitor, message: self.orders.order(visitor.name, message),
            },
            announced=self._announced_since,
        )

    def _redirect(self, directory: Directory) -> None:
        """Follows a changed directory."""
        assert directory.version >= self._announcements.directory.version, "D2: versions never go back"
        self._note_waits(self._announcements.directory)
        self._announcements.directory = directory
        self.orders.follow_roles()
        self.hosting.upstream.redirect(directory, self._peers())
        self._note_waits(directory)
        self.hosting.ticks.wake()  # a deadline may be nearer than it was

    def _peers(self) -> dict[str, str]:
        """Returns every process that we read from, or that hosts a partner replica."""
        peers: dict[str, str] = {}
        directory = self.hosting.directory
        mine = directory.replicas_on(self._node) + directory.standbys_on(self._node)
        for id in mine:
            for channel in self._plan.unit[id.unit].channels_in(id.partition):
                peers |= directory.producer_addresses(self._plan, channel)
            peers |= {n: directory.nodes[n].address for n in directory.hosts(id.of) if n != self._node}
        peers.pop(self._node, None)
        # Units of one node read each other over connections, as units of other nodes do.
        if any(
            self._node in directory.producer_addresses(self._plan, c)
            for id in mine
            for c in self._plan.unit[id.unit].channels_in(id.partition)
        ):
            peers[self._node] = directory.nodes[self._node].address
        return peers

    async def _run_replica(self, partition: PartitionId) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._work.run, partition)
            nursery.start_soon(self._recovery.run, partition)
            if (log := self.hosting.directory.logs.get(partition)) is not None:
                nursery.start_soon(self._logs.run, partition, log)
            host = self.hosting.running.get(partition)
            if host is not None and host.replica.recovery.stores_every_us is not None:
                nursery.start_soon(self._checkpoints.run, partition, host.replica.recovery.stores_every_us)

    async def _stand_by(self, partition: PartitionId) -> None:
        hosting = self.hosting
        standby = hosting.standbys.get(partition)
        if standby is None:
            return  # an order to run came before this began
        taker: CheckpointTaker | LogTaker
        store = hosting.store(standby.id)
        stored = hosting.log(standby.id)
        if partition in hosting.directory.logs:
            taker = LogTaker(self._env, self._plan, standby, stored, store, self.snapshots.fetch)
        else:
            taker = CheckpointTaker(self._env, self._plan, standby, store, stored, self.snapshots.fetch)
        async with stored.writing:
            await taker.look_on_disk()
            if hosting.standbys.get(partition) is standby:
                hosting.upstream.add(standby)
            while hosting.standbys.get(partition) is standby:
                await self._env.clock.sleep(self._plan.timing.heartbeat_us / 1e6)
                await taker.take_if_due()

    def replicas(self) -> dict[str, Replica]:
        """Returns the replicas that run here, by name."""
        return {host.name: host.replica for host in self.hosting.running.values()}

    # --- partners ---

    def _partner_request(self, visitor: Visitor, message: PartnerRequest) -> PartnerAnswer:
        host = self._running(message)
        granted = host is not None and host.replica.partner_asks(message.asker, self.hosting.now())
        self._env.trace.event("partner_asks", asker=message.asker, number=message.number, granted=granted)
        return PartnerAnswer(message.unit, message.partition, message.number, granted)

    async def _other_message(self, peer: str, message: Message) -> None:
        if isinstance(message, Announced):
            self._announcements.heard(item for item in message.items if item.node != self._node)
            return
        if not isinstance(message, PartnerAnswer):
            raise RemoteProtocolError(f"unexpected {type(message).__name__} on a control connection")
        host = self._running(message)
        if host is not None and message.granted:
            try:
                host.replica.partner_grants(message.number, self.hosting.now())
            except OperatorFailed as error:
                self.hosting.fail(host, error)
            host.work.wake()

    def _running(self, message: PartnerRequest | PartnerAnswer) -> ReplicaHost | None:
        host = self.hosting.running.get(PartitionId(UnitId(message.unit), message.partition))
        return None if host is None or host.error is not None else host

    def _heard(self, peer: str, answer: HeartbeatAnswer) -> None:
        partners = [h for h in self.hosting.running.values() if peer in h.replica.partners.told]
        if not partners and not self.hosting.standbys:
            return
        outputs = {Channel(StreamId(o.stream), o.partition): o for o in answer.outputs}
        for host in partners:
            for difference in host.replica.partner_told(peer, outputs):
                self._env.trace.event("replicas_differ", replica=host.name, where=difference)
        for standby in self.hosting.standbys.values():
            standby.heard(peer, outputs)

    def _gone(self, peer: str) -> None:
        for host in self.hosting.running.values():
            host.replica.partners.lost(peer)
        for standby in self.hosting.standbys.values():
            standby.lost(peer)

    # --- serving ---

    def _subscribe(self, visitor: Visitor, message: Subscribe) -> Accepted | Truncated | NotReady | OtherLog:
        channel = Channel(StreamId(message.stream), message.partition)
        host = self.hosting.serving(channel)
        return NotReady(f"{self._node} does not serve {channel}") if host is None else host.subscribe(message)

    def _heartbeat(self, visitor: Visitor, message: Heartbeat) -> HeartbeatAnswer:
        peer = visitor.name
        now, client, taken = self.hosting.now(), peer.startswith("client:"), False
        for ack in message.acks:
            host = self.hosting.serving(Channel(StreamId(ack.stream), ack.partition))
            if host is None:
                continue
            serving = host.replica.serving
            if not serving.speaks(ack.consumer, message.incarnation, now):
                taken = taken or client
            elif serving.acknowledged(ack, message.period_us, now):
                host.work.wake()
        outputs = [o for host in self.hosting.running.values() for o in host.replica.output_status(now)]
        standbys = self.hosting.standbys.items() if peer == COORDINATOR else ()
        held = [Held(id.unit, id.partition, standby.checkpoints) for id, standby in standbys]
        running = self.hosting.running.items() if peer == COORDINATOR else ()
        recoveries = [(id, host.replica.recovery) for id, host in running]
        held += [Held(id.unit, id.partition, int(recovery.safe)) for id, recovery in recoveries if recovery.backs]
        loads = [Load(*id, *sample) for id, host in running if (sample := host.meter.news(now)) is not None]
        guest = self.hosting.directory.is_guest(peer)
        return HeartbeatAnswer(message.number, self._me.incarnation, outputs, held, loads, taken, guest)

    def _announced_since(self, version: int) -> tuple[int, Sequence[Announcement]]:
        self._note_waits(self.hosting.directory)
        self._announcements.heard(self._announced.values())
        return self._announcements.since(version, ANNOUNCEMENTS_MAX)

    def _note_waits(self, directory: Directory) -> None:
        """Notes the longest waits of replicas under the settings of a directory."""
        now = self.hosting.now()
        for host in self.hosting.running.values():
            unit = host.replica.id.unit
            self._announced[unit] = self._announcement(directory, unit, host.replica.core.waits.longest_us(now))

    def _announcement(self, directory: Directory, unit: UnitId, waited_us: int) -> Announcement:
        """Returns the settings of a unit, their beginning, and the longest wait of its replicas here since then."""
        before = self._announced.get(unit)
        node, share = directory.nodes[self._node], directory.share(self._plan, unit, self._node)
        began_us = self._began_us if directory.version == self._began_with else self._env.clock.wall_us()
        since_us = began_us if before is None else before.since_us
        announcement = Announcement(
            self._node,
            unit,
            self._me.incarnation,
            since_us,
            node.x_us,
            share.x_us,
            node.alpha,
            node.during_failure.value,
            node.during_stabilization.value,
            node.reconcile.value,
            waited_us,
        )
        if before is None:
            return announcement
        if announcement == before._replace(waited_us=waited_us):
            return announcement._replace(waited_us=max(waited_us, before.waited_us))
        return announcement._replace(since_us=max(self._env.clock.wall_us(), since_us + 1))

    def status(self) -> NodeStatus:
        spill = self.hosting.spill
        node = self.hosting.directory.nodes[self._node]
        return NodeStatus(
            name=self._node,
            incarnation=self._me.incarnation,
            settings=SettingsStatus(
                x_us=node.x_us,
                alpha=node.alpha,
                during_failure=node.during_failure.value,
                during_stabilization=node.during_stabilization.value,
            ),
            spill=None if spill is None else spill.status(),
            replicas=tuple(self._replica_status(host) for host in self.hosting.running.values()),
            standbys=tuple(s.status() for s in self.hosting.standbys.values()),
            disk_full={"spill files": why} if (why := self.hosting.spill_blocked) else {},
            unreachable=self.hosting.upstream.unreachable(),
        )

    def _replica_status(self, host: ReplicaHost) -> ReplicaStatus:
        now = self.hosting.now()
        status = host.replica.status(self._counters(host), host.error)
        if host.error is None:
            status = replace(
                status, waiting_us=host.replica.core.waits.waiting_us(now), log=log_status(self.hosting, host)
            )
        if (load := host.meter.latest) is None:
            return status
        return replace(status, load=load.status(), load_age_us=now - host.meter.taken_at)

    def _counters(self, host: ReplicaHost) -> Mapping[str, int]:
        try:
            return host.replica.counters()
        except OperatorFailed as error:  # counters are for people: no reason to stop
            if host.say_once("counters"):
                say(f"{host.name}: no counters: {error}\n{error.where()}", Level.WARNING, replica=host.name)
            return {}
