"""Which nodes may be stopped without a gap: others must serve what they run.  Pure: statuses in, reasons out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spe.metrics.health import not_ready
from spe.plan.directory import Directory
from spe.status import CoordinatorStatus, NodeStatus
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState, UnitId


def partitions_of(directory: Directory, answered: Mapping[str, NodeStatus], node: str) -> list[PartitionId]:
    """What a node runs now; what the directory says where it does not answer.

    Args:
      answered: the latest status of each node that answers.
    """
    status = answered.get(node)
    if status is None:
        return [id for id, nodes in directory.placement.items() if node in nodes]
    return [PartitionId(UnitId(r.unit), r.partition) for r in status.replicas]


def partners(directory: Directory, answered: Mapping[str, NodeStatus], node: str) -> dict[PartitionId, dict[str, str]]:
    """For each partition of a node, who else runs it, and in which state: ``STABLE``, or what else it is."""
    return {id: _others(directory, answered, node, id) for id in partitions_of(directory, answered, node)}


def _others(directory: Directory, answered: Mapping[str, NodeStatus], node: str, id: PartitionId) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, status in answered.items():
        for one in status.replicas:
            if name != node and (one.unit, one.partition) == id:
                found[name] = one.state.name if one.error is None else "stopped by an error"
    silent = [n for n in directory.placement.get(id, ()) if n != node and n not in answered]
    return found | dict.fromkeys(map(str, silent), "silent")


def without_partner(directory: Directory, answered: Mapping[str, NodeStatus], node: str) -> list[str]:
    """Partitions that nobody else runs, and what to do: these have a gap while the node restarts."""
    alone = [id for id, others in partners(directory, answered, node).items() if not others]
    return [f"{id} runs on {node} alone{_advice(directory, id, node)}" for id in alone]


def _advice(directory: Directory, id: PartitionId, node: str) -> str:
    if id not in directory.standbys:
        return ""
    return f"; {', '.join(directory.standbys[id].nodes)} stands by, so empty {node} first with spe drain"


def hindrances(directory: Directory, answered: Mapping[str, NodeStatus], node: str) -> list[str]:
    """Why a node may not be stopped now; empty where each of its partitions has another replica that is STABLE."""
    return without_partner(directory, answered, node) + [
        f"{id}: {', '.join(f'{name} is {state}' for name, state in others.items())}"
        for id, others in partners(directory, answered, node).items()
        if others and NodeState.STABLE.name not in others.values()
    ]


def moved_away(coordinator: CoordinatorStatus | None, node: str) -> set[str]:
    """Partitions whose newest move took them from a node."""
    newest = {move.partition: move for move in (coordinator.moves if coordinator is not None else ())}
    return {name for name, move in newest.items() if move.source == node and move.phase == "done"}


def not_back(
    status: NodeStatus | None, before: int, ran: Collection[PartitionId], moved: Collection[str] = ()
) -> list[str]:
    """Why a node that restarts is not back; empty when it runs what it ran, and all of that is STABLE.

    Args:
      status: the latest; None: it does not answer.
      before: its incarnation before the restart; of a node that did not answer then, 0.
      ran: its partitions before.
      moved: those that it need not run any more.
    """
    if status is None or status.incarnation == before:
        return ["it does not answer yet"]
    has = {(r.unit, r.partition) for r in status.replicas}
    return [f"{id} does not run yet" for id in ran if id not in has and str(id) not in moved] + not_ready(status)


def nodes_to_restart(directory: Directory, named: Collection[str]) -> list[NodeId]:
    """In the order of the directory; all where none is named."""
    return [n for n in directory.nodes if n in named or not named]
