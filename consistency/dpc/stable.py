"""STABLE: all inputs arrive, and each bucket is released once complete (B1)."""

from __future__ import annotations

from consistency.dpc.mode import Mode
from consistency.dpc.states import Transition
from spe.stream.names import NodeState


class Stable(Mode):
    """Releases stable buckets; once the next one has waited for αX it goes tentative (T3)."""

    state = NodeState.STABLE

    def advance(self, now: int) -> bool:
        run = self.run
        released = run.release_stable(now)
        if run.work.open is not None:
            return True
        run.checkpoint_if_due(now)
        if run.has_stable:
            if not released:
                run.waits.hold(now)
            return released
        return run.must_go_on(now) and self.go_tentative(now, Transition.TENTATIVE)

    def stands_in(self, now: int) -> bool:
        return all(self.run.inputs.fresh(now))

    def validate(self) -> None:
        super().validate()
        assert self.replay is None, "G4: STABLE means that the state is whole"
