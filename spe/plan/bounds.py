"""X of nodes from the bounds of outputs: ``outputs: {totals: {bound: 6s}}`` instead of ``x`` of each node (rule T7).

A unit on a path to an output may hold results back for ``bound / k``, where k counts the units in sequence on the
longest path through it.  No path then takes longer than the bound, and the longest one uses all of it.  Units in
sequence on one node divide its X, so the X of the node is that many times as long.

Where a coordinator can move partitions, a unit may come to any node, and be alone there: then every node gets the
shortest of these times.  So the bound holds wherever partitions are; two units in sequence on one node get half each.

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
      output: the output with the tightest bound among those that the unit contributes to.
      bound_us: bound of that output.
      in_sequence: units on the longest path to it through this one (k).
    """

    output: StreamId
    bound_us: int
    in_sequence: int

    @property
    def share_us(self) -> int:
        return self.bound_us // self.in_sequence


def unit_bounds(plan: Plan, bounds: Mapping[StreamId, int]) -> dict[UnitId, UnitBound]:
    """Returns the bound of each unit on a path to an output with a bound, in the order of the plan."""
    tightest: dict[UnitId, UnitBound] = {}
    for output, bound_us in bounds.items():
        for unit, count in units_before(plan, output).items():
            bound = UnitBound(output, bound_us, count)
            if unit not in tightest or bound.share_us < tightest[unit].share_us:
                tightest[unit] = bound
    return {unit.id: tightest[unit.id] for unit in plan.units if unit.id in tightest}


def units_before(plan: Plan, output: StreamId) -> dict[UnitId, int]:
    """Maps each unit on a path to an output to the number of units on the longest path through it."""
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
    """X of a node, derived from a bound.

    Attributes:
      unit: the unit with the shortest share.
      limit: bound of that unit.
      times: units in sequence on the node, which divide its X; 1 where X must suit any unit that may come.
    """

    unit: UnitId
    limit: UnitBound
    times: int

    @property
    def x_us(self) -> int:
        return self.limit.share_us * self.times


def derived(plan: Plan, directory: Directory) -> dict[NodeId, NodeBound]:
    """Returns X of each node whose X follows from a bound."""
    each = unit_bounds(plan, directory.bounds)
    if each and directory.coordinated:
        shortest = min(each, key=lambda unit: each[unit].share_us)
        return dict.fromkeys(directory.nodes, NodeBound(shortest, each[shortest], 1))
    tightest: dict[NodeId, NodeBound] = {}
    for unit, limit in each.items():
        for node in hosts_of(plan, directory, unit):
            bound = NodeBound(unit, limit, directory.in_sequence(plan, unit, node))
            if node not in tightest or bound.x_us < tightest[node].x_us:
                tightest[node] = bound
    return {node: tightest[node] for node in directory.nodes if node in tightest}


def hosts_of(plan: Plan, directory: Directory, unit: UnitId) -> list[NodeId]:
    """Every node that runs, or is a standby for, a partition of a unit."""
    partitions = range(plan.unit[unit].partitions)
    return list(dict.fromkeys(n for p in partitions for n in directory.hosts(PartitionId(unit, p))))


def with_bounds(plan: Plan, directory: Directory, own_x: Collection[NodeId], problems: Problems) -> Directory:
    """Returns the directory with the X of its nodes derived from its bounds.

    Args:
      own_x: nodes whose X the configuration gives; an X that also follows from a bound is an error.
    """
    bounds = derived(plan, directory)
    for node in own_x:
        if node in bounds:
            limit = bounds[node].limit
            why = "" if not directory.coordinated else ", for partitions can move there"
            problems.add(
                ("nodes", str(node), "x"),
                f"follows from outputs.{limit.output}.bound = {show_duration(limit.bound_us)}{why}; "
                "expected one of them",
            )
    nodes = {n: replace(node, x_us=bounds[n].x_us) if n in bounds else node for n, node in directory.nodes.items()}
    return replace(directory, nodes=nodes)


def bound_lines(plan: Plan, directory: Directory) -> Iterator[list[str]]:
    """Rows of a table of the derivation: the slowest path to each output with a bound, and X of the nodes on it."""
    for output, bound_us in directory.bounds.items():
        way = slowest_way(plan, directory, output)
        sum_us = sum(us for _, us in way)
        left = "" if sum_us == bound_us else f", {show_duration(bound_us - sum_us)} less than it may be"
        added = " + ".join(f"{unit} {show_duration(us)}" for unit, us in way)
        yield [str(output), f"bound {show_duration(bound_us)}", f"{added} = {show_duration(sum_us)}{left}"]
    for node, bound in derived(plan, directory).items():
        limit = bound.limit
        sequence = "unit" if limit.in_sequence == 1 else "units in sequence"
        how = f"{show_duration(limit.bound_us)} / {limit.in_sequence} {sequence} to {limit.output}"
        if directory.coordinated:
            how += ", for any unit may move there"
        elif bound.times > 1:
            how += f" × {bound.times} of them here"
        now_us = directory.nodes[node].x_us
        changed = "" if now_us == bound.x_us else f"; now {show_duration(now_us)}"
        yield [str(node), f"X {show_duration(bound.x_us)}", f"{how}{changed}"]
