"""Chooses targets for the partitions of a node that is drained (rule M5).  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from replicas.placement.deciders.move import MoveRefused
from spe.plan.directory import Directory, Role
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId


def targets(
    directory: Directory,
    node: NodeId,
    alive: Collection[str],
    refusal: Callable[[Directory, PartitionId, NodeId, Role], str | None],
) -> list[tuple[PartitionId, NodeId]]:
    """Returns a target for each partition that ``node`` has a role for: the allowed node that hosts least.

    Args:
      alive: processes that answer.
      refusal: returns why a node, which it names, cannot take a role for a partition in a directory; None: it can.

    Raises:
      MoveRefused: a partition has no target; the message has the reason for each node.
    """
    if node not in directory.nodes:
        raise MoveRefused(f"there is no node {node}; there are {', '.join(directory.nodes)}")
    hosted = Counter(n for roles in directory.roles.values() for n in roles)
    places: list[tuple[PartitionId, NodeId]] = []
    for partition in [p for p, roles in directory.roles.items() if node in roles]:
        reasons: list[str] = []
        for other in sorted((n for n in directory.nodes if n != node), key=lambda n: (hosted[n], n)):
            role = directory.roles[partition][node]
            why = _reason(directory, partition, other, alive) or refusal(directory, partition, other, role)
            assert other != node, "M5: what leaves a node does not come back to it"
            if why is None:
                places.append((partition, other))
                hosted[other] += 1
                directory = directory.with_role(partition, other, role)
                directory = directory.with_role(partition, node, None)
                break
            reasons.append(why)
        else:
            obstacles = "; ".join(reasons) or "there is no other node"
            raise MoveRefused(f"{node} cannot be drained: nobody can take {partition}: {obstacles}")
    return places


def _reason(directory: Directory, partition: PartitionId, node: NodeId, alive: Collection[str]) -> str | None:
    if node in directory.roles[partition]:
        return f"{node} hosts it already"
    return None if node in alive else f"{node} does not answer"
