"""O1, O5, O6: the order of recovery where room is short, judged by the configured loads.

* No node is ordered to run more of the unserved partitions than it has room for.
* While a plan is in force and partitions are lost, orders follow the newest plan, on each node one after the other, and
  never for a partition that another node restores, unless that one may lack a state (H8).
* A node begins the next partition when it has restored the earlier ones, or these can only wait for lost input; not
  earlier, and not much later.
* While nothing changes, no partition stays lost that a standby, or a node without a role, has room for.

Nothing is claimed of unreachable or just changed processes, nor of partitions that move.  A budget or a move may run
partitions too: that is no recovery, but it takes room.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import chain
from typing import Final

from consistency.checking.bounds import Bounds, has_room
from consistency.checking.checked_run import CheckedRun
from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.checking.schedule import FaultInterval, World
from consistency.faults.kinds import kind_of
from spe.plan.directory import COORDINATOR, Directory, Role
from spe.plan.plan import Plan
from spe.plan.review import refused_share
from spe.plan.timing import depth
from spe.stream.history import Event, FaultBegan, FaultEnded, Note, ProcessDown, ProcessUp, StateChanged
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState

#: Loads are shares of a core: smaller differences are ignored.
_LITTLE: Final = 1e-6


def check_recovery_order(run: CheckedRun) -> Iterator[Finding]:
    """Yields findings of O1, O5 and O6."""
    history, static, plan, _, in_force, bounds, counters = run
    directory = in_force.began_with
    if not directory.recovery.loads or not directory.standbys:
        return
    moves = (_fields(e) for e in history if isinstance(e, Note) and e.name == "move")
    moved = {move["target"].partition("@")[0] for move in moves}
    counters.add("recovery orders judged beside moves", bool(moved))
    counters.add("recovery orders judged beside a budget", bool(directory.coordinator.budget))
    checker = _Checker(plan, directory, bounds, counters, moved)
    later = iter(static)
    interval = next(later)
    for event in history:
        while event.at_us >= interval.to_us and (following := next(later, None)) is not None:
            yield from checker.stayed(interval)
            interval = following
        yield from checker.takes(event)
    yield from checker.stayed(interval)


class _Checker:
    """Follows plans and orders.

    Attributes:
      runs: by node, state of each partition that it runs.
      planned: by node, the partitions that the newest plan has it restore, in order; None: no plan is in force.
      allowed: partitions ordered by a plan, which may be repeated.
      shaken_us: when each process was last started, ended or hit by a fault.
      quiet_since: time since which no state has changed.
      changed_us: when the state of each replica changed last.
      planned_us: when the newest plan was made.
      served_us: when each partition was last seen to be served.
    """

    def __init__(
        self, plan: Plan, directory: Directory, bounds: Bounds, counters: Counters, moved: Set[str] = frozenset()
    ) -> None:
        self._moved = moved
        self.served_us: dict[str, int] = {}
        self._plan = plan
        self._directory = directory
        self._settle_us = bounds.settle_us
        self._counters = counters
        timing = plan.timing
        self._each_us = 4 * max(timing.request_us, timing.connect_us) + bounds.settle_us
        #: Time after which it may be known that a recovering replica lacks a state.
        self._lacking_us = 4 * max(timing.request_us, timing.connect_us, timing.heartbeat_us)
        self._load = {str(id): cores for id, cores in directory.expected_cores.items()}
        self.runs: dict[str, dict[str, NodeState]] = {str(n): {} for n in directory.nodes}
        self.planned: dict[str, list[str]] | None = None
        self.planned_us = 0
        self.changed_us: dict[str, int] = {}
        self._reads = {
            str(id): [str(plan.maker_of(c)) for c in channels if c.stream not in plan.sources]
            for id in directory.roles
            for channels in [plan.unit[id.unit].channels_in(id.partition)]
        }
        self.allowed: set[str] = set()
        #: Partitions that a plan began with the role that the node needs; the order may come after another plan.
        self.begun: set[str] = set()
        self.restoring: dict[str, str] = {}
        self.lasting: dict[int, set[str]] = {}
        self._placed = {str(id): nodes for id, nodes in directory.placement.items()}
        self.shaken_us: dict[str, int] = {}
        self.quiet_since = 0
        self.may_lack = not has_room(plan)

    # --- events ---

    def takes(self, event: Event) -> Iterator[Finding]:
        match event:
            case StateChanged(at_us, replica, state, _, runs):
                partition, _, node = replica.partition("@")
                self.changed_us[replica] = at_us
                if self._served(partition):
                    self.served_us[partition] = at_us
                here = self.runs.setdefault(node, {})
                if runs:
                    here[partition] = state
                elif here.pop(partition, None) is not None:  # it does not only become a standby
                    self.allowed.discard(replica)
                if not runs or state is not NodeState.RECOVERING:
                    self.restoring = {p: n for p, n in self.restoring.items() if (p, n) != (partition, node)}
                self.quiet_since = at_us
            case ProcessDown(at_us, host) | ProcessUp(at_us, host):
                self._forget(host, at_us)
                self.shaken_us[host] = self.quiet_since = at_us
                if host == COORDINATOR:
                    self.planned = None
            case FaultBegan():
                self.may_lack |= kind_of(event.kind).harm is not None
                self.lasting[event.number] = {*event.hosts, *(end for link in event.links for end in link)}
                self._shake(event.number, event.at_us)
            case FaultEnded(at_us, number):
                self._shake(number, at_us)
                self.lasting.pop(number, None)
            case Note(name="evicted"):
                self.may_lack = True
            case Note(name="recovery_planned"):
                self._plans(event)
            case Note(name="recovery_over"):
                self.planned = None
            case Note(name="ordered" | "role_wanted"):
                yield from self._ordered(event)
                if event.name == "role_wanted":
                    self.begun.add(_fields(event)["replica"])
            case Note(name="order"):
                yield from self._obeyed(event)

    def _shake(self, fault: int, at_us: int) -> None:
        self.shaken_us |= dict.fromkeys(self.lasting.get(fault, ()), at_us)
        self.quiet_since = at_us

    def _forget(self, host: str, at_us: int) -> None:
        self.served_us |= {p: at_us for p in self.runs.get(host, {}) if self._served(p)}
        self.runs.pop(host, None)
        self.restoring = {p: n for p, n in self.restoring.items() if n != host}
        self.allowed = {replica for replica in self.allowed if not replica.endswith(f"@{host}")}

    def _plans(self, note: Note) -> None:
        fields = _fields(note)
        self.planned, self.planned_us = {}, note.at_us
        for replica in filter(None, fields.get("installs", "").split(",")):
            self.planned.setdefault(replica.partition("@")[2], []).append(replica)
        self._counters.add("recoveries planned")
        self._counters.add("partitions that wait for room", bool(fields.get("waits")))

    def _ordered(self, note: Note) -> Iterator[Finding]:
        """Checks an order of the coordinator, or the role that a node needs first."""
        fields = _fields(note)
        replica = fields["replica"]
        partition, _, node = replica.partition("@")
        if fields["verb"] != "install" or partition not in self._load or self._helps(partition):
            return
        excused = self._runs_beside(partition, note.at_us) or self._lacks_long(partition, node, note.at_us)
        if excused or self.planned is None or partition in self._moved:
            self.allowed |= {replica}
            return
        coming = self.planned.get(node, [])
        if replica in coming:
            before = coming[: coming.index(replica)]
            if left := [replica_before for replica_before in before if replica_before not in self.allowed]:
                what = f"{replica} is ordered before {', '.join(left)}, which the plan has first"
                yield Finding("O6", "orders follow the current plan", note.at_us, node, what)
            if replica not in self.allowed:
                yield from self._in_turn(replica, note.at_us)
            self.allowed.add(replica)
        elif replica not in self.allowed | self.begun:
            what = f"{replica} is ordered; the newest plan has {', '.join(chain(*self.planned.values())) or 'nothing'}"
            yield Finding("O6", "orders follow the current plan", note.at_us, node, what)

    def _in_turn(self, replica: str, at_us: int) -> Iterator[Finding]:
        """Checks the first order of a node to restore the next partition of its plan."""
        node = replica.partition("@")[2]
        if not self._calm(node, at_us):
            return
        here = self.runs.get(node, {})
        restores = [p for p, state in here.items() if state is NodeState.RECOVERING and f"{p}@{node}" in self.allowed]
        fed = [p for p in restores if all(map(self._served, self._reads[p]))]
        concern = {*here, *(source_partition for p in here for source_partition in self._reads[p])}
        changed_us = [at for changed, at in self.changed_us.items() if changed.partition("@")[0] in concern]
        since = max([self.planned_us, *changed_us])
        self._counters.add("installs in turn")
        self._counters.add("installs behind what waits for input", bool(restores) and not fed)
        if at_us - since < self._settle_us:
            return  # the coordinator's knowledge may be older
        if fed:
            what = f"{replica} is ordered while {node} restores {', '.join(fed)}, and all that these read is there"
            yield Finding("O6", "a node restores one after the other", at_us, node, what)
        elif restores:
            what = f"{replica} is ordered {(at_us - since) / 1e6:.1f} s after {', '.join(restores)} could only wait"
            yield Finding("O6", "waiting for lost input holds up nothing", at_us, node, what)

    def _obeyed(self, note: Note) -> Iterator[Finding]:
        """Checks a node that follows an order."""
        fields = _fields(note)
        if fields["refused"] or fields["verb"] != "install":
            return
        partition, _, node = fields["replica"].partition("@")
        if partition not in self._load or partition in self._moved or not self._calm(node, note.at_us):
            return
        if self._served(partition) or self._helps(partition):
            return
        here = {p for p in self.runs.get(node, {}) if p != partition}
        needed = self._load[partition] + sum(self._load.get(p, 0.0) for p in here)
        self._counters.add("installs with room")
        if needed > (room := self._room(node)) + _LITTLE and not self._lacks_long(partition, node, note.at_us):
            what = f"{partition} begins beside {', '.join(sorted(here))}: they need {needed:.2f} of {room:.2f} cores"
            yield Finding("O1", "room holds at each order", note.at_us, node, what)
        other = self.restoring.get(partition)
        if (
            self.planned is not None
            and not self.may_lack
            and other not in (None, node)
            and self._calm(other, note.at_us)
        ):
            what = f"{partition} begins, though {other} restores it"
            yield Finding("O6", "a partition that is being restored is not ordered again", note.at_us, node, what)
        self.restoring.setdefault(partition, node)

    def _runs_beside(self, partition: str, at_us: int) -> bool:
        """May the order be the budget's, as far as the coordinator knows who serves the partition?"""
        if not self._directory.coordinator.budget:
            return False
        served = self._served(partition)
        return served or at_us - self.served_us.get(partition, -self._each_us) < self._each_us

    def _helps(self, partition: str) -> bool:
        """Is a node that runs it always back, and may lack a state that only a standby has?"""
        return any(partition in self.runs.get(str(n), {}) for n in self._placed[partition])

    def _lacks_long(self, partition: str, node: str, at_us: int) -> bool:
        """Has another node restored it for so long that it may lack a state, which this node can give (H8)?"""
        others = [n for n, here in self.runs.items() if n != node and here.get(partition) is NodeState.RECOVERING]
        return any(at_us - self.changed_us[f"{partition}@{n}"] >= self._lacking_us for n in others)

    # --- what stays ---

    def stayed(self, interval: FaultInterval) -> Iterator[Finding]:
        """Checks an interval in which no fault began or ended, at its end."""
        since = max(interval.from_us, self.quiet_since)
        if self.may_lack or not _works(interval.world, self._directory):
            return
        down = interval.world.down
        lost = {
            partition: [n for n in standbys.nodes if n not in down]
            for partition, standbys in self._directory.standbys.items()
            if str(partition) in self._load
            and str(partition) not in self._moved
            and all(n in down for n in self._placed[str(partition)])
        }
        lost = {
            partition: nodes
            for partition, nodes in lost.items()
            if not any(str(partition) in runs for runs in self.runs.values())
        }
        waiting = sum(self._load[str(partition)] for partition, nodes in lost.items() if nodes)
        waiting += sum(self._load.get(partition, 0.0) for partition in self._moved if not self._served(partition))
        for partition, nodes in lost.items():
            allowed_us = self._each_us * depth(self._plan, self._plan.unit[partition.unit]) + self._settle_us
            if not nodes or interval.to_us - since <= allowed_us:
                continue
            self._counters.add("partitions that stay lost")
            left = min(self._left(n) for n in nodes)
            spare = max((self._left(n) for n in self._spares(partition) if n not in down), default=0.0)
            if interval.to_us - since > allowed_us + self._each_us:  # its role must be known first
                left = max(left, spare)
            if left >= waiting - _LITTLE:
                what = f"nobody runs {partition}; there is room for {left:.2f}, all that wait need {waiting:.2f}"
                yield Finding("O6", "enough room implies that all return", interval.to_us, str(partition), what)

    def _spares(self, partition: PartitionId) -> list[NodeId]:
        """Returns nodes without configured work whose X suffices for this partition."""
        directory = self._directory
        hosts = {n for id in directory.roles for n in directory.hosts(id)}
        return [
            n
            for n in directory.nodes
            if n not in hosts
            and refused_share(self._plan, directory.with_role(partition, n, Role.STANDBY), n) is None
            and directory.nodes[n].memory is None
        ]

    def _left(self, node: str) -> float:
        """Returns the cores that a node has left; none while it restores a partition."""
        here = self.runs.get(node, {})
        if NodeState.RECOVERING in here.values():
            return 0.0
        return self._room(node) - sum(self._load.get(p, 0.0) for p in here)

    # --- what is known ---

    def _room(self, node: str) -> float:
        """Returns the cores of a node that may be used."""
        return self._directory.nodes[NodeId(node)].capacity * self._directory.coordinator.cap

    def _served(self, partition: str) -> bool:
        return any(runs.get(partition, NodeState.RECOVERING) is not NodeState.RECOVERING for runs in self.runs.values())

    def _calm(self, node: str | None, at_us: int) -> bool:
        """Has a node, and the coordinator, been undisturbed lately?  Else their knowledge of each other may be old."""
        pair = {node or "", COORDINATOR}
        if any(pair & hosts for hosts in self.lasting.values()):
            return False
        return all(at_us - self.shaken_us.get(p, -self._each_us) >= self._each_us for p in pair)


def _works(world: World, directory: Directory) -> bool:
    """Is nothing down but nodes?"""
    return not world.cut and not world.disturbed and world.down <= set(directory.nodes)


def _fields(note: Note) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in note.text.split(" "))
