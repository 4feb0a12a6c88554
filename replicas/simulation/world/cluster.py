"""A whole cluster in one process and in virtual time: the real node, source and client code on simulated hosts.

    async with SimCluster(plan, seed=1) as cluster:
        await cluster.start()
        cluster.kill("n1"); await trio.sleep(5); cluster.restart("n1")

Run it with the clock that jumps (:class:`~replicas.simulation.world.clock.JumpClock`): an hour costs only its events.
With :func:`~replicas.simulation.world.host.seeded_scheduling` a run follows from its seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

import trio
import trio.lowlevel

from consistency.checking.node_settings import InForce
from consistency.checking.promises.accuracy import Kept
from consistency.comparison import ChannelRows
from consistency.faults.kind import LinkFaults
from replicas.client.client import Client
from replicas.client.process import ClientProcess
from replicas.connectors import Live, Replay
from replicas.node.observation import buffers
from replicas.node.process import NodeProcess
from replicas.node.replica import Replica
from replicas.placement.coordinator import Coordinator, Superseded
from replicas.placement.joining import JoinFailed, join
from replicas.placement.store import CoordinatorStore
from replicas.reference import Rejected, reference_rows, some_of
from replicas.simulation.features.checkpoint_logs import LeftLog
from replicas.simulation.features.retention import whole
from replicas.simulation.world.clock import now_us
from replicas.simulation.world.disk import SimDisk
from replicas.simulation.world.given_rows import givers_of
from replicas.simulation.world.hosts import SimHosts
from replicas.simulation.world.link import GOOD
from replicas.simulation.world.producer import producers_of
from replicas.simulation.world.work import StateCompute
from replicas.source.process import SourceProcess
from spe.errors import SpeError, leaves
from spe.log.source_log import read_source_log
from spe.plan.deploy import Deployed
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.nodes import Node
from spe.plan.plan import Plan
from spe.runtime.env import Compute
from spe.stream.batch import Element
from spe.stream.change import Change
from spe.stream.history import Event
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, StreamId


class SimCluster(SimHosts):
    """Sources, nodes and clients of a plan, placed as in its directory; see the module.

    Args:
      seed: seed of all random choices of the run except the order of tasks.
      link: state of every link while nothing is wrong with it.
      turn_us: duration of each slice of a replica's work.
      state_ns: duration of a step per row or group that the node holds, nanoseconds (``.work``).
      row_ns: CPU time per row that a replica receives, nanoseconds, by partition; 0 without an entry.  It is measured
        as load (L1), and takes no virtual time.  It may be changed while the cluster runs.
      newcomers: nodes that may join (:meth:`joins`), and that faults may target before they do.

    Attributes:
      changes: changes that each client's application received.
      nodes: the node processes that run now.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Directory,
        *,
        seed: int = 0,
        link: LinkFaults = GOOD,
        turn_us: int = 0,
        state_ns: int = 0,
        row_ns: Mapping[PartitionId, int] | None = None,
        newcomers: Iterable[str] = (),
    ) -> None:
        super().__init__(plan, directory, seed, link, turn_us, row_ns, newcomers)
        self._state_ns = state_ns
        self.changes: dict[str, list[Change]] = {name: [] for name in directory.clients}
        self.clients: dict[str, Client] = {}
        self.nodes: dict[str, NodeProcess] = {}
        #: Clients with sinks that run now.
        self.client_processes: dict[str, ClientProcess] = {}
        #: Plans and directories of processes that were started with others than ours.
        self.plans: dict[str, Plan] = {}
        self.directories: dict[str, Directory] = {}
        #: The last coordinator that began.
        self.coordinator: Coordinator | None = None
        #: The directory with all past roles: nodes that had a role before are standbys.
        self.over_time = directory
        #: All issued directories, by version.
        self.versions = {directory.version: directory}
        #: Nodes that were removed from the cluster since their last start.
        self.taken_out: set[str] = set()
        #: Settings of nodes that join, for their next start.
        self._newcomers: dict[NodeId, Node] = {}
        #: Clients whose disk may have lost synced data; those of them that could not go on.
        self.forgetful: set[str] = set()
        self.given_up: set[str] = set()
        #: Clients and sources whose disk has lied, and then lost power: recordings and logs may have holes.
        self.lied_to: set[str] = set()
        #: Disks of these sources before the first such failure.
        self.before_lies: dict[str, SimDisk] = {}
        #: Archive for deleted segments of sources and clients, if configured.
        self.archive = SimDisk()
        #: Sources that run now, or ran last.
        self.sources: dict[StreamId, SourceProcess] = {}
        self._readers: dict[str, Live | Replay] = {**producers_of(plan.sources), **givers_of(plan.sources)}

    async def start(self) -> None:
        """Starts every process of the plan."""
        for stream in self.plan.sources:
            self.launch(f"source:{stream}", partial(self._damaged_source, stream))
        for node in self.directory.nodes:
            self.launch(node, partial(self._node, node))
        for name in self.directory.clients:
            self.launch(f"client:{name}", partial(self._client, name))
        if self.directory.coordinated:
            self.launch(COORDINATOR, self._coordinator)
        await trio.lowlevel.checkpoint()

    def _compute(self, host: str) -> Compute:
        if not self._state_ns or (host not in self.directory.nodes and host not in self._newcomers):
            return super()._compute(host)

        def running() -> list[Replica]:
            node = self.nodes.get(host)
            return [] if node is None else list(node.replicas().values())

        return StateCompute(self._turn_us, self._state_ns, running, partial(self._occupy, host))

    def joins(self, node: Node) -> None:
        """Starts an unconfigured node; one that joined before has the settings of ``node`` from its next start on."""
        self._newcomers[node.id] = node
        if node.id in self.absent:
            self.absent.discard(node.id)
            self.launch(node.id, partial(self._newcomer, node.id))

    def replicas(self) -> dict[str, Replica]:
        """Returns the replicas that run now, by name."""
        return {name: replica for node in self.nodes.values() for name, replica in node.replicas().items()}

    def expected(self) -> set[str]:
        """Returns the replicas that run when nothing fails: those of the directory, and requested standbys."""
        directory = self.current
        placed = {str(id) for node in directory.nodes for id in directory.replicas_on(node)}
        wanted = {} if self.coordinator is None else self.coordinator.activation.wanted()
        return placed | {f"{id}@{node}" for id, nodes in wanted.items() for node in nodes}

    def in_force(self) -> InForce:
        """Returns X and policies of nodes over time."""
        return InForce.applied(self.history, self.plan, self.over_time, self.versions)

    @property
    def current(self) -> Directory:
        """The current directory."""
        return self.directory if self.coordinator is None else self.coordinator.directories.current

    def unsettled(self) -> str:
        """Returns a move under way, a useless lent role, an external reader, or an unplanned standby that runs; or
        "".
        """
        if self.coordinator is None:
            return ""
        activation, running = self.coordinator.activation, self.replicas().keys()
        if not activation.settled or len(activation.active) > activation.budget:
            return f"standbys that run: {activation.status()}"
        if lent := [str(role) for role in self.coordinator.recovery.lending.lent if str(role) not in running]:
            return f"the role of {lent[0]} is lent in vain"
        if outside := sorted(self._newcomers.keys() - self.current.nodes.keys() - self.taken_out):
            return f"{outside[0]} has not joined"
        moves = self.coordinator.mover.orders.open()
        return f"{moves[0]} has not ended: {moves[0].why}" if moves else ""

    def open_moves(self) -> int:
        """Returns the number of moves under way, as far as a coordinator knows."""
        return 0 if self.coordinator is None else len(self.coordinator.mover.orders.open())

    def _ends(self, host: str) -> None:
        self._look_at_logs(host)
        self.nodes.pop(host, None)
        self.clients.pop(host.removeprefix("client:"), None)
        self.client_processes.pop(host.removeprefix("client:"), None)

    def _look_at_logs(self, host: str) -> None:
        """Records the logs from which the replicas of a killed host could be rebuilt."""
        if (node := self.nodes.get(host)) is None or self._nursery is None:
            return
        for partition, running in node.hosting.running.items():
            if partition in node.hosting.directory.logs and running.replica.recovery.logs:
                folder = node.hosting.log(running.replica.id).folder
                whole = node.hosting.store(running.replica.id).folder
                left = LeftLog(running.replica, folder, whole, self.disks[host], now_us())
                if left.matters:
                    self._nursery.start_soon(self._look_at_log, left)

    async def _look_at_log(self, left: LeftLog) -> None:
        self.history(await left.look())

    def observe(self) -> None:
        """Adds the buffers of every replica to the history."""
        for replica in self.replicas().values():
            self.history(buffers(replica, now_us()))

    def reference(self, masks: Kept | None = None, rejected: Rejected | None = None) -> dict[Channel, ChannelRows]:
        """Returns the results of a run without failures, by the sources' logs.

        Args:
          masks: select rows of the sources; None: all.
          rejected: called with the rows that operators reject.
        """
        inputs = self.logged()
        return reference_rows(self.plan, inputs if masks is None else some_of(inputs, masks), rejected=rejected)

    def logged(self) -> dict[StreamId, Iterator[Element]]:
        """Returns the logged elements of each source; of a lost log, its former ones."""
        return {
            s: read_source_log(
                whole(
                    self.lost_logs[s][0] if s in self.lost_logs else self._disk(f"source:{s}").mended(),
                    PurePosixPath(s),
                ),
                PurePosixPath(s),
                self.plan.query.sources[s],
            )
            for s in self.plan.sources
        }

    def _deployed(self, host: str) -> Deployed:
        return Deployed(self.plans.get(host, self.plan), self.directories.get(host, self.directory))

    async def _node(self, name: NodeId) -> None:
        self.nodes[name] = process = NodeProcess(self.env(name), *self._deployed(name), name)
        await process.run()

    async def _newcomer(self, name: NodeId) -> None:
        """Runs an unconfigured node, as ``spe node --join`` does."""
        self.taken_out.discard(name)
        try:
            await join(self.env(name), *self._deployed(name), self._newcomers[name], "")
        except (JoinFailed, OSError) as error:
            self.note(f"{name} ended: {error}")  # a disk failed, its own or that of the coordinator
            self.ended_alone.add(name)
            self.kill(name)
            return
        await self._node(name)

    async def _source(self, stream: str) -> None:
        host = f"source:{stream}"
        folder, reader = PurePosixPath(stream), self._readers.get(stream)
        self.sources[StreamId(stream)] = process = SourceProcess(
            self.env(host),
            *self._deployed(host),
            StreamId(stream),
            folder=folder,
            reader=reader,
            archives=lambda _: self.archive,
            place=lambda folder: (self.disks[host], sink_folder(folder)),
        )
        await process.run()

    async def _damaged_source(self, stream: str) -> None:
        """Runs a source whose disk may be damaged: it reports what it cannot read, and stops."""
        host = f"source:{stream}"
        try:
            await self._source(stream)
        except* SpeError as group:
            if not self.disks[host].flipped and host not in self.lied_to:
                raise
            self.given_up.add(host)
            truth = self.before_lies.get(host, self.disks[host].mended())
            self.lost_logs.setdefault(StreamId(stream), (truth, now_us()))
            self.note(f"{host} cannot go on: {'; '.join(map(str, leaves(group)))}")
            self.kill(host)

    async def _coordinator(self) -> None:
        env = self.env(COORDINATOR)
        try:
            with CoordinatorStore(env) as store:
                self.coordinator = Coordinator(env, self.plan, self.directory, store)
                self.coordinator.directories.on_change(self._redirected)
                await self.coordinator.run()
        except (Superseded, OSError) as error:  # the disk failed: it cannot store an epoch
            self.note(f"{COORDINATOR} ended: {error}")
            self.ended_alone.add(COORDINATOR)
            self.kill(COORDINATOR)

    def _redirected(self, directory: Directory) -> None:
        self.over_time = directory.with_past(self.over_time)
        self.versions[directory.version] = directory

    async def _client(self, name: str) -> None:
        if self.directory.clients[name].sinks:
            await self._client_process(name)
            return
        client = Client(self.env(f"client:{name}"), self.plan, self.directory, name)
        self.clients[name] = client
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            async with aclosing(client.changes()) as changes:
                async for change in changes:
                    self.changes[name].append(change)
                    if lag := self.lag_s.get(name):
                        await trio.sleep(lag)

    async def _client_process(self, name: str) -> None:
        """Runs a client with sinks, which also records, and continues from its disk."""
        host = f"client:{name}"
        scope = self._scopes[host]

        def history(event: Event) -> None:
            """Adds an event; none of a killed process, whose tasks may end after the next one has begun."""
            if not scope.cancel_called:
                self.history(event)

        try:
            process = ClientProcess(
                replace(self.env(host), history=history),
                *self._deployed(host),
                name,
                place=lambda folder: (self.disks[host], sink_folder(folder)),
                tap=self.changes[name].append,
                archives=lambda _: self.archive,
            )
            self.clients[name] = process.client
            self.client_processes[name] = process
            await process.run()
        except* SpeError as group:
            if host in self.forgetful:
                self.given_up.add(host)
            elif self.plans.get(host, self.plan).fingerprint != self.plan.fingerprint:
                # Its folders hold results of the right plan, with which it will be restarted.
                self.ended_alone.add(host)
            else:
                raise
            self.note(f"{host} cannot go on: {'; '.join(map(str, leaves(group)))}")
            self.kill(host)


def sink_folder(path: Path) -> PurePosixPath:
    """Returns the folder of a client's sink on its simulated disk."""
    return PurePosixPath("sinks", *path.parts)
