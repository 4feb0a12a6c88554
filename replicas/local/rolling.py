"""Finds nodes that may be stopped without a gap: others must serve their partitions.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spe.metrics.health import not_ready
from spe.plan.directory import Directory
from spe.status import CoordinatorStatus, NodeStatus
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState


def partitions_of(directory: Directory, answered: Mapping[str, NodeStatus], node: str) -> list[PartitionId]:
    """Returns a node's partitions; those of the directory if it does not answer.

    Args:
      answered: the latest status of each node that answers.
    """
    status = answered.get(node)
    if status is None:
        return [id for id, nodes in directory.placement.items() if node in nodes]
    return [replica.id for replica in status.replicas]


def partners(directory: Directory, answered: Mapping[str, NodeStatus], node: str) -> dict[PartitionId, dict[str, str]]:
    """Returns, for each partition of a node, its other nodes, and the state of each: ``STABLE``, or another."""
    return {id: _others(directory, answered, node, id) for id in partitions_of(directory, answered, node)}


def _others(directory: Directory, answered: Mapping[str, NodeStatus], node: str, id: PartitionId) -> dict[str, str]:
    states: dict[str, str] = {}
    for name, status in answered.items():
        for replica in status.replicas:
            if name != node and (replica.unit, replica.partition) == id:
                states[name] = replica.state.name if replica.error is None else "stopped by an error"
    silent = [n for n in directory.placement.get(id, ()) if n != node and n not in answered]
    return states | dict.fromkeys(map(str, silent), "silent")


def without_partner(directory: Directory, answered: Mapping[str, NodeStatus], node: str) -> list[str]:
    """Returns partitions without another node, with advice: these have a gap while the node restarts."""
    alone = [id for id, others in partners(directory, answered, node).items() if not others]
    return [f"{id} runs on {node} alone{_advice(directory, id, node)}" for id in alone]


def _advice(directory: Directory, id: PartitionId, node: str) -> str:
    if id not in directory.standbys:
        return ""
    return f"; {', '.join(directory.standbys[id].nodes)} stands by, so empty {node} first with spe drain"


def hindrances(directory: Directory, answered: Mapping[str, NodeStatus], node: str) -> list[str]:
    """Returns why a node may not be stopped now; empty if each of its partitions has another STABLE replica."""
    return without_partner(directory, answered, node) + [
        f"{id}: {', '.join(f'{name} is {state}' for name, state in others.items())}"
        for id, others in partners(directory, answered, node).items()
        if others and NodeState.STABLE.name not in others.values()
    ]


def moved_away(coordinator: CoordinatorStatus | None, node: str) -> set[str]:
    """Returns partitions whose newest move took them from a node."""
    newest = {move.partition: move for move in (coordinator.moves if coordinator is not None else ())}
    return {name for name, move in newest.items() if move.source == node and move.phase == "done"}


def not_back(
    status: NodeStatus | None, before: int, ran: Collection[PartitionId], moved: Collection[str] = ()
) -> list[str]:
    """Returns why a node that restarts is not back; empty if all of its partitions run and are STABLE.

    Args:
      status: the latest; None: it does not answer.
      before: its incarnation before the restart; 0 if it did not answer then.
      ran: its partitions before.
      moved: partitions that it need not run any more.
    """
    if status is None or status.incarnation == before:
        return ["it does not answer yet"]
    has = {(r.unit, r.partition) for r in status.replicas}
    return [f"{id} does not run yet" for id in ran if id not in has and str(id) not in moved] + not_ready(status)


def nodes_to_restart(directory: Directory, named: Collection[str]) -> list[NodeId]:
    """Returns the named nodes in the order of the directory; all if none is named."""
    return [n for n in directory.nodes if n in named or not named]
