"""How a partition moves from one node to another while it runs (rules M1-M6).  Pure: news comes in, changes go out.

The target is made a standby, installed, and followed until it is as far as the old replica; only then does the old one
retire.  Both run meanwhile, so no result waits, and ids remove what comes twice.  A move changes the directory, and
says which standbys are to run; the orders that follow are those that a failure would need, and
:class:`replicas.placement.coordination.Coordination` gives and repeats them.  So whoever dies, all is as after a
failure without a move, and the next step follows from what heartbeats tell.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median
from typing import Final

from replicas.planning.prediction import PredictedMove, StateSource
from spe.errors import SpeError
from spe.plan.directory import CONFIGURED, Directory, Role, Version
from spe.plan.plan import Plan
from spe.status import MoveStatus
from spe.stream.ids import Channel, PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState, StreamId
from spe.stream.times import SECOND
from spe.wire.messages import OutputStatus

#: How often a target that falls silent is waited for before its move is dropped.
TRIES: Final = 3
#: Shortest time after which a target that answers, and is not ready, has tried in vain: microseconds.
IN_VAIN_US: Final = 300 * SECOND
_IN_VAIN: Final = "after ten times as long as that should take"
#: Moves that have ended and are kept for people, the newest.
KEPT: Final = 1_000
#: Moves from which is learned how long one takes, the newest.
LEARNED: Final = 15
#: Heartbeats that a move takes beside its state, as long as there was none.
_BEATS: Final = 15
#: Checkpoints that a standby holds before another one may leave in its favour (H2: it acknowledges the older of two).
_HELD: Final = 2


class MoveRefused(SpeError):
    """An order to move that cannot be carried out; says why, and what would make it possible."""


class MovePhase(enum.StrEnum):
    """Of a move, in their order.

    WAIT: another move is under way, or not all replicas of the partition are STABLE.
    JOIN: the directory names the target as a standby; until all live producers of the partition know that.
    INSTALL: the target is to run the partition; until it is STABLE.
    FOLLOW: until the target is as far as the old replica was then, and its disk has the state if it is to.  A standby
    only holds two checkpoints.
    LEAVE: the directory has the target in place of the old one, which retires.
    """

    WAIT = "wait"
    JOIN = "join"
    INSTALL = "install"
    FOLLOW = "follow"
    LEAVE = "leave"
    DONE = "done"
    DROPPED = "dropped"


#: Phases in which the target runs the partition, or is to.
_RUNS: Final = frozenset({MovePhase.INSTALL, MovePhase.FOLLOW, MovePhase.LEAVE})


@dataclass(slots=True)
class Move:
    """One move, and how far it is.

    Attributes:
      number: of the order; they count up.
      role: what the source is to the partition, and the target is to be: ACTIVE or STANDBY.
      reason: who wanted it, for people.
      drain: the node that it helps to empty.
      by_load: loads ask for it, and no person.
      state_us: how long its state was expected to take, microseconds; None: nobody knew.
      state_from: where that is from, as was expected to be soonest.
      predicted_us: the same of the whole move.
      began_us: when it entered each phase, wall time in microseconds, for people.
      was_standby: the target stood by for the partition before, and not for a while; then the source does afterwards.
      mark: how far the others were when the target was first STABLE; None: it has not been.
      tries: how often the target fell silent.
      interrupted: the coordinator was restarted while it was under way, so nobody knows what its phases took.
      dropping: why what was done is taken back; None: it is not.
      why: why it waits, or was dropped, for people.
    """

    number: int
    partition: PartitionId
    source: NodeId
    target: NodeId
    role: Role
    reason: str
    drain: NodeId | None = None
    by_load: bool = False
    state_us: int | None = None
    state_from: StateSource = StateSource.PARTNER
    predicted_us: int | None = None
    phase: MovePhase = MovePhase.WAIT
    began_us: dict[MovePhase, int] = field(default_factory=dict)
    was_standby: bool = False
    mark: int | None = None
    tries: int = 0
    interrupted: bool = False
    dropping: str | None = None
    why: str = ""

    def kept(self) -> tuple[MovePhase, bool, int | None, int, str | None]:
        """What a coordinator must know to go on with it."""
        return self.phase, self.was_standby, self.mark, self.tries, self.dropping

    def status(self) -> MoveStatus:
        return MoveStatus(
            number=self.number,
            partition=str(self.partition),
            source=self.source,
            target=self.target,
            role=self.role.value,
            reason=self.reason,
            phase=self.phase.value,
            why=self.why,
            began_us={phase.value: at for phase, at in self.began_us.items()},
            predicted_us=self.predicted_us,
            state_from=self.state_from.value,
        )

    @property
    def took_us(self) -> int:
        """From its first phase on."""
        return max(self.began_us.values()) - min(self.began_us.values())

    @property
    def over(self) -> bool:
        return self.phase in (MovePhase.DONE, MovePhase.DROPPED)

    def __str__(self) -> str:
        return f"move {self.number} ({self.partition} from {self.source} to {self.target})"


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Nodes get other roles for a partition; None: none any more.

    Attributes:
      lent: for a while, as a recovery lends them.
    """

    partition: PartitionId
    roles: tuple[tuple[NodeId, Role | None], ...]
    lent: bool = False

    def __call__(self, directory: Directory) -> Directory:
        for node, role in self.roles:
            if self.lent:
                directory = directory.with_lent(self.partition, node)
            else:
                directory = directory.with_role(self.partition, node, role)
        return directory

    def __str__(self) -> str:
        roles = (f"{node} {role or 'gone'}" for node, role in self.roles)
        return f"{self.partition}: {', '.join(roles)}"


def _anything(partition: PartitionId, node: NodeId, role: Role) -> None:
    """Every node can have every role."""


class Moves:
    """The moves that were ordered, of which one at a time is carried out.

    Args:
      plan: the cluster.
      pause_us: a heartbeat; so long a target is seen as far as the old one before that retires.
      patience_us: how long a target may be silent before that counts as a failure.
      refusal: why a node, which it names, cannot have this role for a partition, as its room or its X is not enough;
        None: it can.
      known: moves of the coordinator before this one.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Directory,
        *,
        pause_us: int,
        patience_us: int,
        refusal: Callable[[PartitionId, NodeId, Role], str | None] = _anything,
        known: Iterable[Move] = (),
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._pause_us = pause_us
        self._patience_us = patience_us
        self._why_not = refusal
        self._moves = {move.number: move for move in known}
        for move in self._moves.values():
            move.interrupted |= not move.over and bool(move.began_us)
        self._versions: dict[str, Version] = {}
        self._outputs: dict[str, Mapping[Channel, OutputStatus]] = {}
        self._held: dict[str, Mapping[PartitionId, int]] = {}
        self._kept: Mapping[PartitionId, Collection[NodeId]] = {}
        #: When the move under way entered its phase, and since when its target is silent; monotonic.
        self._since: int | None = None
        self._silent_since: int | None = None
        #: In LEAVE: since when its source is STABLE, and another replica is not, so that nobody is told to retire.
        self._unready_since: int | None = None
        self._stepped_at = 0
        #: The move under way, and when it began; monotonic.
        self._begun: tuple[int, int] | None = None
        #: Orders that are not on disk yet: nothing is done of them.
        self._unstored: set[int] = set()

    # --- news ---

    def redirect(self, directory: Directory) -> None:
        """Another directory counts."""
        self._directory = directory

    def heard(
        self, process: str, outputs: Iterable[OutputStatus], held: Mapping[PartitionId, int] | None = None
    ) -> None:
        """A heartbeat answer of a node or a source.

        Args:
          held: checkpoints of each partition that it stands by for; 0 of one that runs there and has none yet.
        """
        self._outputs[process] = {Channel(StreamId(o.stream), o.partition): o for o in outputs}
        self._held[process] = held or {}
        if self._unready_since is not None and not all(map(self._is_unready, self.open())):
            self._unready_since = None

    def knows(self, process: str, version: Version) -> None:
        """A process works with this version of the directory."""
        self._versions[process] = version

    def lost(self, process: str) -> None:
        """A process does not answer any more."""
        self._outputs.pop(process, None)
        self._held.pop(process, None)

    def keep(self, kept: Mapping[PartitionId, Collection[NodeId]]) -> None:
        """From now on these standbys, and no others, run by choice (H7): they do not stand by again."""
        self._kept = kept

    # --- orders, of people and of who balances ---

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
          predicted: how its state comes soonest; None: nobody knows.
          drain: the node that it helps to empty.
          by_load: loads ask for it, and no person.

        Raises:
          MoveRefused: it cannot be carried out.
        """
        if why := self._refusal(partition, source, target):
            raise MoveRefused(f"{partition} cannot move from {source} to {target}: {why}")
        role = self._directory.roles[partition][source]
        move = Move(max(self._moves, default=0) + 1, partition, source, target, role, reason, drain, by_load)
        if predicted is not None:
            move.state_us, move.state_from = round(predicted.seconds * SECOND), predicted.source
            move.predicted_us = self.expected_us(move.state_us, move.state_from)
        self._moves[move.number] = move
        self._unstored.add(move.number)
        ended = [number for number, one in self._moves.items() if one.over]
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
        """Takes orders, each with how its state comes soonest: all of them, or none.

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
        """Orders are on disk: they count from now on (M1)."""
        self._unstored.difference_update(move.number for move in moves)

    def forget(self, moves: Iterable[Move]) -> None:
        """Takes back orders of which nothing is done yet."""
        for move in moves:
            assert move.phase is MovePhase.WAIT, "M1: what has begun is cancelled, not forgotten"
            self._unstored.discard(move.number)
            del self._moves[move.number]

    def expected_us(self, state_us: int, source: StateSource = StateSource.PARTNER) -> int:
        """How long a whole move takes, as the latest ones did (M8).

        What they took is a line over what their states were expected to take: its slope is how much longer states took
        than expected, its offset what a move takes beside that, at first what its phases must take.  The slope counts
        where states differed so much that it is no chance, against the one of this move; else states take what is
        expected.

        Args:
          state_us: how long the state is expected to take.
          source: where it is from.
        """
        ended = [m for m in self._moves.values() if m.phase is MovePhase.DONE and not m.interrupted]
        done = [m for m in ended if m.state_us is not None][-LEARNED:]
        if not done:
            return state_us + _BEATS * self._pause_us
        points = {one.number: (float(one.state_us or 0), float(one.took_us)) for one in done}
        alike = [points[one.number] for one in done if one.state_from is source]
        pairs = [(b[0] - a[0], b[1] - a[1]) for a, b in combinations(alike, 2)]
        least = max([state_us / 2, 1.0, *(abs(apart) / 2 for apart, _ in pairs)])
        slopes = [longer / apart for apart, longer in pairs if abs(apart) >= least]
        slope = max(0.0, median(slopes)) if slopes else 1.0
        offset = median(took - slope * state for state, took in points.values())
        return max(0, round(offset)) + round(slope * state_us)

    def alive(self) -> Collection[str]:
        """Processes that answer."""
        return self._outputs.keys()

    def _refusal(self, partition: PartitionId, source: NodeId, target: NodeId) -> str | None:
        """Why an order cannot be carried out; None: it can."""
        directory = self._directory
        if partition not in directory.roles:
            return f"there is no such partition; there are {some(map(str, directory.roles))}"
        for node in (source, target):
            if node not in directory.nodes:
                return f"there is no node {node}; there are {some(directory.nodes)}"
        if under_way := [str(move) for move in self.open() if move.partition == partition]:
            return f"{under_way[0]} has not ended"
        return self._refusal_now(partition, source, target) or self._why_not(
            partition, target, directory.roles[partition][source]
        )

    def _refusal_now(self, partition: PartitionId, source: NodeId, target: NodeId) -> str | None:
        """The same of what may change until the move begins."""
        roles = self._directory.roles[partition]
        if roles.get(source) not in (Role.ACTIVE, Role.STANDBY):
            return f"{source} has nothing to do with it; {some(roles)} have"
        if roles.get(target) in (Role.ACTIVE, roles[source]):
            return f"{target} {'runs it' if roles[target] is Role.ACTIVE else 'stands by for it'} already"
        if target not in self._outputs:
            return f"{target} does not answer; start it first"
        return None

    def cancel(self, number: int) -> Move:
        """Ends a move at its next step.

        Raises:
          MoveRefused: there is no such move, or it is over, or too far.
        """
        move = self._moves.get(number)
        if move is None or move.over:
            raise MoveRefused(f"no move {number} is under way")
        if move.phase is MovePhase.LEAVE and self._unready_us < self._patience_us:
            raise MoveRefused(f"{move} is nearly over: {move.source} has been told to leave")
        move.dropping = move.dropping or "cancelled"
        return move

    # --- what happens next ---

    def open(self) -> list[Move]:
        """Those that have not ended, in the order in which they are carried out."""
        return [move for move in self._moves.values() if not move.over]

    def all(self) -> list[Move]:
        return list(self._moves.values())

    def reason(self, partition: PartitionId) -> str:
        """Who wants a partition to have other roles: its move that has not ended."""
        return ", ".join(f"{move}, {move.reason}" for move in self.open() if move.partition == partition)

    def newest(self, over: int) -> list[Move]:
        """All that have not ended, and so many that have."""
        ended = [move.number for move in self._moves.values() if move.over]
        return [move for move in self._moves.values() if not move.over or move.number in ended[-over:]]

    def wanted(self) -> Mapping[PartitionId, frozenset[NodeId]]:
        """Standbys that are to run, because a partition moves there.

        Where a standby moves that runs in the place of others, its successor is to do so before it leaves.
        """
        found = {}
        for move in self.open():
            if move.phase is MovePhase.LEAVE and move.dropping is not None:
                runs = move.source  # its target may become ready just now
            elif move.phase in _RUNS if move.role is Role.ACTIVE else self._stands_in(move):
                runs = move.target
            else:
                continue
            if self._role(move, runs) is Role.STANDBY:
                found[move.partition] = frozenset({runs})
        return found

    def leaving(self) -> Mapping[PartitionId, tuple[NodeId, NodeId]]:
        """Who is to retire because its partition moves, and who takes its place."""
        return {m.partition: (m.source, m.target) for m in self.open() if m.phase is MovePhase.LEAVE}

    def _stands_in(self, move: Move) -> bool:
        return move.phase is MovePhase.LEAVE and move.source in self._states(move)

    def restoring(self) -> set[PartitionId]:
        """Those of them that begin from a checkpoint of the target's own (M7); until that fails."""
        return {
            move.partition
            for move in self.open()
            if move.state_from is StateSource.CHECKPOINT and move.was_standby and not move.tries
        }

    def passing(self) -> set[ReplicaId]:
        """Standbys that are so only until a move ends: the target of one, and a source that is to leave."""
        found = set()
        for move in self.open():
            if move.phase is MovePhase.WAIT or move.was_standby:
                continue
            if move.role is Role.ACTIVE or move.phase is not MovePhase.LEAVE:
                found.add(ReplicaId(*move.partition, move.target))
            if move.role is Role.ACTIVE or move.phase is MovePhase.LEAVE:
                found.add(ReplicaId(*move.partition, move.source))
        return found

    def held(self) -> Iterator[tuple[PartitionId, NodeId]]:
        """Partitions of which a node holds a checkpoint, and the node."""
        for process, partitions in self._held.items():
            yield from ((partition, NodeId(process)) for partition, many in partitions.items() if many)

    def step(self, now: int, wall_us: int) -> RoleChange | None:
        """What to change now; call it at every heartbeat.

        Whoever calls it stores the moves, then publishes the change.  A change that could not be published comes again.

        Args:
          now: monotonic microseconds.
          wall_us: wall time, for people.
        """
        self._stepped_at = now
        under_way = [move for move in self.open() if move.phase is not MovePhase.WAIT]
        assert len(under_way) <= 1, "M1: one move at a time"
        for move in under_way or [move for move in self.open() if move.number not in self._unstored]:
            before = move.phase
            if self._since is None:
                self._since = now
            if self._begun is None or self._begun[0] != move.number or before is MovePhase.WAIT:
                self._begun = move.number, now
            change = self._go_on(move, now)
            if move.phase is not before:
                move.began_us[move.phase] = wall_us
                self._since = self._silent_since = self._unready_since = None
            if move.phase is not MovePhase.WAIT:
                return change
        return None

    def wants(self, change: RoleChange, now: int) -> bool:
        """Would the next step make this change too, by what is known now?  Nothing is done of it."""
        trial = copy(self)
        trial._moves = {move.number: deepcopy(move) for move in self.open()}
        return trial.step(now, 0) == change

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
        if why := self._refusal_now(move.partition, move.source, move.target):
            return self._drop(move, why)
        states = self._states(move)
        unsteady = sorted(n for n, state in states.items() if state is not NodeState.STABLE)
        if unsteady or not states:
            move.why = f"{some(unsteady) or 'a replica'} must be STABLE first"
            return None
        # X may have changed since it was ordered; whether it has room was asked then.
        if why := self._why_not(move.partition, move.target, Role.STANDBY):
            return self._drop(move, why)
        move.was_standby = self._role(move, move.target) is Role.STANDBY and not self._is_lent(move, move.target)
        move.phase, move.why = MovePhase.JOIN, ""
        return self._join(move, now)

    def _join(self, move: Move, now: int) -> RoleChange | None:
        if move.target not in self._outputs:
            return self._miss(move, now, tries=1)
        self._silent_since = None
        if self._role(move, move.target) is None:
            lent = self._is_lent(move, move.source)
            return RoleChange(move.partition, ((move.target, Role.STANDBY),), lent)
        if behind := self._behind({*self._producers(move.partition), move.target}):
            move.why = f"{some(behind)} must know of {move.target} first"
        else:
            move.phase, move.why = MovePhase.INSTALL if move.role is Role.ACTIVE else MovePhase.FOLLOW, ""
        return None

    def _install(self, move: Move, now: int) -> RoleChange | None:
        if move.target not in self._outputs:
            return self._miss(move, now)
        self._silent_since = None
        states = self._states(move)
        if states.get(move.target) is not NodeState.STABLE:
            move.why = f"{move.target} recovers"
            return None
        others = [self._frontier(move, n) for n in states if n != move.target]
        move.mark = max([self._frontier(move, move.target), *others])
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
        elif self._frontier(move, move.target) < move.mark:
            move.why = f"{move.target} must be as far as the others were"
        elif self._held.get(move.target, {}).get(move.partition) == 0:
            move.why = f"{move.target} must have its state on its disk first"
        elif behind := self._behind(self._directory.nodes):
            move.why = f"{some(behind)} must know of {move.target} first"
        elif self._since is not None and now - self._since >= self._pause_us:
            move.phase, move.why = MovePhase.LEAVE, ""
            return self._leave(move, now)
        return None

    def _hold(self, move: Move, now: int) -> RoleChange | None:
        """A standby is moved: the target holds what the source held."""
        if move.target not in self._outputs:
            return self._miss(move, now)
        self._silent_since = None
        held, states = self._held[move.target].get(move.partition, 0), self._states(move)
        if move.target in states:  # in somebody's place, perhaps for long: then it gets no checkpoints
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
        if move.role is Role.ACTIVE and self._role(move, move.target) is Role.STANDBY:
            return RoleChange(move.partition, ((move.target, Role.ACTIVE), (move.source, Role.STANDBY)))
        stays = move.was_standby and move.source in self._kept.get(move.partition, ())
        if move.source in self._states(move) and not stays:
            if not self._is_unready(move):
                self._unready_since = None
            elif self._unready_since is None:
                self._unready_since = now
            if self._unready_us >= _in_vain_us(move):
                return self._drop(move, f"{some(self._unsteady(move))} must be STABLE, {_IN_VAIN}")
            if move.target not in self._outputs:
                return self._miss(move, now)
            self._silent_since = None
            move.why = f"{move.source} retires when {move.target} is STABLE"  # the coordination sees to that
            return None
        if not move.was_standby and self._role(move, move.source) is not None:
            change = self._without(move, move.source)
            if not (change.lent and self._is_lent(move, move.source)):
                return change
        move.phase, move.why = MovePhase.DONE, ""
        return None

    def _in_vain(self, move: Move, now: int) -> bool:
        """Has the target, which answers, had ten times as long as it should take?  All other moves wait for it."""
        assert self._begun is not None, "M1: it has begun"
        return now - self._begun[1] >= _in_vain_us(move)

    def _is_unready(self, move: Move) -> bool:
        """Could it be taken back though its source is to leave?"""
        return move.phase is not MovePhase.LEAVE or (
            self._states(move).get(move.source) is NodeState.STABLE and bool(self._unsteady(move))
        )

    def _unsteady(self, move: Move) -> list[NodeId]:
        """For whom its source waits before it retires."""
        states = self._states(move)
        return sorted(n for n in {*states, move.target} if states.get(n) is not NodeState.STABLE)

    @property
    def _unready_us(self) -> int:
        return 0 if self._unready_since is None else self._stepped_at - self._unready_since

    def _miss(self, move: Move, now: int, *, tries: int = TRIES) -> RoleChange | None:
        """The target does not answer: it is waited for, ``tries`` times at most."""
        if self._silent_since is None:
            self._silent_since = now
            move.tries += 1
        if move.tries > tries or now - self._silent_since >= self._patience_us:
            return self._drop(move, f"{move.target} does not answer")
        move.why = f"{move.target} does not answer"
        return None

    def _drop(self, move: Move, why: str) -> RoleChange | None:
        """Takes back what was done: the target is what it was before."""
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
        """Takes the role of a node, and with it the replica that it may run.

        Nobody else may be STABLE: then it stands by for a while, until it retires (H5) or somebody is (O5).
        """
        states = self._states(move)
        runs_nothing = node in self._outputs and node not in states
        if runs_nothing or any(state is NodeState.STABLE for other, state in states.items() if other != node):
            return RoleChange(move.partition, ((node, None),))
        return RoleChange(move.partition, ((node, Role.STANDBY),), lent=True)

    # --- what is known ---

    def _role(self, move: Move, node: NodeId) -> Role | None:
        return self._directory.roles[move.partition].get(node)

    def _is_lent(self, move: Move, node: NodeId) -> bool:
        """Is its role one that the recovery takes back (O5)?"""
        return ReplicaId(*move.partition, node) in self._directory.lent

    def running(self) -> dict[PartitionId, tuple[NodeId, ...]]:
        """Nodes that run each partition, as far as they answer."""
        outputs = {id: Channel(self._plan.unit[id.unit].outputs[0], id.partition) for id in self._directory.roles}
        nodes = [n for n in self._directory.nodes if n in self._outputs]
        return {id: tuple(n for n in nodes if output in self._outputs[n]) for id, output in outputs.items()}

    def _states(self, move: Move) -> dict[NodeId, NodeState]:
        """Of each node that runs the partition."""
        output = self._output(move)
        return {NodeId(n): NodeState(told[output].state) for n, told in self._outputs.items() if output in told}

    def _frontier(self, move: Move, node: NodeId) -> int:
        return self._outputs[node][self._output(move)].frontier

    def _output(self, move: Move) -> Channel:
        return Channel(self._plan.unit[move.partition.unit].outputs[0], move.partition.partition)

    def know(self, partition: PartitionId, node: NodeId) -> bool:
        """Does the node go by the newest directory, and whoever makes what the partition reads (D3)?"""
        return not self._behind({*self._producers(partition), node})

    def _producers(self, partition: PartitionId) -> set[str]:
        """Every process that makes what the partition reads."""
        channels = self._plan.unit[partition.unit].channels_in(partition.partition)
        return {p for c in channels for p in self._directory.producer_addresses(self._plan, c)}

    def _behind(self, processes: Collection[str]) -> list[str]:
        """Those of them that answer and do not know this version of the directory yet (D3)."""
        version = self._directory.version
        return sorted(p for p in processes if p in self._outputs and self._versions.get(p, CONFIGURED) < version)


def _in_vain_us(move: Move) -> int:
    """After this its target, which answers, has tried in vain."""
    return max(IN_VAIN_US, 10 * (move.predicted_us or 0))


def some(names: Iterable[str]) -> str:
    """A few of many names."""
    found = list(names)
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
