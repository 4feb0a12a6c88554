"""UP_FAILURE: an input is missing; results are tentative or suspended (T3)."""

from __future__ import annotations

from consistency.dpc.instance import Checkpoint, Instance, LogReplay
from consistency.dpc.mode import Mode
from consistency.dpc.partners import Alone
from consistency.dpc.slice_work import OpenSlice
from consistency.dpc.states import Transition
from consistency.dpc.taint import Taint
from consistency.dpc.unit_run import UnitRun
from spe.stream.names import NodeState


class UpFailure(Mode):
    """Releases due buckets as tentative, and asks a partner for leave to correct them once that is possible.

    Attributes:
      taint: the tentative releases; None: the policy is suspend, and none were made.
    """

    state = NodeState.UP_FAILURE

    def __init__(self, run: UnitRun, taint: Taint | None) -> None:
        super().__init__(run)
        self.taint = taint

    def advance(self, now: int) -> bool:
        return self._advance_suspended(now) if self.taint is None else self._advance_tentative(self.taint, now)

    # --- tentative ---

    def _advance_tentative(self, taint: Taint, now: int) -> bool:
        run = self.run
        correctable = taint.is_correctable(now)
        if not correctable:
            taint.forget_correction()
        more = taint.release(now, run.node.during_failure, correctable=correctable)
        if not correctable:
            if run.partners.pending:
                run.partners.withdraw()
            return more
        run.partners.want(now)
        step = run.partners.poll(now)
        if not isinstance(step, Alone):
            if step is not None:
                run.do(step)
            return more
        if run.work.open is None:
            run.become(Transition.RECONCILE, taint, None)
        else:
            run.work.open.leave = step  # R4: a redo begins between two slices
        return True

    def granted(self, number: int, now: int) -> None:
        run = self.run
        if run.work.open is not None:
            run.work.open.leave = number  # R4: a redo begins between two slices
            return
        partner = run.partners.granted(number)
        if partner is not None and self.taint is not None and self.taint.is_correctable(now):
            run.become(Transition.RECONCILE, self.taint, partner)

    def slice_through(self, slice: OpenSlice, now: int) -> None:
        if self.taint is None:
            if not slice.for_log and self.run.live.replay is None and not self.run.is_late(now):
                self.run.become(Transition.HEALED)
        elif isinstance(slice.leave, Alone):
            if self.taint.is_correctable(now):
                self.run.become(Transition.RECONCILE, self.taint, None)
        elif slice.leave is not None:
            self.granted(slice.leave, now)

    # --- suspended ---

    def _advance_suspended(self, now: int) -> bool:
        run = self.run
        if (replay := run.live.replay) is not None:
            return run.replay_slice(replay) or self._resume_if_due(now)
        released = run.release_stable(now)
        if run.work.open is not None:
            return True
        healed = released and not run.is_late(now)
        if healed:
            run.become(Transition.HEALED)
        run.checkpoint_if_due(now)
        if run.has_stable:
            if not released:
                run.waits.hold(now)
            return released
        if healed:
            return run.must_go_on(now) and self.go_tentative(now, Transition.TENTATIVE)
        return self._resume_if_due(now)

    def _resume_if_due(self, now: int) -> bool:
        """X3: after a change of policy, results continue tentatively once the next bucket is due."""
        run = self.run
        if run.suspends or not run.must_go_on(now):
            return False
        self.taint = Taint(run)
        return self.taint.release(now, run.node.during_failure)

    def replayed(self, now: int) -> None:
        if not self.run.must_go_on(now):  # it was suspended, and nothing is left
            self.run.become(Transition.HEALED)

    # --- questions ---

    def stands_in(self, now: int) -> bool:
        return any(self.run.inputs.fresh(now)) and not self.run.suspends

    @property
    def stable(self) -> Instance | None:
        return self.run.live if self.taint is None else None

    @property
    def replay(self) -> LogReplay | None:
        return self.run.live.replay if self.taint is None else self.taint.mark.replay

    def counters(self) -> dict[str, int]:
        return super().counters() if self.taint is None else self.taint.counters

    def prepare_snapshot(self) -> bool:
        return super().prepare_snapshot() if self.taint is None else self.taint.snapshot.go_on()

    def snapshot(self) -> tuple[Checkpoint, list[int]]:
        if self.taint is None:
            return super().snapshot()
        return self.taint.snapshot.take(), self.run.sunion.acknowledged()

    def validate(self) -> None:
        restart = self.run.sunion.cursors.restart
        assert self.run.sunion.cursors.redo is None, "R5: redo is STABILIZATION"
        assert (self.taint is None) == (restart is None), f"U8: tainted in state {self.state.name} is tentative"
        if self.taint is not None and restart is not None:
            assert self.taint.mark.restart <= restart, "C1: the checkpoint holds nothing tentative"
