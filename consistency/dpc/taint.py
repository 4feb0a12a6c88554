"""Tentative releases since n*, until a redo corrects them (C1, T3, T9, R1, R2)."""

from __future__ import annotations

from contextlib import suppress

from consistency.dpc.snapshots import SnapshotWork
from consistency.dpc.unit_run import UnitRun
from spe.errors import OperatorFailed
from spe.plan.nodes import Policy
from spe.stream.names import Kind


class Taint:
    """The taint of a replica, from the first tentative release to the end of the redo that corrects it.

    Making it takes the checkpoint, which holds nothing tentative (C1), unless there is a periodic one.

    Attributes:
      mark: beginning of the redo: at n*, or at the last periodic checkpoint.
      counters: counters of the operators at n* (U7).
      snapshot: makes the state at the mark, for a partner (A3).
    """

    def __init__(self, run: UnitRun) -> None:
        assert run.work.open is None, "C1: a checkpoint is taken between two slices"
        self._run = run
        self.mark = run.mark or run.live.mark(run.sunion.next)
        run.mark = None
        self.snapshot = SnapshotWork(lambda: run.live.checkpoint_at(self.mark))
        self.counters: dict[str, int] = {}
        with suppress(OperatorFailed):  # counters are for people, and the status shows the error
            self.counters = run.live.fragment.counters()
        #: Since when a redo could begin; None: it could not.
        self._correctable_since: int | None = None
        run.sunion.taint()

    def release(self, now: int, policy: Policy, *, correctable: bool = False) -> bool:
        """Releases one due slice; returns whether there is more.

        Args:
          correctable: a redo could begin, or runs: rows that it releases soon are not shown as tentative (T9).
        """
        run = self._run
        if policy is Policy.SUSPEND:
            return False
        wait_us = 0 if policy is Policy.PROCESS else run.node.alpha_x_us
        end = run.due(now, wait_us)
        if correctable and end is not None and policy is Policy.PROCESS and self._awaits_correction(end, now):
            end = run.due(now, run.node.hard_us)
        if end is None:
            return False
        replay = run.live.replay
        upto = end if replay is None else min(end, replay.end)
        piece = run.waits.measured(lambda: run.sunion.release_tentative(upto, run.slice_rows), now)
        assert piece is not None, "B6: what is due has a length"
        run.work.begin(piece, run.live.tentative(piece), Kind.TENTATIVE)
        return run.work.open is not None or piece.end < end

    def _awaits_correction(self, end: int, now: int) -> bool:
        """T9: are all complete rows up to ``end`` stable, and will a redo soon release them in one slice?

        A correction that takes longer than *hard* is not waited for: results stay as fresh as before.
        """
        sunion = self._run.sunion
        if end > sunion.stable_end or not sunion.redo_is_short(self._run.slice_rows):
            return False
        if self._correctable_since is None:
            self._correctable_since = now
        return now - self._correctable_since < self._run.node.hard_us

    def forget_correction(self) -> None:
        """Resets the wait for a redo, which may not begin any more."""
        self._correctable_since = None

    def is_correctable(self, now: int) -> bool:
        """May a redo begin?  If it would leave us stable (R1), or if kept data or a full upstream need room (R2)."""
        run, sunion = self._run, self._run.sunion
        restart = sunion.cursors.restart
        assert restart is not None, "C1: n* is where tentative releases began"
        if self.mark.replay is not None and sunion.stable_end < self.mark.replay.end:
            # A redo would only continue the replay: that makes room, and corrects nothing.
            return run.is_crowded and sunion.stable_end > restart
        if sunion.stable_end <= restart:
            return self._makes_room(restart, now)
        if run.is_crowded:
            return True
        return sunion.oldest_unstable_is_young(now, run.node.alpha_x_us) and run.inputs.arriving(now)

    def _makes_room(self, restart: int, now: int) -> bool:
        """Would a redo without input make room in a full upstream?

        Input may wait for room, which only a mark at n* makes (A1), or the log, which gets the state at n* only from a
        redo (G6).
        """
        run = self._run
        behind = self.mark.restart < restart or run.log.takes(restart)
        waited = now - max(run.marked_at, run.forced_at or 0) >= run.node.x_us
        return behind and waited and run.inputs.upstream_full()
