"""Where a topology falls apart into modules that can be planned for one by one.

Full partitioning gives all receivers the same mixture.  So an operator that is read once, in full, and whose whole
upstream is read by nobody else, gives to the rest a single number, the share of its output that is there: a *gate*.
What lies between gates is a *module*.  Where every result of a module passes its gates alike, its value is a product:
a power of what each *entry* receives from gates, times what its own tasks make of a whole input.
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
      joined: what they give is multiplied; else it is their mean.
      power: how often the module's value has it as a factor.
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
    """In topological order, the one with the sinks last."""
    gates = _gates(topology)
    while True:
        found = [_module(topology, root, gates) for root in [*sorted(gates), None]]
        mixed = {g for g in gates for m in found if isinstance(m, frozenset) and g in m}
        if not mixed:
            return [m for m in found if isinstance(m, Module)]
        gates -= mixed


def _cone(topology: Topology, root: int) -> set[int]:
    """An operator with all upstream of it."""
    found, waiting = {root}, [root]
    while waiting:
        for stream in topology.operators[waiting.pop()].inputs:
            if stream.upstream not in found:
                found.add(stream.upstream)
                waiting.append(stream.upstream)
    return found


def _gates(topology: Topology) -> set[int]:
    readers: dict[int, list[tuple[int, bool]]] = {at: [] for at in range(len(topology.operators))}
    for at, operator in enumerate(topology.operators):
        for stream in operator.inputs:
            readers[stream.upstream].append((at, stream.same))
    found = set()
    for at, operator in enumerate(topology.operators):
        cone = _cone(topology, at)
        closed = not cone & topology.goal.keys()
        closed &= all(reader in cone for one in cone - {at} for reader, _ in readers[one])
        if closed and [same for _, same in readers[at]] == [True] and operator.rate.sum() > 0:
            found.add(at)
    return found


def _module(topology: Topology, root: int | None, gates: Collection[int]) -> Module | frozenset[int]:
    """The module, or the gates that do not come to one factor."""
    ends = [root] if root is not None else list(topology.goal)
    members = set().union(*[_cone(topology, end) for end in ends])
    for gate in gates:
        if gate != root and gate in members:
            members -= _cone(topology, gate)
    powers: dict[int, dict[int, int] | None] = {}
    for at in sorted(members):
        powers[at] = _powers(topology.operators[at], at, gates, powers)
    found = [powers[end] for end in ends]
    if found[0] is None or any(other != found[0] for other in found):
        return frozenset(s.upstream for at in members for s in topology.operators[at].inputs if s.upstream in gates)
    entries = []
    for at, power in sorted(found[0].items()):
        operator = topology.operators[at]
        read = [(s.upstream, float(s.sent.sum())) for s in operator.inputs if s.upstream in gates]
        total = sum(rate for _, rate in read)
        entries.append(ModuleEntry(tuple((gate, rate / total) for gate, rate in read), operator.correlated, power))
    return Module(root, frozenset(members), tuple(entries))


def _powers(
    operator: PlannedOperator, at: int, gates: Collection[int], powers: dict[int, dict[int, int] | None]
) -> dict[int, int] | None:
    """By entry, how often it is a factor of an operator's output; None: it is no factor of the whole."""
    outside = [s for s in operator.inputs if s.upstream in gates]
    inside = [powers[s.upstream] for s in operator.inputs if s.upstream not in gates]
    if any(power is None for power in inside) or (outside and inside and not operator.correlated):
        return None
    found: dict[int, int] = {at: 1} if outside else {}
    if not operator.correlated:
        if any(power != inside[0] for power in inside):
            return None
        return found or dict(inside[0] or {}) if inside else found
    for power in inside:
        for entry, times in (power or {}).items():
            found[entry] = found.get(entry, 0) + times
    return found
