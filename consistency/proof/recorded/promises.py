"""The promises of nodes and how long they let buckets wait, as clients recorded it (rule T8).  Pure.

The copy of the configuration in a run's directory has the intended X; this module has the announced one.
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
from spe.wire.messages.feeds import Announcement

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
#: (wall time of an input's arrival, kX that holds from then on), microseconds.
Step = tuple[int, int]


def promises(
    plan: Plan,
    directory: Directory,
    heard: Iterable[RecordedAnnouncement],
    begun_us: int,
    summary: Mapping[str, Any] = _NONE,
) -> list[Promise]:
    """Returns a row per node, unit and settings, in the order of the plan.

    Args:
      heard: announcements that all clients recorded.
      begun_us: wall time from which the rows' times count.
      summary: of the run; it has the used share of X.
    """
    used = _used(summary)
    alike: dict[tuple[object, ...], list[Announcement]] = {}
    for _, announcement in heard:
        key = (announcement.node, announcement.unit, *_settings(announcement))
        alike.setdefault(key, []).append(announcement)
    rows = [_promise(directory, each, begun_us, used) for each in alike.values()]
    units, nodes = [str(u.id) for u in plan.units], [str(n) for n in directory.nodes]
    joined = sorted({row.node for row in rows} - set(nodes))  # D4: nodes that joined are in no file
    order = {node: at for at, node in enumerate([*nodes, *joined])}
    return sorted(rows, key=lambda row: (order[row.node], units.index(row.unit), row.since_us))


def _settings(announcement: Announcement) -> tuple[object, ...]:
    return (
        announcement.x_us,
        announcement.share_us,
        announcement.alpha,
        announcement.during_failure,
        announcement.during_stabilization,
        announcement.reconcile,
    )


def _used(summary: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Returns the used share of X by node and unit: the 99th percentile, the largest one of several partitions."""
    shares: dict[tuple[str, str], float] = {}
    for replica in summary.get("replicas", ()):
        if replica.get("x_used") is not None:
            partition, _, node = replica["replica"].rpartition("@")
            key = node, partition.rpartition("/")[0]
            shares[key] = max(shares.get(key, 0.0), float(replica["x_used"]["p99"]))
    return shares


def _promise(
    directory: Directory, each: Sequence[Announcement], begun_us: int, used: Mapping[tuple[str, str], float]
) -> Promise:
    first, waited_us = each[0], max(a.waited_us for a in each)
    return Promise(
        node=first.node,
        unit=first.unit,
        x_us=first.x_us,
        share_us=first.share_us,
        alpha=first.alpha,
        policies=policies(first.during_failure, first.during_stabilization),
        reconcile=first.reconcile,
        since_us=min(a.since_us for a in each) - begun_us,
        waited_us=waited_us,
        kept=waited_us <= first.share_us,
        differs=_differs(directory, first),
        used_p99=used.get((first.node, first.unit)),
    )


def policies(during_failure: str, during_stabilization: str) -> str:
    """Describes both policies in a few words; one word if they are equal."""
    if during_failure == during_stabilization:
        return during_failure
    return f"{during_failure} & {during_stabilization}"


def _differs(directory: Directory, announcement: Announcement) -> str:
    """Describes the differences from the copy of the configuration; "" if there are none."""
    if (node := directory.nodes.get(NodeId(announcement.node))) is None:
        return "no such node"
    values = {
        "X": (show_duration(node.x_us), show_duration(announcement.x_us)),
        "α": (f"{node.alpha:g}", f"{announcement.alpha:g}"),
        "policy": (
            policies(node.during_failure, node.during_stabilization),
            policies(announcement.during_failure, announcement.during_stabilization),
        ),
        "reconcile": (str(node.reconcile), announcement.reconcile),
    }
    return ", ".join(f"{name} {file}" for name, (file, announced) in values.items() if file != announced)


def as_announced(directory: Directory, heard: Iterable[RecordedAnnouncement]) -> Directory:
    """Returns the directory with the settings that nodes announced last, instead of the file's."""
    last: dict[NodeId, Announcement] = {}
    for _, announcement in heard:
        before = last.get(NodeId(announcement.node))
        if before is None or (announcement.incarnation, announcement.since_us) >= (before.incarnation, before.since_us):
            last[NodeId(announcement.node)] = announcement
    nodes = {
        name: replace(
            directory.nodes[name],
            x_us=announcement.x_us,
            alpha=announcement.alpha,
            during_failure=Policy(announcement.during_failure),
            during_stabilization=Policy(announcement.during_stabilization),
            reconcile=Reconcile(announcement.reconcile),
        )
        for name, announcement in last.items()
        if name in directory.nodes
    }
    return replace(directory, nodes={**directory.nodes, **nodes})


def bounds(plan: Plan, output: StreamId, heard: Iterable[RecordedAnnouncement]) -> list[Step]:
    """Returns kX of an output's input over time, as one client recorded it (X5).

    [] where not all units on the path were announced.  A unit's earliest announcement also counts for earlier times.
    """
    steps_of: dict[tuple[UnitId, NodeId], dict[tuple[int, int], tuple[int, int]]] = defaultdict(dict)
    for arrived_us, announcement in sorted(heard, key=lambda each: each.arrived_us):
        # The time is by the node's clock; it may not lie after the arrival.
        step = min(announcement.since_us, arrived_us), announcement.share_us
        steps_of[UnitId(announcement.unit), NodeId(announcement.node)].setdefault(
            (announcement.incarnation, announcement.since_us), step
        )
    steps = {key: [step for _, step in sorted(node_steps.items())] for key, node_steps in steps_of.items()}
    shares: dict[PartitionId, list[list[ShareStep]]] = {}
    for unit in plan.units:
        nodes = [node_steps for (unit_id, _), node_steps in steps.items() if unit_id == unit.id]
        first = min((node_steps[0][0] for node_steps in nodes), default=0)
        known: list[list[ShareStep]] = [
            [*([] if node_steps[0][0] == first else [(BEFORE_TIME, None)]), *node_steps] for node_steps in nodes
        ]
        shares |= {PartitionId(unit.id, p): known for p in range(unit.partitions)}
    return SharesInForce(plan, shares).entries(Channel(output, 0))
