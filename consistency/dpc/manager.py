"""One replica of one partition of a unit: SUnion, operators, outputs, and the decisions of DPC.  Pure.

Elements enter through ``sunion.inputs[i]``; then the shell calls :meth:`UnitReplica.advance`, again while it says
that more is waiting, and at every tick.  What leaves goes to an :class:`Outputs`.  There may be two instances of the
operators: *live*, which took in tentative data, and *redo*, brought back to before it (rule R5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from consistency.dpc.instance import Checkpoint, Instance, LogReplay, Released, StateMark
from consistency.dpc.partners import Alone, Ask, Partners
from consistency.dpc.states import Event, after
from consistency.dpc.undo import UndoInstance
from operators.footprints import LiveFootprints
from operators.fragment_log import SliceLog
from operators.rejections import Rejection
from operators.soutput import SOutput
from operators.steps import Steps, finished
from operators.sunion.slice import Slice
from operators.sunion.sunion import SUnion
from spe.errors import OperatorFailed
from spe.metrics.histogram import Histogram
from spe.plan.nodes import Node, Policy, Reconcile
from spe.plan.plan import Limits, Unit
from spe.stream.batch import Element
from spe.stream.names import Kind, NodeState
from spe.stream.times import BEFORE_TIME


class Outputs(Protocol):
    """Where a replica's results go; one stable log and one tentative suffix per output stream."""

    def stable(self, output: int, elements: Sequence[Element]) -> None: ...

    def tentative(self, output: int, elements: Sequence[Element]) -> None: ...

    def rejected(self, rejections: Sequence[Rejection]) -> None:
        """Reports rows that operators rejected for good; after a redo some come again (U15)."""
        ...

    def clear_suffix(self) -> None:
        """Drops the tentative suffix: the correction is complete."""
        ...

    def announce(self, state: NodeState, fresh: bool) -> None:
        """State of every output from here on; ``fresh``: live results go on while reconciling."""
        ...

    def full(self) -> bool:
        """A buffer is at its cap: release nothing stable until consumers acknowledge."""
        ...


class InputsView(Protocol):
    """What the replica needs to know of its producers."""

    def fresh(self, now: int) -> Sequence[bool]:
        """Per input: is something still to be expected of it soon? (T2)"""
        ...

    def arriving(self, now: int) -> bool:
        """Has every input a feed on which something came lately? (R1)"""
        ...

    def caught_up(self) -> bool:
        """Does every connected input hold what its producer had when we connected?"""
        ...

    def started(self, now: int) -> bool:
        """Has every input had its first boundary, or X passed since the start? (A4)"""
        ...

    def upstream_full(self) -> bool:
        """Does a producer report a full output buffer? (R2)"""
        ...


@dataclass(frozen=True, slots=True)
class SliceToLog:
    """What the checkpoint log is to get, at the end of a stable slice (G1).

    Attributes:
      end: of the slice.
      made: what the operators add.
      live: all footprints that count, where ``made.whole``.
      positions: of each input, the last id that is in it.
      rows: input rows up to its end, since any fixed moment.
      outputs: counters of the outputs at its end.
    """

    end: int
    made: SliceLog
    live: Sequence[LiveFootprints] | None
    positions: Sequence[int]
    rows: int
    outputs: Sequence[Mapping[str, Any]]


class Logging(Protocol):
    """A checkpoint log that is written beside the stable slices; nobody waits for it."""

    def turn(self, end: int) -> tuple[int, int] | None:
        """Is it to get the state at the end of a slice?  Then which footprints are written anew, as in FragmentLog."""
        ...

    def took(self, one: SliceToLog) -> None:
        """What it asked for."""
        ...

    def replayed(self, live: Sequence[LiveFootprints]) -> None:
        """The state of the log is complete again; ``live``: its footprints that count."""
        ...


class UnitReplica:
    """The consistency manager of one unit replica, with what it manages.

    Args:
      unit: what to run.
      sunion: its serialiser; feeds write into its inputs.
      node: X, α and the policies.
      outputs, inputs: the two sides of the world.
      partners: our side of the partner protocol.
      partition: of the unit.
      redo_bytes: cap on stable tuples kept for redo; at half of it reconciliation is asked for (R2).
      slice_rows: rows per input in one slice of stable or redo work (R6).
      logging: its checkpoint log; None: it has none.
    """

    def __init__(
        self,
        unit: Unit,
        sunion: SUnion,
        node: Node,
        *,
        outputs: Outputs,
        inputs: InputsView,
        partners: Partners,
        redo_bytes: int,
        partition: int = 0,
        slice_rows: int = Limits().slice_rows,
        logging: Logging | None = None,
    ) -> None:
        self.sunion = sunion
        self._node = node
        self._outputs = outputs
        self._inputs = inputs
        self.partners = partners
        self._redo_bytes = redo_bytes
        self._slice_rows = slice_rows
        kind = UndoInstance if node.reconcile is Reconcile.UNDO else Instance
        self._instance = partial(kind, unit, partition=partition)
        self._logging = logging
        self._live: Instance = self._instance(logs=logging is not None)
        #: What is worked on is no slice, but what the log gets of one.
        self._is_logging = False
        #: The last step was work for the log.
        self.step_was_for_log = False
        self._redo: Instance | None = None
        #: Where redo will begin: n* while tainted; before that only with periodic checkpoints.
        self._mark: StateMark | None = None
        self._marked_at = 0
        self._stable_counters: dict[str, int] = {}
        self._partner: str | None = None
        #: What is left of a slice, and where its results go: nothing else is done before it is through.
        self._working: tuple[Iterator[Released], Callable[[int, Sequence[Element]], None]] | None = None
        #: The present slice, or the last one, was worked on in more than one step.
        self._paused = False
        #: Permission to reconcile that came during a slice: the number of the granted request, or no partner left.
        self._leave: int | Alone | None = None
        #: Live has worked on a slice in several portions: the next one may be due already, but it is redo's turn (R5).
        self._redo_first = False
        #: The state at a mark, for a snapshot, or the work on it.
        self._remade: tuple[StateMark, Steps[Checkpoint] | Checkpoint] | None = None
        #: When a redo last ended while the failure went on.
        self._forced_at: int | None = None
        self.state = NodeState.RECOVERING
        self.live_runs = False
        self.reconciliations = 0
        #: Rows of stable slices that redo took in, and rows that operators were given once more before that (undo).
        self.redone_rows = 0
        self.rebuilt_rows = 0
        #: Since when a full output holds back what is stable: meanwhile no bucket waits for its inputs (T1).
        self._held_since: int | None = None
        #: Rows of the largest slice that one step took in.
        self.largest_slice = 0
        self._longest_wait_us = 0
        #: Of each release of something new: how long its first bucket had waited, relative to X.
        self.x_used = Histogram()
        #: End of the last bucket that was released, stable or tentative.
        self._released_until = BEFORE_TIME
        #: When we last recovered, or a partner served in our place: what waited until then did not wait for us.  Nor do
        #: we count what waited for an X that was longer.
        self._serves_since: int | None = None
        #: Since when a correction of what is tainted has been at hand; None: it is not.
        self._correctable_since: int | None = None
        #: Policy of the redo that is under way (X3).
        self._beside_redo = node.during_stabilization

    # --- events ---

    def set_node(self, node: Node, now: int) -> None:
        """Another X, α or policy counts, also for what waits (X2, X3); waits are measured anew (T8)."""
        if node.x_us < self._node.x_us:
            self._serves_since = now
        self._longest_wait_us = 0
        self._node = node

    def advance(self, now: int) -> tuple[bool, Ask | None]:
        """Does what can be done now; returns (more is waiting: call again soon, a partner to ask).

        Raises:
          OperatorFailed: an operator raised; this replica cannot go on.
          SpillNotLoaded: a piece of what the SUnion holds is on disk; load it and call again.
          SpillDamaged: such a piece is lost.
        """
        if self.state is NodeState.RECOVERING or self._partner is not None:
            self._serves_since = now
        self.step_was_for_log = self._is_logging
        if self._working is not None:
            self._go_on()
            if self._working is None:
                self._slice_done(now)
            return True, None
        if self._paused:  # a snapshot has worked off the rest
            self._slice_done(now)
        if self._live.rebuilding:  # the snapshot was installed a moment ago
            self._live.rebuild(self._slice_rows)
            return True, None
        if self._ends_replay(now) or self._begin_logging():
            return True, None
        if self.state is NodeState.STABILIZATION:
            more, ask = self._reconcile(now), None
        elif self.state is NodeState.UP_FAILURE and self.sunion.tainted:
            more, ask = self._go_on_tentatively(now)
        else:
            more, ask = self._go_on_stable(now), None
        return more or self._to_log() is not None, ask

    def longest_wait_us(self, now: int) -> int:
        """Longest time from the first arrival of a bucket to its first release, as T3 counts it (T8).

        What still waits counts; not what waited while we recovered, for we served nobody, nor while a partner served
        in our place.
        """
        return max(self._longest_wait_us, self.waiting_us(now))

    def waiting_us(self, now: int) -> int:
        """How long the next bucket has waited, as :meth:`longest_wait_us` counts it; 0 while nobody waits for us."""
        return 0 if self.state is NodeState.RECOVERING or self._partner is not None else self._waited(now)

    def _waited(self, now: int) -> int:
        """How long the next bucket that was never released has waited, less what a full output held back (T1)."""
        start = self.sunion.waits_since(max(self._released_until, self.sunion.next))
        if start is None:
            return 0
        if self._serves_since is not None:
            start = max(start, self._serves_since)
        held = 0 if self._held_since is None else now - max(start, self._held_since)
        return max(0, now - start - held)

    def _measured(self, release: Callable[[], Slice | None], now: int) -> Slice | None:
        """Releases a slice, some of it perhaps once more; notes how long the first bucket that is new has waited."""
        before, waited_us = max(self._released_until, self.sunion.next), self.waiting_us(now)
        piece = release()
        if piece is not None and piece.end > before:
            self._longest_wait_us, self._released_until = max(self._longest_wait_us, waited_us), piece.end
            if self.state is not NodeState.RECOVERING and self._partner is None:
                self.x_used.add(waited_us / self._node.x_us)
        return piece

    def partner_asks(self, asker: str, now: int) -> bool:
        """Do we let a partner reconcile?  Only one that has results of its own can stand in for it (K6)."""
        granted = self.stands_in(now) and self.partners.asked(asker, self.state)
        if granted and isinstance(self._leave, Alone):
            self._leave = None  # a partner is there after all, and it goes first
        return granted

    def stands_in(self, now: int) -> bool:
        """K6: has this replica fresh results for the consumers of a partner that reconciles?"""
        fresh = self._inputs.fresh(now)
        if self.state is NodeState.STABLE:
            return all(fresh)
        if self.state is NodeState.UP_FAILURE:
            return any(fresh) and not self._suspends()
        return False

    def partner_grants(self, number: int, now: int) -> None:
        if self._working is not None:
            self._leave = number  # a redo begins between two slices
            return
        partner = self.partners.granted(number)
        if partner is not None and self.state is NodeState.UP_FAILURE and self._correctable(now):
            self._start_redo(partner)

    def install(self, checkpoint: Checkpoint, positions: Sequence[int]) -> None:
        """Continues from a snapshot of a partner (A3); we stay RECOVERING until caught up."""
        self._live.install(checkpoint)
        self._mark = None  # a snapshot that was being made is of the state before
        self._working = self._remade = None
        self._is_logging = False
        self.sunion.install(checkpoint.restart, positions)

    def empty_instance(self) -> Instance:
        """One to be given the state of a checkpoint log, in portions, before :meth:`replay`."""
        return self._instance(logs=True)

    def replay(self, instance: Instance, replay: LogReplay) -> None:
        """Continues from a checkpoint log (G4); we stay RECOVERING until caught up, or until input is missing."""
        self._live = instance
        instance.begin_replay(replay)
        self._mark = self._working = self._remade = None
        self.sunion.install(replay.begin, replay.positions)

    @property
    def stable_rows(self) -> int:
        """Input rows of stable slices so far, since any fixed moment; after a redo they are counted again."""
        return (self._live if self._redo is None else self._redo).rows

    @property
    def is_logging(self) -> bool:
        """Is what the log gets of a slice not complete yet?"""
        return self._is_logging

    @property
    def replays(self) -> bool:
        """Is the next step work on the state of the checkpoint log?"""
        instance = self._stable_instance()
        return instance is not None and instance.replay is not None

    @property
    def is_whole(self) -> bool:
        """Is nothing of the checkpoint log left to replay?"""
        return self._lacks is None

    @property
    def _lacks(self) -> LogReplay | None:
        """What of the checkpoint log was not replayed yet: until it is, there is no whole stable state."""
        instance = self._stable_instance()
        if instance is None:
            assert self._mark is not None, "C1: the checkpoint comes before the first tentative release"
            return self._mark.replay
        return instance.replay

    def _stable_instance(self) -> Instance | None:
        """That with the state at the end of the last stable slice; None: there is a mark of it only."""
        if self._redo is not None:
            return self._redo
        return None if self.sunion.tainted else self._live

    def forget_logged(self) -> None:
        """The log lacks some of what it was given: the next slice is to give it everything."""
        for instance in (self._live, self._redo):
            if instance is not None and instance.log is not None:
                instance.log.forget()

    def prepare_snapshot(self) -> bool:
        """Does a portion of what must come before :meth:`snapshot`; True: there is more, call again soon.

        A snapshot is taken between two slices, and of a state that is complete; with undo/redo that of the mark has to
        be made again.  Whoever does not call this gets the same, in one long step.  Raises OperatorFailed.
        """
        if self.state is NodeState.RECOVERING or self._lacks is not None:
            return False
        if self._working is not None:
            return True  # advance works on it
        if self._redo is not None:
            return self._redo.rebuild(self._slice_rows)  # whoever waits for a snapshot may be who calls advance
        if self._mark is not None and self.sunion.tainted:
            return self._remake(self._mark)
        return False

    def _remake(self, mark: StateMark) -> bool:
        """Does a portion of the state at the mark, for a snapshot; True: there is more."""
        if self._remade is None or self._remade[0] is not mark:
            self._remade = (mark, self._live.checkpoint_at(mark))
        made = self._remade[1]
        if not isinstance(made, Checkpoint):
            try:
                next(made)
                return True
            except StopIteration as end:
                self._remade = (mark, end.value)
        return False

    def snapshot(self) -> tuple[Checkpoint, list[int]] | None:
        """For a restarting partner: the last consistent state and the input positions that go with it.

        None: we have none ourselves.
        """
        if self.state is NodeState.RECOVERING or self._lacks is not None:
            return None
        while self._working is not None:
            self._go_on()
        positions = self.sunion.acknowledged()
        if (redo := self._redo) is not None:
            while redo.rebuild(self._slice_rows):
                pass
            return redo.checkpoint(self.sunion.restart_point()), positions
        if self._mark is not None and self.sunion.tainted:
            while self._remake(self._mark):
                pass
            assert self._remade is not None
            (_, made), self._remade = self._remade, None
            assert isinstance(made, Checkpoint)
            return made, positions
        # What we keep since a periodic checkpoint is for a redo of ours: whoever installs this begins behind it.
        return self._live.checkpoint(self.sunion.next), self.sunion.needed_from(self.sunion.next)

    def stable_output(self, output: int) -> SOutput:
        """The SOutput that makes the stable tuples of an output now."""
        redo = self._redo
        return (self._live if redo is None or redo.rebuilding else redo).outputs[output]

    @property
    def between_slices(self) -> bool:
        """Is no slice in work, and no state being made again?"""
        return self._working is None and not self._live.rebuilding

    def operator_states(self) -> Sequence[Mapping[str, Any]]:
        """What the running operators hold, by reference; not in the middle of a slice.  Raises OperatorFailed."""
        return list(self._live.fragment.snapshot().values())

    def counters(self) -> dict[str, int]:
        """Operators' counters, of stable processing only (U7)."""
        if self._redo is not None and not self._redo.rebuilding:
            return self._redo.fragment.counters()
        return self._stable_counters if self.sunion.tainted else self._live.fragment.counters()

    def validate(self) -> None:
        """Asserts what holds between two events (docs/internals/rules.md), at the cost of some comparisons."""
        sunion, state, redo = self.sunion, self.state, self._redo
        reconciling = state is NodeState.STABILIZATION
        sunion.validate()
        self.partners.validate()
        self._live.validate(tainted=sunion.tainted)
        assert (redo is not None) == reconciling == (sunion.redo_next is not None), "R5: redo is STABILIZATION"
        if redo is not None:
            redo.validate(tainted=False)
        if (restart := sunion.restart) is not None:
            assert reconciling or state is NodeState.UP_FAILURE, f"U8: tainted in state {state.name}"
            assert self._mark is not None, "C1: the checkpoint comes before the first tentative release"
            assert self._mark.restart <= restart, "C1: the checkpoint holds nothing tentative"
        assert reconciling or not self.live_runs, "R5: live runs beside a redo"
        assert self._partner is None or (reconciling and not self.live_runs), "R5: while a partner serves live pauses"
        assert state is NodeState.UP_FAILURE or not self.partners.pending, "R3: a request is open in UP_FAILURE only"
        assert self._leave is None or self._paused, "R4: leave waits only for the end of a slice"
        assert state is not NodeState.STABLE or self._lacks is None, "G4: STABLE means that the state is whole"
        for one, reached in ((self._live, sunion.next), (redo, sunion.redo_next)):
            if one is not None and reached is not None and one.replay is not None:
                assert reached <= one.replay.end, "G4: a replay ends where the log does"

    def validate_rows(self) -> None:
        """The same of all that is held."""
        self.sunion.validate_rows()
        self._live.validate_rows()

    # --- the checkpoint log ---

    def _ends_replay(self, now: int) -> bool:
        """Is the replay through?  Then the state is that of the log (G4).  Raises LogCorrupt where it is another."""
        instance = self._stable_instance()
        if instance is None or instance.replay is None or self.sunion.released_for_good() < instance.replay.end:
            return False
        instance.end_replay()
        if self._logging is not None and instance.log is not None:
            self._logging.replayed(finished(instance.log.live()))
        elif self._logging is None:  # another configuration: nobody is to remember any more what the log has
            self._without_log(instance)
        if self.state is NodeState.UP_FAILURE and not self._must_go_on(now):  # it was suspended, and this is all
            self._move(Event.HEALED)
        return True

    def _without_log(self, instance: Instance) -> None:
        """One with the same state, that remembers nothing of a log, takes its place."""
        made = self._instance()
        made.install(instance.checkpoint(self.sunion.released_for_good()))
        made.rows = instance.rows
        if self._redo is None:
            self._live = made
        else:
            self._redo = made

    def _go_on_replaying(self, replay: LogReplay, now: int) -> bool:
        """Gives the operators again what came between the two commits; whoever is served waits for it, up to X.

        Then live goes on with what there is, and the mark has the rest of the replay for redo.
        """
        released = self.sunion.release_stable(self._slice_rows, replay.end)
        if released is not None:
            self._work_on(self._live.again(released), self._outputs.stable)
            return True
        if self.state is NodeState.RECOVERING:
            due = self._inputs.started(now) and self._must_go_on(now)
            return due and self._go_tentative(now, Event.TENTATIVE)
        return not self._suspends() and self._must_go_on(now) and self._no_longer_suspended(now)

    def _begin_logging(self) -> bool:
        """Begins to give the log the state at the end of the last stable slice, if it wants it (G6)."""
        if (wanted := self._to_log()) is None:
            return False
        instance, end, turn = wanted
        self._is_logging = self.step_was_for_log = True
        self._work_on(self._log_slice(instance, end, *turn), self._outputs.stable)
        self._is_logging = self._working is not None
        return True

    def _to_log(self) -> tuple[Instance, int, tuple[int, int]] | None:
        """What has the state at the end of the last stable slice, that end, and what is rewritten, if the log wants it.

        None: it does not, or that state is not to be had between two steps.
        """
        instance = self._live if self._redo is None else self._redo
        if self._logging is None or self._working is not None or instance.replay is not None or instance.rebuilding:
            return None
        if self._redo is None and self.sunion.tainted:
            return None
        end = self.sunion.released_for_good()
        turn = self._logging.turn(end)
        return None if turn is None else (instance, end, turn)

    def _log_slice(self, instance: Instance, end: int, below: int, most: int) -> Iterator[Released]:
        assert instance.log is not None, "G1: its state goes to a log"
        assert self._logging is not None, "G1: it asked for it"
        made = yield from instance.log.slice_log(end, below, most)
        live = (yield from instance.log.live()) if made.whole and not made.complete else None
        outputs = [o.snapshot() for o in instance.outputs]
        self._logging.took(SliceToLog(end, made, live, self.sunion.needed_from(end), instance.rows, outputs))

    # --- the stable way ---

    def _go_on_stable(self, now: int) -> bool:
        sunion = self.sunion
        if (replay := self._live.replay) is not None:
            return self._go_on_replaying(replay, now)
        released = None
        if not self._is_held():
            released = self._measured(lambda: sunion.release_stable(self._slice_rows), now)
        if released is not None:
            if self._held_since is not None:
                sunion.shift_clocks(now - self._held_since, now)
                self._held_since = None
            self._emit_stable(self._live, released)
            if self._working is not None:
                return True
            if self.state is NodeState.UP_FAILURE and not self._is_late(now):
                self._move(Event.HEALED)
        self._mark_if_due(now)
        if released is not None and sunion.stable_end > sunion.next:
            return True
        if sunion.stable_end > sunion.next:  # held back by a full buffer: stable, only not yet released
            if self._held_since is None:
                self._held_since = now
            if self.state is NodeState.RECOVERING and self._inputs.started(now):
                self._move(Event.CAUGHT_UP)  # only who is served acknowledges, and makes room
            return False
        if self.state is NodeState.RECOVERING:
            return self._leave_recovering(now)
        if self.state is NodeState.STABLE and self._must_go_on(now):
            return self._go_tentative(now, Event.TENTATIVE)
        if self.state is NodeState.UP_FAILURE and not self._suspends() and self._must_go_on(now):
            return self._no_longer_suspended(now)
        return False

    def _is_held(self) -> bool:
        """Does a full output hold back what is stable (A2)?  Not within a bucket: nobody acknowledges a part of one."""
        return self._outputs.full() and not self.sunion.within_bucket

    def _no_longer_suspended(self, now: int) -> bool:
        """Another policy counts, and the next bucket is due (X3)."""
        self._taint()
        return self._release_tentative(now, self._node.during_failure)

    def _is_late(self, now: int) -> bool:
        """Does it still work off what came in while it was suspended?  Who reads it would wait for longer than X."""
        return self.sunion.stable_end > self.sunion.next and self.sunion.clocks.waited(now) >= self._node.alpha_x_us

    def _suspends(self) -> bool:
        return self._node.during_failure is Policy.SUSPEND

    def checkpoint_due(self, now: int) -> bool:
        """Is a periodic checkpoint due?  Without an interval never: the mark is set on entering UP_FAILURE (C1).

        It is due early if what is kept for a redo takes half the cap, or upstream is full.
        """
        every_us = self._node.checkpoints.memory_us
        if every_us is None or self.sunion.tainted:
            return False
        if self._mark is None:
            return True
        crowded = self.sunion.stable_bytes * 2 >= self._redo_bytes or self._inputs.upstream_full()
        return self._mark.restart < self.sunion.next and (crowded or now - self._marked_at >= every_us)

    def _mark_if_due(self, now: int) -> None:
        if self.checkpoint_due(now):
            self.sunion.keep_from(self.sunion.next)
            self._mark = self._live.mark(self.sunion.next)
            self._marked_at = now

    def _leave_recovering(self, now: int) -> bool:
        if not self._inputs.started(now):
            return False
        if self._must_go_on(now):
            return self._go_tentative(now, Event.TENTATIVE)
        if self._inputs.caught_up():
            self._move(Event.CAUGHT_UP)
        return False

    def _must_go_on(self, now: int) -> bool:
        """T3: the next bucket has waited as long as it may."""
        return self._due(now, self._node.alpha_x_us) is not None

    def _due(self, now: int, wait_us: int) -> int | None:
        if not self.sunion.may_be_due(now, wait_us):
            return None
        return self.sunion.due(now, wait_us=wait_us, hard_us=self._node.hard_us, fresh=self._inputs.fresh(now))

    # --- tentative ---

    def _go_tentative(self, now: int, event: Event) -> bool:
        """The checkpoint comes before the first tentative release (C1); suspend announces, and taints nothing (T6).

        Returns:
          Is more due at once, beyond what one step may take (B8)?
        """
        assert self._working is None, "C1: a checkpoint is taken between two slices"
        if not self._suspends():
            self._taint()
        self._move(event)
        return self._release_tentative(now, self._node.during_failure)

    def _taint(self) -> None:
        if self._mark is None:
            self._mark = self._live.mark(self.sunion.next)
        with suppress(OperatorFailed):  # counters are for people, who are told of the error when they ask
            self._stable_counters = self._live.fragment.counters()
        self._correctable_since = None
        self.sunion.taint()

    def _go_on_tentatively(self, now: int) -> tuple[bool, Ask | None]:
        correctable = self._correctable(now)
        if not correctable:
            self._correctable_since = None
        more = self._release_tentative(now, self._node.during_failure, correctable=correctable)
        if not correctable:
            if self.partners.pending:
                self.partners.withdraw()
            return more, None
        self.partners.want(now)
        step = self.partners.poll(now)
        if not isinstance(step, Alone):
            return more, step
        if self._working is None:
            self._start_redo(None)
        else:
            self._leave = step  # a redo begins between two slices
        return True, None

    def _release_tentative(self, now: int, policy: Policy, *, correctable: bool = False) -> bool:
        """One slice of what is due; returns whether there is more."""
        if policy is Policy.SUSPEND:
            return False
        wait_us = 0 if policy is Policy.PROCESS else self._node.alpha_x_us
        end = self._due(now, wait_us)
        if correctable and end is not None and policy is Policy.PROCESS and self._awaits_correction(end, now):
            end = self._due(now, self._node.hard_us)
        if end is None:
            return False
        replay = self._live.replay
        upto = end if replay is None else min(end, replay.end)
        piece = self._measured(lambda: self.sunion.release_tentative(upto, self._slice_rows), now)
        assert piece is not None
        self.largest_slice = max(self.largest_slice, len(piece))
        self._work_on(self._live.tentative(piece), self._outputs.tentative)
        return self._working is not None or piece.end < end

    def _awaits_correction(self, end: int, now: int) -> bool:
        """T9: is all that is complete, up to ``end``, stable, and soon to be released as such, by a redo in one slice?

        A correction that takes longer than *hard* is not waited for any more: results go on as fresh as before.
        """
        if end > self.sunion.stable_end or not self.sunion.redo_is_short(self._slice_rows):
            return False
        if self._correctable_since is None:
            self._correctable_since = now
        return now - self._correctable_since < self._node.hard_us

    def _correctable(self, now: int) -> bool:
        """May a redo begin?  If it would leave us stable (R1), or if kept data or a full upstream need room (R2)."""
        sunion = self.sunion
        if sunion.restart is None or (mark := self._mark) is None:
            return False
        if mark.replay is not None and sunion.stable_end < mark.replay.end:
            # A redo could only go on with the replay: that makes room, and nothing else.
            crowded = sunion.stable_bytes * 2 >= self._redo_bytes or self._inputs.upstream_full()
            return crowded and sunion.stable_end > sunion.restart
        if sunion.stable_end <= sunion.restart:
            # What follows may wait for room, which only a mark that is as far as n* makes (A1).
            # So does the log, which gets the state at n* only from a redo (G6).
            logs = self._logging is not None and self._logging.turn(sunion.restart) is not None
            behind = mark.restart < sunion.restart or logs
            waited = now - max(self._marked_at, self._forced_at or 0) >= self._node.x_us
            return behind and waited and self._inputs.upstream_full()
        if sunion.stable_bytes * 2 >= self._redo_bytes or self._inputs.upstream_full():
            return True
        return sunion.oldest_unstable_is_young(now, self._node.alpha_x_us) and self._inputs.arriving(now)

    # --- correcting ---

    def _start_redo(self, partner: str | None) -> None:
        assert self._mark is not None, "R5: a redo starts from a checkpoint"
        assert self._redo is None, "R5: one redo at a time"
        assert self._working is None, "R5: a redo begins between two slices"
        self.partners.withdraw()
        self._partner = partner
        self._redo = self._live.back(self._mark)
        self._redo_first = False
        self._beside_redo = self._node.during_stabilization
        self.live_runs = partner is None and self._beside_redo is not Policy.SUSPEND
        self.sunion.begin_redo(live_runs=self.live_runs)
        self._move(Event.RECONCILE)

    def _reconcile(self, now: int) -> bool:
        assert self._redo is not None
        if self._partner is not None and not self.partners.serves(self._partner):
            self._partner = None
            if self._beside_redo is not Policy.SUSPEND:
                if self.sunion.resume_live():
                    self._live.take_over(self._redo)
                self.live_runs = True
                self._outputs.announce(self.state, True)
        if self._redo_first:
            self._redo_first, more = False, self.live_runs
        else:
            more = self.live_runs and self._release_tentative(now, self._beside_redo, correctable=True)
            if self._working is not None:
                self._redo_first = True
                return True
        if self._redo.rebuild(self._slice_rows):
            return True
        if (replay := self._redo.replay) is not None:
            released = self.sunion.release_redo(self._slice_rows, replay.end)
            if released is not None:
                self._work_on(self._redo.again(released), self._outputs.stable)
                return True
            return more if self._stays(now) else self._ends_redo(now)
        if self._is_held() and self.sunion.stable_end > self.sunion.restart_point():
            if self.live_runs:
                # Corrections are held back while live runs (V4), so only without it can consumers make room.
                self.sunion.pause_live()  # first: where a piece is on disk it is called again
                self.live_runs = False
                self._outputs.announce(self.state, False)
            elif self._partner is not None:
                # Consumers read our partner while we correct (F4): only as STABLE are we read, and given room.
                return self._ends_redo(now)
            return False
        if self.live_runs:
            released = self.sunion.release_redo(self._slice_rows)
        else:
            released = self._measured(lambda: self.sunion.release_redo(self._slice_rows), now)
        if released is not None:
            self.redone_rows += len(released)
            self._emit_stable(self._redo, released)
            if more or self._working is not None or not self._only_news_is_left(now):
                return True
            return self._ends_redo(now)
        return more if self._stays(now) else self._ends_redo(now)

    def _ends_redo(self, now: int) -> bool:
        """Ends the redo, once the log has its state if it wants it: nothing is written while tainted (G6)."""
        return self._to_log() is not None or self._finish_redo(now)

    def _only_news_is_left(self, now: int) -> bool:
        """R7: has redo, of a replica that is the only one, just passed live, which has released all that was due?

        Where there are others it must not be: STABLE with a flood still to be worked off would be preferred to fresher
        replicas (F4), and would let them correct, as if it could stand in for them (K2).
        """
        return self.live_runs and self.partners.nobody and self.sunion.redo_is_ahead and not self._stays(now)

    def _stays(self, now: int) -> bool:
        """R2: while a failure goes on, forced rec_dones come X apart; in between redo goes on as far as input does.

        Beginning a redo is never put off: only that makes room.
        """
        return (
            self._forced_at is not None
            and now - self._forced_at < self._node.x_us
            and (self._partner is not None or self.live_runs)
            and not self.sunion.oldest_unstable_is_young(now, self._node.alpha_x_us)
        )

    def _finish_redo(self, now: int) -> bool:
        """REC_DONE (R7).  A failure that came meanwhile follows in the same step, so nobody sees a false STABLE.

        Returns:
          Is more of it due at once (B8)?
        """
        assert self._redo is not None, "R7: there is a redo that ends"
        assert self._working is None, "R7: redo ends between two slices"
        assert not self._redo.rebuilding, "R7: what becomes live is complete"
        self.sunion.finish_redo()
        self.rebuilt_rows += self._redo.rebuilt
        self._live, self._redo, self._mark, self._remade = self._redo, None, None, None
        self.live_runs = False
        self._partner = None
        self.reconciliations += 1
        self._outputs.clear_suffix()
        follows = self.sunion.stable_end > self.sunion.next  # stable, and news, or held back by a full buffer
        if self._live.replay is not None or (not follows and self._must_go_on(now)):
            self._forced_at = now
            return self._go_tentative(now, Event.CAUGHT_UP_DUE)
        self._move(Event.CAUGHT_UP)
        return follows

    # --- emitting ---

    def _emit_stable(self, instance: Instance, piece: Slice) -> None:
        assert piece.kind is Kind.STABLE, "U8: only a stable slice makes stable results"
        self.largest_slice = max(self.largest_slice, len(piece))
        self._work_on(instance.stable(piece), self._outputs.stable)

    # --- a slice in portions (B8) ---

    def _work_on(self, portions: Iterator[Released], release: Callable[[int, Sequence[Element]], None]) -> None:
        """Does the first portion of a slice; ``_working`` is None if that was all."""
        assert self._working is None, "B8: one slice at a time"
        self._working = (portions, release)
        self._go_on()

    def _go_on(self) -> None:
        """Does the next portion of the slice that is being worked on."""
        assert self._working is not None
        portions, release = self._working
        self._working = None  # also where an operator raises
        for released in portions:
            if released is None:
                self._working, self._paused = (portions, release), True
                return
            if isinstance(released, tuple):
                release(*released)
            else:
                self._outputs.rejected(released)

    def _slice_done(self, now: int) -> None:
        """What had to wait until all of a slice was through."""
        was_slice, self._is_logging = not self._is_logging, False
        self._paused = False
        replays = self._live.replay is not None
        suspended = was_slice and self.state is NodeState.UP_FAILURE and not self.sunion.tainted and not replays
        if suspended and not self._is_late(now):
            self._move(Event.HEALED)
        leave, self._leave = self._leave, None
        if isinstance(leave, int):
            self.partner_grants(leave, now)
        elif leave is not None and self.state is NodeState.UP_FAILURE and self._correctable(now):
            self._start_redo(None)
        if self.state is NodeState.RECOVERING and not replays and self.sunion.stable_end <= self.sunion.next:
            self._leave_recovering(now)  # when we are called again the next slice may be there already

    def _move(self, event: Event) -> None:
        self.state = after(self.state, event)
        self._outputs.announce(self.state, self.live_runs)
