"""Decides which state a replica starts from, and what upstream may truncate (rules A1, A3, A8, H).  Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from operator import ge
from typing import Any, NamedTuple

from consistency.dpc.partners import Partners
from operators.sunion.sunion import SUnion
from replicas.checkpoint.state_log import LogHead
from replicas.checkpoint.store import origins_of
from replicas.checkpoint.turns import SnapshotTurns
from replicas.node.input_side import InputSide
from spe.plan.directory import Directory
from spe.plan.nodes import Node, Reconcile
from spe.plan.plan import Plan
from spe.stream.ids import Channel, ReplicaId
from spe.stream.names import NodeId, NodeState


class Own(enum.Enum):
    """The state that a replica starts from if no partner gives a snapshot."""

    STORED = "its own checkpoint"
    NOTHING = "nothing"


class Stored(NamedTuple):
    """State on our own disk.

    Attributes:
      positions: position of each input; upstream must still have what follows it.
      origins: origin of the source logs of each input (S6).
      snapshot: a whole checkpoint; None: it is in the log.
    """

    positions: Sequence[int]
    origins: Sequence[str]
    snapshot: Mapping[str, Any] | None

    @classmethod
    def checkpoint(cls, snapshot: Mapping[str, Any]) -> Stored:
        return cls([int(p) for p in snapshot["positions"]], origins_of(snapshot), snapshot)

    @classmethod
    def logged(cls, head: LogHead) -> Stored:
        return cls([int(p) for p in head.positions], [str(o) for o in head.origins], None)


def further(log: Stored | None, checkpoint: Stored | None) -> Stored | None:
    """Returns the state to start from: the log, unless the checkpoint is further on.

    Upstream may have truncated what the older state needs (A8).
    """
    if log is None or checkpoint is None:
        return log or checkpoint
    return log if all(map(ge, log.positions, checkpoint.positions)) else checkpoint


class ReplicaRecovery:
    """Decides which state a replica starts from, and what its upstream may delete.

    Args:
      plan: the cluster.
      id: the replica.
      inputs: tell what upstream still has.
      sunion: tells what was processed.
      partners: tell the states of the partners.

    Attributes:
      stored: our newest state on disk, a checkpoint or the log, while it may still be needed (A3).
      other: state on our disk that is not written any more: a checkpoint if the replica logs, else a log.
      logs: the replica writes a checkpoint log, and no checkpoints.
      replays: it starts from nothing whatever others hold, because a downstream partition lacks the beginning (H8).
      stores_every_us: interval of its checkpoints on disk (A8), for as long as it runs; None: it writes none.
      prefers_own: our own checkpoint is expected to be sooner than a partner's snapshot (L4).
      backs: the replica runs in place of others, or until a move has ended.
      partners_are_known: an unheard partner has been silent for long, for we stood by and listened (H3).
    """

    def __init__(
        self, plan: Plan, directory: Directory, id: ReplicaId, inputs: InputSide, sunion: SUnion, partners: Partners
    ) -> None:
        self._plan = plan
        self._inputs = inputs
        self._sunion = sunion
        self._partners = partners
        self._id = id
        self._turns = SnapshotTurns(pause_us=plan.timing.heartbeat_us, longest_us=0)
        #: Turns of the standbys, which hold checkpoints.
        self._holders = SnapshotTurns(pause_us=plan.timing.heartbeat_us, longest_us=0)
        self.redirect(directory)
        self.set_node(directory.share(plan, id.unit, id.node))
        self.stored: Stored | None = None
        #: Input positions of the state that was on our disk at the start; None: there was none.
        self._lay_there: list[int] | None = None
        self.other: Stored | None = None
        self.replays = False
        self.prefers_own = False
        self.partners_are_known = False
        #: Input positions that our log is replayed from, and whether that has ended; None: it is not replayed.
        self._replay: tuple[list[int], Callable[[], bool]] | None = None
        #: Input positions that the newest checkpoint on disk holds (A8); None: there are to be none.
        self._durable: list[int] | None = None
        self._newest: list[int] | None = None
        self.logs = id.of in directory.logs
        self.stores(None if self.logs else directory.disk_us(id))

    def redirect(self, directory: Directory) -> None:
        """Follows a changed directory: other nodes stand by for the partition."""
        standbys = directory.standbys.get(self._id.of)
        self.standbys: Sequence[NodeId] = () if standbys is None else standbys.nodes
        self.backs = self._id.node in self.standbys

    def set_node(self, node: Node) -> None:
        """Sets X (X1)."""
        self._node = node
        self._turns.longest_us = self._holders.longest_us = node.x_us

    def stores(self, every_us: int | None) -> None:
        """Sets the interval of checkpoints; a replica that replaces another one keeps that one's tasks and interval."""
        assert not self._inputs.installed, "A8: it is fixed before input is acknowledged whether a disk must hold it"
        self.stores_every_us = every_us
        keeps = every_us is not None or self.logs
        self._durable = self._newest = [0 for _ in self._inputs.inputs] if keeps else None

    def validate(self) -> None:
        """Asserts what holds between two events."""
        inputs = self._inputs
        assert inputs.installed or not any(i.main or i.corr for i in inputs.inputs), "A3: nothing is read before"
        assert not (inputs.installed and self.stored), "A3: a checkpoint is installed once"
        if self._durable is not None and self._newest is not None:
            assert all(map(ge, self._newest, self._durable)), "H2: acknowledgements never pass the newest checkpoint"

    # --- the state to start from ---

    def step(self, now: int) -> str | Own | None:
        """Returns the partner to ask for a snapshot, if one can give it: each in its turn (A3).

        Where no partner can, or none has for X: our own checkpoint from disk, or that of another standby, or
        nothing, if upstream has what follows.  None: wait.
        """
        inputs = self._inputs
        if inputs.installed:
            return None
        waited = now - inputs.started_at
        if self.replays:
            return Own.NOTHING if self._upstream_has_what_follows(patient=waited < self._node.x_us) else None
        if self._begins_with_own and not self._begins_too_late():
            if all(input.selector.serving() for input in inputs.inputs):
                return Own.STORED
            if waited < self._plan.timing.request_us:
                return None  # an unreachable producer may have what follows
        states = self._partners.told
        able = [name for name, state in states.items() if state not in (None, NodeState.RECOVERING)]
        if (partner := self._turns.next(able, now)) is not None:
            return partner
        if able and self._turns.asking_for(now) < self._node.x_us:
            return None
        unknown = not self.partners_are_known and any(
            state is None and not self._partners.stands_by(name) for name, state in states.items()
        )
        if unknown and waited < self._plan.timing.request_us:
            return None
        if self.stored is None:
            return self._step_without_own(now, waited)
        patient = waited < self._plan.timing.request_us
        return Own.STORED if self._upstream_has_what_follows(patient=patient) else None

    def _step_without_own(self, now: int, waited: int) -> str | Own | None:
        """Returns the standby to ask, or nothing to start from; no running partner can give a snapshot."""
        if self.backs:
            unheard, holders = self._other_standbys()
            if unheard and waited < self._plan.timing.request_us:
                return None
            if (holder := self._holders.next(holders, now)) is not None:
                return holder
            if holders and self._holders.asking_for(now) < self._node.x_us:
                return None
        elif waited < 4 * self._node.x_us and any(
            self._partners.told.get(n) is NodeState.RECOVERING for n in self.standbys
        ):
            return None  # a standby restores from a checkpoint, which is faster than from nothing
        return Own.NOTHING if self._upstream_has_what_follows(patient=waited < self._node.x_us) else None

    @property
    def _begins_with_own(self) -> bool:
        """Is our own state preferred to a partner's snapshot?  A log is (G4), for it would have to be rewritten."""
        return self.stored is not None and (self.prefers_own or (self.logs and self.stored.snapshot is None))

    def finds(self, log: Stored | None, checkpoint: Stored | None) -> None:
        """Takes the states on our disk, which may be of an earlier configuration."""
        newest = further(log, checkpoint)
        self._lay_there = None if newest is None else list(newest.positions)
        self.stored = None if self._inputs.installed else newest
        self.other = checkpoint if self.logs else log

    def other_is_older(self) -> bool:
        """Is ``other`` useless, because upstream may have truncated what follows it?"""
        if self.other is None or not self._inputs.installed or self._replayed_from() is not None:
            return False
        acks, needed = [upto for _, upto in self.acks()], list(self.other.positions)
        return acks != needed and all(map(ge, acks, needed))

    def _other_standbys(self) -> tuple[list[str], list[str]]:
        """Returns partners that were not heard, and standbys that may hold a checkpoint (O5)."""
        others = [str(n) for n in self.standbys if n != self._id.node]
        idle = [n for n in others if self._partners.stands_by(n)]
        return [n for n in others if n not in idle and self._partners.told.get(n) is None], idle

    def no_snapshot_from(self, partner: str, now: int) -> None:
        """Notes that a partner gave no snapshot that could be installed."""
        (self._holders if self._partners.stands_by(partner) else self._turns).failed(partner, now)

    def is_further(self, snapshot: Mapping[str, Any]) -> bool:
        """Has our own checkpoint gone at least as far as a partner's snapshot in every input?

        A partner may have been evicted as dead while we were further on: upstream has truncated what it needs,
        and only the state on our disk can help both of us (A3).
        """
        stored = self.stored
        return (
            stored is not None
            and list(stored.origins) == origins_of(snapshot)
            and all(a >= int(b) for a, b in zip(stored.positions, snapshot["positions"], strict=True))
        )

    def _upstream_has_what_follows(self, *, patient: bool) -> bool:
        """Does every input's upstream still have what follows our checkpoint on disk, or id 1 if we have none?

        Unreachable producers are waited for while ``patient``, and then assumed to have it.
        """
        if patient and not all(input.selector.serving() for input in self._inputs.inputs):
            return False
        return not self._begins_too_late()

    def _begins_too_late(self) -> bool:
        """Has every reachable producer of some input truncated what follows our checkpoint, or id 1?"""
        positions = self._stored_positions()
        return any(
            input.selector.forgotten(position) for input, position in zip(self._inputs.inputs, positions, strict=True)
        )

    def _stored_positions(self) -> list[int]:
        return [0 for _ in self._inputs.inputs] if self.stored is None else list(self.stored.positions)

    def lacking(self) -> bool:
        """Is there no state to start from, or none whose following input upstream still has (H8)?"""
        return not self._inputs.installed and self._begins_too_late()

    def stranded(self, now: int) -> list[str]:
        """Returns what the replica lacks, where it has waited in vain for X (A3, H8)."""
        waited = now - self._inputs.started_at
        if waited < self._node.x_us or not self.lacking():
            return []
        able = any(state not in (None, NodeState.RECOVERING) for state in self._partners.told.values())
        return [] if able and self._turns.asking_for(now) < self._node.x_us else self.missing()

    def missing(self) -> list[str]:
        """Describes the inputs whose producers have truncated too much."""
        if self._inputs.installed:
            return []
        return [
            f"{input.channel}: {p.name} begins at id {p.first}"
            for input, position in zip(self._inputs.inputs, self._stored_positions(), strict=True)
            for p in input.producers.values()
            if p.alive and p.first > position + 1
        ]

    def replays_in_vain(self, now: int) -> bool:
        """Does it wait for input that will not be made again (H8)?

        A source may have a new log, or an upstream replica that was to replay may have started from a state.
        """
        inputs = self._inputs
        if not self.replays:
            return False
        if inputs.installed:
            return any(input.selector.other_logs() for input in inputs.inputs)
        alive = [[p for p in input.producers.values() if p.alive] for input in inputs.inputs]
        gone = any(producers and all(p.first > 1 for p in producers) for producers in alive)
        return gone and now - inputs.started_at >= self._node.x_us

    def must_reinstall(self) -> bool:
        """Has upstream truncated what we need next, so that only a partner's snapshot helps?"""
        return self._inputs.installed and any(i.selector.truncated() for i in self._inputs.inputs)

    # --- what is safe (A8) ---

    def acks(self) -> list[tuple[Channel, int]]:
        """Returns what upstream may truncate, per input (A1); nothing before the install."""
        if not self._inputs.installed:
            return []
        acks = self._sunion.acknowledged()
        if self._durable is not None:
            acks = list(map(min, acks, self._durable))
        if (begin := self._replayed_from()) is not None:  # a kill now would need the log, and what follows it
            acks = list(map(min, acks, begin))
        return list(zip((i.channel for i in self._inputs.inputs), acks, strict=True))

    def worth_storing(self) -> bool:
        """Is there a newer state to write, and may it be made now?

        With undo/redo a state must be remade while tainted.  That is done only where upstream is full, or else a
        downstream failure and ours would block each other for ever (R2).
        """
        sunion = self._sunion
        if not self._inputs.installed:
            return False
        if not sunion.tainted:
            return self.advances(sunion.needed_from(sunion.next))
        if self._node.reconcile is Reconcile.UNDO and not self._inputs.upstream_full():
            return False
        return self.advances(sunion.acknowledged())

    @property
    def safe(self) -> bool:
        """Could we restart from our disk: does it hold a state, and upstream what follows?

        Acknowledgements may rest on a state on the disk of the replica that a move removes (M3).
        """
        if self._newest is None or any(self._newest) or not any(self._sunion.acknowledged()):
            return True
        there = self._lay_there
        return there is not None and not any(
            input.selector.forgotten(position) for input, position in zip(self._inputs.inputs, there, strict=True)
        )

    def advances(self, positions: Sequence[int]) -> bool:
        """Is a checkpoint with these input positions ahead of those on disk, and behind in no input?

        While tainted only the last checkpoint in memory can be written; that on disk may be later, and upstream may
        have truncated what lies between.  On a standby's node both checkpoints on disk must hold it (H2).
        """
        if self._durable is None or self._newest is None:
            return False
        return list(positions) != self._durable and all(map(ge, positions, self._newest))

    def written(self, snapshot: Mapping[str, Any]) -> None:
        """Notes that a checkpoint is on disk: upstream may truncate what it holds.

        Where we back a partition, upstream may truncate only what the previous checkpoint holds (H2).
        """
        if self._durable is not None:
            positions = [int(p) for p in snapshot["positions"]]
            assert self._newest is None or all(map(ge, positions, self._newest)), "A8: checkpoints never go back"
            self._durable, self._newest = (self._newest if self.backs else positions), positions

    def logged(self, positions: Sequence[int]) -> None:
        """Notes that both copies of the log hold the state up to these positions (G5).

        A checkpoint that we started from counts while it is further on.
        """
        if self._durable is not None and all(map(ge, positions, self._durable)):
            self._durable = self._newest = list(positions)

    def replays_log(self, positions: Sequence[int], *, safe: bool, ended: Callable[[], bool]) -> None:
        """Notes that input is read again from these positions on.

        Args:
          safe: both copies of the log are complete.
          ended: is the state complete?
        """
        assert self._replay is None, "G4: a replica replays its log once, at its start"
        self._replay = list(positions), ended
        if safe:
            self.logged(positions)

    def _replayed_from(self) -> list[int] | None:
        """Returns the positions that the log is replayed from; None: the state is complete."""
        return None if self._replay is None or self._replay[1]() else self._replay[0]

    def went_on_from(self, snapshot: Mapping[str, Any]) -> None:
        """Notes a start from our disk.  The previous checkpoint is unknown: where two are required, we wait."""
        if not self.backs:
            self.written(snapshot)
