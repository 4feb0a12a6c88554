"""The replicas and standbys that a node hosts, and the tasks of each partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import PurePosixPath

import trio

from replicas.checkpoint.replica_log import ReplicaLog
from replicas.checkpoint.store import CheckpointStore
from replicas.consumer.upstream import Upstream
from replicas.link.directory import DirectoryKeeper
from replicas.node.rejection_notices import ToldRejections
from replicas.node.replica_host import ReplicaHost
from replicas.node.ticks import Ticks
from replicas.placement.standby import Standby
from spe.errors import OperatorFailed
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.runtime.spill import SpillFolder
from spe.stream.history import StateChanged
from spe.stream.ids import Channel, PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState

#: Runs the tasks of a partition until others replace them.
Tasks = Callable[[PartitionId], Awaitable[None]]


class Hosting:
    """Makes and removes the replicas and standbys of one node.

    Args:
      upstream: reads the inputs of running replicas.

    Attributes:
      nursery: runs all tasks of the node, once the node runs.
      running, standbys: by partition; a new one replaces the previous one.
    """

    nursery: trio.Nursery

    def __init__(self, env: Env, plan: Plan, keeper: DirectoryKeeper, node: NodeId, upstream: Upstream) -> None:
        self.env = env
        self.plan = plan
        self._keeper = keeper
        self.node = node
        self.upstream = upstream
        self.running: dict[PartitionId, ReplicaHost] = {}
        self.standbys: dict[PartitionId, Standby] = {}
        self.ticks = Ticks(env, self.running, plan.timing.tick_us)
        self.spill: SpillFolder | None = None
        #: Reason why nothing more can be spilled; "" while there is room.
        self.spill_blocked = ""
        self._channels: dict[Channel, PartitionId] = {}
        #: Cancel scopes of the tasks of each partition.
        self._scopes: dict[PartitionId, trio.CancelScope] = {}
        self._stores: dict[PartitionId, CheckpointStore] = {}
        self._logs: dict[PartitionId, ReplicaLog] = {}
        self._rejections = ToldRejections(env)
        #: Numbers all changes of state in this process: a new replica continues the numbers of the previous one (F4).
        self._changes = count(1)

    @property
    def directory(self) -> Directory:
        """The current directory."""
        return self._keeper.current

    def serving(self, channel: Channel) -> ReplicaHost | None:
        """The replica here that makes a channel, if there is one."""
        return None if (partition := self._channels.get(channel)) is None else self.running[partition]

    def now(self) -> int:
        return self.env.clock.monotonic_us()

    # --- replicas ---

    def host(self, id: ReplicaId) -> ReplicaHost:
        """Makes a replica, which replaces an existing one.  Raises OperatorFailed, with nothing changed."""
        made = self.make(id)
        if (before := self.running.get(id.of)) is not None:
            made.replica.recovery.stores(before.replica.recovery.stores_every_us)
            made.replica.reading.goes_on(before.replica.reading.origins())
        return self.place(made)

    def make(self, id: ReplicaId) -> ReplicaHost:
        """Returns a replica, empty and RECOVERING.  Raises OperatorFailed where an operator cannot be made."""
        return ReplicaHost(
            self.plan,
            self.directory,
            id,
            random=self.env.random,
            now=self.now(),
            on_state=partial(self.told, id),
            spill=self.spill,
            changes=self._changes,
        )

    def place(self, host: ReplicaHost) -> ReplicaHost:
        """Installs a replica in place of an earlier one, if there is one."""
        partition = host.replica.id.of
        assert partition not in self.standbys, "H3: who runs a partition is no standby of it"
        self.put_away(partition)
        self.running[partition] = host
        self.ticks.wake()
        for log in host.replica.logs:
            self._channels[log.channel] = partition
        self.upstream.add(host)
        return host

    def put_away(self, partition: PartitionId) -> None:
        """Ends the replica of a partition, if there is one, and disconnects its readers."""
        old = self.running.pop(partition, None)
        if old is None:
            return
        self.upstream.remove(old.name)
        for log in old.replica.logs:
            self._channels.pop(log.channel, None)
        old.close()

    def told(self, id: ReplicaId, state: NodeState, fresh: bool) -> None:
        """Records a change of a replica's state."""
        self.ticks.wake()
        self.env.trace.event("state", replica=str(id), state=state.name, fresh=fresh)
        if self.env.history is not None:
            self.env.history(StateChanged(self.now(), str(id), state, fresh))

    def fail(self, host: ReplicaHost, error: OperatorFailed) -> None:
        """Stops a replica whose user's operator raised, as every replica of the partition would; the node goes on."""
        host.error = str(error)
        host.replica.serving.announce(NodeState.RECOVERING, False)
        self.upstream.remove(host.name)
        self.env.trace.event("replica_stopped", replica=host.name, why=str(error))
        say(
            f"{host.name} stopped: {error}; the other replicas of {self.node} go on\n{error.where()}",
            Level.ERROR,
            event="replica_stopped",
            replica=host.name,
        )

    def stand_by(self, id: ReplicaId) -> Standby:
        """Makes a standby, which replaces an existing replica (H3)."""
        self.put_away(id.of)
        standby = self.standbys[id.of] = Standby(self.plan, self.directory, id, self.now())
        self._told_to_stop(id)
        return standby

    def _told_to_stop(self, id: ReplicaId) -> None:
        self.env.trace.event("retired", replica=str(id))
        if self.env.history is not None:
            self.env.history(StateChanged(self.now(), str(id), NodeState.RECOVERING, False, runs=False))

    def leave(self, partition: PartitionId) -> None:
        """Removes the replica or standby of a partition, and its tasks."""
        if (standby := self.standbys.pop(partition, None)) is not None:
            self.upstream.remove(standby.name)
        if partition in self.running:
            self.put_away(partition)
            self.told(ReplicaId(*partition, self.node), NodeState.RECOVERING, False)
        self._told_to_stop(ReplicaId(*partition, self.node))
        if (scope := self._scopes.pop(partition, None)) is not None:
            scope.cancel()

    # --- tasks of a partition ---

    def begin(self, partition: PartitionId, tasks: Tasks) -> None:
        """Starts the tasks of a partition, and ends its previous ones."""
        if (before := self._scopes.pop(partition, None)) is not None:
            before.cancel()
        scope = self._scopes[partition] = trio.CancelScope()

        async def run() -> None:
            with scope:
                await tasks(partition)

        self.nursery.start_soon(run)

    def store(self, id: ReplicaId) -> CheckpointStore:
        """The checkpoint store of a partition, shared by all tasks here: it knows which files are damaged."""
        if id.of not in self._stores:
            self._stores[id.of] = CheckpointStore(self.env, self.plan, id)
        return self._stores[id.of]

    def log(self, id: ReplicaId) -> ReplicaLog:
        """The checkpoint log of a partition, shared by all tasks here: this process holds its lock."""
        if id.of not in self._logs:
            self._logs[id.of] = ReplicaLog(self.env, self.plan, id)
        return self._logs[id.of]

    def tell_rejections(self, host: ReplicaHost) -> None:
        """Reports the rows that operators rejected since the last call (U15)."""
        side = host.replica.serving
        if side.rejections:
            rejections, side.rejections = side.rejections, []
            self._rejections.tell(host.replica.id, rejections)

    # --- spill files ---

    async def open_spill(self) -> None:
        if self.plan.limits.spill_bytes:
            self.spill = SpillFolder(
                self.env.storage,
                self.env.compute,
                self.env.clock,
                PurePosixPath("spill") / self.node,
                self.plan.limits.spill_bytes,
                report=self._spill_told,
                room=self._spill_has_room,
            )
            await self.nursery.start(self.spill.run)

    def _spill_has_room(self) -> None:
        for host in self.running.values():
            host.spill_more()

    def _spill_told(self, why: str) -> None:
        self.spill_blocked = why
        self.env.trace.event("spill_blocked" if why else "spill_works", why=why)
        rest = f"spills nothing more: {why}; full buffers block" if why else "spills again"
        say(f"{self.node} {rest}", Level.ERROR if why else Level.INFO, event="spill_blocked" if why else "spill_works")
