"""The consistency manager of one replica of a unit: SUnion, operators, outputs, and the decisions of DPC.  Pure.

Elements enter through ``sunion.inputs[i]``; then the shell sends :class:`events.Advance`, again while the answer has
:class:`events.Proceed`, and at every tick.  There may be two instances of the operators: *live*, which took in
tentative data, and *redo*, brought back to before it (rule R5).

The state is a *mode*, one module per state of the table: ``recovering``, ``stable``, ``up_failure``, ``stabilization``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final

from consistency.dpc import events
from consistency.dpc.instance import Checkpoint, Instance
from consistency.dpc.mode import Mode
from consistency.dpc.partners import Alone, Partners
from consistency.dpc.recovering import Recovering
from consistency.dpc.stabilization import Stabilization
from consistency.dpc.stable import Stable
from consistency.dpc.states import Transition, after
from consistency.dpc.undo import UndoInstance
from consistency.dpc.unit_run import UnitRun
from consistency.dpc.up_failure import UpFailure
from operators.soutput import SOutput
from operators.sunion.sunion import SUnion
from spe.errors import LogCorrupt, OperatorFailed
from spe.plan.nodes import Node, Reconcile
from spe.plan.plan import Limits, Unit
from spe.runtime.spill import SpillDamaged, SpillNotLoaded
from spe.stream.names import NodeState

#: The mode of each state of the table.
MODES: Final[Mapping[NodeState, Callable[..., Mode]]] = MappingProxyType(
    {mode.state: mode for mode in (Recovering, Stable, UpFailure, Stabilization)}
)


class DpcManager:
    """Handles events and answers with actions, which the shell performs in their order.

    Args:
      unit: what to run.
      sunion: serialises its inputs, which feeds write.
      node: X, α and the policies.
      outputs, inputs: answer questions about the outputs and inputs.
      partners: our side of the partner protocol.
      partition: partition of the unit.
      redo_bytes: cap on stable tuples kept for redo; at half of it reconciliation is asked for (R2).
      slice_rows: rows per input in one slice of stable or redo work (R6).
      logs: the unit writes a checkpoint log.

    Attributes:
      waits: how long consumers have waited for results.
      counts: counters for people.
      log: the work for the checkpoint log.
      step_was_for_log: the last step was work for the checkpoint log.
    """

    def __init__(
        self,
        unit: Unit,
        sunion: SUnion,
        node: Node,
        *,
        outputs: events.OutputsView,
        inputs: events.InputsView,
        partners: Partners,
        redo_bytes: int,
        partition: int = 0,
        slice_rows: int = Limits().slice_rows,
        logs: bool = False,
    ) -> None:
        self.sunion = sunion
        self.partners = partners
        kind = UndoInstance if node.reconcile is Reconcile.UNDO else Instance
        self._run = UnitRun(
            partial(kind, unit, partition=partition),
            sunion,
            node,
            outputs=outputs,
            inputs=inputs,
            partners=partners,
            redo_bytes=redo_bytes,
            slice_rows=slice_rows,
            logs=logs,
            become=self._become,
            serves=lambda: self._mode.serves,
        )
        self.waits, self.counts, self.log = self._run.waits, self._run.counts, self._run.log
        self._mode: Mode = Recovering(self._run)
        self.step_was_for_log = False

    def handle(self, event: events.Event, now: int) -> list[events.Action]:
        """Handles an event; returns the actions for the shell.  An Interrupt, which ends a step early, comes last."""
        run = self._run
        try:
            getattr(self, self._HANDLERS[type(event)])(event, now)
        except (OperatorFailed, SpillNotLoaded, SpillDamaged, LogCorrupt) as error:
            run.do(events.Interrupt(error))
        actions, run.actions = run.actions, []
        return actions

    def _become(self, transition: Transition, *begin: object) -> None:
        """Changes the mode by the table of states; ``begin``: arguments of the new mode."""
        self._mode = MODES[after(self.state, transition)](self._run, *begin)
        self._run.do(events.Announce(self.state, self.live_runs))

    # --- events ---

    def _advance(self, event: events.Advance, now: int) -> None:
        if self._step(now):
            self._run.do(events.Proceed())

    def _step(self, now: int) -> bool:
        """Does what can be done now; returns whether more is waiting."""
        run = self._run
        run.waits.step(now)
        self.step_was_for_log = run.work.is_for_log
        if run.work.open is not None:
            if (through := run.work.go_on()) is not None:
                self._mode.slice_through(through, now)
            return True
        if run.live.rebuilding:  # a snapshot was just installed
            run.live.rebuild(run.slice_rows)
            return True
        if run.log.is_replayed(self._mode.stable):
            self._end_replay(now)
            return True
        if run.log.begin(self._mode.stable):
            self.step_was_for_log = True
            return True
        return self._mode.advance(now) or run.log.wants(self._mode.stable)

    def _end_replay(self, now: int) -> None:
        run, instance = self._run, self._mode.stable
        assert instance is not None, "G4: a replay ends in a stable state"
        run.log.end_replay(instance)
        if not run.log.is_written:  # the configuration has changed: an instance without a log replaces it
            made = run.make()
            made.install(instance.checkpoint(self.sunion.cursors.released))
            made.rows = instance.rows
            self._mode.replace_stable(made)
        self._mode.replayed(now)

    def _partner_asks(self, event: events.PartnerAsks, now: int) -> None:
        """Answers a partner: only a replica with results of its own can stand in for it (K6)."""
        run = self._run
        if not (self.stands_in(now) and run.partners.asked(event.asker, self.state)):
            return
        if run.work.open is not None and isinstance(run.work.open.leave, Alone):
            run.work.open.leave = None  # a partner has come back, and it goes first
        run.do(events.Grant())

    def _configure(self, event: events.Configure, now: int) -> None:
        self._run.waits.set_x(event.node.x_us, now)
        self._run.node = event.node

    def _install_snapshot(self, event: events.InstallSnapshot, now: int) -> None:
        """Installs a snapshot; RECOVERING lasts until the unit has caught up (A3)."""
        run = self._run
        run.live.install(event.checkpoint)
        run.mark = run.work.open = None
        self.sunion.install(event.checkpoint.restart, event.positions)

    def _install_log(self, event: events.InstallLog, now: int) -> None:
        """Installs a log; RECOVERING lasts until the unit has caught up, or until input is missing (G4)."""
        run = self._run
        run.live = event.instance
        run.live.begin_replay(event.replay)
        run.mark = run.work.open = None
        self.sunion.install(event.replay.begin, event.replay.positions)

    def _log_requests(self, event: events.LogRequest, now: int) -> None:
        assert self._run.log.is_written, "G1: the unit writes a log"
        self._run.log.request = event

    def _log_lost(self, event: events.LogLost, now: int) -> None:
        for instance in (self._run.live, self._mode.maker):
            if instance.log is not None:
                instance.log.forget()

    def _partner_grants(self, event: events.PartnerGrants, now: int) -> None:
        self._mode.granted(event.number, now)

    #: Method of each event, by name.
    _HANDLERS: ClassVar[Mapping[type, str]] = {
        events.Advance: "_advance",
        events.PartnerAsks: "_partner_asks",
        events.PartnerGrants: "_partner_grants",
        events.Configure: "_configure",
        events.InstallSnapshot: "_install_snapshot",
        events.InstallLog: "_install_log",
        events.LogRequest: "_log_requests",
        events.LogLost: "_log_lost",
    }

    # --- the state, for the shell ---

    @property
    def state(self) -> NodeState:
        return self._mode.state

    @property
    def live_runs(self) -> bool:
        """Do live results continue while a redo corrects (R5)?"""
        return self._mode.live_runs

    def stands_in(self, now: int) -> bool:
        """K6: has this replica fresh results for the consumers of a partner that reconciles?"""
        return self._mode.stands_in(now)

    def checkpoint_due(self, now: int) -> bool:
        """Is a periodic checkpoint due (R8)?"""
        return self._run.checkpoint_due(now)

    @property
    def between_slices(self) -> bool:
        """Is no slice in work, and no state being remade?"""
        return self._run.work.open is None and not self._run.live.rebuilding

    @property
    def is_whole(self) -> bool:
        """Is no replay of the checkpoint log left?"""
        return self._mode.replay is None

    @property
    def replays(self) -> bool:
        """Does the next step replay the checkpoint log?"""
        return self._mode.stable is not None and self._mode.stable.replay is not None

    @property
    def stable_rows(self) -> int:
        """Count of input rows of stable slices; only differences are meaningful.  After a redo they count again."""
        return self._mode.maker.rows

    @property
    def largest_slice(self) -> int:
        """Rows of the largest slice of one step."""
        return self._run.work.largest

    def stable_output(self, output: int) -> SOutput:
        """Returns the SOutput that makes the stable tuples of an output now."""
        maker = self._mode.maker
        return (self._run.live if maker.rebuilding else maker).outputs[output]

    def operator_states(self) -> Sequence[Mapping[str, Any]]:
        """Returns the states of the running operators by reference; not within a slice.  Raises OperatorFailed."""
        return list(self._run.live.fragment.snapshot().values())

    def counters(self) -> dict[str, int]:
        """Returns the operators' counters, of stable processing only (U7)."""
        return self._mode.counters()

    def empty_instance(self) -> Instance:
        """Returns an instance for the state of a checkpoint log, in portions, before :class:`events.InstallLog`."""
        return self._run.make(logs=True)

    # --- snapshots (A3) ---

    def prepare_snapshot(self) -> bool:
        """Does a portion of the preparation of :meth:`snapshot`; True: there is more, call again soon.

        A snapshot is taken between two slices, and of a state that is complete; with undo/redo that of the mark has to
        be made again.  Optional: without it, :meth:`snapshot` makes the state in one long step.  Raises OperatorFailed.
        """
        if self.state is NodeState.RECOVERING or not self.is_whole:
            return False
        # The task that waits for a snapshot may be the one that sends Advance, which works on an open slice.
        return self._run.work.open is not None or self._mode.prepare_snapshot()

    def snapshot(self) -> tuple[Checkpoint, list[int]] | None:
        """Returns the last consistent state with its input positions, for a restarting partner.

        None: this replica has none.
        """
        if self.state is NodeState.RECOVERING or not self.is_whole:
            return None
        assert self._run.work.open is None, "B8: a snapshot is taken between two slices"
        return self._mode.snapshot()

    # --- invariants ---

    def validate(self) -> None:
        """Asserts what holds between two events (docs/internals/rules.md), at the cost of some comparisons."""
        live = self._run.live
        self.sunion.validate()
        self.partners.validate()
        live.validate(tainted=self.sunion.tainted)
        self._mode.validate()
        assert live.replay is None or self.sunion.next <= live.replay.end, "G4: a replay ends where the log does"

    def validate_rows(self) -> None:
        """Asserts invariants of all that is held."""
        self.sunion.validate_rows()
        self._run.live.validate_rows()
