"""Which state a replica starts from, and what upstream may truncate (rules A1, A3, A8 and H).  Pure."""

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
      positions: of each input, what upstream must still have what follows of.
      origins: of the source logs that each input comes from (S6).
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
    """Which of two states to go on from, whatever is written now: the log, unless the checkpoint has more, for upstream
    may have forgotten what the older one needs (A8)."""
    if log is None or checkpoint is None:
        return log or checkpoint
    return log if all(map(ge, log.positions, checkpoint.positions)) else checkpoint


class ReplicaRecovery:
    """Of one replica.

    Args:
      plan: the cluster.
      id: which replica.
      inputs: what upstream still has.
      sunion: what was processed.
      partners: their states.

    Attributes:
      stored: our newest state on disk, a checkpoint or the log, while it may still be needed (A3).
      other: what lies on our disk beside what is written now: a checkpoint where it logs, a log where it does not.
      logs: it writes a checkpoint log, and no checkpoints.
      replays: it begins from nothing whatever others hold: somebody further down lacks the beginning (H8).
      stores_every_us: interval of its checkpoints on disk (A8), for as long as it runs; None: it writes none.
      prefers_own: our own checkpoint is expected to be sooner than a partner's snapshot (M7).
      partners_are_known: whoever is not heard now has not been for long: we stood by, and listened (H3).
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
        #: The same of standbys, which hold checkpoints.
        self._holders = SnapshotTurns(pause_us=plan.timing.heartbeat_us, longest_us=0)
        self.redirect(directory)
        self.set_node(directory.share(plan, id.unit, id.node))
        self.stored: Stored | None = None
        #: Input positions of what lay on our disk at first; None: nothing did.
        self._lay_there: list[int] | None = None
        self.other: Stored | None = None
        self.replays = False
        self.prefers_own = False
        self.partners_are_known = False
        #: Input positions from which our log is replayed, and whether that has ended; None: we did not go on from it.
        self._replay: tuple[list[int], Callable[[], bool]] | None = None
        #: Input positions that the newest checkpoint on disk holds (A8); None: there are to be none.
        self._durable: list[int] | None = None
        self._newest: list[int] | None = None
        self.logs = id.of in directory.logs
        self.stores(None if self.logs else directory.disk_us(id))

    def redirect(self, directory: Directory) -> None:
        """Others stand by for the partition."""
        standbys = directory.standbys.get(self._id.of)
        self.standbys: Sequence[NodeId] = () if standbys is None else standbys.nodes
        self._backs = self._id.node in self.standbys

    def set_node(self, node: Node) -> None:
        """Another X counts (X1)."""
        self._node = node
        self._turns.longest_us = self._holders.longest_us = node.x_us

    def stores(self, every_us: int | None) -> None:
        """How often it writes checkpoints: one that takes another's place as that did, whose tasks are its own now."""
        self.stores_every_us = every_us
        keeps = every_us is not None or self.logs
        self._durable = self._newest = [0 for _ in self._inputs.inputs] if keeps else None

    def validate(self) -> None:
        """Asserts what holds between two events."""
        inputs = self._inputs
        assert inputs.installed or not any(i.main or i.corr for i in inputs.inputs), "A3: nothing is read before"
        assert not (inputs.installed and self.stored), "A3: a checkpoint is installed once"

    # --- from what to go on ---

    def step(self, now: int) -> str | Own | None:
        """The partner to ask for a snapshot, if one can give it: each in its turn (A3).

        Where there is none, or none has given one for X: our own checkpoint from disk, or that of another standby, or
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
                return None  # somebody upstream may have what follows
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
        if self._backs and self.stored is None:
            unheard, holders = self._other_standbys()
            if unheard and waited < self._plan.timing.request_us:
                return None
            if (holder := self._holders.next(holders, now)) is not None:
                return holder
            if holders and self._holders.asking_for(now) < self._node.x_us:
                return None
        helpers = () if self._backs else self.standbys
        helped = any(states.get(n) is NodeState.RECOVERING for n in helpers)
        if helped and self.stored is None and waited < 4 * self._node.x_us:
            return None  # a standby makes its state again from a checkpoint; from nothing it would take us longer
        patience = self._node.x_us if self.stored is None else self._plan.timing.request_us
        if not self._upstream_has_what_follows(patient=waited < patience):
            return None
        return Own.NOTHING if self.stored is None else Own.STORED

    @property
    def _begins_with_own(self) -> bool:
        """Is our own state taken before a partner's snapshot?  A log is (G4): it would have to be written anew."""
        return self.stored is not None and (self.prefers_own or (self.logs and self.stored.snapshot is None))

    def finds(self, log: Stored | None, checkpoint: Stored | None) -> None:
        """What lies on our disk, whoever wrote it, under whatever configuration."""
        newest = further(log, checkpoint)
        self._lay_there = None if newest is None else list(newest.positions)
        self.stored = None if self._inputs.installed else newest
        self.other = checkpoint if self.logs else log

    def other_is_older(self) -> bool:
        """Is what lies beside what is written of no use any more: may upstream have forgotten what follows it?"""
        if self.other is None or not self._inputs.installed or self._replayed_from() is not None:
            return False
        acks, needed = [upto for _, upto in self.acks()], list(self.other.positions)
        return acks != needed and all(map(ge, acks, needed))

    def _other_standbys(self) -> tuple[list[str], list[str]]:
        """Those that were not heard, and those that stand by as we did, and may hold a checkpoint (O5)."""
        others = [str(n) for n in self.standbys if n != self._id.node]
        idle = [n for n in others if self._partners.stands_by(n)]
        return [n for n in others if n not in idle and self._partners.told.get(n) is None], idle

    def no_snapshot_from(self, partner: str, now: int) -> None:
        """A partner was asked for a snapshot and gave none that could be installed."""
        (self._holders if self._partners.stands_by(partner) else self._turns).failed(partner, now)

    def is_further(self, snapshot: Mapping[str, Any]) -> bool:
        """Has our own checkpoint gone at least as far as a partner's snapshot in every input?

        A partner may have been given up as a dead one, with us further on: upstream has forgotten what it needs,
        and only what lies on our disk can still help the two of us (A3).
        """
        stored = self.stored
        return (
            stored is not None
            and list(stored.origins) == origins_of(snapshot)
            and all(a >= int(b) for a, b in zip(stored.positions, snapshot["positions"], strict=True))
        )

    def _upstream_has_what_follows(self, *, patient: bool) -> bool:
        """Has every input's upstream still what follows our checkpoint on disk, or id 1 if we have none?

        Unreachable ones are waited for while ``patient``, then believed.
        """
        if patient and not all(input.selector.serving() for input in self._inputs.inputs):
            return False
        return not self._begins_too_late()

    def _begins_too_late(self) -> bool:
        """Has every producer of some input that we reach forgotten what follows our checkpoint, or id 1?"""
        positions = self._stored_positions()
        return any(
            input.selector.forgotten(position) for input, position in zip(self._inputs.inputs, positions, strict=True)
        )

    def _stored_positions(self) -> list[int]:
        return [0 for _ in self._inputs.inputs] if self.stored is None else list(self.stored.positions)

    def lacking(self) -> bool:
        """Is no state left to start from, or none whose following input upstream still has (H8)?"""
        return not self._inputs.installed and self._begins_too_late()

    def stranded(self, now: int) -> list[str]:
        """What it lacks, where nothing that can be reached has given it for X: it can only wait (A3, H8)."""
        waited = now - self._inputs.started_at
        if waited < self._node.x_us or not self.lacking():
            return []
        able = any(state not in (None, NodeState.RECOVERING) for state in self._partners.told.values())
        return [] if able and self._turns.asking_for(now) < self._node.x_us else self.missing()

    def missing(self) -> list[str]:
        """Which inputs lack what, while recovery cannot go on."""
        if self._inputs.installed:
            return []
        return [
            f"{input.channel}: {p.name} begins at id {p.first}"
            for input, position in zip(self._inputs.inputs, self._stored_positions(), strict=True)
            for p in input.producers.values()
            if p.alive and p.first > position + 1
        ]

    def replays_in_vain(self, now: int) -> bool:
        """Does it wait for what will not be made again (H8)?

        A source has another log by now, or whoever is to begin anew before us went on from a state after all.
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
        """Has upstream truncated what we need, so that only a partner's snapshot helps?"""
        return self._inputs.installed and any(i.selector.truncated() for i in self._inputs.inputs)

    # --- what is safe (A8) ---

    def acks(self) -> list[tuple[Channel, int]]:
        """What upstream may forget, per input (A1); nothing before the install."""
        if not self._inputs.installed:
            return []
        acks = self._sunion.acknowledged()
        if self._durable is not None:
            acks = list(map(min, acks, self._durable))
        if (begin := self._replayed_from()) is not None:  # whoever kills us now needs the log, and what follows it
            acks = list(map(min, acks, begin))
        return list(zip((i.channel for i in self._inputs.inputs), acks, strict=True))

    def worth_storing(self) -> bool:
        """Is there anything new to write, and may it be made now?

        With undo/redo there is no state to be had while tainted, short of making it again: that is done only where
        upstream is full, or a failure further on and ours would hold each other for ever (R2).
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
    def backs(self) -> bool:
        """Do we run in the place of others, or until a move has ended?"""
        return self._backs

    @property
    def safe(self) -> bool:
        """Could we go on after a kill, where disks are used: has ours a state, of which upstream has what follows?

        The one on which upstream's acknowledgements rest may be on the disk of who leaves in our favour (M3).
        """
        if self._newest is None or any(self._newest) or not any(self._sunion.acknowledged()):
            return True
        there = self._lay_there
        return there is not None and not any(
            input.selector.forgotten(position) for input, position in zip(self._inputs.inputs, there, strict=True)
        )

    def advances(self, positions: Sequence[int]) -> bool:
        """Would a checkpoint with these input positions hold more than those on disk, and less in no input?

        While tainted only the last checkpoint in memory can be written; one on disk may be later, and upstream may have
        forgotten what lies between them.  With a standby's node both on disk are to hold it (H2).
        """
        if self._durable is None or self._newest is None:
            return False
        return list(positions) != self._durable and all(map(ge, positions, self._newest))

    def written(self, snapshot: Mapping[str, Any]) -> None:
        """A checkpoint is safely on disk: upstream may forget what it holds.

        Where we back a partition, what the one before it holds: it may be all that there is (H2).
        """
        if self._durable is not None:
            positions = [int(p) for p in snapshot["positions"]]
            self._durable, self._newest = (self._newest if self._backs else positions), positions

    def logged(self, positions: Sequence[int]) -> None:
        """Both copies of the log hold what makes the state again from these positions on (G5).

        While these lie before those of a checkpoint that we went on from, that one counts.
        """
        if self._durable is not None and all(map(ge, positions, self._durable)):
            self._durable = self._newest = list(positions)

    def replays_log(self, positions: Sequence[int], *, safe: bool, ended: Callable[[], bool]) -> None:
        """Input is read again from these positions on.

        Args:
          safe: both copies of the log are whole.  A full producer may wait for us as we wait for what it cannot make.
          ended: is the state whole?
        """
        self._replay = list(positions), ended
        if safe:
            self.logged(positions)

    def _replayed_from(self) -> list[int] | None:
        """None: the state is whole."""
        return None if self._replay is None or self._replay[1]() else self._replay[0]

    def went_on_from(self, snapshot: Mapping[str, Any]) -> None:
        """It came from our disk.  Of the one before it we know nothing any more, so where two must hold it, we wait."""
        if not self._backs:
            self.written(snapshot)
