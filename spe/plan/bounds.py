"""X of nodes from the bounds of outputs: ``outputs: {totals: {bound: 6s}}`` instead of ``x`` of each node (rule T5).

A unit on the way to an output may hold results back for ``bound / k``, where k counts the units in sequence on the
longest way through it.  No way then takes longer than the bound, and the longest one uses all of it.  Units in
sequence on one node divide its X, so a node has that many times as much.

Where a coordinator can move partitions, a unit may come to any node, and be alone there: then every node has the
shortest of these times.  So the bound holds wherever partitions are; where two in sequence meet, each has half.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from spe.plan.delays import slowest_way
from spe.plan.describe import show_duration
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.problems import Problems
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, StreamId, UnitId


@dataclass(frozen=True, slots=True)
class UnitBound:
    """How long a unit may hold a result back.

    Attributes:
      output: whose bound says so; of several the tightest.
      bound_us: of that output.
      in_sequence: units on the longest way to it through this one (k).
    """

    output: StreamId
    bound_us: int
    in_sequence: int

    @property
    def share_us(self) -> int:
        return self.bound_us // self.in_sequence


def unit_bounds(plan: Plan, bounds: Mapping[StreamId, int]) -> dict[UnitId, UnitBound]:
    """Of each unit on the way to an output that has a bound, in the order of the plan."""
    found: dict[UnitId, UnitBound] = {}
    for output, bound_us in bounds.items():
        for unit, count in units_before(plan, output).items():
            one = UnitBound(output, bound_us, count)
            if unit not in found or one.share_us < found[unit].share_us:
                found[unit] = one
    return {unit.id: found[unit.id] for unit in plan.units if unit.id in found}


def units_before(plan: Plan, output: StreamId) -> dict[UnitId, int]:
    """Each unit on the way to an output, and how many are on the longest way through it."""
    before: dict[UnitId, int] = {}
    after: dict[UnitId, int] = {plan.producer[output].id: 1}
    for unit in plan.units:  # topological
        makers = [plan.producer[i.stream].id for i in unit.inputs if i.stream in plan.producer]
        before[unit.id] = 1 + max((before[m] for m in makers), default=0)
    for unit in reversed(plan.units):
        if unit.id in after:
            for maker in (plan.producer[i.stream].id for i in unit.inputs if i.stream in plan.producer):
                after[maker] = max(after.get(maker, 0), after[unit.id] + 1)
    return {unit: before[unit] + count - 1 for unit, count in after.items()}


@dataclass(frozen=True, slots=True)
class NodeBound:
    """X of a node, as it follows from a bound.

    Attributes:
      unit: that allows the least.
      of: what this unit may have.
      times: units in sequence on the node, which divide its X; 1 where it is to do for any unit that may come.
    """

    unit: UnitId
    of: UnitBound
    times: int

    @property
    def x_us(self) -> int:
        return self.of.share_us * self.times


def derived(plan: Plan, directory: Directory) -> dict[NodeId, NodeBound]:
    """X of each node whose X follows from a bound."""
    each = unit_bounds(plan, directory.bounds)
    if each and directory.coordinated:
        shortest = min(each, key=lambda unit: each[unit].share_us)
        return dict.fromkeys(directory.nodes, NodeBound(shortest, each[shortest], 1))
    found: dict[NodeId, NodeBound] = {}
    for unit, of in each.items():
        for node in hosts_of(plan, directory, unit):
            one = NodeBound(unit, of, directory.in_sequence(plan, unit, node))
            if node not in found or one.x_us < found[node].x_us:
                found[node] = one
    return {node: found[node] for node in directory.nodes if node in found}


def hosts_of(plan: Plan, directory: Directory, unit: UnitId) -> list[NodeId]:
    """Every node that runs a partition of a unit, or stands by for one."""
    partitions = range(plan.unit[unit].partitions)
    return list(dict.fromkeys(n for p in partitions for n in directory.hosts(PartitionId(unit, p))))


def with_bounds(plan: Plan, directory: Directory, own_x: Collection[NodeId], problems: Problems) -> Directory:
    """The directory in which nodes have the X that follows from its bounds.

    Args:
      own_x: nodes whose X the configuration says; one that follows from a bound is a contradiction.
    """
    found = derived(plan, directory)
    for node in own_x:
        if node in found:
            one = found[node].of
            why = "" if not directory.coordinated else ", for partitions can move there"
            problems.add(
                ("nodes", str(node), "x"),
                f"follows from outputs.{one.output}.bound = {show_duration(one.bound_us)}{why}; expected one of them",
            )
    nodes = {n: replace(one, x_us=found[n].x_us) if n in found else one for n, one in directory.nodes.items()}
    return replace(directory, nodes=nodes)


def bound_lines(plan: Plan, directory: Directory) -> Iterator[list[str]]:
    """The derivation, for a table: the slowest way to each output with a bound, and X of the nodes on it."""
    for output, bound_us in directory.bounds.items():
        way = slowest_way(plan, directory, output)
        sum_us = sum(us for _, us in way)
        left = "" if sum_us == bound_us else f", {show_duration(bound_us - sum_us)} less than it may be"
        added = " + ".join(f"{unit} {show_duration(us)}" for unit, us in way)
        yield [str(output), f"bound {show_duration(bound_us)}", f"{added} = {show_duration(sum_us)}{left}"]
    for node, one in derived(plan, directory).items():
        of = one.of
        sequence = "unit" if of.in_sequence == 1 else "units in sequence"
        how = f"{show_duration(of.bound_us)} / {of.in_sequence} {sequence} to {of.output}"
        if directory.coordinated:
            how += ", for any unit may move there"
        elif one.times > 1:
            how += f" × {one.times} of them here"
        now_us = directory.nodes[node].x_us
        changed = "" if now_us == one.x_us else f"; now {show_duration(now_us)}"
        yield [str(node), f"X {show_duration(one.x_us)}", f"{how}{changed}"]
