"""Makes faults happen to a simulated cluster, as far as the fault model allows.

P3 has a premise: a replica of each partition keeps the stable state.  A fault that would break the premise is skipped,
and the story says so; the schedule stays the same data in any state of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from random import Random

import trio

from consistency.checking.bounds import has_room
from consistency.faults.kind import Do, HostFaults, Once
from consistency.faults.kinds import HEAL, KINDS
from replicas.faults.model import Fault
from replicas.faults.runner import FaultRunner, Happening
from replicas.faults.state import Action, FaultState
from replicas.node.replica import Replica
from replicas.simulation.features.replan import CHECKPOINTS, OTHER_IDS, replanned, with_other_checkpoints
from replicas.simulation.world.clock import EPOCH_US, SimClock, now_us
from replicas.simulation.world.cluster import SimCluster
from spe.plan.directory import COORDINATOR
from spe.plan.plan import Plan
from spe.plan.retention import streams_below
from spe.stream.history import FaultBegan
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState


class FaultDriver:
    """Injects the faults of one simulated run.

    Args:
      random: chooses flipped bits and half-open connections.
      source_disks: bits of the disks of sources may be flipped.
      unlimited: all kills happen, even against P3's premise.

    Attributes:
      down: processes that a fault has ended, and that were not started again.
      left: nodes that were killed permanently (a kill without a length): they stay dead when everything heals.
      skipped: faults that did not happen, with reasons.
      survivors: a replica of each partition has kept its state all the time.
    """

    def __init__(
        self, cluster: SimCluster, random: Random, *, unlimited: bool = False, source_disks: bool = False
    ) -> None:
        self._source_disks = source_disks
        self._cluster = cluster
        self._random = random
        self._unlimited = unlimited
        self._state = FaultState(cluster.hosts())
        self._told: dict[int, FaultBegan] = {}
        #: Hosts that run slowly, or whose clock is off.
        self._slow: set[str] = set()
        self._skewed: set[str] = set()
        self.down: set[str] = set()
        self.left: set[str] = set()
        #: Nodes with a permanent kill that is ordered but not done.
        self._for_good: set[str] = set()
        #: Nodes that lost a spilled piece by a flipped bit: other replicas have the only copy.
        self._damaged: set[str] = set()
        #: Processes that run with a plan of other ids: they serve no other process.
        self._strangers: set[str] = set()
        #: Nodes and clients whose disk has ever lied.
        self._lied: set[str] = set()
        #: Nodes that have ever begun with an empty disk.
        self._wiped: set[str] = set()
        #: Partitions downstream of a source that deletes parts of its log.
        self._below_cut = _below_cut(cluster.plan)
        self.skipped: list[str] = []
        self.survivors = True
        self.runner = FaultRunner(
            SimClock(),
            self._state,
            self._perform,
            report=self._tell,
            reads=self._reads,
            in_state=self._in_state,
            once=self._once,
        )

    async def run(
        self, faults: tuple[Fault, ...], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Injects the faults, whose times count from the beginning of the run; until cancelled."""
        await self.runner.run(faults, EPOCH_US, task_status=task_status)

    async def heal(self) -> None:
        """Heals everything, and starts all processes except nodes that were killed permanently."""
        await self.runner.inject(Fault(HEAL))
        self._apply()  # including faults that end now, before their end is applied
        for host in self._cluster.frozen():
            self._cluster.thaw(host)
        for host in sorted((self.down | self._cluster.ended_alone) - self.left - self._cluster.given_up):
            self._choose_plan(host)
            self._cluster.restart(host)
        self.down &= self.left

    # --- effects of faults ---

    async def _perform(self, action: Action) -> str:
        cluster, host = self._cluster, action.process
        match action.do:
            case Do.KILL | Do.POWER | Do.WIPE:
                for_good = host in self._for_good
                why = self._spare(host, action.do) or (self._needed(host) if for_good else "")
                self._for_good.discard(host)
                if why:
                    return why
                self._kill(host, action.do)
                if for_good:
                    self.left.add(host)
            case Do.START:
                if host not in self.left:
                    self._start(host)
            case Do.RESTART:
                if host not in self.down | cluster.ended_alone:  # a process that has never run is spared
                    if why := self._spare(host):
                        return why
                    self._kill(host, Do.KILL)
                await trio.lowlevel.checkpoint()
                self._start(host)
            case Do.REPLAN:
                if host in self._strangers & cluster.ended_alone:  # its own folders were not made for that plan
                    self._start(host)
                elif host not in self._away():
                    if host not in self._strangers and (why := self._spare(host)):
                        return why
                    self._kill(host, Do.KILL)
                    await trio.lowlevel.checkpoint()
                    self._start(host)
            case Do.FREEZE:
                if host not in self.down | cluster.ended_alone | cluster.absent:
                    cluster.freeze(host)
            case Do.RESUME:
                if host not in self.down | cluster.absent:
                    cluster.thaw(host)
            case Do.TELL:
                self._apply()
        return ""

    def _kill(self, host: str, how: Do) -> None:
        self.down.add(host)
        self._damaged.discard(host)  # it starts from a partner's state
        if host.startswith("client:") and (how is Do.WIPE or (how is Do.POWER and host in self._lied)):
            self._cluster.forgetful.add(host)
        if host.startswith(("client:", "source:")) and how is Do.POWER and host in self._lied:
            self._cluster.lied_to.add(host)
            if host.startswith("source:"):
                self._cluster.before_lies.setdefault(host, self._cluster.disks[host].restarted().mended())
        if how is Do.WIPE:
            self._wiped.add(host)
            self._cluster.wipe(host)
        else:
            self._cluster.kill(host, power=how is Do.POWER)

    def _start(self, host: str) -> None:
        if host in self._cluster.given_up:
            return
        if host in self.down | self._cluster.ended_alone:
            self.down.discard(host)
            self.left.discard(host)
            self._choose_plan(host)
            self._cluster.restart(host)
            self._state.started(host)
            self._apply()

    def _choose_plan(self, host: str) -> None:
        """Returns the plan for the next start of a process."""
        change = self._state.hosts().get(host, HostFaults()).change
        self._cluster.plans.pop(host, None)
        self._cluster.directories.pop(host, None)
        self._strangers.discard(host)
        # Two processes with another query would form their own cluster, with its own results.
        if change and not (change in OTHER_IDS and self._strangers):
            self._cluster.plans[host] = replanned(self._cluster.plan, change)
            if change == CHECKPOINTS:
                self._cluster.directories[host] = with_other_checkpoints(self._cluster.directory)
            if change in OTHER_IDS:
                self._strangers.add(host)

    def _apply(self) -> None:
        """Applies the state of links, disks, clocks and speeds."""
        links = self._state.links()
        self._cluster.network.set_links(links, {pair for pair, link in links.items() if link.refused})
        self._apply_to_hosts(self._state.hosts())

    def _apply_to_hosts(self, hosts: Mapping[str, HostFaults]) -> None:
        cluster, good = self._cluster, HostFaults()
        self._lied.update(host for host, faults in hosts.items() if faults.lies)
        for host, disk in cluster.disks.items():
            faults = hosts.get(host, good)
            disk.stall(faults.stalled)
            disk.sync_s = faults.sync_us / 1e6
            disk.lies = faults.lies
            disk.space_left = 0 if faults.full else None
            if host in cluster.ended_alone - self._strangers and disk.space_left is None:
                cluster.restart(host)  # its operator has made room, and starts it again
        before, self._slow = self._slow, {host for host, faults in hosts.items() if faults.times > 1}
        for host in sorted(before ^ self._slow):
            cluster.slow(host, hosts.get(host, good).times)
        before, self._skewed = self._skewed, {host for host, faults in hosts.items() if faults.skew_us}
        for host in sorted(before ^ self._skewed):
            cluster.skew(host, hosts.get(host, good).skew_us)
        cluster.lag_s = {
            host.removeprefix("client:"): faults.lag_us / 1e6 for host, faults in hosts.items() if faults.lag_us
        }

    async def _once(self, fault: Fault) -> str:
        await trio.lowlevel.checkpoint()
        action = KINDS[fault.kind].once
        if action is Once.RESET:
            for a, b in self._state.pairs(fault):
                self._cluster.network.reset(a, b)
            return ""
        if action is Once.HALF_OPEN:
            pairs = sorted({(min(pair), max(pair)) for pair in self._state.pairs(fault)})
            opened = [self._cluster.network.half_open(a, b, self._random) for a, b in pairs]
            return "" if any(opened) else "there is no connection"
        for host in fault.first:
            if host.startswith("source:") and not self._source_disks:
                return f"{host} has the only copy of its stream"
            if not host.startswith("source:") and (why := self._alone(host, Do.WIPE)):
                return why
            path = self._cluster.disks[host].flip(self._random, PurePosixPath("."))
            if path is None:
                return f"{host} has no files"
            self._damaged.add(host)
        return ""

    # --- targets ---

    def _reads(self, client: str) -> str | None:
        process = self._cluster.clients.get(client)
        inputs = process.inputs if process is not None else ()
        return next((i.main.producer for i in inputs if i.main is not None), None)

    def _in_state(self, state: str) -> str | None:
        wanted = NodeState[state]
        names = (str(r.id.node) for r in self._cluster.replicas().values() if r.state is wanted)
        return next((n for n in sorted(names) if not self._spare(n)), None)

    def _away(self) -> set[str]:
        """Processes that do not run, or not yet."""
        cluster = self._cluster
        return self.down | cluster.ended_alone | cluster.given_up | cluster.absent

    def _spare(self, host: str, how: Do = Do.KILL) -> str:
        """Explains why a process must not be killed now; "" if it may."""
        if host in self._away():
            return "it does not run"
        if host.startswith("client:"):
            sinks = self._cluster.directory.clients[host.removeprefix("client:")].sinks
            return "" if sinks else "an application that dies is another one"
        if host.startswith("source:") or host == COORDINATOR:
            return ""
        alone = self._alone(host, how)
        if alone and self._unlimited:
            self.survivors = False
            return ""
        return alone

    def _alone(self, host: str, how: Do) -> str:
        """Explains which partition would lose its last replica with the state; "" if none."""
        plan, directory, replicas = self._cluster.plan, self._cluster.current, self._cluster.replicas()
        frozen = self._state.frozen()
        # With little room, a process that is cut off may lose its place in a full buffer.
        given_up = self._state.links() or frozen or any(" evicted " in line for line in self._cluster.log)
        if given_up and not has_room(plan):
            return "somebody may have been given up for lack of room"
        coordinator = self._cluster.coordinator
        moving = set() if coordinator is None else {move.partition for move in coordinator.mover.orders.open()}
        for partition, nodes in directory.placement.items():
            if partition in self._below_cut:  # no source has its first rows, so a replica must have its state
                if host in directory.hosts(partition) and (
                    partition in moving or not self._has_disk(directory.hosts(partition), host, how)
                ):
                    others = [
                        replicas.get(f"{partition}@{n}")
                        for n in directory.hosts(partition)
                        if n not in frozen | self._damaged
                    ]
                    if not any(self._is_whole(r) for r in others if r is not None and r.id.node != host):
                        return f"nobody else has the state of {partition}, and the logs of sources are cut"
                continue
            if partition in directory.standbys and partition not in moving:
                continue  # its state is on a disk, or is made again from the sources' logs (H8)
            if host in nodes and partition in directory.logs and self._has_disk(nodes, host, how):
                continue
            others = [replicas.get(f"{partition}@{n}") for n in nodes if n != host and n not in frozen | self._damaged]
            if host in nodes and not any(r is not None and self._is_whole(r) for r in others):
                return f"nobody else has the state of {partition}"
        return ""

    @staticmethod
    def _is_whole(replica: Replica) -> bool:
        return replica.state is not NodeState.RECOVERING and not replica.recovery.must_reinstall()

    def _has_disk(self, nodes: Sequence[NodeId], host: str, how: Do) -> bool:
        """Returns whether a disk of these nodes has kept its state all the time, and keeps it."""
        lose = self._lied | self._damaged | self._wiped | self.left | self._for_good
        return any(n not in lose and (n != host or how is not Do.WIPE) for n in nodes) and has_room(self._cluster.plan)

    def _needed(self, host: str) -> str:
        """Explains why a killed node must be restarted; "" if each of its partitions has another node."""
        directory = self._cluster.current
        for partition in directory.placement:
            if host in directory.hosts(partition) and set(directory.hosts(partition)) <= self.left | {host}:
                return f"{partition} would be left without a node"
        return ""

    # --- the story ---

    def _tell(self, event: str, happening: Happening) -> None:
        fault = happening.fault
        kind = KINDS[fault.kind]
        if event == "began" and kind.kills and fault.for_us is None:
            self._for_good.update(set(fault.first) & set(self._cluster.directory.nodes))
        self._cluster.log.append(f"{trio.current_time():9.3f} ------------ {event} {fault} {happening.errors or ''}")
        key = id(happening)
        if event == "began":
            if fault.second or fault.kind == HEAL:
                links = self._state.pairs(fault) if fault.kind != HEAL else []
                self._told[key] = self._cluster.began(fault.kind, (), links, fault.severity)
            elif kind.begins is not Do.FREEZE:  # the cluster reports freezes itself
                name = f"{fault.kind} {fault.change}" if fault.change else fault.kind
                self._told[key] = self._cluster.began(name, fault.first, (), fault.severity)
        if event == "failed":
            self.skipped.append(f"{now_us() / 1e6:.3f} {fault}: {'; '.join(happening.errors)}")
        if event == "ended" or fault.for_us is None:
            began = self._told.pop(key, None)
            if began is not None and (event == "ended" or not kind.lasts):
                self._cluster.ended(began)
            elif began is not None:
                self._told[key] = began


def _below_cut(plan: Plan) -> frozenset[PartitionId]:
    streams = {o for s, source in plan.sources.items() if source.retain is not None for o in streams_below(plan, s)}
    return frozenset(
        PartitionId(unit.id, p)
        for unit in plan.units
        if streams & {i.stream for i in unit.inputs}
        for p in range(unit.partitions)
    )
