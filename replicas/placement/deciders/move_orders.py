"""Orders to move: whether they can be carried out, their progress and their times (rules M1, M5, L4).  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from statistics import median
from typing import Final

from replicas.placement.deciders.move import Move, MovePhase, MoveRefused, some
from replicas.placement.view import ClusterView
from replicas.planning.prediction import PredictedMove, StateSource
from spe.plan.directory import Role
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId
from spe.stream.times import SECOND

#: Number of the newest ended moves that are kept for people.
KEPT: Final = 1_000
#: Number of the newest moves that predictions are learned from.
LEARNED: Final = 15
#: Heartbeats that a move takes apart from its state, before any was measured.
_BEATS: Final = 15
#: Returns why a node, which it names, has too little room or X for a role for a partition; None: it has enough.
Refusal = Callable[[PartitionId, NodeId, Role], str | None]


def _anything(partition: PartitionId, node: NodeId, role: Role) -> None:
    """Allows every role on every node."""


class MoveOrders:
    """The moves that were ordered.

    Args:
      known: moves of the previous coordinator.
    """

    def __init__(self, view: ClusterView, refusal: Refusal = _anything, known: Iterable[Move] = ()) -> None:
        self._view = view
        self.why_not = refusal
        self._pause_us = view.plan.timing.heartbeat_us
        self._moves = {move.number: move for move in known}
        for move in self._moves.values():
            move.interrupted |= not move.over and bool(move.began_us)
        #: Orders that are not on disk yet, and wait for that.
        self._unstored: set[int] = set()

    # --- orders ---

    def ask(
        self,
        partition: PartitionId,
        source: NodeId,
        target: NodeId,
        reason: str,
        predicted: PredictedMove | None = None,
        *,
        drain: NodeId | None = None,
        by_load: bool = False,
    ) -> Move:
        """Takes an order.

        Args:
          predicted: fastest way to move its state; None: unknown.
          drain: the node that it helps to empty.
          by_load: the balancer orders it.

        Raises:
          MoveRefused: it cannot be carried out.
        """
        if why := self._refusal(partition, source, target):
            raise MoveRefused(f"{partition} cannot move from {source} to {target}: {why}")
        role = self._view.directory.roles[partition][source]
        move = Move(max(self._moves, default=0) + 1, partition, source, target, role, reason, drain, by_load)
        if predicted is not None:
            move.state_us, move.state_from = round(predicted.seconds * SECOND), predicted.source
            move.predicted_us = self.expected_us(move.state_us, move.state_from)
        assert move.number not in self._moves, "M1: numbers of orders count up"
        self._moves[move.number] = move
        self._unstored.add(move.number)
        ended = [number for number, known_move in self._moves.items() if known_move.over]
        for number in ended[:-KEPT]:
            del self._moves[number]
        return move

    def ask_all(
        self,
        moves: Iterable[tuple[PartitionId, NodeId, NodeId, PredictedMove | None]],
        reason: str,
        *,
        drain: NodeId | None = None,
        by_load: bool = False,
    ) -> list[Move]:
        """Takes all of these orders, each with the predicted way of its state, or none.

        Raises:
          MoveRefused: one cannot be carried out.
        """
        taken: list[Move] = []
        try:
            for partition, source, target, predicted in moves:
                taken.append(self.ask(partition, source, target, reason, predicted, drain=drain, by_load=by_load))
        except MoveRefused:
            self.forget(taken)
            raise
        return taken

    def stored(self, moves: Iterable[Move]) -> None:
        """Notes that orders are on disk, so they count (M1)."""
        numbers = {move.number for move in moves}
        assert numbers <= self._moves.keys(), "M1: only what was ordered is stored"
        self._unstored -= numbers

    def forget(self, moves: Iterable[Move]) -> None:
        """Removes orders that were not begun."""
        for move in moves:
            assert move.phase is MovePhase.WAIT, "M1: what has begun is cancelled, not forgotten"
            self._unstored.discard(move.number)
            del self._moves[move.number]

    def expected_us(self, state_us: int, source: StateSource = StateSource.PARTNER) -> int:
        """Predicts the time of a whole move from the latest moves (L4).

        Their times are fitted by a line over the predicted times of their states: its slope is the error of these
        predictions, its offset the time of a move apart from its state, at first the least time of its phases.  The
        slope counts only if predictions differed enough from that of this move; else it is 1.

        Args:
          state_us: predicted time for the state.
          source: source of the state.
        """
        assert state_us >= 0, "L4: a state takes time"
        ended = [m for m in self._moves.values() if m.phase is MovePhase.DONE and not m.interrupted]
        done = [m for m in ended if m.state_us is not None][-LEARNED:]
        if not done:
            return state_us + _BEATS * self._pause_us
        points = {move.number: (float(move.state_us or 0), float(move.took_us)) for move in done}
        alike = [points[move.number] for move in done if move.state_from is source]
        pairs = [(b[0] - a[0], b[1] - a[1]) for a, b in combinations(alike, 2)]
        least = max([state_us / 2, 1.0, *(abs(apart) / 2 for apart, _ in pairs)])
        slopes = [longer / apart for apart, longer in pairs if abs(apart) >= least]
        slope = max(0.0, median(slopes)) if slopes else 1.0
        offset = median(took - slope * state for state, took in points.values())
        return max(0, round(offset)) + round(slope * state_us)

    def _refusal(self, partition: PartitionId, source: NodeId, target: NodeId) -> str | None:
        """Returns why an order cannot be carried out; None: it can."""
        directory = self._view.directory
        if partition not in directory.roles:
            return f"there is no such partition; there are {some(map(str, directory.roles))}"
        for node in (source, target):
            if node not in directory.nodes:
                return f"there is no node {node}; there are {some(directory.nodes)}"
        if under_way := [str(move) for move in self.open() if move.partition == partition]:
            return f"{under_way[0]} has not ended"
        return self.refusal_now(partition, source, target) or self.why_not(
            partition, target, directory.roles[partition][source]
        )

    def refusal_now(self, partition: PartitionId, source: NodeId, target: NodeId) -> str | None:
        """Returns obstacles that may go before the move begins; None: there are none."""
        roles = self._view.directory.roles[partition]
        if roles.get(source) not in (Role.ACTIVE, Role.STANDBY):
            return f"{source} has nothing to do with it; {some(roles)} have"
        if roles.get(target) in (Role.ACTIVE, roles[source]):
            return f"{target} {'runs it' if roles[target] is Role.ACTIVE else 'stands by for it'} already"
        if target not in self._view.alive:
            return f"{target} does not answer; start it first"
        return None

    # --- moves ---

    def get(self, number: int) -> Move | None:
        return self._moves.get(number)

    def may_begin(self) -> list[Move]:
        """Returns moves that are on disk and have not ended, in the order in which they are carried out."""
        return [move for move in self.open() if move.number not in self._unstored]

    def open(self) -> list[Move]:
        """Returns moves that have not ended, in the order in which they are carried out."""
        return [move for move in self._moves.values() if not move.over]

    def all(self) -> list[Move]:
        return list(self._moves.values())

    def reason(self, partition: PartitionId) -> str:
        """Describes the open move of a partition, as the reason of a change of roles."""
        return ", ".join(f"{move}, {move.reason}" for move in self.open() if move.partition == partition)

    def newest(self, over: int) -> list[Move]:
        """Returns all open moves, and ``over`` ended ones."""
        ended = [move.number for move in self._moves.values() if move.over]
        return [move for move in self._moves.values() if not move.over or move.number in ended[-over:]]
