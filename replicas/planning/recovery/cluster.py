"""A cluster that may lose nodes, from a configuration or a topology file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from replicas.planning.cluster_topology import partitions_of, topology_of
from replicas.planning.files import TopologyFile, mapping_of
from replicas.planning.recovery.goals import RecoveryGoal, goal_named
from replicas.planning.recovery.schedule import RecoverySchedule
from replicas.planning.topology import Floats, PlannedOperator, Topology
from spe.errors import ConfigError
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.problems import Path, Problems, did_you_mean, one_of
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.times import SECOND
from spe.values import duration_of

#: Duration of an install, if unknown, in seconds.
UNKNOWN_WORK: Final = 1.0


@dataclass(frozen=True)
class RecoverableCluster:
    """Tasks of each node, and the cost of running them elsewhere.

    Attributes:
      loads: per task, shares of a core.
      work: per task, seconds that an install takes.
      homes: per task, the nodes that run it; none: it is on no node, and cannot be lost.
      checkpoints: per task, the nodes that have one on disk.
      capacity: by node, cores.
      cap: share of it that a recovery may fill.
      notes: assumptions.
      partial_after: seconds that a task waits for its inputs, before it gives results without them.
    """

    topology: Topology
    loads: Floats
    work: Floats
    homes: Sequence[Collection[str]]
    checkpoints: Sequence[Collection[str]]
    capacity: Mapping[str, float]
    cap: float
    notes: tuple[str, ...] = ()
    partial_after: float = 0.0

    def runs_on(self, node: str) -> list[int]:
        """Returns tasks of a node."""
        return [task for task, homes in enumerate(self.homes) if node in homes]

    def without(self, lost: Collection[str]) -> list[int]:
        """Returns tasks that no node runs while these nodes are away."""
        return [task for task, homes in enumerate(self.homes) if homes and not set(homes) - set(lost)]

    def schedule(self, goal: RecoveryGoal, away: Collection[str]) -> RecoverySchedule:
        """Returns a recovery in which these nodes are away from the start."""
        always = [task for task, homes in enumerate(self.homes) if not homes]
        schedule = RecoverySchedule(
            goal,
            self.loads,
            self.work,
            cap=self.cap,
            always=always,
            reads=self.topology.reads,
            partial_after=self.partial_after,
        )
        for task, nodes in enumerate(self.checkpoints):
            for node in nodes:
                schedule.holds(task, node, 0)
        for node, capacity in self.capacity.items():
            if node not in away:
                schedule.came(node, capacity, self.runs_on(node))
        return schedule

    def with_measured(self, measured: Mapping[str, MeasuredWork]) -> RecoverableCluster:
        """Returns the cluster with measured figures of some operators.

        Raises:
          ConfigError: there is no such operator, or it has another number of tasks.
        """
        operators = {o.name: o for o in self.topology.operators}
        loads, work = self.loads.copy(), self.work.copy()
        problems = []
        for name, known in measured.items():
            if name not in operators:
                problems.append(f"there is no {name!r}{did_you_mean(name, operators)}; expected {one_of([*operators])}")
                continue
            own = operators[name]
            for what, amounts, into in (("load", known.loads, loads), ("work", known.work, work)):
                if len(amounts) not in (0, 1, own.tasks):
                    problems.append(f"{name}: {what} is one number, or {own.tasks}, one per partition")
                elif amounts:
                    into[own.range] = amounts
        if problems:
            raise ConfigError([f"loads: {problem}" for problem in problems])
        return replace(self, loads=loads, work=work)


@dataclass(frozen=True)
class MeasuredWork:
    """Measured figures of an operator, one number or one per task, or none: shares of a core, and seconds."""

    loads: tuple[float, ...] = ()
    work: tuple[float, ...] = ()


def cluster_of(
    plan: Plan, directory: Directory, topology: Topology, measured: Mapping[str, MeasuredWork]
) -> RecoverableCluster:
    """Returns a configured cluster.  Standbys, and nodes that write checkpoints to disk, have checkpoints.

    Measured figures count more than configured ones.

    Unknown loads are assumed in proportion to a partition's input, so that the fullest node is filled up to the cap.
    """
    measured = {**(expected := expected_loads(directory)), **measured}
    for unit in expected.keys() & measured.keys():
        measured[unit] = MeasuredWork(
            measured[unit].loads or expected[unit].loads, measured[unit].work or expected[unit].work
        )
    ids = partitions_of(plan, topology)
    homes = [() if id is None else tuple(map(str, directory.placement[id])) for id in ids]
    checkpoints = [
        () if id is None else tuple(str(n) for n in directory.hosts(id) if directory.disk_us(ReplicaId(*id, n)))
        for id in ids
    ]
    nodes = {str(name): node.capacity for name, node in directory.nodes.items()}
    cap = directory.coordinator.cap
    reads = np.concatenate([_received(operator) for operator in topology.operators])
    fullest = max(sum(float(reads[t]) for t, own in enumerate(homes) if n in own) / cores for n, cores in nodes.items())
    work = np.full(topology.tasks, UNKNOWN_WORK)
    loads = reads * (cap / fullest if fullest > 0 else 0.0)
    notes = _assumptions([str(u.id) for u in plan.units], measured, cap)
    return RecoverableCluster(
        topology, loads, work, homes, checkpoints, nodes, cap, tuple(notes), partial_after(plan, directory)
    ).with_measured(measured)


def _assumptions(units: Sequence[str], measured: Mapping[str, MeasuredWork], cap: float) -> list[str]:
    """Says which figures of units are assumed, since they are neither measured nor configured."""
    unloaded = [u for u in units if not (u in measured and measured[u].loads)]
    unworked = [u for u in units if not (u in measured and measured[u].work)]
    notes = []
    if unloaded:
        notes.append(
            f"nothing is known of the load of {', '.join(unloaded)}: assumed in proportion to what is read, with the "
            f"fullest node at {cap:g} of its capacity (--loads)"
        )
    if unworked:
        notes.append(
            f"nothing is known of how long an install of {', '.join(unworked)} takes: {UNKNOWN_WORK:g} s is assumed "
            "(--loads)"
        )
    return notes


def value_of(
    plan: Plan, directory: Directory, rates: Mapping[str, Sequence[float]], lost: Collection[PartitionId]
) -> float:
    """Returns the value of the results while no node runs some partitions, as a coordinator weighs them (rule O2).

    Args:
      rates: of sources, as of :func:`topology_of`.
    """
    topology = topology_of(plan, directory, rates, directory.recovery.priorities)
    alive = np.array([[id not in lost for id in partitions_of(plan, topology)]])
    return float(goal_named(directory.recovery.value, topology).values(alive)[0])


def partial_after(plan: Plan, directory: Directory) -> float:
    """Returns the shortest time after which a replica gives results without a lost input, in seconds (T3)."""
    shares = (directory.share(plan, id.unit, node) for id in directory.roles for node in directory.hosts(id))
    return min((share.alpha_x_us for share in shares), default=0) / SECOND


def expected_loads(directory: Directory) -> dict[str, MeasuredWork]:
    """Returns the configured loads of units."""
    return {
        str(unit): MeasuredWork(own.cores, tuple(us / SECOND for us in own.install_us))
        for unit, own in directory.recovery.loads.items()
    }


def cluster_of_file(read: TopologyFile, measured: Mapping[str, MeasuredWork]) -> RecoverableCluster:
    """Returns the cluster of a file: costs are loads, capacities are filled up, installs take no time by default.

    Raises:
      ConfigError: the file has no nodes.
    """
    if read.layout is None:
        raise ConfigError(["--lost: the topology names no nodes; expected nodes and placement in it, or in --domains"])
    homes = [() if home is None else (home,) for home in read.layout.homes]
    capacity = {n: np.inf if p.capacity is None else p.capacity for n, p in read.layout.nodes.items()}
    nowhere = [()] * len(homes)
    work = np.zeros(len(homes))
    cluster = RecoverableCluster(read.topology, np.array(read.costs), work, homes, nowhere, capacity, 1.0)
    return cluster.with_measured(measured)


def read_measured(text: str, name: str) -> dict[str, MeasuredWork]:
    """Reads load and duration of an install by unit or operator.

    Raises:
      ConfigError: with every mistake, as ``file:line: path: what is wrong; what was expected``.
    """
    problems = Problems()
    document = mapping_of(text, name, problems, None)
    figures = {}
    for key, value in document.data.items():
        entry = value if isinstance(value, Mapping) else {"load": value}
        for inner in entry.keys() - {"load", "work"}:
            hint = did_you_mean(str(inner), ["load", "work"])
            problems.add((key, inner), f"unknown key{hint}; expected load or work")
        loads = [_load(item, (key,), problems) for item in _list(entry.get("load"))]
        work = [_seconds(item, (key, "work"), problems) for item in _list(entry.get("work"))]
        figures[str(key)] = MeasuredWork(tuple(loads), tuple(work))
    if problems:
        raise ConfigError(document.in_order(problems))
    return figures


def _list(value: object) -> list[object]:
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def _load(value: object, path: Path, problems: Problems) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < np.inf:
        return float(value)
    problems.add(path, f"expected a load of at least 0 cores, or a list with one per partition, got {value!r}")
    return 0.0


def _seconds(value: object, path: Path, problems: Problems) -> float:
    try:
        if (us := duration_of(value)) >= 0:
            return us / SECOND
        problems.add(path, f"expected a duration of zero or more, got {value!r}")
    except ValueError as error:
        problems.add(path, str(error))
    return 0.0


def _received(operator: PlannedOperator) -> Floats:
    """Returns tuples per second of each task's input; 0 for sources."""
    return np.asarray(sum((s.load for s in operator.inputs), np.zeros(operator.tasks)))
