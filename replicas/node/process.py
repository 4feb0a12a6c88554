"""The node process: a thin trio shell around the partition replicas that it hosts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import PurePosixPath
from typing import Any, Final

import trio

from consistency.dpc.partners import Ask
from replicas.checkpoint.store import CheckpointStore, decode_snapshot, encode_snapshot
from replicas.checkpoint.taker import CheckpointTaker
from replicas.consumer.upstream import GONE, Upstream
from replicas.link.announcements import Announcements
from replicas.link.connection import Identity, dial
from replicas.link.incarnation import claim
from replicas.link.signal import Signal
from replicas.node.hosted import Hosted
from replicas.node.rejected_rows import RejectedRows
from replicas.node.replica import Replica
from replicas.node.ticks import Ticks
from replicas.placement.epoch import FollowedEpoch
from replicas.placement.standby import Standby
from replicas.producer.entry import Entry
from replicas.producer.output_log import NotReady as LogNotReady
from replicas.producer.output_log import OutputLog
from replicas.producer.output_log import Truncated as LogTruncated
from replicas.producer.server import Injector, Opened, Server, fetch_snapshot
from replicas.producer.substream import substream
from spe.errors import LocalProtocolError, OperatorFailed, RemoteProtocolError
from spe.plan.plan import COORDINATOR, Plan
from spe.query.query import skips
from spe.runtime.env import Env
from spe.runtime.log_line import say
from spe.runtime.spill import Shelf, Spill, SpillDamaged, SpillFolder, SpillNotLoaded
from spe.stream.history import StateChanged
from spe.stream.ids import Channel, PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState, StreamId, UnitId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.wire.messages import (
    ANNOUNCEMENTS_MAX,
    Announced,
    Announcement,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    NotReady,
    Order,
    OrderAnswer,
    OtherLog,
    OutputStatus,
    PartnerAnswer,
    PartnerRequest,
    SnapshotRefused,
    SnapshotRequest,
    Subscribe,
    Subscribed,
    Truncated,
)

#: Spilled pieces that stay in memory for a replica while it has more to do: other work may come before what needs them.
LOADED_PIECES: Final = 16
#: How many times as long as one that recovers a replica rests that has its state, before it looks whether it lacks one.
INSTALLED_PERIODS: Final = 4


class NodeProcess:
    """Hosts all replicas that the plan places on one node.

    Args:
      env: clock, network, randomness, trace.
      plan: the cluster.
      node: which node we are.
      token: shared secret of the cluster.
      injector: makes faults happen in this process, for experiments.
    """

    def __init__(
        self, env: Env, plan: Plan, node: NodeId, *, token: str = "", injector: Injector | None = None
    ) -> None:
        self._injector = injector
        self._env = env
        self._plan = plan
        self._node = node
        self._me = Identity("node", node, env.clock.wall_us(), token)
        #: Of X and waits: ours, and what we pass on (T8).
        self._announcements = Announcements(plan)
        self._began_us = env.clock.wall_us()
        #: Longest wait of each unit, over all replicas that have run here.
        self._waited: dict[UnitId, int] = {}
        self._pool = StringPool()
        self._hosted: dict[PartitionId, Hosted] = {}
        self._standbys: dict[PartitionId, Standby] = {}
        #: Of what runs or stands by, by partition.
        self._scopes: dict[PartitionId, trio.CancelScope] = {}
        self._epoch: FollowedEpoch
        self._stores: dict[PartitionId, CheckpointStore] = {}
        #: Of partitions with an operator that skips rows.
        self._rejected: dict[PartitionId, RejectedRows] = {}
        self._channels: dict[Channel, PartitionId] = {}
        #: Numbers all changes of state in this process: a replica that is made anew goes on from the one before (F4).
        self._changes = count(1)
        self._upstream = Upstream(
            env,
            plan,
            self._me,
            pool=self._pool,
            heard=self._heard,
            gone=self._gone,
            other_message=self._other_message,
        )
        self._ticks = Ticks(env, self._hosted, plan.timing.tick_us)
        self._nursery: trio.Nursery | None = None
        self._spill: SpillFolder | None = None

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; ``task_status`` gets the bound address."""
        self._me.incarnation = await claim(self._env, PurePosixPath("nodes", self._node, "incarnation"))
        self._epoch = FollowedEpoch(self._env, self._node)
        server = Server(self._env, self._plan, self._me, self)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            address = await nursery.start(self._env.network.serve, self._plan.nodes[self._node].address, server.handle)
            await nursery.start(self._upstream.run, self._peers())
            await self._open_spill()
            for id in self._plan.replicas_on(self._node):
                self._run_replica(id)
            for id in self._plan.standbys_on(self._node):
                self._stand_by(id)
            nursery.start_soon(self._ticks.run)
            self._env.trace.event("node_started", node=self._node, address=address)
            task_status.started(address)

    async def _open_spill(self) -> None:
        if self._plan.limits.spill_bytes:
            assert self._nursery is not None
            self._spill = SpillFolder(
                self._env.storage,
                self._env.compute,
                self._env.clock,
                PurePosixPath("spill") / self._node,
                self._plan.limits.spill_bytes,
                told=self._spill_told,
                room=self._spill_has_room,
            )
            await self._nursery.start(self._spill.run)

    def _spill_has_room(self) -> None:
        for hosted in self._hosted.values():
            hosted.replica.spill()
            hosted.advanced()
            hosted.work.wake()

    def _spill_told(self, why: str) -> None:
        self._env.trace.event("spill_blocked" if why else "spill_works", why=why)
        rest = f"spills nothing more: {why}; full buffers block" if why else "spills again"
        say(f"{self._node} {rest}")

    def _peers(self) -> dict[str, str]:
        """Every process that we read from, or that hosts a partner replica."""
        peers: dict[str, str] = {}
        mine = self._plan.replicas_on(self._node) + self._plan.standbys_on(self._node)
        for id in mine:
            for channel in self._plan.unit[id.unit].channels_in(id.partition):
                peers |= self._plan.producer_addresses(channel)
            peers |= {n: self._plan.nodes[n].address for n in self._plan.hosts(id.of) if n != self._node}
        peers.pop(self._node, None)
        # Units of one node read each other through the same door as everybody else.
        if any(
            self._node in self._plan.producer_addresses(c)
            for id in mine
            for c in self._plan.unit[id.unit].channels_in(id.partition)
        ):
            peers[self._node] = self._plan.nodes[self._node].address
        return peers

    # --- replicas ---

    def replicas(self) -> dict[str, Replica]:
        """What runs here, by name."""
        return {hosted.name: hosted.replica for hosted in self._hosted.values()}

    def _host(self, id: ReplicaId) -> None:
        """Makes a replica in place of the one that may be there.  Raises OperatorFailed, with nothing changed."""
        self._place(self._make(id))

    def _make(self, id: ReplicaId) -> Hosted:
        """A replica, empty and RECOVERING.  Raises OperatorFailed where an operator cannot be made."""
        signals = [Signal() for _ in self._plan.unit[id.unit].outputs]
        spill, shelves = self._spill, list[Shelf]()

        def shelf(schema: Schema) -> Spill:
            assert spill is not None
            shelves.append(spill.shelf(schema))
            return shelves[-1]

        replica = Replica(
            self._plan,
            id,
            random=self._env.random,
            now=self._env.clock.monotonic_us(),
            wake=lambda output: signals[output].wake(),
            told=partial(self._told, id),
            shelf=None if spill is None else shelf,
            changes=self._changes,
        )
        return Hosted(replica, signals, shelves, self._env.clock.monotonic_us())

    def _place(self, hosted: Hosted) -> None:
        partition = hosted.replica.id.of
        self._put_away(partition)
        self._hosted[partition] = hosted
        self._ticks.wake()
        for log in hosted.replica.logs:
            self._channels[log.channel] = partition
        self._upstream.add(hosted)

    def _told(self, id: ReplicaId, state: NodeState, fresh: bool) -> None:
        self._ticks.wake()
        self._env.trace.event("state", replica=str(id), state=state.name, fresh=fresh)
        if self._env.history is not None:
            self._env.history(StateChanged(self._env.clock.monotonic_us(), str(id), state, fresh))

    def _put_away(self, partition: PartitionId) -> None:
        """Ends a replica that may be there; whoever reads it is cut off."""
        old = self._hosted.pop(partition, None)
        if old is None:
            return
        self._upstream.remove(old.name)
        for log in old.replica.logs:
            log.close()
            self._channels.pop(log.channel, None)
        for one in old.shelves:
            one.close()
        old.work.wake()  # its worker turns to the one that follows
        for signal in old.outputs.values():
            signal.wake()

    # --- running and standing by (H) ---

    def _run_replica(self, id: ReplicaId) -> None:
        self._host(id)
        self._begin(id.of, self._replica_tasks)

    async def _replica_tasks(self, partition: PartitionId) -> None:
        skipping = any(skips(o.spec) for o in self._plan.unit[partition.unit].operators)
        if skipping and partition not in self._rejected:
            id = ReplicaId(*partition, self._node)
            self._rejected[partition] = RejectedRows(self._env, self._plan, id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._work, partition)
            nursery.start_soon(self._recover, partition)
            if (rejected := self._rejected.get(partition)) is not None:
                nursery.start_soon(rejected.run)
            if self._plan.disk_us(ReplicaId(*partition, self._node)) is not None:
                nursery.start_soon(self._write_checkpoints, partition)

    def _begin(self, partition: PartitionId, tasks: Callable[[PartitionId], Awaitable[None]]) -> None:
        """Starts the tasks of a partition in place of those that it had."""
        assert self._nursery is not None
        if (before := self._scopes.pop(partition, None)) is not None:
            before.cancel()
        scope = self._scopes[partition] = trio.CancelScope()

        async def run() -> None:
            with scope:
                await tasks(partition)

        self._nursery.start_soon(run)

    def _stand_by(self, id: ReplicaId) -> None:
        self._put_away(id.of)
        now = self._env.clock.monotonic_us()
        self._standbys[id.of] = Standby(self._plan, id, now)
        if self._env.history is not None:
            self._env.history(StateChanged(now, str(id), NodeState.RECOVERING, False))
        self._begin(id.of, self._standby_tasks)

    async def _standby_tasks(self, partition: PartitionId) -> None:
        standby = self._standbys.get(partition)
        if standby is None:
            return  # it was told to run before this began
        taker = CheckpointTaker(self._env, self._plan, standby, self._store(standby.id), self._fetch_snapshot)
        await taker.look_on_disk()
        if self._standbys.get(partition) is standby:
            self._upstream.add(standby)
        while self._standbys.get(partition) is standby:
            await self._env.clock.sleep(self._plan.timing.heartbeat_us / 1e6)
            await taker.take_if_due()

    def order(self, peer: str, message: Order) -> OrderAnswer:
        """The coordinator wants a standby to run, or a replica that stood by to do so again."""
        try:
            refused = self._follow(peer, message)
        except OperatorFailed as error:  # it cannot be made here; perhaps another node can
            refused = str(error)
        self._env.trace.event(
            "order",
            verb=message.verb,
            replica=f"{message.unit}/{message.partition}@{self._node}",
            epoch=message.epoch,
            refused=refused,
        )
        return OrderAnswer(message.number, self._epoch.latest, refused)

    def _follow(self, peer: str, message: Order) -> str:
        id = ReplicaId(UnitId(message.unit), message.partition, self._node)
        if peer != COORDINATOR:
            return f"{peer} is not the coordinator"
        if message.epoch < self._epoch.latest:
            return f"epoch {message.epoch} is over: {self._epoch.latest} has begun"
        if message.verb != "replay" and id not in self._plan.standbys_on(self._node):
            return f"{self._node} is no standby of {id.of}"
        if message.epoch > self._epoch.latest:
            self._epoch.latest = message.epoch
            assert self._nursery is not None
            self._nursery.start_soon(self._epoch.keep)  # not here: the coordinator's heartbeats wait for the answer
        if message.verb == "install" and id.of in self._standbys:
            made = self._make(id)  # first: where it cannot be made we go on standing by
            standby = self._standbys.pop(id.of)
            self._upstream.remove(standby.name)
            made.replica.partners_are_known = True
            made.replica.partners |= standby.partners()
            self._place(made)
            self._begin(id.of, self._replica_tasks)
        elif message.verb == "retire" and id.of in self._hosted:
            self._stand_by(id)
            self._told(id, NodeState.RECOVERING, False)  # whoever reads or asks it from now on is told so
        elif message.verb == "replay":
            if id.of not in self._hosted:
                return f"{self._node} does not run {id.of}"
            self._host(id)
            self._hosted[id.of].replica.replays = True
        return ""

    async def _work(self, partition: PartitionId) -> None:
        """Lets a replica advance whenever something has come or time has passed; yields between slices."""
        clock = self._env.clock
        assert self._nursery is not None
        while (hosted := self._hosted.get(partition)) is not None:
            token = hosted.work.token()
            more = False
            if hosted.error is None:
                try:
                    more, ask = hosted.replica.advance(clock.monotonic_us())
                except OperatorFailed as error:
                    self._fail(hosted, str(error), error.where())
                except SpillNotLoaded as piece:  # what can be done without it goes on
                    hosted.load(piece, self._nursery)
                    hosted.advanced()
                except SpillDamaged as error:
                    await self._read_again(hosted, str(error))
                    continue
                else:
                    hosted.release_loaded(LOADED_PIECES if more else 0)
                    hosted.advanced()
                    self._take_rejected(hosted)
                    self._tell_of_large_steps(hosted)
                    if ask is not None:
                        self._ask_partner(hosted, ask)
            if more:
                await self._env.compute.turn()
            else:
                await hosted.work.wait(token)

    def _take_rejected(self, hosted: Hosted) -> None:
        if hosted.replica.rejections:
            rejections, hosted.replica.rejections = hosted.replica.rejections, []
            self._rejected[hosted.replica.id.of].take(hosted.replica, rejections)

    def _tell_of_large_steps(self, hosted: Hosted) -> None:
        """Said once: rows of one time go in one step, and heartbeats wait for it (B8)."""
        if not hosted.large_told and hosted.replica.step_too_large():
            hosted.large_told = True
            rows, limit = hosted.replica.core.largest_slice, self._plan.limits.slice_rows
            self._env.trace.event("large_step", replica=hosted.name, rows=rows, slice_rows=limit)

    async def _read_again(self, hosted: Hosted, why: str) -> None:
        """Spilled redo data are damaged.  Upstream has them still, for they are not acknowledged: the replica starts
        from a snapshot of its own, as another would after a restart (A3), and reads them once more."""
        self._env.trace.event("spill_damaged", replica=hosted.name, why=why)
        say(f"{hosted.name}: {why}; it is read from upstream again")
        state = await self._snapshot_of(hosted)
        if self._hosted.get(hosted.replica.id.of) is not hosted or hosted.error is not None:
            return
        try:
            self._host(hosted.replica.id)
            hosted = self._hosted[hosted.replica.id.of]
            if state is not None:
                hosted.replica.install(state, self._env.clock.monotonic_us())
        except OperatorFailed as error:
            self._fail(hosted, str(error), error.where())
        self._upstream.choose()

    def _fail(self, hosted: Hosted, why: str, where: str) -> None:
        """A user's operator raised.  Every replica would do the same: this one stops, the others of the node go on."""
        hosted.error = why
        hosted.replica.announce(NodeState.RECOVERING, False)
        self._upstream.remove(hosted.name)
        self._env.trace.event("replica_stopped", replica=hosted.name, why=why)
        say(f"{hosted.name} stopped: {why}; the other replicas of {self._node} go on\n{where}")

    # --- recovery ---

    async def _recover(self, partition: PartitionId) -> None:
        """Gets a snapshot from a partner, or from disk, or starts from nothing while upstream has everything (A3)."""
        period = self._plan.timing.heartbeat_us / 2e6
        await self._look_on_disk(partition)
        while (hosted := self._hosted.get(partition)) is not None:
            if hosted.replica.must_reinstall() and hosted.error is None:
                self._env.trace.event("reinstall", replica=hosted.name)
                try:
                    self._host(hosted.replica.id)
                except OperatorFailed as error:
                    self._fail(hosted, str(error), error.where())
                    continue
                await self._look_on_disk(partition)
                continue
            if not hosted.replica.installed and hosted.error is None:
                try:
                    await self._install(hosted)
                except OperatorFailed as error:
                    self._fail(hosted, str(error), error.where())
            await self._env.clock.sleep(period if not hosted.replica.installed else INSTALLED_PERIODS * period)

    async def _install(self, hosted: Hosted) -> None:
        """Installs what there is, if anything.  Raises OperatorFailed where an operator does not take its state."""
        origin = "nothing" if hosted.replica.stored is None else "disk"
        partner = hosted.replica.recovery_wish(self._env.clock.monotonic_us())
        if partner is not None and not await self._install_from(hosted, partner):
            origin = partner
        if partner is not None and not hosted.replica.installed:
            hosted.replica.no_snapshot_from(partner, self._env.clock.monotonic_us())
        if hosted.replica.installed:
            self._env.trace.event("installed", replica=hosted.name, origin=origin)
            self._upstream.choose()

    async def _look_on_disk(self, partition: PartitionId) -> None:
        hosted = self._hosted.get(partition)
        if hosted is None or hosted.replica.replays:
            return
        if self._plan.disk_us(hosted.replica.id) is not None:
            hosted.replica.stored = await self._store(hosted.replica.id).newest()

    def _store(self, id: ReplicaId) -> CheckpointStore:
        """One for all that read or write them here: it knows which files are damaged."""
        if id.of not in self._stores:
            self._stores[id.of] = CheckpointStore(self._env, self._plan, id)
        return self._stores[id.of]

    async def _install_from(self, hosted: Hosted, partner: str) -> bool:
        """Installs what ``partner`` sends, if it does; True: our own checkpoint from disk was further on."""
        id = hosted.replica.id
        data = await self._fetch_snapshot(id, partner)
        if isinstance(data, str):
            return False
        try:
            state = await self._env.compute.run(lambda: decode_snapshot(self._plan, id.of, data))
        except RemoteProtocolError as error:
            self._env.trace.event("no_snapshot", replica=hosted.name, partner=partner, why=str(error))
            return False
        if self._hosted.get(id.of) is hosted and not hosted.replica.installed:
            return hosted.replica.install_newest(state, self._env.clock.monotonic_us())
        return False

    async def _fetch_snapshot(self, id: ReplicaId, partner: str) -> bytearray | str:
        """What ``partner`` sends of a partition, as it was encoded, or why nothing came."""
        address = self._plan.nodes[NodeId(partner)].address
        try:
            connection, _ = await dial(self._env, self._plan, self._me, partner, address)
            try:
                timing = self._plan.timing
                asked = SnapshotRequest(id.unit, id.partition, timing.heartbeat_us)
                data = await fetch_snapshot(connection, asked, timing.gone_us() / 1e6)
            finally:
                with trio.CancelScope(shield=True):
                    await connection.aclose()
        except (*GONE, RemoteProtocolError) as error:
            data = str(error)
        if isinstance(data, str):
            self._env.trace.event("no_snapshot", replica=str(id), partner=partner, why=data)
        return data

    async def _write_checkpoints(self, partition: PartitionId) -> None:
        """Writes one per interval, and before that when upstream is full and waits for us (A8)."""
        every_us = self._plan.disk_us(ReplicaId(*partition, self._node))
        assert every_us is not None
        clock, store = self._env.clock, self._store(ReplicaId(*partition, self._node))
        last, trouble = clock.monotonic_us(), ""
        while True:
            await self._env.clock.sleep(min(every_us, self._plan.timing.heartbeat_us) / 1e6)
            if (hosted := self._hosted.get(partition)) is None:
                return
            replica = hosted.replica
            if hosted.error is not None or not (
                clock.monotonic_us() - last >= every_us or (replica.installed and replica.upstream_full())
            ):
                continue
            snapshot = await self._snapshot_of(hosted) if replica.worth_storing() else None
            if snapshot is None:
                continue
            self._take_rejected(hosted)
            rejected = self._rejected.get(partition)
            if rejected is not None and not await rejected.flush():
                continue  # nothing durable may hold rows that its file still lacks (U15)
            last = clock.monotonic_us()
            try:
                size = await store.write(snapshot)
            except (OSError, LocalProtocolError) as error:
                self._env.trace.event("checkpoint_failed", replica=hosted.name, why=str(error))
                if str(error) != trouble:
                    trouble = str(error)
                    say(f"{hosted.name}: no checkpoint: {error}; going on without, upstream keeps more")
                continue
            trouble = ""
            replica.written(snapshot)
            self._env.trace.event("checkpoint_written", replica=hosted.name, restart=snapshot["restart"], bytes=size)

    # --- partners ---

    def _ask_partner(self, hosted: Hosted, ask: Ask) -> None:
        id = hosted.replica.id
        self._env.trace.event("ask_partner", replica=hosted.name, partner=ask.partner, number=ask.number)
        self._upstream.tell(ask.partner, PartnerRequest(id.unit, id.partition, self._node, ask.number))

    def partner_request(self, message: PartnerRequest) -> Message:
        hosted = self._hosted.get(PartitionId(UnitId(message.unit), message.partition))
        now = self._env.clock.monotonic_us()
        granted = hosted is not None and hosted.error is None and hosted.replica.core.partner_asks(message.asker, now)
        self._env.trace.event("partner_asks", asker=message.asker, number=message.number, granted=granted)
        return PartnerAnswer(message.unit, message.partition, message.number, granted)

    async def _other_message(self, peer: str, message: Message) -> None:
        if isinstance(message, Announced):
            self._announcements.heard(one for one in message.items if one.node != self._node)
            return
        if not isinstance(message, PartnerAnswer):
            raise RemoteProtocolError(f"unexpected {type(message).__name__} on a control connection")
        hosted = self._hosted.get(PartitionId(UnitId(message.unit), message.partition))
        if hosted is not None and hosted.error is None and message.granted:
            try:
                hosted.replica.core.partner_grants(message.number, self._env.clock.monotonic_us())
            except OperatorFailed as error:
                self._fail(hosted, str(error), error.where())
            hosted.work.wake()

    def _heard(self, peer: str, answer: HeartbeatAnswer) -> None:
        partners = [h for h in self._hosted.values() if peer in h.replica.partners]
        if not partners and not self._standbys:
            return
        outputs = {Channel(StreamId(o.stream), o.partition): o for o in answer.outputs}
        for hosted in partners:
            for difference in hosted.replica.partner_told(peer, outputs):
                self._env.trace.event("replicas_differ", replica=hosted.name, where=difference)
        for standby in self._standbys.values():
            standby.heard(peer, outputs)

    def _gone(self, peer: str) -> None:
        for hosted in self._hosted.values():
            hosted.replica.partner_lost(peer)
        for standby in self._standbys.values():
            standby.lost(peer)

    # --- serving ---

    def subscribe(self, peer: str, message: Subscribe) -> Opened | Truncated | NotReady | OtherLog:
        channel = Channel(StreamId(message.stream), message.partition)
        partition = self._channels.get(channel)
        if partition is None:
            return NotReady(f"{self._node} does not serve {channel}")
        hosted = self._hosted[partition]
        if hosted.error is not None:
            return NotReady(hosted.error)
        log = hosted.replica.log(channel)
        try:
            key = substream(self._plan, message)
        except KeyError as error:
            return NotReady(f"no such substream: {error}")
        if why := hosted.replica.other_origin(message.consumer, message.origin):
            return OtherLog(why)
        opened = log.subscribe(message.mode, message.position, message.frontier, message.held, message.t_star, key)
        if isinstance(opened, LogNotReady):
            return NotReady(f"{hosted.name} is recovering")
        if isinstance(opened, LogTruncated):
            return Truncated(opened.first)
        frontier, tentative = log.frontiers()
        origin = hosted.replica.origin
        greeting = Subscribed(log.state, log.fresh, log.last_id, frontier, tentative, log.first, log.sequence, origin)
        return Opened(greeting, opened, log.schema, hosted.outputs[channel])

    def heartbeat(self, peer: str, message: Heartbeat) -> HeartbeatAnswer:
        now = self._env.clock.monotonic_us()
        for ack in message.acks:
            partition = self._channels.get(Channel(StreamId(ack.stream), ack.partition))
            if partition is not None:
                hosted = self._hosted[partition]
                hosted.acknowledged(ack, message.incarnation, message.period_us, now)
        outputs = []
        for hosted in self._hosted.values():
            stands_in = hosted.replica.core.stands_in(now)
            for at, log in enumerate(hosted.replica.logs):
                frontier, tentative = log.frontiers()
                outputs.append(
                    OutputStatus(
                        log.channel.stream,
                        log.channel.partition,
                        log.state,
                        log.fresh,
                        log.last_id,
                        frontier,
                        tentative,
                        log.first,
                        min(1.0, log.fill),
                        *hosted.replica.core.stable_output(at).newest_mark,
                        hosted.replica.lacking(),
                        log.sequence,
                        stands_in,
                    )
                )
        return HeartbeatAnswer(message.number, self._me.incarnation, outputs)

    def announced(self, version: int) -> tuple[int, Sequence[Announcement]]:
        now = self._env.clock.monotonic_us()
        for hosted in self._hosted.values():
            unit = hosted.replica.id.unit
            waited_us = hosted.replica.core.longest_wait_us(now)
            self._waited[unit] = max(self._waited.get(unit, 0), waited_us)
        self._announcements.heard(self._announcement(*one) for one in self._waited.items())
        return self._announcements.since(version, ANNOUNCEMENTS_MAX)

    def _announcement(self, unit: UnitId, waited_us: int) -> Announcement:
        node, share = self._plan.nodes[self._node], self._plan.share(unit, self._node)
        return Announcement(
            self._node,
            unit,
            self._me.incarnation,
            self._began_us,
            node.x_us,
            share.x_us,
            node.alpha,
            node.during_failure.value,
            node.during_stabilization.value,
            node.reconcile.value,
            waited_us,
        )

    async def snapshot(self, message: SnapshotRequest) -> memoryview | SnapshotRefused:
        hosted = self._hosted.get(PartitionId(UnitId(message.unit), message.partition))
        if hosted is None or hosted.error is not None:
            return SnapshotRefused(f"{self._node} does not run {message.unit}/{message.partition}")
        state = await self._snapshot_of(hosted)
        if state is None:
            return SnapshotRefused(f"{hosted.name} is recovering itself")
        try:
            return await self._env.compute.run(lambda: encode_snapshot(self._plan, hosted.replica.id.of, state))
        except LocalProtocolError as error:  # an operator of the user's: nobody can ever be given its state
            self._tell_of_state(hosted, str(error))
            return SnapshotRefused(f"{hosted.name} cannot be stored: {error}")

    async def _snapshot_of(self, hosted: Hosted) -> dict[str, Any] | None:
        """A snapshot; None: there is none to be had.

        What of its output lies in spill files is read before, piece by piece, and a state that must be made again is
        made in portions, so that others get their turn.
        """
        ahead: list[list[Entry]] = [[] for _ in hosted.replica.logs]
        loaded: list[SpillNotLoaded] = []
        while self._hosted.get(hosted.replica.id.of) is hosted and hosted.error is None:  # else it was put away
            try:
                more = [_read_ahead(log, read) for log, read in zip(hosted.replica.logs, ahead, strict=True)]
                if not any(more) and not hosted.replica.core.prepare_snapshot():
                    return hosted.replica.snapshot(ahead)
            except SpillNotLoaded as piece:
                await piece.load()
                loaded.append(piece)
                continue
            except OperatorFailed as error:  # with undo/redo it may have to make its state again
                self._fail(hosted, str(error), error.where())
            while loaded:
                loaded.pop().release()
            await self._env.compute.turn()
        return None

    def _tell_of_state(self, hosted: Hosted, why: str) -> None:
        """Said once: we go on, but no restarted partner can come back."""
        if not hosted.state_told:
            hosted.state_told = True
            self._env.trace.event("snapshot_failed", replica=hosted.name, why=why)
            say(f"{hosted.name}: no partner can be given its state: {why}")

    def status(self) -> Mapping[str, Any]:
        return {
            "kind": "node",
            "name": self._node,
            "incarnation": self._me.incarnation,
            "spill": {} if self._spill is None else self._spill.statistics(),
            "replicas": [self._status_of(hosted) for hosted in list(self._hosted.values())],
            "standbys": [s.status() for s in self._standbys.values()],
        }

    def _status_of(self, hosted: Hosted) -> Mapping[str, Any]:
        counters: Mapping[str, int] = {}
        try:
            counters = hosted.replica.counters()
        except OperatorFailed as error:  # they are for people: no reason to stop
            if not hosted.counters_told:
                hosted.counters_told = True
                say(f"{hosted.name}: no counters: {error}\n{error.where()}")
        return {**hosted.replica.status(), "counters": counters, "error": hosted.error}

    async def inject(self, fault: Mapping[str, Any]) -> str:
        return "this process injects no faults" if self._injector is None else await self._injector(fault)


def _read_ahead(log: OutputLog, read: list[Entry]) -> bool:
    """Appends the next piece of what is spilled to what was read; False: there is no more."""
    piece = log.spilled_after(read[-1].batch.upto_id if read else 0)
    read += piece
    return bool(piece)


async def run_node(
    env: Env,
    plan: Plan,
    node: NodeId,
    *,
    token: str = "",
    injector: Injector | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Runs a node until cancelled."""
    await NodeProcess(env, plan, node, token=token, injector=injector).run(task_status=task_status)
