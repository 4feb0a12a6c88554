"""The coordinator's process: it sends heartbeats to all processes, and orders to standbys.  A thin shell.

No tuples go through it.  While it is away no standby takes over; everything else goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import trio

from replicas.consumer.upstream import Upstream
from replicas.link.connection import Identity
from replicas.placement.activation import Activation, RateMeter
from replicas.placement.coordination import Coordination, Decision
from replicas.placement.heard_loads import HeardLoads
from replicas.placement.issuing import DirectoryIssuer
from replicas.placement.joining import JoinRefused, LeaveRefused, joined, left
from replicas.placement.lending import Lent
from replicas.placement.mover import Mover
from replicas.placement.moves import Moves, RoleChange
from replicas.placement.recovery_order import RecoveryOrder
from replicas.placement.settings_change import SettingsChange, SettingsRefused
from replicas.placement.store import CoordinatorStore
from replicas.planning.load import SAMPLE_US, LoadHistory
from replicas.producer.server import Injector, Server
from replicas.producer.service import Handler, Service
from spe.errors import ConfigError, RemoteProtocolError, SpeError
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.plan.revision import decode_node
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.status import CoordinatorStatus
from spe.stream.ids import ReplicaId
from spe.stream.names import NodeId, StreamId
from spe.wire.messages import (
    HeartbeatAnswer,
    JoinCluster,
    JoinClusterAnswer,
    Message,
    MoveAnswer,
    MoveOrder,
    Order,
    OrderAnswer,
    SetAnswer,
    SetOrder,
)

#: Orders under way at once; an answer that does not come is not waited for.
UNANSWERED: Final = 256
#: Moves that the status shows of those that are over, the newest.
OVER_SHOWN: Final = 20


class Superseded(SpeError):
    """A later coordinator has begun; this one must end."""


class Coordinator:
    """Runs until cancelled, or superseded; answers ``spe status``.

    Args:
      env: clock, network, storage, trace.
      plan: the cluster.
      store: its epoch and what it wants to run; stays open for as long as it runs.
      token: shared secret of the cluster.
      injector: makes faults happen in this process, for experiments.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        directory: Directory,
        store: CoordinatorStore,
        *,
        token: str = "",
        injector: Injector | None = None,
    ) -> None:
        self._injector = injector
        #: Once it runs.
        self.server: Server | None = None
        self._env = env
        self._plan = plan
        self._me = Identity("coordinator", COORDINATOR, env.clock.wall_us(), token)
        self._store = store
        self._configured = directory.nodes.keys()
        self.directories = DirectoryIssuer(env, plan, directory, self._me, store)
        directory = self.directories.current
        now = env.clock.monotonic_us()
        timing = plan.timing
        self.coordination = Coordination(
            plan,
            directory,
            now,
            patience_us=timing.heartbeat_us,
            recovery_us=4 * max(timing.request_us, timing.connect_us, timing.heartbeat_us),
        )
        known = store.loads(plan.fingerprint), store.memory(plan.fingerprint)
        self.recovery = RecoveryOrder(plan, directory, *known)
        settings = directory.coordinator
        self.activation = Activation(
            plan,
            directory,
            settings.budget,
            algorithm=settings.algorithm,
            margin=settings.margin,
            active=store.wanted(plan.fingerprint),
        )
        self._meter = RateMeter(plan, now)
        self._source_meter = RateMeter(plan, now)
        self._loads = HeardLoads(directory)
        self._upstream = Upstream(
            env,
            plan,
            self.directories,
            heard=self._heard,
            gone=self._gone,
            other_message=self._answered,
        )
        self.mover = Mover(env, plan, self.directories, store, self._upstream.versions)
        self._keep_chosen(now)
        self.directories.on_change(self._redirect)
        #: 0 before it has begun.
        self.epoch = 0
        self._number = store.last_number()
        self._open: dict[int, Decision] = {}
        self._superseded: str | None = None
        #: Latest epoch that we were told of.
        self._later = 0
        self._unwritten = False

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; ``task_status`` gets the bound address.

        Raises:
          Superseded: a node follows a later coordinator.
          OSError: the epoch cannot be kept, so nobody could be sure whom to follow.
        """
        self.epoch = self._me.incarnation = await self._store.begin(self._env.clock.wall_us())
        await self.directories.begin()
        handlers: dict[type[Message], Handler] = {
            MoveOrder: lambda visitor, message: self.move(message),
            SetOrder: lambda visitor, message: self.set(message),
            JoinCluster: lambda visitor, message: self.join(visitor.name, message),
        }
        service = Service(COORDINATOR, self.status, handlers)
        self.server = server = Server(self._env, self._plan, self.directories, service, self._injector)
        self._env.trace.event("coordinator_began", epoch=self.epoch)
        async with trio.open_nursery() as nursery:
            at = self.directories.current.coordinator.address
            address = await nursery.start(self._env.network.serve, at, server.handle)
            await nursery.start(self._upstream.run, self._peers())
            task_status.started(address)
            nursery.start_soon(self._plan_actives)
            nursery.start_soon(self._keep_notes)
            nursery.start_soon(self.mover.run)
            nursery.start_soon(self._plan_recovery)
            nursery.start_soon(self._lend)
            nursery.start_soon(self._keep_loads)
            await self._decide()
            await self._remember_later()
            nursery.cancel_scope.cancel()
        raise Superseded(self._superseded or "")

    @property
    def loads(self) -> LoadHistory:
        """What each partition has needed (L1); times are monotonic microseconds of our clock."""
        return self._loads.history

    def _peers(self) -> dict[str, str]:
        return {n: a for n, a in self.directories.current.addresses().items() if n != COORDINATOR}

    def _redirect(self, directory: Directory) -> None:
        """Another directory counts from here on."""
        now = self._env.clock.monotonic_us()
        self.coordination.redirect(directory, now)
        self.recovery.redirect(directory)
        self.mover.redirect(directory)
        self._loads.redirect(directory)
        self._keep_chosen(now)
        self._upstream.redirect(directory, self._peers())

    def _keep_chosen(self, now: int) -> None:
        passing = self.mover.moves.passing() | self.recovery.lending.lent
        keep_chosen(self.activation, self.coordination, self.mover.moves, self.directories.current, passing, now)

    async def _decide(self) -> None:
        """Gives orders until this coordinator is superseded."""
        moves = self.mover.moves

        def answers(source: str) -> bool:
            return f"source:{source}" in moves.alive()

        while self._superseded is None:
            await self._env.clock.sleep(self._plan.timing.heartbeat_us / 1e6)
            if self.directories.later > self.epoch:
                self._supersede(self.directories.later, "somebody has the directory of")
            self.coordination.bring(moves.wanted(), moves.restoring(), moves.leaving())
            version = self.directories.version
            behind = {NodeId(peer) for peer, theirs in self._upstream.versions().items() if theirs < version}
            now = self._env.clock.monotonic_us()
            self._keep_chosen(now)
            short, unserved = self.recovery.in_force, self.coordination.unserved(now)
            soon_us = self._plan.timing.heartbeat_us
            self.coordination.hold(self.recovery.look(unserved, now, soon_us, moves.know, answers))
            for replica in self.recovery.without_role if self.recovery.in_force else ():
                self._env.trace.event("role_wanted", verb="install", replica=str(replica))
            if short and not self.recovery.in_force:
                self._env.trace.event("recovery_over")
            for decision in self.coordination.decide(now, behind):
                self._order(decision)

    async def set(self, message: SetOrder) -> SetAnswer:
        """Another X, α or policy that somebody wants a node to have (X4)."""
        change = SettingsChange(
            self._plan, self.directories.configuration, NodeId(message.node), message.changes, self.mover.moves.open
        )
        try:
            version = await self.directories.publish(change, str(change))
        except SettingsRefused as error:
            return SetAnswer(0, 0, str(error))
        except (OSError, ValueError) as error:
            return SetAnswer(0, 0, f"the order cannot be kept: {error}")
        return SetAnswer(*version, "")

    async def _remember_later(self) -> None:
        """Stores the later epoch, so that the next coordinator here begins a larger one whatever the clock says."""
        try:
            await self._store.heard_of(self._later)
        except OSError as error:
            self._env.trace.event("epoch_not_kept", why=str(error))

    async def _keep_notes(self) -> None:
        """Writes what was answered to orders, a moment later."""
        while True:
            await self._env.clock.sleep(self._plan.timing.heartbeat_us / 1e6)
            if not self._unwritten:
                continue
            self._unwritten = False
            try:
                await self._store.write()
            except OSError as error:  # the notes are for people; decisions rest on heartbeats
                self._env.trace.event("orders_not_noted", why=str(error))

    async def _plan_recovery(self) -> None:
        """Plans which lost partitions come back first, while there is too little room."""
        while True:
            await self._env.clock.sleep(self._plan.timing.heartbeat_us / 1e6)
            if (task := self.recovery.task()) is not None:
                planned = await self._env.compute.run(task.run)
                self.recovery.adopt(planned)
                self._env.trace.event("recovery_planned", **self.recovery.summary())

    async def _lend(self) -> None:
        """Gives nodes the roles that a recovery needs, and takes them back."""

        def wanted() -> Lent | RoleChange | None:
            spared = partial(self.coordination.spared, now=self._env.clock.monotonic_us())
            return self.recovery.role_change({move.partition for move in self.mover.moves.open()}, spared)

        def if_still_wanted(directory: Directory) -> Directory:
            if change is None or wanted() != change:
                raise ValueError("another directory came first")
            return change(directory)

        while True:
            await self._env.clock.sleep(self._plan.timing.heartbeat_us / 1e6)
            change = wanted()
            try:
                if change is not None:
                    await self.directories.publish(if_still_wanted, f"{change}: recovery")
                    self._env.trace.event("role_lent", change=str(change).replace(" ", "_"))
            except (OSError, ValueError) as error:  # it comes again
                self._env.trace.event("role_not_lent", why=str(error))

    async def _keep_loads(self) -> None:
        """For the next coordinator, in a task of its own: who must be restored does not wait for our disk."""
        while True:
            await self._env.clock.sleep(SAMPLE_US / 1e6)
            rates = self._source_meter.take(self._env.clock.monotonic_us())
            self.recovery.fed({str(s): rates[s][0] for s in self._plan.sources if s in rates})
            if (needs := self.recovery.to_keep()) is not None:
                try:
                    await self._store.keep_loads(self._plan.fingerprint, *needs)
                except OSError as error:
                    self._env.trace.event("loads_not_kept", why=str(error))

    async def _plan_actives(self) -> None:
        """Chooses which standbys run, at the beginning by what rates are known, then by measured ones."""
        every_us, activation = self.directories.current.coordinator.adapt_us, self.activation
        if len(activation.active) != activation.budget:
            await self._choose({})
        next_at = self._env.clock.monotonic_us() + (every_us or 0)
        while True:
            await self._env.clock.sleep(self._plan.timing.heartbeat_us / 1e6)
            now = self._env.clock.monotonic_us()
            if every_us is not None and now >= next_at:
                next_at = now + every_us
                unable = self.coordination.unable(activation.first, now)
                if (rates := self._meter.take(now)) and (activation.settled or activation.target & unable):
                    await self._choose(rates)
            if activation.step(partial(self.coordination.helper, now=now)) is not None:
                await self._want()

    async def _choose(self, rates: Mapping[str, Sequence[float]]) -> None:
        try:
            unable = self.coordination.unable(self.activation.first, self._env.clock.monotonic_us())
            choice = await self._env.compute.run(lambda: self.activation.choose(rates, unable))
        except ConfigError as error:  # what runs goes on
            self._env.trace.event("no_choice", why=str(error))
            say(f"{COORDINATOR}: no plan for the budget: {error}", Level.WARNING, event="no_choice")
            return
        if self.activation.adopt(choice):
            self._env.trace.event(
                "actives_chosen", active=sorted(map(str, choice.active)), of=choice.value, before=choice.before
            )

    async def _want(self) -> None:
        self._keep_chosen(self._env.clock.monotonic_us())
        try:
            await self._store.want(self._plan.fingerprint, self.activation.wanted())
        except OSError as error:  # the next coordinator would choose once more
            self._env.trace.event("wanted_not_kept", why=str(error))

    def _order(self, decision: Decision) -> None:
        self._number += 1
        self._open[self._number] = decision
        while len(self._open) > UNANSWERED:
            del self._open[next(iter(self._open))]
        replica = decision.replica
        if decision.verb == "install":
            self.recovery.ordered(replica)
        self._env.trace.event("ordered", verb=decision.verb, replica=str(replica), number=self._number)
        self._upstream.tell(
            replica.node, Order(self.epoch, self._number, decision.verb, replica.unit, replica.partition)
        )

    def _heard(self, peer: str, answer: HeartbeatAnswer) -> None:
        self._meter.heard(answer.outputs)
        self._source_meter.heard(answer.outputs)
        self.mover.heard(peer, answer)
        if peer in self.directories.current.nodes:
            now = self._env.clock.monotonic_us()
            self.recovery.heard(NodeId(peer), answer.outputs)
            self.coordination.heard(NodeId(peer), answer.outputs, now)
            for partition, sample in self._loads.heard(NodeId(peer), answer.loads, now):
                self.mover.balance.sampled(partition, sample, now)
                self.recovery.measured({partition: sample.cpu})
                self.recovery.measured_memory({partition: sample.memory})
        else:
            for output in answer.outputs:
                self.coordination.heard_source(output)

    def _gone(self, peer: str) -> None:
        self.mover.lost(peer)
        if peer in self.directories.current.nodes:
            self.recovery.lost(NodeId(peer))
            self.coordination.lost(NodeId(peer), self._env.clock.monotonic_us())
        else:
            self.coordination.lost_source(StreamId(peer.removeprefix("source:")))

    async def _answered(self, peer: str, message: Message) -> None:
        if not isinstance(message, OrderAnswer):
            raise RemoteProtocolError(f"unexpected {type(message).__name__} for a coordinator")
        decision = self._open.pop(message.number, None)
        if message.epoch > self.epoch:
            self._supersede(message.epoch, f"{peer} follows")
        if decision is None:
            return
        if message.error:
            self._env.trace.event("order_refused", replica=str(decision.replica), why=message.error)
            self.coordination.refused(decision.replica, self._env.clock.monotonic_us())
            self.recovery.refused(decision.replica)
        self._store.ordered(
            message.number,
            self.epoch,
            self._env.clock.wall_us(),
            decision.verb,
            str(decision.replica),
            message.error,
        )
        self._unwritten = True  # in its own task: the peer's heartbeats wait for us

    def _supersede(self, epoch: int, who: str) -> None:
        self._later = max(self._later, epoch)
        self._superseded = f"{who} a coordinator that began later (epoch {epoch}, ours {self.epoch})"

    async def move(self, message: MoveOrder) -> MoveAnswer:
        """What somebody wants moved, or who is to leave."""
        return await (self._leave(NodeId(message.source)) if message.verb == "leave" else self.mover.order(message))

    async def _leave(self, node: NodeId) -> MoveAnswer:
        """A node that has joined is no node of ours any more."""
        moves = self.mover.moves
        try:
            await self.directories.publish(
                lambda directory: left(directory, node, self._configured, moves.alive(), moves.open()), f"{node} leaves"
            )
        except (LeaveRefused, ValueError) as error:
            return MoveAnswer(1, 0, str(error))
        except OSError as error:
            return MoveAnswer(1, 0, f"the directory cannot be kept: {error}")
        self._env.trace.event("left", node=node)
        return MoveAnswer(1, 0, "")

    async def join(self, peer: str, message: JoinCluster) -> JoinClusterAnswer:
        """A node that no configuration names wants to be one of ours (D4)."""
        try:
            node = decode_node(message.node)
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from None
        if node.id != peer:
            raise RemoteProtocolError(f"{peer} wants to join as {node.id}")
        try:
            alive = self.mover.moves.alive()
            if joined(self.directories.current, node, self._configured, alive) is not self.directories.current:
                await self.directories.publish(
                    lambda directory: joined(directory, node, self._configured, alive), f"{node.id} joins"
                )
        except (JoinRefused, ValueError) as error:
            return JoinClusterAnswer(b"", str(error))
        except OSError as error:
            return JoinClusterAnswer(b"", f"the directory cannot be kept: {error}", True)
        assert self.directories.revision is not None
        self._env.trace.event("joined", node=node.id, address=node.address)
        return JoinClusterAnswer(self.directories.revision.encode(), "")

    def status(self) -> CoordinatorStatus:
        nodes = self.directories.current.nodes
        return CoordinatorStatus(
            name=COORDINATOR,
            incarnation=self.epoch,
            partitions=tuple(self.coordination.status()),
            activation=self.activation.status(),
            loads=tuple(self._loads.status(self._env.clock.monotonic_us())),
            joined={n: node.address for n, node in nodes.items() if n not in self._configured},
            moves=tuple(move.status() for move in self.mover.moves.newest(OVER_SHOWN)),
            recovery=self.recovery.status(),
        )


def keep_chosen(
    activation: Activation,
    coordination: Coordination,
    moves: Moves,
    directory: Directory,
    passing: Collection[ReplicaId],
    now: int,
) -> None:
    """Those standbys run by choice that are chosen, on nodes that stay what they are (H7).

    Args:
      passing: standbys because of a move or a recovery.
    """
    activation.redirect(directory, passing)
    chosen, wanted = activation.wanted(), coordination.wanted()
    for id in chosen.keys() | wanted.keys():
        if chosen.get(id) != wanted.get(id):
            coordination.want(id, chosen.get(id, ()), now)
    moves.keep(chosen)


async def run_coordinator(
    env: Env,
    plan: Plan,
    directory: Directory,
    *,
    token: str = "",
    injector: Injector | None = None,
    made: Callable[[Coordinator], None] = lambda coordinator: None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Runs a coordinator until cancelled.  Raises Superseded, LogCorrupt.

    Args:
      made: is given the coordinator before it begins.
    """
    with CoordinatorStore(env) as store:
        coordinator = Coordinator(env, plan, directory, store, token=token, injector=injector)
        made(coordinator)
        await coordinator.run(task_status=task_status)
