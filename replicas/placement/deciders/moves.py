"""Moves a running partition from one node to another (rules M1-M6).  Pure: reads the view, returns changes.

The target is made a standby, installed, and followed until it is as far as the old replica; only then the old replica
retires.  Both run until then, so no result waits, and ids remove duplicates.  A move changes the directory and names
the standbys that are to run; :class:`replicas.placement.deciders.install.InstallDecider` gives the same orders as after
a failure, and repeats them.  So a crash during a move is handled like one without a move, and the next step follows
from heartbeats.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from replicas.placement.deciders.move import IN_VAIN_US, Move, MovePhase, MoveRefused, RoleChange, some
from replicas.placement.deciders.move_orders import MoveOrders
from replicas.placement.view import ClusterView
from replicas.planning.prediction import StateSource
from spe.plan.directory import Role
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState

#: How often a silent target is waited for before its move is dropped.
TRIES: Final = 3
_IN_VAIN: Final = "after ten times as long as that should take"
#: Checkpoints that a standby holds before it replaces another one (H2: it acknowledges the older of two).
_HELD: Final = 2
#: Phases in which the target runs the partition or starts it.
_RUNS: Final = frozenset({MovePhase.INSTALL, MovePhase.FOLLOW, MovePhase.LEAVE})


class Moves:
    """Carries out the moves that were ordered, one at a time.

    Args:
      pause_us: a heartbeat; the target is as far as the source for so long before the source retires.
      patience_us: how long a target may be silent before it counts as failed.
    """

    def __init__(self, view: ClusterView, orders: MoveOrders, *, pause_us: int, patience_us: int) -> None:
        self._view = view
        self.orders = orders
        self._pause_us = pause_us
        self._patience_us = patience_us
        #: Monotonic time at which the present move entered its phase, and since when its target is silent.
        self._since: int | None = None
        self._silent_since: int | None = None
        #: In LEAVE: since when its source is STABLE and another replica is not, so that none may retire.
        self._unready_since: int | None = None
        self._stepped_at = 0
        #: The present move and the monotonic time of its beginning.
        self._begun: tuple[int, int] | None = None
        self._chosen: Mapping[PartitionId, Collection[NodeId]] = {}

    # --- what happens next ---

    def cancel(self, number: int) -> Move:
        """Ends a move at its next step.

        Raises:
          MoveRefused: there is no such move, it is over, or it has gone too far.
        """
        self.look()
        move = self.orders.get(number)
        if move is None or move.over:
            raise MoveRefused(f"no move {number} is under way")
        if move.phase is MovePhase.LEAVE and self._unready_us < self._patience_us:
            raise MoveRefused(f"{move} is nearly over: {move.source} has been told to leave")
        move.dropping = move.dropping or "cancelled"
        return move

    def wanted(self) -> Mapping[PartitionId, frozenset[NodeId]]:
        """Standbys that are to run because a partition moves there.

        If a standby moves that runs in place of others, its successor runs before it leaves.
        """
        standbys = {}
        for move in self.orders.open():
            if move.phase is MovePhase.LEAVE and move.dropping is not None:
                runs = move.source  # its target may just become ready
            elif move.phase in _RUNS if move.role is Role.ACTIVE else self._stands_in(move):
                runs = move.target
            else:
                continue
            if self._role(move, runs) is Role.STANDBY:
                standbys[move.partition] = frozenset({runs})
        return standbys

    def leaving(self) -> Mapping[PartitionId, tuple[NodeId, NodeId]]:
        """Nodes that retire because their partition moves, each with its successor."""
        return {m.partition: (m.source, m.target) for m in self.orders.open() if m.phase is MovePhase.LEAVE}

    def _stands_in(self, move: Move) -> bool:
        return move.phase is MovePhase.LEAVE and move.source in self._states(move)

    def restoring(self) -> set[PartitionId]:
        """Partitions that start from the target's own checkpoint (L4), until that fails."""
        return {
            move.partition
            for move in self.orders.open()
            if move.state_from is StateSource.CHECKPOINT and move.was_standby and not move.tries
        }

    def passing(self) -> set[ReplicaId]:
        """Temporary standbys of a move: its target, and a source that is to leave."""
        standbys = set()
        for move in self.orders.open():
            if move.phase is MovePhase.WAIT or move.was_standby:
                continue
            if move.role is Role.ACTIVE or move.phase is not MovePhase.LEAVE:
                standbys.add(ReplicaId(*move.partition, move.target))
            if move.role is Role.ACTIVE or move.phase is MovePhase.LEAVE:
                standbys.add(ReplicaId(*move.partition, move.source))
        return standbys

    def look(self) -> None:
        """Notes which replicas are STABLE; call it before orders are given, which may depend on it."""
        if self._unready_since is not None and not all(map(self._is_unready, self.orders.open())):
            self._unready_since = None

    def step(
        self, now: int, wall_us: int, chosen: Mapping[PartitionId, Collection[NodeId]] = MappingProxyType({})
    ) -> RoleChange | None:
        """Returns the change of roles to make now; call it at every heartbeat.

        The moves are stored with the change.  A change that could not be published is returned again.

        Args:
          now: monotonic microseconds.
          wall_us: wall time, for people.
          chosen: standbys that run by plan (H7): they do not stand by again.
        """
        self._stepped_at, self._chosen = now, chosen
        under_way = [move for move in self.orders.open() if move.phase is not MovePhase.WAIT]
        assert len(under_way) <= 1, "M1: one move at a time"
        for move in under_way or self.orders.may_begin():
            before = move.phase
            if self._since is None:
                self._since = now
            if self._begun is None or self._begun[0] != move.number or before is MovePhase.WAIT:
                self._begun = move.number, now
            change = self._go_on(move, now)
            assert change is None or change.partition == move.partition, "M1: a move changes roles of its partition"
            if move.phase is not before:
                move.began_us[move.phase] = wall_us
                self._since = self._silent_since = self._unready_since = None
            if move.phase is not MovePhase.WAIT:
                return change
        return None

    def _go_on(self, move: Move, now: int) -> RoleChange | None:
        if move.phase in (MovePhase.INSTALL, MovePhase.FOLLOW) and self._role(move, move.target) is not Role.STANDBY:
            move.dropping = move.dropping or f"{move.target} has another role"
        if move.phase in (MovePhase.INSTALL, MovePhase.FOLLOW) and self._in_vain(move, now):
            move.dropping = move.dropping or f"{move.why}, {_IN_VAIN}"
        if move.dropping is not None:
            return self._drop(move, move.dropping)
        match move.phase:
            case MovePhase.WAIT:
                return self._wait(move, now)
            case MovePhase.JOIN:
                return self._join(move, now)
            case MovePhase.INSTALL:
                return self._install(move, now)
            case MovePhase.FOLLOW:
                return self._follow(move, now)
            case _:
                return self._leave(move, now)

    def _wait(self, move: Move, now: int) -> RoleChange | None:
        if why := self.orders.refusal_now(move.partition, move.source, move.target):
            return self._drop(move, why)
        states = self._states(move)
        unsteady = sorted(n for n, state in states.items() if state is not NodeState.STABLE)
        if unsteady or not states:
            move.why = f"{some(unsteady) or 'a replica'} must be STABLE first"
            return None
        # X may have changed since the order; room was checked then.
        if why := self.orders.why_not(move.partition, move.target, Role.STANDBY):
            return self._drop(move, why)
        move.was_standby = self._role(move, move.target) is Role.STANDBY and not self._is_lent(move, move.target)
        move.phase, move.why = MovePhase.JOIN, ""
        return self._join(move, now)

    def _join(self, move: Move, now: int) -> RoleChange | None:
        if move.target not in self._view.alive:
            return self._miss(move, now, tries=1)
        self._silent_since = None
        if self._role(move, move.target) is None:
            lent = self._is_lent(move, move.source)
            return RoleChange(move.partition, ((move.target, Role.STANDBY),), lent)
        if behind := self._view.behind({*self._view.producers(move.partition), move.target}):
            move.why = f"{some(behind)} must know of {move.target} first"
        else:
            move.phase, move.why = MovePhase.INSTALL if move.role is Role.ACTIVE else MovePhase.FOLLOW, ""
        return None

    def _install(self, move: Move, now: int) -> RoleChange | None:
        if move.target not in self._view.alive:
            return self._miss(move, now)
        self._silent_since = None
        states = self._states(move)
        if states.get(move.target) is not NodeState.STABLE:
            move.why = f"{move.target} recovers"
            return None
        others = [self._view.frontier(move.partition, n) for n in states if n != move.target]
        move.mark = max([self._view.frontier(move.partition, move.target), *others])
        move.phase, move.why = MovePhase.FOLLOW, ""
        return None

    def _follow(self, move: Move, now: int) -> RoleChange | None:
        if move.role is Role.STANDBY:
            return self._hold(move, now)
        assert move.mark is not None, "M3: who follows has a mark"
        state = self._states(move).get(move.target)
        if state in (None, NodeState.RECOVERING):
            move.phase, move.mark = MovePhase.INSTALL, None
        elif state is not NodeState.STABLE:
            move.why = f"{move.target} must be STABLE first"
        elif self._view.frontier(move.partition, move.target) < move.mark:
            move.why = f"{move.target} must be as far as the others were"
        elif self._view.checkpoints(move.partition, move.target) == 0:
            move.why = f"{move.target} must have its state on its disk first"
        elif behind := self._view.behind(self._view.directory.nodes):
            move.why = f"{some(behind)} must know of {move.target} first"
        elif self._since is not None and now - self._since >= self._pause_us:
            move.phase, move.why = MovePhase.LEAVE, ""
            return self._leave(move, now)
        return None

    def _hold(self, move: Move, now: int) -> RoleChange | None:
        """Moves a standby: waits until the target holds its checkpoints."""
        if move.target not in self._view.alive:
            return self._miss(move, now)
        self._silent_since = None
        held, states = self._view.checkpoints(move.partition, move.target) or 0, self._states(move)
        if move.target in states:  # it runs, perhaps for long, and gets no checkpoints
            if states[move.target] is not NodeState.STABLE:
                move.why = f"{move.target} must be STABLE first"
                return None
            if not held:
                move.why = f"{move.target} must have its state on its disk first"
                return None
        elif held < _HELD:
            move.why = f"{move.target} must hold {_HELD} checkpoints first"
            return None
        move.phase, move.why = MovePhase.LEAVE, ""
        return self._leave(move, now)

    def _leave(self, move: Move, now: int) -> RoleChange | None:
        assert move.role is Role.STANDBY or move.mark is not None, "M3: a source leaves when its successor has a mark"
        if move.role is Role.ACTIVE and self._role(move, move.target) is Role.STANDBY:
            return RoleChange(move.partition, ((move.target, Role.ACTIVE), (move.source, Role.STANDBY)))
        stays = move.was_standby and move.source in self._chosen.get(move.partition, ())
        if move.source in self._states(move) and not stays:
            if not self._is_unready(move):
                self._unready_since = None
            elif self._unready_since is None:
                self._unready_since = now
            if self._unready_us >= _in_vain_us(move):
                return self._drop(move, f"{some(self._unsteady(move))} must be STABLE, {_IN_VAIN}")
            if move.target not in self._view.alive:
                return self._miss(move, now)
            self._silent_since = None
            move.why = f"{move.source} retires when {move.target} is STABLE"  # the install decider orders that
            return None
        if not move.was_standby and self._role(move, move.source) is not None:
            change = self._without(move, move.source)
            if not (change.lent and self._is_lent(move, move.source)):
                return change
        move.phase, move.why = MovePhase.DONE, ""
        return None

    def _in_vain(self, move: Move, now: int) -> bool:
        """Has an answering target taken ten times the predicted time?  All other moves wait for it."""
        assert self._begun is not None, "M1: it has begun"
        return now - self._begun[1] >= _in_vain_us(move)

    def _is_unready(self, move: Move) -> bool:
        """Could the move be undone though its source is to leave?"""
        return move.phase is not MovePhase.LEAVE or (
            self._states(move).get(move.source) is NodeState.STABLE and bool(self._unsteady(move))
        )

    def _unsteady(self, move: Move) -> list[NodeId]:
        """Returns the replicas that the source waits for before it retires."""
        states = self._states(move)
        return sorted(n for n in {*states, move.target} if states.get(n) is not NodeState.STABLE)

    @property
    def _unready_us(self) -> int:
        return 0 if self._unready_since is None else self._stepped_at - self._unready_since

    def _miss(self, move: Move, now: int, *, tries: int = TRIES) -> RoleChange | None:
        """Handles a silent target: waits for it, ``tries`` times at most."""
        if self._silent_since is None:
            self._silent_since = now
            move.tries += 1
        if move.tries > tries or now - self._silent_since >= self._patience_us:
            return self._drop(move, f"{move.target} does not answer")
        move.why = f"{move.target} does not answer"
        return None

    def _drop(self, move: Move, why: str) -> RoleChange | None:
        """Undoes the move: the target gets its former role."""
        assert why, "M6: a move is dropped for a reason"
        move.dropping = why
        if self._role(move, move.target) is Role.ACTIVE and self._role(move, move.source) is Role.STANDBY:
            before = Role.STANDBY if move.was_standby or self._without(move, move.target).lent else None
            return RoleChange(move.partition, ((move.source, Role.ACTIVE), (move.target, before)))
        joined = move.phase is not MovePhase.WAIT and not move.was_standby and not self._is_lent(move, move.target)
        if joined and self._role(move, move.target) is not None:
            return self._without(move, move.target)
        move.phase, move.why = MovePhase.DROPPED, why
        return None

    def _without(self, move: Move, node: NodeId) -> RoleChange:
        """Removes the role of a node, and its replica if it runs one.

        If no other replica is STABLE, the node gets a lent role until it retires (H5) or another is STABLE (O5).
        """
        assert self._role(move, node) is not None, "M6: only a role that there is can be taken"
        states = self._states(move)
        runs_nothing = node in self._view.alive and node not in states
        if runs_nothing or any(state is NodeState.STABLE for other, state in states.items() if other != node):
            return RoleChange(move.partition, ((node, None),))
        return RoleChange(move.partition, ((node, Role.STANDBY),), lent=True)

    # --- the view of a move ---

    def _role(self, move: Move, node: NodeId) -> Role | None:
        return self._view.role(move.partition, node)

    def _is_lent(self, move: Move, node: NodeId) -> bool:
        return self._view.is_lent(move.partition, node)

    def _states(self, move: Move) -> dict[NodeId, NodeState]:
        return self._view.states(move.partition)


def _in_vain_us(move: Move) -> int:
    """Returns the time after which an answering target has failed."""
    return max(IN_VAIN_US, 10 * (move.predicted_us or 0))
