"""What nodes promised and how long they let buckets wait, as clients recorded it (rule T8).  Pure.

The copy of the configuration in a run's directory says what X was to be; this says what it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from consistency.proof.report.model import Promise
from spe.log.announced_settings import RecordedAnnouncement
from spe.plan.bound_changes import SharesInForce, ShareStep
from spe.plan.describe import show_duration
from spe.plan.directory import Directory
from spe.plan.nodes import Policy, Reconcile
from spe.plan.plan import Plan
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, StreamId, UnitId
from spe.stream.times import BEFORE_TIME
from spe.wire.messages import Announcement

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
#: (wall time at which something enters, kX from then on), microseconds.
Step = tuple[int, int]


def promises(
    plan: Plan,
    directory: Directory,
    heard: Iterable[RecordedAnnouncement],
    begun_us: int,
    summary: Mapping[str, Any] = _NONE,
) -> list[Promise]:
    """A row per node, unit and settings, in the order of the plan.

    Args:
      heard: of all clients.
      begun_us: wall time that the rows' times count from.
      summary: of the run, which knows how much of X was used.
    """
    used = _used(summary)
    alike: dict[tuple[object, ...], list[Announcement]] = {}
    for _, one in heard:
        key = (one.node, one.unit, *_settings(one))
        alike.setdefault(key, []).append(one)
    rows = [_promise(directory, each, begun_us, used) for each in alike.values()]
    units, nodes = [str(u.id) for u in plan.units], [str(n) for n in directory.nodes]
    joined = sorted({row.node for row in rows} - set(nodes))  # no file names them (D4)
    order = {node: at for at, node in enumerate([*nodes, *joined])}
    return sorted(rows, key=lambda row: (order[row.node], units.index(row.unit), row.since_us))


def _settings(one: Announcement) -> tuple[object, ...]:
    return one.x_us, one.share_us, one.alpha, one.during_failure, one.during_stabilization, one.reconcile


def _used(summary: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """By node and unit, of several partitions the largest: 99 % of releases had used at most this share of X."""
    found: dict[tuple[str, str], float] = {}
    for one in summary.get("replicas", ()):
        if one.get("x_used") is not None:
            partition, _, node = one["replica"].rpartition("@")
            key = node, partition.rpartition("/")[0]
            found[key] = max(found.get(key, 0.0), float(one["x_used"]["p99"]))
    return found


def _promise(
    directory: Directory, each: Sequence[Announcement], begun_us: int, used: Mapping[tuple[str, str], float]
) -> Promise:
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
        used_p99=used.get((one.node, one.unit)),
    )


def policies(during_failure: str, during_stabilization: str) -> str:
    """Both policies in a few words; one where they are the same."""
    if during_failure == during_stabilization:
        return during_failure
    return f"{during_failure} & {during_stabilization}"


def _differs(directory: Directory, one: Announcement) -> str:
    """What the copy of the configuration says instead; "" where it says the same."""
    if (node := directory.nodes.get(NodeId(one.node))) is None:
        return "no such node"
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
        if before is None or (one.incarnation, one.since_us) >= (before.incarnation, before.since_us):
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
        if name in directory.nodes
    }
    return replace(directory, nodes={**directory.nodes, **said})


def bounds(plan: Plan, output: StreamId, heard: Iterable[RecordedAnnouncement]) -> list[Step]:
    """kX of what enters for an output, over time, by what one client recorded (X5).

    [] where not all units on the way were announced.  Of a unit the earliest announcement counts for what was before.
    """
    said: dict[tuple[UnitId, NodeId], dict[tuple[int, int], tuple[int, int]]] = defaultdict(dict)
    for arrived_us, one in sorted(heard, key=lambda each: each.arrived_us):
        # The time is by the node's clock: what it says of the future is not believed.
        step = min(one.since_us, arrived_us), one.share_us
        said[UnitId(one.unit), NodeId(one.node)].setdefault((one.incarnation, one.since_us), step)
    steps = {key: [step for _, step in sorted(found.items())] for key, found in said.items()}
    shares: dict[PartitionId, list[list[ShareStep]]] = {}
    for unit in plan.units:
        nodes = [found for (of, _), found in steps.items() if of == unit.id]
        first = min((found[0][0] for found in nodes), default=0)
        known: list[list[ShareStep]] = [
            [*([] if found[0][0] == first else [(BEFORE_TIME, None)]), *found] for found in nodes
        ]
        shares |= {PartitionId(unit.id, p): known for p in range(unit.partitions)}
    return SharesInForce(plan, shares).entries(Channel(output, 0))
