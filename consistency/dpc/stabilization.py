"""STABILIZATION: a redo makes what was tentative again, now from complete inputs (R5-R7)."""

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
    """What the live instance does beside a redo, where no partner serves in its place (R5)."""

    RUNS = enum.auto()
    PAUSES = enum.auto()


@dataclass(frozen=True, slots=True)
class PartnerServes:
    """A partner has granted leave to reconcile: live pauses while it has fresh results for our consumers."""

    partner: str


class Stabilization(Mode):
    """Restores the checkpoint into a second instance, *redo*, which takes the stable slices from there on.

    *Live* takes turns with it, or pauses.  When redo has caught up it becomes live.

    Args:
      taint: what is corrected.
      partner: has granted leave, and serves meanwhile; None: there is none.

    Attributes:
      redo: the instance that corrects.
      live: what live does, or which partner serves in its place.
    """

    state = NodeState.STABILIZATION

    def __init__(self, run: UnitRun, taint: Taint, partner: str | None) -> None:
        assert run.work.open is None, "R5: a redo begins between two slices"
        super().__init__(run)
        run.partners.withdraw()
        self.taint = taint
        self.redo = run.live.back(taint.mark)
        #: The policy for live: another one counts from the next redo on (X3).
        self._policy = run.node.during_stabilization
        self.live: LiveState | PartnerServes
        if partner is not None:
            self.live = PartnerServes(partner)
        else:
            self.live = LiveState.PAUSES if self._policy is Policy.SUSPEND else LiveState.RUNS
        #: Live has worked on a slice in several portions: the next one may be due already, but it is redo's turn (R5).
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
        """R5: once the partner has no fresh results any more, live goes on beside the redo."""
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
        """Redo takes the slices of the checkpoint log once more (G4)."""
        run = self.run
        piece = run.sunion.release_redo(run.slice_rows, replay.end)
        if piece is None:
            return more if self._stays(now) else self._end(now)
        run.work.begin_again(self.redo.again(piece))
        return True

    def _make_room(self, now: int) -> bool:
        """A full output holds back the corrections."""
        if self.live_runs:
            # Corrections are held back while live runs (V4), so only without it can consumers make room.
            self.run.sunion.pause_live()  # first: where a piece is on disk it is called again
            self.live = LiveState.PAUSES
            self.run.do(Announce(self.state, False))
        elif isinstance(self.live, PartnerServes):
            # Consumers read our partner while we correct (F4): only as STABLE are we read, and given room.
            return self._end(now)
        return False

    def _release(self, now: int) -> Slice | None:
        """The next slice for redo.  Where live pauses, consumers have waited for it."""
        run = self.run
        if self.live_runs:
            return run.sunion.release_redo(run.slice_rows)
        return run.waits.measured(lambda: run.sunion.release_redo(run.slice_rows), now)

    # --- the end ---

    def _end(self, now: int) -> bool:
        """Ends the redo, once the log has its state if it asks for it: nothing is written while tainted (G6)."""
        return self.run.log.wants(self.stable) or self._finish(now)

    def _only_news_is_left(self, now: int) -> bool:
        """R7: has redo, of a replica that is the only one, just passed live, which has released all that was due?

        Where there are others it must not be: STABLE with a flood still to be worked off would be preferred to fresher
        replicas (F4), and would let them correct, as if it could stand in for them (K2).
        """
        run = self.run
        return self.live_runs and run.partners.nobody and run.sunion.redo_is_ahead and not self._stays(now)

    def _stays(self, now: int) -> bool:
        """R2: while a failure goes on, forced rec_dones come X apart; in between redo goes on as far as input does.

        Beginning a redo is never put off: only that makes room.
        """
        run = self.run
        return (
            run.forced_at is not None
            and now - run.forced_at < run.node.x_us
            and self.live is not LiveState.PAUSES
            and not run.sunion.oldest_unstable_is_young(now, run.node.alpha_x_us)
        )

    def _finish(self, now: int) -> bool:
        """REC_DONE (R7).  A failure that came meanwhile follows in the same step, so nobody sees a false STABLE.

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
