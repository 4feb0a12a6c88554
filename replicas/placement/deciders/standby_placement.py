"""Moves standbys to nodes whose load falls when their partition's load rises (rule L2).  Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from replicas.planning.layout import Place
from replicas.planning.load import LoadHistory
from replicas.planning.placement import relocations
from replicas.planning.placement_problem import checkpoint_problem
from replicas.planning.shares import Running, SharesOfX
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId

#: Periods of the balancer between two looks.
_LOOKS: Final = 10
#: Share of the partitions' loads by which a new placement must be better.
_WORTH: Final = 0.05


class StandbyPlacement:
    """Decides which standby is to move.

    Args:
      history: of all loads.
      period_us: period of the balancer, microseconds.
      now: monotonic microseconds.
    """

    def __init__(self, plan: Plan, history: LoadHistory, period_us: int, now: int) -> None:
        self._plan = plan
        self._history = history
        self._pause_us = _LOOKS * period_us
        self._next_at = now + self._pause_us

    def relocation(
        self, now: int, directory: Directory, running: Running, alive: Collection[NodeId]
    ) -> tuple[PartitionId, NodeId, NodeId] | None:
        """Returns the next move (partition, source, target) of a standby; None: there is none, or it is not time.

        Args:
          running: nodes that run each partition.
          alive: nodes that answer; nodes without a role are spares and get no standby.
        """
        if now < self._next_at:
            return None
        standbys = [(p, n) for p, s in directory.standbys.items() for n in s.nodes]
        hosts = {n for roles in directory.roles.values() for n in roles}
        nodes = [n for n in directory.nodes if n in alive and n in hosts]
        if all(n in nodes for _, n in standbys) and standbys:
            problem = checkpoint_problem(
                self._history,
                now,
                [p for p, _ in standbys],
                running,
                {n: Place() for n in nodes},
                shares=SharesOfX(self._plan, directory),
            ).bounded(directory.coordinator.spread)
            places = np.array([nodes.index(n) for _, n in standbys], np.intp)
            worth = _WORTH * float(problem.load.sum())
            moves = relocations(problem, places, worth)
            # A standby of the partition is no target (M5): other moves of an exchange come first.
            able = [r for r in moves if (standbys[r.checkpoint][0], nodes[r.target]) not in standbys]
            if able:
                partition, source = standbys[able[0].checkpoint]
                return partition, source, nodes[able[0].target]
        self._next_at = now + self._pause_us
        return None
