"""What nodes promised and how long they let buckets wait, as clients recorded it (rule T8).  Pure.

The copy of the configuration in a run's directory says what X was to be; this says what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from consistency.proof.report.model import Promise
from spe.log.announced import RecordedAnnouncement
from spe.plan.describe import show_duration
from spe.plan.directory import Directory
from spe.plan.nodes import Policy, Reconcile
from spe.plan.plan import Plan
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, StreamId, UnitId
from spe.wire.messages import Announcement

#: (wall time of receipt, kX from then on), microseconds.
Step = tuple[int, int]


def promises(plan: Plan, directory: Directory, heard: Iterable[RecordedAnnouncement], begun_us: int) -> list[Promise]:
    """A row per node, unit and settings, in the order of the plan.

    Args:
      heard: of all clients.
      begun_us: wall time that the rows' times count from.
    """
    alike: dict[tuple[object, ...], list[Announcement]] = {}
    for _, one in heard:
        key = (one.node, one.unit, *_settings(one))
        alike.setdefault(key, []).append(one)
    rows = [_promise(directory, each, begun_us) for each in alike.values()]
    units, nodes = [str(u.id) for u in plan.units], [str(n) for n in directory.nodes]
    return sorted(rows, key=lambda row: (nodes.index(row.node), units.index(row.unit), row.since_us))


def _settings(one: Announcement) -> tuple[object, ...]:
    return one.x_us, one.share_us, one.alpha, one.during_failure, one.during_stabilization, one.reconcile


def _promise(directory: Directory, each: Sequence[Announcement], begun_us: int) -> Promise:
    one, waited_us = each[0], max(a.waited_us for a in each)
    return Promise(
        node=one.node,
        unit=one.unit,
        x_us=one.x_us,
        share_us=one.share_us,
        alpha=one.alpha,
        policies=policies(one.during_failure, one.during_stabilization),
        reconcile=one.reconcile,
        since_us=min(a.since_us for a in each) - begun_us,
        waited_us=waited_us,
        kept=waited_us <= one.share_us,
        differs=_differs(directory, one),
    )


def policies(during_failure: str, during_stabilization: str) -> str:
    """Both policies in a few words; one where they are the same."""
    if during_failure == during_stabilization:
        return during_failure
    return f"{during_failure} & {during_stabilization}"


def _differs(directory: Directory, one: Announcement) -> str:
    """What the copy of the configuration says instead; "" where it says the same."""
    node = directory.nodes[NodeId(one.node)]
    said = {
        "X": (show_duration(node.x_us), show_duration(one.x_us)),
        "α": (f"{node.alpha:g}", f"{one.alpha:g}"),
        "policy": (
            policies(node.during_failure, node.during_stabilization),
            policies(one.during_failure, one.during_stabilization),
        ),
        "reconcile": (str(node.reconcile), one.reconcile),
    }
    return ", ".join(f"{name} {file}" for name, (file, announced) in said.items() if file != announced)


def as_announced(directory: Directory, heard: Iterable[RecordedAnnouncement]) -> Directory:
    """The directory with what nodes announced last in place of what the file says."""
    last: dict[NodeId, Announcement] = {}
    for _, one in heard:
        before = last.get(NodeId(one.node))
        if before is None or one.incarnation >= before.incarnation:
            last[NodeId(one.node)] = one
    said = {
        name: replace(
            directory.nodes[name],
            x_us=one.x_us,
            alpha=one.alpha,
            during_failure=Policy(one.during_failure),
            during_stabilization=Policy(one.during_stabilization),
            reconcile=Reconcile(one.reconcile),
        )
        for name, one in last.items()
    }
    return replace(directory, nodes={**directory.nodes, **said})


def bounds(plan: Plan, directory: Directory, output: StreamId, heard: Iterable[RecordedAnnouncement]) -> list[Step]:
    """kX of an output over time, by what one client recorded; [] where not all units on the way were announced.

    What came before the first announcement is judged by it.
    """
    shares: dict[tuple[UnitId, NodeId], tuple[int, int]] = {}
    steps: list[Step] = []
    for arrived_us, one in sorted(heard, key=lambda each: each.arrived_us):
        key = UnitId(one.unit), NodeId(one.node)
        if key in shares and one.incarnation < shares[key][0]:
            continue
        shares[key] = one.incarnation, one.share_us
        bound_us = _bound_us(plan, directory, output, shares)
        if bound_us is not None and (not steps or steps[-1][1] != bound_us):
            steps.append((arrived_us if steps else 0, bound_us))
    return steps


def _bound_us(
    plan: Plan, directory: Directory, stream: StreamId, shares: Mapping[tuple[UnitId, NodeId], tuple[int, int]]
) -> int | None:
    if stream in plan.sources:
        return 0
    unit = plan.producer[stream]
    hosts = {n for p in range(unit.partitions) for n in directory.hosts(PartitionId(unit.id, p))}
    known = [shares[unit.id, n][1] for n in hosts if (unit.id, n) in shares]
    before = [_bound_us(plan, directory, i.stream, shares) for i in unit.inputs]
    if not known or None in before:
        return None
    return max(known) + max(us for us in before if us is not None)
