"""RECOVERING: the replica catches up after its start, and does not serve (A3)."""

from __future__ import annotations

from consistency.dpc.mode import Mode
from consistency.dpc.slice_work import OpenSlice
from consistency.dpc.states import Transition
from spe.stream.names import NodeState


class Recovering(Mode):
    """Releases stable slices until the replica has caught up with its producers; then it serves."""

    state = NodeState.RECOVERING

    @property
    def serves(self) -> bool:
        return False

    def advance(self, now: int) -> bool:
        run = self.run
        if (replay := run.live.replay) is not None:
            if run.replay_slice(replay):
                return True
            # Where an input is missing, results continue without it, and the mark has the rest of the replay for redo.
            due = run.inputs.started(now) and run.must_go_on(now)
            return due and self.go_tentative(now, Transition.TENTATIVE)
        released = run.release_stable(now)
        if run.work.open is not None:
            return True
        run.checkpoint_if_due(now)
        if not run.has_stable:
            return self._leave(now)
        if not released:
            run.waits.hold(now)
            if run.inputs.started(now):
                run.become(Transition.CAUGHT_UP)  # only a serving replica gets acknowledgements, which make room
        return released

    def slice_through(self, slice: OpenSlice, now: int) -> None:
        if self.run.live.replay is None and not self.run.has_stable:
            self._leave(now)  # by the next call another slice may have come

    def _leave(self, now: int) -> bool:
        run = self.run
        if not run.inputs.started(now):
            return False
        if run.must_go_on(now):
            return self.go_tentative(now, Transition.TENTATIVE)
        if run.inputs.caught_up():
            run.become(Transition.CAUGHT_UP)
        return False
