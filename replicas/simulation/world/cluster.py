"""A whole cluster in one process and in virtual time: the real node, source and client code on simulated hosts.

    async with SimCluster(plan, seed=1) as cluster:
        await cluster.start()
        cluster.kill("n1"); await trio.sleep(5); cluster.restart("n1")

Run it with the clock that jumps (:class:`~replicas.simulation.world.clock.JumpClock`): an hour costs only its events.
With :func:`~replicas.simulation.world.host.seeded_scheduling` a run follows from its seed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from contextvars import Context
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from random import Random
from types import TracebackType
from typing import Any, Self

import trio
import trio.lowlevel

from consistency.checking.node_settings import InForce
from consistency.checking.promises.accuracy import Kept
from consistency.comparison import ChannelRows
from consistency.faults.kind import LinkFaults
from replicas.client.client import Client
from replicas.client.process import ClientProcess
from replicas.connectors import Live, Replay
from replicas.faults.model import processes_of
from replicas.node.observation import buffers
from replicas.node.process import NodeProcess
from replicas.node.replica import Replica
from replicas.placement.coordinator import Coordinator, Superseded
from replicas.placement.joining import JoinFailed, join
from replicas.placement.store import CoordinatorStore
from replicas.reference import Rejected, reference_rows, some_of
from replicas.simulation.features.checkpoint_logs import LeftLog
from replicas.simulation.features.retention import retains, whole
from replicas.simulation.world.clock import SimClock, Stuck, now_us
from replicas.simulation.world.disk import SimDisk, torn
from replicas.simulation.world.given_rows import givers_of
from replicas.simulation.world.host import HOST, Processors, Rounds, SimCompute, StoryTrace
from replicas.simulation.world.link import GOOD
from replicas.simulation.world.network import HostNetwork, SimNetwork
from replicas.simulation.world.producer import producers_of
from replicas.simulation.world.work import StateCompute
from replicas.source.process import SourceProcess
from spe.errors import SpeError, leaves
from spe.log.source_log import read_source_log
from spe.plan.deploy import Deployed
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.nodes import Node
from spe.plan.plan import Plan
from spe.runtime.env import Compute, Env
from spe.stream.batch import Batch, Element
from spe.stream.change import Change
from spe.stream.history import Event, FaultBegan, FaultEnded, History, ProcessDown, ProcessUp, Received
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, StreamId, UnitId

#: A slow node runs for this long, and then stands still for a multiple of it.
SLICE_S = 0.01

Pair = tuple[str, str]


class SimCluster:
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
      disks: disks by host.
      lag_s: seconds that a client's application spends on each change.
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
        self.plan = plan
        self.directory = directory
        self._turn_us = turn_us
        self._state_ns = state_ns
        self._row_ns = row_ns
        self.network = SimNetwork(Random(f"{seed}/network"), link)
        self.log: list[str] = []
        self.history = History()
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
        self.disks: dict[str, SimDisk] = {}
        #: Unconfigured nodes that have not been started yet.
        self.absent = set(newcomers)
        #: Nodes that were removed from the cluster since their last start.
        self.taken_out: set[str] = set()
        #: Settings of nodes that join, for their next start.
        self._newcomers: dict[NodeId, Node] = {}
        self.lag_s: dict[str, float] = {}
        #: The longest step for the state that a node holds, virtual seconds.
        self.longest_step_s = 0.0
        #: Processes that have ended by themselves, and must be restarted.
        self.ended_alone: set[str] = set()
        #: Clients whose disk may have lost synced data; those of them that could not go on.
        self.forgetful: set[str] = set()
        self.given_up: set[str] = set()
        #: Clients and sources whose disk has lied, and then lost power: recordings and logs may have holes.
        self.lied_to: set[str] = set()
        #: Disks of these sources before the first such failure.
        self.before_lies: dict[str, SimDisk] = {}
        #: Sources that lost their logs: the first lost disk, and the time.
        self.lost_logs: dict[StreamId, tuple[SimDisk, int]] = {}
        #: Archive for deleted segments of sources and clients, if configured.
        self.archive = SimDisk()
        #: Sources that run now, or ran last.
        self.sources: dict[StreamId, SourceProcess] = {}
        self._readers: dict[str, Live | Replay] = {**producers_of(plan.sources), **givers_of(plan.sources)}
        #: Number of disks that a host has lost: with another disk it draws other random numbers.
        self._lost: dict[str, int] = {}
        self._stuck = ""
        self._hosts = [*processes_of(directory), *sorted(self.absent)]
        self.disks.update((host, SimDisk()) for host in sorted(self.absent))
        self._clocks = {host: SimClock() for host in self._hosts}
        self._processors = Processors()
        self._rounds = Rounds(self.history, self._is_stuck)
        self._seed = seed
        self._random = Random(f"{seed}/hosts")
        self._lasting: list[FaultBegan] = []
        self._scopes: dict[str, trio.CancelScope] = {}
        self._slow: dict[str, trio.CancelScope] = {}
        self._starts: dict[str, Callable[[], Awaitable[None]]] = {}
        self._nursery_manager: Any = None
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> Self:
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        trio.lowlevel.add_instrument(self._rounds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> Any:
        assert self._nursery is not None
        self._lasting.clear()  # a slow host must not be frozen again
        for host in list(self._processors.frozen):
            self._processors.thaw(host)
        for disk in self.disks.values():
            disk.stall(False)
        trio.lowlevel.remove_instrument(self._rounds)
        self._nursery.cancel_scope.cancel()
        handled = await self._nursery_manager.__aexit__(kind, error, tb)
        if self._stuck:  # the block was cancelled before it reached its end
            raise Stuck(self._stuck)
        return handled

    def env(self, host: str) -> Env:
        """Returns the environment of a host's processes; after the run, too, for a host that took part in it."""
        if host not in self._clocks:
            self._clocks[host] = SimClock()
        return Env(
            self._clocks[host],
            HostNetwork(self.network, host),
            self._disk(host),
            self._compute(host),
            Random(f"{self._seed}/{host}" + (f"/{lost}" if (lost := self._lost.get(host)) else "")),
            StoryTrace(self.log, self.history, host),
            self.history if self._row_ns is None else partial(self._happened, self._clocks[host], self._row_ns),
            validates=True,
        )

    def _disk(self, host: str) -> SimDisk:
        disk = self.disks.setdefault(host, SimDisk())
        if disk.removed is None and (retains(self.plan) or any(c.retain for c in self.directory.clients.values())):
            disk.removed = {}
        return disk

    def _happened(self, clock: SimClock, row_ns: Mapping[PartitionId, int], event: Event) -> None:
        """Takes an event of a host; rows that its replicas receive count as computing."""
        if isinstance(event, Received) and isinstance(event.element, Batch):
            unit, _, number = event.consumer.partition("@")[0].rpartition("/")
            if number.isdecimal():
                clock.computed_ns += len(event.element) * row_ns.get(PartitionId(UnitId(unit), int(number)), 0)
        self.history(event)

    def _compute(self, host: str) -> Compute:
        if not self._state_ns or (host not in self.directory.nodes and host not in self._newcomers):
            return SimCompute(self._turn_us)

        def running() -> list[Replica]:
            node = self.nodes.get(host)
            return [] if node is None else list(node.replicas().values())

        return StateCompute(self._turn_us, self._state_ns, running, partial(self._occupy, host))

    def _occupy(self, host: str, seconds: float) -> None:
        """Blocks all other tasks of a host for the length of a step of its work."""
        assert self._nursery is not None
        self.longest_step_s = max(self.longest_step_s, seconds)
        if seconds and host not in self._processors.frozen:
            self._processors.freeze(host)
            # In a context of its own: the task that frees the host does not belong to it.
            Context().run(self._nursery.start_soon, self._free_later, host, seconds)

    async def _free_later(self, host: str, seconds: float) -> None:
        try:
            await trio.sleep(seconds)
        finally:
            if host not in self.frozen():
                self._processors.thaw(host)

    # --- processes ---

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

    def launch(self, host: str, main: Callable[[], Awaitable[None]]) -> None:
        self._starts[host] = main
        self.history(ProcessUp(now := now_us(), host, now))
        self._begin(host)

    def spawn(self, main: Callable[[], Awaitable[None]]) -> None:
        """Runs a task outside of the cluster's processes, until it ends."""
        assert self._nursery is not None
        self._nursery.start_soon(main)

    def joins(self, node: Node) -> None:
        """Starts an unconfigured node; one that joined before has the settings of ``node`` from its next start on."""
        self._newcomers[node.id] = node
        if node.id in self.absent:
            self.absent.discard(node.id)
            self.launch(node.id, partial(self._newcomer, node.id))

    def hosts(self) -> list[str]:
        """Returns all processes that faults can target."""
        return list(self._hosts)

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

    def kill(self, host: str, *, power: bool = False) -> None:
        """Kills a host as kill -9: tasks stop, connections are reset, unsynced bytes stay in the page cache.

        With ``power`` no connection is closed, and any part of the unsynced bytes may be lost.
        """
        self.note(f"{'power off' if power else 'kill'} {host}")
        self._look_at_logs(host)
        self._scopes[host].cancel()
        self.disks[host].ended = True
        self.history(ProcessDown(now_us(), host))
        self.network.gone(host, silently=power)
        self.nodes.pop(host, None)
        self.clients.pop(host.removeprefix("client:"), None)
        self.client_processes.pop(host.removeprefix("client:"), None)
        self._processors.thaw(host)
        self._ended("freeze", host)
        if power:
            self.disks[host] = self.disks[host].power_loss(
                lambda _path, synced, written: torn(self._random, synced, written)
            )

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

    def wipe(self, host: str) -> None:
        """Kills a host, and replaces its disk by an empty one for the next start."""
        self.kill(host)
        if host.startswith("source:"):
            self.lost_logs.setdefault(StreamId(host.removeprefix("source:")), (self.disks[host], now_us()))
        self.note(f"empty disk {host}")
        self._lost[host] = self._lost.get(host, 0) + 1
        self.disks[host] = SimDisk()

    def restart(self, host: str) -> None:
        self.note(f"restart {host}")
        self.ended_alone.discard(host)
        self.network.back(host)
        self.disks[host] = self.disks[host].restarted()
        self.history(ProcessUp(now := now_us(), host, now))
        self._begin(host)

    def freeze(self, host: str) -> None:
        """Stops a host as SIGSTOP: its tasks stand still, its sockets fill, time goes on."""
        self.note(f"freeze {host}")
        self._processors.freeze(host)
        self.began("freeze", (host,))

    def thaw(self, host: str) -> None:
        self.note(f"thaw {host}")
        self._ended("freeze", host)
        self._processors.thaw(host)

    def frozen(self) -> list[str]:
        """Returns hosts that stand still by a fault (a slow one stands still at times)."""
        return sorted({host for f in self._lasting if f.kind == "freeze" for host in f.hosts})

    def slow(self, host: str, times: float) -> None:
        """Runs the host ``times`` slower; 1 ends it."""
        assert self._nursery is not None
        self.note(f"slow {host} {times:g}x")
        if (old := self._slow.pop(host, None)) is not None:
            old.cancel()
        if times > 1:
            scope = self._slow[host] = trio.CancelScope()
            self._nursery.start_soon(self._run_slowly, host, times, scope)

    async def _run_slowly(self, host: str, times: float, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await trio.sleep(SLICE_S)
                if host not in self._processors.frozen:
                    self._processors.freeze(host)
                    try:
                        await trio.sleep((times - 1) * SLICE_S)
                    finally:
                        if not any(f.kind == "freeze" and host in f.hosts for f in self._lasting):
                            self._processors.thaw(host)

    def skew(self, host: str, skew_us: int) -> None:
        """Sets the wall clock of a host off by this much."""
        self.note(f"skew {host} {skew_us / 1e6:g} s")
        self._clocks[host].skew_us = skew_us

    # --- the story ---

    def began(self, kind: str, hosts: Sequence[str], links: Sequence[Pair] = (), amount: float = 0.0) -> FaultBegan:
        """Adds a fault that is caused elsewhere to the history."""
        fault = FaultBegan(now_us(), len(self.history), kind, tuple(hosts), tuple(links), amount)
        self._lasting.append(fault)
        self.history(fault)
        return fault

    def ended(self, fault: FaultBegan) -> None:
        if fault in self._lasting:
            self._lasting.remove(fault)
            self.history(FaultEnded(now_us(), fault.number))

    def _ended(self, kind: str, host: str = "") -> None:
        for fault in [f for f in self._lasting if f.kind == kind and (not host or host in f.hosts)]:
            self.ended(fault)

    def runs(self, host: str) -> bool:
        """Returns whether a process runs, and is not frozen."""
        scope = self._scopes.get(host)
        return scope is not None and not scope.cancel_called and host not in self._processors.frozen

    def note(self, text: str) -> None:
        """Adds a line to the story."""
        self.log.append(f"{trio.current_time():9.3f} ------------ {text}")

    def _is_stuck(self, why: str) -> None:
        """Ends the run, which makes no progress (a task may not be cancelled from an instrument)."""
        if not self._stuck:
            self._stuck = f"busy loop: {why}"
            assert self._nursery is not None
            trio.lowlevel.current_trio_token().run_sync_soon(self._nursery.cancel_scope.cancel)

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

    # --- processes ---

    def _begin(self, host: str) -> None:
        """Starts a process; its scope exists at once, so that a kill at the moment of its start takes effect."""
        assert self._nursery is not None
        self._scopes[host] = scope = trio.CancelScope()
        self._nursery.start_soon(self._process, host, scope)

    async def _process(self, host: str, scope: trio.CancelScope) -> None:
        HOST.set(host)
        with scope:
            await trio.lowlevel.checkpoint_if_cancelled()
            await self._starts[host]()

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
            # All streams have ended; the client still acknowledges its rows.

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
