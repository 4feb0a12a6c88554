"""The topology of a configured cluster: units are operators, their partitions are tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from replicas.planning.fidelity import fidelity
from replicas.planning.layout import ALL, Place, Placement
from replicas.planning.search import NOWHERE
from replicas.planning.topology import OperatorDescription, Topology
from spe.errors import ConfigError
from spe.plan.directory import Directory
from spe.plan.plan import Partitioning, Plan, Unit
from spe.problems import did_you_mean, one_of
from spe.stream.ids import PartitionId
from spe.stream.names import StreamId

#: Tuples per second of a source without a given rate.
UNKNOWN_RATE: Final = 1.0


def topology_of(
    plan: Plan,
    directory: Directory,
    rates: Mapping[str, Sequence[float]],
    priorities: Mapping[StreamId, float] | None = None,
) -> Topology:
    """Returns the topology.  Sources never fail: they can send logged data again.

    Where partitions have standbys, partitions with several replicas do not fail either, unless priorities are given:
    then every partition can be lost.

    Args:
      rates: by source or unit, measured tuples per second of each partition; otherwise a generator's rate counts,
        and a unit's rate follows from its inputs.
      priorities: of outputs, 1 by default; a unit weighs as much as its outputs together.  None: all units weigh
        the same.

    Raises:
      ConfigError: rates of unknown names, or too many or few of them.
    """
    _check_names(plan, rates)
    specs = [
        OperatorDescription(str(name), 1, {}, rates=rates.get(str(name), [_rate(source.reader)]), fails=False)
        for name, source in plan.sources.items()
    ]
    read_by_clients = {s for client in directory.clients.values() for s in client.reads}
    wanted = read_by_clients or set(plan.query.outputs)
    for unit in plan.units:
        makers = _makers(plan, unit)
        specs.append(
            OperatorDescription(
                str(unit.id),
                unit.partitions,
                makers,
                correlated=len(makers) > 1 and any(o.spec.CORRELATES for o in unit.operators),
                rates=rates.get(str(unit.id)),
                weight=1.0 if priorities is None else sum(priorities.get(s, 1.0) for s in unit.outputs if s in wanted),
                fails=_alone(directory, unit) if directory.standbys and priorities is None else True,
                output=any(s in (read_by_clients if priorities is None else wanted) for s in unit.outputs),
            )
        )
    return Topology(specs)


def _check_names(plan: Plan, rates: Mapping[str, Sequence[float]]) -> None:
    known = [*map(str, plan.sources), *(str(u.id) for u in plan.units)]
    problems = [
        f"rates: there is no source or unit {n!r}{did_you_mean(n, known)}; expected {one_of(known)}"
        for n in rates
        if n not in known
    ]
    if problems:
        raise ConfigError(problems)


def _makers(plan: Plan, unit: Unit) -> dict[str, Partitioning]:
    """Returns the sources and units that a unit reads, and how their partitions meet its own."""
    makers: dict[str, Partitioning] = {}
    for i in unit.inputs:
        maker = str(plan.producer[i.stream].id) if i.stream in plan.producer else str(i.stream)
        kind = i.partitioning(unit.partitions)
        makers[maker] = kind if makers.get(maker, kind) is kind else Partitioning.FULL
    return makers


def _alone(directory: Directory, unit: Unit) -> list[bool]:
    """Returns which partitions have one replica only."""
    return [len(directory.placement[PartitionId(unit.id, p)]) < 2 for p in range(unit.partitions)]


def partitions_of(plan: Plan, topology: Topology) -> list[PartitionId | None]:
    """Returns the partition of each task; None: a source."""
    units = {str(u.id): u.id for u in plan.units}
    return [
        PartitionId(units[o.name], p) if o.name in units else None for o in topology.operators for p in range(o.tasks)
    ]


def costs_of(plan: Plan, directory: Directory, topology: Topology, unable: Collection[PartitionId] = ()) -> list[float]:
    """Returns 1 for each task; infinite if partitions have standbys, and this one none that is able."""

    def able(id: PartitionId | None) -> bool:
        return id is None or not directory.standbys or (id in directory.standbys and id not in unable)

    return [1.0 if able(id) else NOWHERE for id in partitions_of(plan, topology)]


def standby_places(plan: Plan, directory: Directory, topology: Topology) -> dict[int, str]:
    """Returns the first standby of each task that has one: the place of its active replica."""
    ids = partitions_of(plan, topology)
    return {
        at: str(directory.standbys[id].nodes[0])
        for at, id in enumerate(ids)
        if id is not None and id in directory.standbys
    }


def fidelity_of(
    plan: Plan, directory: Directory, rates: Mapping[str, Sequence[float]], lost: Collection[PartitionId]
) -> float:
    """Returns OF while no node runs some partitions.

    Args:
      rates: as of :func:`topology_of`.
    """
    topology = topology_of(plan, directory, rates)
    alive = np.array([[id not in lost for id in partitions_of(plan, topology)]])
    return float(fidelity(topology, alive)[0])


def without_rates(plan: Plan, rates: Mapping[str, Sequence[float]]) -> list[str]:
    """Returns sources without a given rate."""
    return [str(n) for n, s in plan.sources.items() if str(n) not in rates and "rate" not in s.reader]


def layout_of(plan: Plan, directory: Directory, topology: Topology) -> Placement:
    """Returns a layout: the first node of each partition is its home.  The worst case only."""
    homes: list[str | None] = []
    for operator in topology.operators:
        unit = next((u for u in plan.units if str(u.id) == operator.name), None)
        if unit is None:
            homes += [None] * operator.tasks
        else:
            homes += [str(directory.placement[PartitionId(unit.id, p)][0]) for p in range(unit.partitions)]
    return Placement({str(n): Place() for n in directory.nodes}, homes, {ALL: 1.0})


def _rate(reader: Mapping[str, object]) -> float:
    rate = reader.get("rate", UNKNOWN_RATE)
    return float(rate) if isinstance(rate, int | float) else UNKNOWN_RATE
