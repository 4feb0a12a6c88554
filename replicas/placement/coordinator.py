"""The coordinator's process: sends heartbeats to all processes, and orders to standbys.  A thin shell.

No tuples go through it.  While it is away no standby takes over; everything else goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import trio

from replicas.consumer.upstream import Upstream
from replicas.link.connection import Identity
from replicas.placement.deciders.activation import Activation, RateMeter
from replicas.placement.deciders.install import Goals, InstallDecider
from replicas.placement.deciders.lending import Lent
from replicas.placement.deciders.move import RoleChange
from replicas.placement.deciders.recovery_order import Held, PlanningTask, RecoveryOrder
from replicas.placement.deciders.replay import Decision
from replicas.placement.issuing import DirectoryIssuer
from replicas.placement.joining import JoinRefused, LeaveRefused, joined, left
from replicas.placement.mover import Mover, MoveStep
from replicas.placement.settings_change import SettingsChange, SettingsRefused
from replicas.placement.store import CoordinatorStore
from replicas.placement.view import ClusterView
from replicas.planning.load import SAMPLE_US
from replicas.producer.server import Injector, Server
from replicas.producer.service import Handler, Service
from spe.errors import ConfigError, RemoteProtocolError, SpeError
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.plan.revision import decode_node
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.status import CoordinatorStatus
from spe.stream.names import NodeId
from spe.stream.times import SECOND
from spe.wire.messages.commands import JoinCluster, JoinClusterAnswer, MoveAnswer, MoveOrder, SetAnswer, SetOrder
from spe.wire.messages.feeds import HeartbeatAnswer
from spe.wire.messages.message import Message
from spe.wire.messages.replicas import Order, OrderAnswer

#: Orders that may await an answer at once.
UNANSWERED: Final = 256
#: How often the balancer looks.
BALANCE_US: Final = SECOND
#: The status shows so many of the newest ended moves.
OVER_SHOWN: Final = 20


class Due:
    """A periodic time; without a period it never comes."""

    def __init__(self, period_us: int | None) -> None:
        self._period_us = period_us
        self._next_at = 0

    def begin(self, now: int) -> None:
        self._next_at = now + (self._period_us or 0)

    def is_now(self, now: int) -> bool:
        if self._period_us is None or now < self._next_at:
            return False
        self._next_at = now + self._period_us
        return True


class LongJobs:
    """Runs long work in tasks of its own, one of each kind at a time."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._busy: set[str] = set()

    def busy(self, kind: str) -> bool:
        return kind in self._busy

    def start(self, kind: str, work: Callable[[], Awaitable[None]]) -> None:
        """Starts a job, unless the last one of its kind still runs."""
        if kind not in self._busy:
            self._busy.add(kind)
            self._nursery.start_soon(self._run, kind, work)

    async def _run(self, kind: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            self._busy.remove(kind)


class Superseded(SpeError):
    """A later coordinator has begun; this one must end."""


class Coordinator:
    """Runs until cancelled, or superseded; answers ``spe status``.

    Args:
      env: clock, network, storage, trace.
      plan: the cluster.
      store: its epoch and decisions; stays open while the coordinator runs.
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
        #: By type of message.
        self.handlers: dict[type[Message], Handler] = {
            MoveOrder: lambda visitor, message: self.move(message),
            SetOrder: lambda visitor, message: self.set(message),
            JoinCluster: lambda visitor, message: self.join(visitor.name, message),
        }
        #: Set once the coordinator runs.
        self.server: Server | None = None
        self._env = env
        self._plan = plan
        self._me = Identity("coordinator", COORDINATOR, env.clock.wall_us(), token)
        self._store = store
        self._configured = directory.nodes.keys()
        self.directories = DirectoryIssuer(env, plan, directory, self._me, store)
        self._upstream = Upstream(
            env, plan, self.directories, heard=self._heard, gone=self._gone, other_message=self._answered
        )
        #: 0 before the epoch has begun.
        self.epoch = 0
        self._number = store.last_number()
        self._open: dict[int, Decision] = {}
        self._superseded: str | None = None
        #: Latest epoch that a peer has announced.
        self._later = 0
        #: Does the store have something that is not on the disk?
        self._noted = False
        self._make_deciders(self.directories.current, env.clock.monotonic_us())
        self._follow()
        self.directories.on_change(self._redirect)

    def _make_deciders(self, directory: Directory, now: int) -> None:
        """Makes the deciders, from what the previous coordinator stored."""
        plan, store, timing = self._plan, self._store, self._plan.timing
        recovery_us = 4 * max(timing.request_us, timing.connect_us, timing.heartbeat_us)
        self.view = ClusterView(plan, directory, now, recovery_us=recovery_us)
        self.install = InstallDecider(self.view, patience_us=timing.heartbeat_us)
        known = store.loads(plan.fingerprint), store.memory(plan.fingerprint)
        self.recovery = RecoveryOrder(self.view, *known)
        settings = directory.coordinator
        self.activation = Activation(
            self.view,
            settings.budget,
            algorithm=settings.algorithm,
            margin=settings.margin,
            active=store.wanted(plan.fingerprint),
        )
        self.mover = Mover(self._env, self.view, store)
        self._meter = RateMeter(plan, now)
        self._source_meter = RateMeter(plan, now)
        self._adapts, self._samples = Due(settings.adapt_us), Due(SAMPLE_US)
        self._balances = Due(BALANCE_US if self.mover.balance.automatic else None)

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; ``task_status`` gets the bound address.

        Raises:
          Superseded: a node follows a later coordinator.
          OSError: the epoch cannot be stored, so nodes could not tell which coordinator to follow.
        """
        self.epoch = self._me.incarnation = await self._store.begin(self._env.clock.wall_us())
        await self.directories.begin()
        service = Service(COORDINATOR, self.status, self.handlers)
        self.server = server = Server(self._env, self._plan, self.directories, service, self._injector)
        self._env.trace.event("coordinator_began", epoch=self.epoch)
        async with trio.open_nursery() as nursery:
            at = self.directories.current.coordinator.address
            address = await nursery.start(self._env.network.serve, at, server.handle)
            await nursery.start(self._upstream.run, self._peers())
            task_status.started(address)
            await self._decide(LongJobs(nursery))
            await self._remember_later()
            nursery.cancel_scope.cancel()
        raise Superseded(self._superseded or "")

    def _peers(self) -> dict[str, str]:
        return {n: a for n, a in self.directories.current.addresses().items() if n != COORDINATOR}

    def _redirect(self, directory: Directory) -> None:
        """Follows a changed directory."""
        self.view.redirect(directory, self._env.clock.monotonic_us())
        self.recovery.redirect()
        self._follow()
        self._upstream.redirect(directory, self._peers())

    # --- the loop ---

    async def _decide(self, jobs: LongJobs) -> None:
        """Asks all deciders at every heartbeat, until this coordinator is superseded."""
        clock = self._env.clock
        if len(self.activation.active) != self.activation.budget:
            jobs.start("choose", partial(self._choose, {}))
        for due in (self._adapts, self._samples, self._balances):
            due.begin(clock.monotonic_us())
        while self._superseded is None:
            await clock.sleep(self._plan.timing.heartbeat_us / 1e6)
            if self.directories.later > self.epoch:
                self._supersede(self.directories.later, "somebody has the directory of")
            now = clock.monotonic_us()
            self._look(now)
            if not jobs.busy("choose"):
                self._choose_standbys(now, jobs)
            self._measure(now)
            if (task := self.recovery.task()) is not None:
                jobs.start("plan recovery", partial(self._plan_recovery, task))
            if self._balances.is_now(now):
                jobs.start("balance", self.mover.follow_loads)
            jobs.start("write", self._write)

    def _look(self, now: int) -> None:
        """Gives the orders that follow from the view, without waiting."""
        self.view.versions = self._upstream.versions()
        moves = self.mover.moves
        moves.look()
        self._follow()
        held = self._held(now)
        goals = Goals(self.activation.wanted(), moves.wanted(), moves.restoring(), moves.leaving(), held)
        self.install.aim(goals, now)
        for decision in self.install.decide(now):
            self._order(decision)

    def _follow(self) -> None:
        """Restricts the choice of active standbys to permanent ones (H7)."""
        self.activation.follow(self.mover.moves.passing() | self.recovery.lending.lent)

    def _held(self, now: int) -> Held:
        """Returns where lost partitions are to run while there is too little room."""
        short = self.recovery.in_force
        held = self.recovery.look(self.install.unserved(now), now, self._plan.timing.heartbeat_us)
        for replica in self.recovery.without_role if self.recovery.in_force else ():
            self._env.trace.event("role_wanted", verb="install", replica=str(replica))
        if short and not self.recovery.in_force:
            self._env.trace.event("recovery_over")
        return held

    def _choose_standbys(self, now: int, jobs: LongJobs) -> None:
        """Takes a step towards the chosen standbys; now and then starts a new choice by measured rates."""
        activation = self.activation
        rates = self._meter.take(now) if self._adapts.is_now(now) else {}
        if rates and (activation.settled or activation.target & self.install.unable(activation.first, now)):
            jobs.start("choose", partial(self._choose, rates))
        if activation.step(partial(self.install.helper, now=now)) is not None:
            self._store.want(self._plan.fingerprint, activation.wanted())
            self._noted = True

    def _measure(self, now: int) -> None:
        """Stores the loads for the next coordinator now and then."""
        if not self._samples.is_now(now):
            return
        rates = self._source_meter.take(now)
        self.recovery.fed({str(s): rates[s][0] for s in self._plan.sources if s in rates})
        if (needs := self.recovery.to_keep()) is not None:
            self._store.note_loads(self._plan.fingerprint, *needs)
            self._noted = True

    # --- long work in tasks of its own: a takeover does not wait for our disk ---

    async def _write(self) -> None:
        """Continues moves and lent roles, and writes the store."""
        steps: list[MoveStep] = []

        def change(directory: Directory) -> tuple[Directory, str] | None:
            step = self.mover.step(self.activation.wanted())
            steps.append(step)
            self._noted |= step.noted
            if step.change is not None:
                return step.change(directory), f"{step.change}: {self.mover.orders.reason(step.change.partition)}"
            lent = self._role_change()
            return None if lent is None else (lent(directory), f"{lent}: recovery")

        before = self.directories.version
        try:
            if await self.directories.propose(change) == before and self._noted:
                self._noted = False
                await self._store.write()
        except (OSError, ValueError) as error:  # it is tried again
            self._env.trace.event("not_kept", why=str(error))
        for step in steps:
            self.mover.trace(step)

    def _role_change(self) -> Lent | RoleChange | None:
        """Returns a role change that a recovery needs, or that takes a lent role back."""
        spared = partial(self.install.spared, now=self._env.clock.monotonic_us())
        return self.recovery.role_change({move.partition for move in self.mover.orders.open()}, spared)

    async def _plan_recovery(self, task: PlanningTask) -> None:
        """Plans the order in which lost partitions are restored."""
        self.recovery.adopt(await self._env.compute.run(task.run))
        self._env.trace.event("recovery_planned", **self.recovery.summary())

    async def _choose(self, rates: Mapping[str, Sequence[float]]) -> None:
        """Chooses which standbys run, at first by the known rates, then by measured ones."""
        try:
            unable = self.install.unable(self.activation.first, self._env.clock.monotonic_us())
            choice = await self._env.compute.run(lambda: self.activation.choose(rates, unable))
        except ConfigError as error:  # the present choice stays
            self._env.trace.event("no_choice", why=str(error))
            say(f"{COORDINATOR}: no plan for the budget: {error}", Level.WARNING, event="no_choice")
            return
        if self.activation.adopt(choice):
            self._env.trace.event(
                "actives_chosen", active=sorted(map(str, choice.active)), of=choice.value, before=choice.before
            )

    async def _remember_later(self) -> None:
        """Stores the later epoch, so that the next coordinator here takes a larger one even if the clock is behind."""
        try:
            await self._store.heard_of(self._later)
        except OSError as error:
            self._env.trace.event("epoch_not_kept", why=str(error))

    # --- orders of people ---

    async def set(self, message: SetOrder) -> SetAnswer:
        """Answers an order to change X, α or a policy of a node (X4)."""
        change = SettingsChange(
            self._plan, self.directories.configuration, NodeId(message.node), message.changes, self.mover.orders.open
        )
        try:
            version = await self.directories.publish(change, str(change))
        except SettingsRefused as error:
            return SetAnswer(0, 0, str(error))
        except (OSError, ValueError) as error:
            return SetAnswer(0, 0, f"the order cannot be kept: {error}")
        return SetAnswer(*version, "")

    def _order(self, decision: Decision) -> None:
        assert self.epoch > 0, "H6: an order is of an epoch"
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
        now = self._env.clock.monotonic_us()
        self._meter.heard(answer.outputs)
        self._source_meter.heard(answer.outputs)
        for partition, sample in self.view.heard(peer, answer, now):
            self.mover.balance.sampled(partition, sample, now)
            self.recovery.measured({partition: sample.cpu})
            self.recovery.measured_memory({partition: sample.memory})

    def _gone(self, peer: str) -> None:
        self.view.lost(peer, self._env.clock.monotonic_us())

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
            self.install.refused(decision.replica, self._env.clock.monotonic_us())
            self.recovery.refused(decision.replica)
        self._store.ordered(
            message.number,
            self.epoch,
            self._env.clock.wall_us(),
            decision.verb,
            str(decision.replica),
            message.error,
        )
        self._noted = True  # written later: the peer's heartbeats wait for us

    def _supersede(self, epoch: int, who: str) -> None:
        self._later = max(self._later, epoch)
        self._superseded = f"{who} a coordinator that began later (epoch {epoch}, ours {self.epoch})"

    async def move(self, message: MoveOrder) -> MoveAnswer:
        """Answers an order to move partitions, or to remove a node."""
        return await (self._leave(NodeId(message.source)) if message.verb == "leave" else self.mover.order(message))

    async def _leave(self, node: NodeId) -> MoveAnswer:
        """Removes a node that has joined."""
        view, orders = self.view, self.mover.orders
        try:
            await self.directories.publish(
                lambda directory: left(directory, node, self._configured, view.alive, orders.open()), f"{node} leaves"
            )
        except (LeaveRefused, ValueError) as error:
            return MoveAnswer(1, 0, str(error))
        except OSError as error:
            return MoveAnswer(1, 0, f"the directory cannot be kept: {error}")
        self._env.trace.event("left", node=node)
        return MoveAnswer(1, 0, "")

    async def join(self, peer: str, message: JoinCluster) -> JoinClusterAnswer:
        """Adds a node that the configuration does not name (D4)."""
        try:
            node = decode_node(message.node)
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from None
        if node.id != peer:
            raise RemoteProtocolError(f"{peer} wants to join as {node.id}")
        try:
            alive = self.view.alive
            if joined(self.directories.current, node, self._configured, alive) is not self.directories.current:
                await self.directories.publish(
                    lambda directory: joined(directory, node, self._configured, alive), f"{node.id} joins"
                )
        except (JoinRefused, ValueError) as error:
            return JoinClusterAnswer(b"", str(error))
        except OSError as error:
            return JoinClusterAnswer(b"", f"the directory cannot be kept: {error}", True)
        assert self.directories.revision is not None, "D4: who joins is in a version of the directory"
        self._env.trace.event("joined", node=node.id, address=node.address)
        return JoinClusterAnswer(self.directories.revision.encode(), "")

    def status(self) -> CoordinatorStatus:
        nodes = self.directories.current.nodes
        return CoordinatorStatus(
            name=COORDINATOR,
            incarnation=self.epoch,
            partitions=tuple(self.install.status()),
            activation=self.activation.status(),
            loads=tuple(self.view.load_status(self._env.clock.monotonic_us())),
            joined={n: node.address for n, node in nodes.items() if n not in self._configured},
            moves=tuple(move.status() for move in self.mover.orders.newest(OVER_SHOWN)),
            recovery=self.recovery.status(),
        )


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
      made: called with the coordinator before it begins.
    """
    with CoordinatorStore(env) as store:
        coordinator = Coordinator(env, plan, directory, store, token=token, injector=injector)
        made(coordinator)
        await coordinator.run(task_status=task_status)
