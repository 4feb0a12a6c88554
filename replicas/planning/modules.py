"""Divides a topology into modules that can be planned one by one.

Full partitioning gives all receivers the same mixture.  So an operator with one reader, in full, whose whole
upstream has no other reader, contributes a single number, the remaining share of its output: a *gate*.
The operators between gates are a *module*.  If every result of a module passes its gates alike, its value is a product:
a power of the input of each *entry* from gates, times the value of its own tasks with a whole input.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from replicas.planning.topology import PlannedOperator, Topology


@dataclass(frozen=True)
class ModuleEntry:
    """An operator that reads gates.

    Attributes:
      gates: operators, each with its part of the input.
      joined: their shares are multiplied; otherwise averaged.
      power: exponent of this factor in the module's value.
    """

    gates: tuple[tuple[int, float], ...]
    joined: bool
    power: int


@dataclass(frozen=True)
class Module:
    """Operators that are planned for together.

    Attributes:
      root: the gate that they end in; None: the sinks.
    """

    root: int | None
    members: frozenset[int]
    entries: tuple[ModuleEntry, ...]


def modules_of(topology: Topology) -> list[Module]:
    """Returns the modules in topological order, the one with the sinks last."""
    gates = _gates(topology)
    while True:
        modules = [_module(topology, root, gates) for root in [*sorted(gates), None]]
        mixed = {g for g in gates for m in modules if isinstance(m, frozenset) and g in m}
        if not mixed:
            return [m for m in modules if isinstance(m, Module)]
        gates -= mixed


def _cone(topology: Topology, root: int) -> set[int]:
    """Returns an operator with all its upstream."""
    cone, waiting = {root}, [root]
    while waiting:
        for stream in topology.operators[waiting.pop()].inputs:
            if stream.upstream not in cone:
                cone.add(stream.upstream)
                waiting.append(stream.upstream)
    return cone


def _gates(topology: Topology) -> set[int]:
    readers: dict[int, list[tuple[int, bool]]] = {at: [] for at in range(len(topology.operators))}
    for at, operator in enumerate(topology.operators):
        for stream in operator.inputs:
            readers[stream.upstream].append((at, stream.same))
    gates = set()
    for at, operator in enumerate(topology.operators):
        cone = _cone(topology, at)
        closed = not cone & topology.goal.keys()
        closed &= all(reader in cone for member in cone - {at} for reader, _ in readers[member])
        if closed and [same for _, same in readers[at]] == [True] and operator.rate.sum() > 0:
            gates.add(at)
    return gates


def _module(topology: Topology, root: int | None, gates: Collection[int]) -> Module | frozenset[int]:
    """Returns the module, or the gates without a common factor."""
    ends = [root] if root is not None else list(topology.goal)
    members = set().union(*[_cone(topology, end) for end in ends])
    for gate in gates:
        if gate != root and gate in members:
            members -= _cone(topology, gate)
    powers: dict[int, dict[int, int] | None] = {}
    for at in sorted(members):
        powers[at] = _powers(topology.operators[at], at, gates, powers)
    exponents = [powers[end] for end in ends]
    if exponents[0] is None or any(other != exponents[0] for other in exponents):
        return frozenset(s.upstream for at in members for s in topology.operators[at].inputs if s.upstream in gates)
    entries = []
    for at, power in sorted(exponents[0].items()):
        operator = topology.operators[at]
        read = [(s.upstream, float(s.sent.sum())) for s in operator.inputs if s.upstream in gates]
        total = sum(rate for _, rate in read)
        entries.append(ModuleEntry(tuple((gate, rate / total) for gate, rate in read), operator.correlated, power))
    return Module(root, frozenset(members), tuple(entries))


def _powers(
    operator: PlannedOperator, at: int, gates: Collection[int], powers: dict[int, dict[int, int] | None]
) -> dict[int, int] | None:
    """Returns exponents of an operator's output by entry; None: the output is not a product."""
    outside = [s for s in operator.inputs if s.upstream in gates]
    inside = [powers[s.upstream] for s in operator.inputs if s.upstream not in gates]
    if any(power is None for power in inside) or (outside and inside and not operator.correlated):
        return None
    exponents: dict[int, int] = {at: 1} if outside else {}
    if not operator.correlated:
        if any(power != inside[0] for power in inside):
            return None
        return exponents or dict(inside[0] or {}) if inside else exponents
    for power in inside:
        for entry, times in (power or {}).items():
            exponents[entry] = exponents.get(entry, 0) + times
    return exponents
