"""STABILIZATION: a redo corrects tentative results from complete inputs (R5-R7)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from consistency.dpc.events import Announce
from consistency.dpc.instance import Instance, LogReplay
from consistency.dpc.mode import Mode
from consistency.dpc.states import Transition
from consistency.dpc.taint import Taint
from consistency.dpc.unit_run import UnitRun
from operators.sunion.slice import Slice
from spe.plan.nodes import Policy
from spe.stream.names import Kind, NodeState


class LiveState(enum.Enum):
    """State of the live instance during a redo, where no partner serves in its place (R5)."""

    RUNS = enum.auto()
    PAUSES = enum.auto()


@dataclass(frozen=True, slots=True)
class PartnerServes:
    """A partner has granted leave to reconcile: live pauses while the partner has fresh results for our consumers."""

    partner: str


class Stabilization(Mode):
    """Restores the checkpoint into a second instance, *redo*, which takes the stable slices from there on.

    *Live* takes turns with it, or pauses.  When redo has caught up it becomes live.

    Args:
      taint: the tentative releases to correct.
      partner: the partner that has granted leave and serves; None: there is none.

    Attributes:
      redo: the instance that corrects.
      live: state of the live instance, or the partner that serves in its place.
    """

    state = NodeState.STABILIZATION

    def __init__(self, run: UnitRun, taint: Taint, partner: str | None) -> None:
        assert run.work.open is None, "R5: a redo begins between two slices"
        super().__init__(run)
        run.partners.withdraw()
        self.taint = taint
        self.redo = run.live.back(taint.mark)
        #: The policy for live; a change takes effect at the next redo (X3).
        self._policy = run.node.during_stabilization
        self.live: LiveState | PartnerServes
        if partner is not None:
            self.live = PartnerServes(partner)
        else:
            self.live = LiveState.PAUSES if self._policy is Policy.SUSPEND else LiveState.RUNS
        #: Live has finished a slice of several portions: its next one may be due, but it is redo's turn (R5).
        self._redo_first = False
        run.sunion.begin_redo(live_runs=self.live_runs)

    @property
    def live_runs(self) -> bool:
        return self.live is LiveState.RUNS

    @property
    def serves(self) -> bool:
        return not isinstance(self.live, PartnerServes)

    def advance(self, now: int) -> bool:
        run = self.run
        self._look_for_partner()
        if self._redo_first:
            self._redo_first, more = False, self.live_runs
        else:
            more = self.live_runs and self.taint.release(now, self._policy, correctable=True)
            if run.work.open is not None:
                self._redo_first = True
                return True
        if self.redo.rebuild(run.slice_rows):
            return True
        if (replay := self.redo.replay) is not None:
            return self._advance_replay(replay, now, more=more)
        if run.is_held() and run.sunion.stable_end > run.sunion.cursors.restart_point:
            return self._make_room(now)
        if (piece := self._release(now)) is None:
            return more if self._stays(now) else self._end(now)
        run.counts.redone_rows += len(piece)
        run.work.begin(piece, self.redo.stable(piece), Kind.STABLE)
        if more or run.work.open is not None or not self._only_news_is_left(now):
            return True
        return self._end(now)

    def _look_for_partner(self) -> None:
        """R5: resumes live during the redo once the partner has no fresh results."""
        run = self.run
        if not isinstance(self.live, PartnerServes) or run.partners.serves(self.live.partner):
            return
        self.live = LiveState.PAUSES
        if self._policy is not Policy.SUSPEND:
            if run.sunion.resume_live():
                run.live.take_over(self.redo)
            self.live = LiveState.RUNS
            run.do(Announce(self.state, True))

    def _advance_replay(self, replay: LogReplay, now: int, *, more: bool) -> bool:
        """Replays slices of the checkpoint log in redo (G4)."""
        run = self.run
        piece = run.sunion.release_redo(run.slice_rows, replay.end)
        if piece is None:
            return more if self._stays(now) else self._end(now)
        run.work.begin_again(self.redo.again(piece))
        return True

    def _make_room(self, now: int) -> bool:
        """Makes room where a full output holds back the corrections."""
        if self.live_runs:
            # Corrections are held back while live runs (V4), so only without it can consumers make room.
            self.run.sunion.pause_live()  # first: if a piece is on disk, this is called again
            self.live = LiveState.PAUSES
            self.run.do(Announce(self.state, False))
        elif isinstance(self.live, PartnerServes):
            # Consumers read our partner while we correct (F4): they read us, and make room, only when we are STABLE.
            return self._end(now)
        return False

    def _release(self, now: int) -> Slice | None:
        """Releases the next slice to redo; its wait counts if live pauses."""
        run = self.run
        if self.live_runs:
            return run.sunion.release_redo(run.slice_rows)
        return run.waits.measured(lambda: run.sunion.release_redo(run.slice_rows), now)

    # --- the end ---

    def _end(self, now: int) -> bool:
        """Ends the redo, after the log has got a requested state: the log is not written while tainted (G6)."""
        return self.run.log.wants(self.stable) or self._finish(now)

    def _only_news_is_left(self, now: int) -> bool:
        """R7: has redo of the only replica just passed live, which has released all that was due?

        With other replicas it must not end yet: a STABLE replica with much left to process would be preferred to
        fresher ones (F4), and would grant them leave, though it cannot stand in for them (K2).
        """
        run = self.run
        return self.live_runs and run.partners.nobody and run.sunion.redo_is_ahead and not self._stays(now)

    def _stays(self, now: int) -> bool:
        """R2: during a failure, forced rec_dones come X apart; between them redo follows its input.

        The beginning of a redo is never delayed: only a redo makes room.
        """
        run = self.run
        return (
            run.forced_at is not None
            and now - run.forced_at < run.node.x_us
            and self.live is not LiveState.PAUSES
            and not run.sunion.oldest_unstable_is_young(now, run.node.alpha_x_us)
        )

    def _finish(self, now: int) -> bool:
        """REC_DONE (R7).  A new failure follows in the same step, so that STABLE is not announced between.

        Returns:
          Is more of it due at once (B8)?
        """
        run = self.run
        assert run.work.open is None, "R7: redo ends between two slices"
        assert not self.redo.rebuilding, "R7: what becomes live is complete"
        run.finish_redo(self.redo)
        follows = run.has_stable  # stable, and news, or held back by a full buffer
        if run.live.replay is not None or (not follows and run.must_go_on(now)):
            run.forced_at = now
            return self.go_tentative(now, Transition.CAUGHT_UP_DUE)
        run.become(Transition.CAUGHT_UP)
        return follows

    # --- questions ---

    @property
    def maker(self) -> Instance:
        return self.redo

    @property
    def stable(self) -> Instance:
        return self.redo

    def replace_stable(self, instance: Instance) -> None:
        self.redo = instance

    def counters(self) -> dict[str, int]:
        return self.taint.counters if self.redo.rebuilding else self.redo.fragment.counters()

    def validate(self) -> None:
        run = self.run
        assert run.sunion.cursors.redo is not None, "R5: redo is STABILIZATION"
        assert not run.partners.pending, "R3: a request is open in UP_FAILURE only"
        self.redo.validate(tainted=False)
        if self.redo.replay is not None:
            assert run.sunion.cursors.redo <= self.redo.replay.end, "G4: a replay ends where the log does"
