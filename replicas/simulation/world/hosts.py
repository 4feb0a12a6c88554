"""Simulated hosts: clocks, disks, links and speeds of processes, and what befalls them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import Context
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Self

import trio
import trio.lowlevel

from consistency.faults.kind import LinkFaults
from replicas.faults.model import processes_of
from replicas.simulation.features.retention import retains
from replicas.simulation.world.clock import SimClock, Stuck, now_us
from replicas.simulation.world.disk import SimDisk, torn
from replicas.simulation.world.host import HOST, Processors, Rounds, SimCompute, StoryTrace
from replicas.simulation.world.network import HostNetwork, SimNetwork
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.env import Compute, Env
from spe.stream.batch import Batch
from spe.stream.history import Event, FaultBegan, FaultEnded, History, ProcessDown, ProcessUp, Received
from spe.stream.ids import PartitionId
from spe.stream.names import StreamId, UnitId

#: A slow node runs for this long, and then stands still for a multiple of it.
SLICE_S = 0.01

Pair = tuple[str, str]


class SimHosts:
    """Hosts of a plan's processes, whichever run on them.

    Attributes:
      disks: disks by host.
      lag_s: seconds that a client's application spends on each change.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Directory,
        seed: int,
        link: LinkFaults,
        turn_us: int,
        row_ns: Mapping[PartitionId, int] | None,
        newcomers: Iterable[str],
    ) -> None:
        self.plan = plan
        self.directory = directory
        self._turn_us = turn_us
        self._row_ns = row_ns
        self.network = SimNetwork(Random(f"{seed}/network"), link)
        self.log: list[str] = []
        self.history = History()
        self.disks: dict[str, SimDisk] = {}
        #: Unconfigured nodes that have not been started yet.
        self.absent = set(newcomers)
        self.lag_s: dict[str, float] = {}
        #: The longest step for the state that a node holds, virtual seconds.
        self.longest_step_s = 0.0
        #: Processes that have ended by themselves, and must be restarted.
        self.ended_alone: set[str] = set()
        #: Sources that lost their logs: the first lost disk, and the time.
        self.lost_logs: dict[StreamId, tuple[SimDisk, int]] = {}
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
        return SimCompute(self._turn_us)

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

    def launch(self, host: str, main: Callable[[], Awaitable[None]]) -> None:
        self._starts[host] = main
        self.history(ProcessUp(now := now_us(), host, now))
        self._begin(host)

    def spawn(self, main: Callable[[], Awaitable[None]]) -> None:
        """Runs a task outside of the cluster's processes, until it ends."""
        assert self._nursery is not None
        self._nursery.start_soon(main)

    def hosts(self) -> list[str]:
        """Returns all processes that faults can target."""
        return list(self._hosts)

    def kill(self, host: str, *, power: bool = False) -> None:
        """Kills a host as kill -9: tasks stop, connections are reset, unsynced bytes stay in the page cache.

        With ``power`` no connection is closed, and any part of the unsynced bytes may be lost.
        """
        self.note(f"{'power off' if power else 'kill'} {host}")
        self._ends(host)
        self._scopes[host].cancel()
        self.disks[host].ended = True
        self.history(ProcessDown(now_us(), host))
        self.network.gone(host, silently=power)
        self._processors.thaw(host)
        self._ended("freeze", host)
        if power:
            self.disks[host] = self.disks[host].power_loss(
                lambda _path, synced, written: torn(self._random, synced, written)
            )

    def _ends(self, host: str) -> None:
        """Takes note that a process is killed now."""

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
