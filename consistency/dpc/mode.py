"""A mode of a replica: what it does in one state of the table (consistency/dpc/states.py)."""

from __future__ import annotations

from typing import ClassVar

from consistency.dpc.instance import Checkpoint, Instance, LogReplay
from consistency.dpc.slice_work import OpenSlice
from consistency.dpc.states import Transition
from consistency.dpc.taint import Taint
from consistency.dpc.unit_run import UnitRun
from spe.stream.names import NodeState


class Mode:
    """What the modes have in common: the live instance makes the stable results, and no request is open.

    Attributes:
      state: of the table.
    """

    state: ClassVar[NodeState]

    def __init__(self, run: UnitRun) -> None:
        self.run = run

    # --- events ---

    def advance(self, now: int) -> bool:
        """Does what can be done now; returns whether more is waiting."""
        raise NotImplementedError

    def slice_through(self, slice: OpenSlice, now: int) -> None:
        """A slice that took several steps is through: what had to wait for that follows."""

    def granted(self, number: int, now: int) -> None:
        """A partner grants a request; it counts only where one is open (K1)."""

    def replayed(self, now: int) -> None:
        """All slices of the checkpoint log have come again (G4)."""

    # --- questions ---

    @property
    def serves(self) -> bool:
        """Do consumers wait for this replica?"""
        return True

    @property
    def live_runs(self) -> bool:
        """Do live results go on while a redo corrects (R5)?"""
        return False

    def stands_in(self, now: int) -> bool:
        """K6: has this replica fresh results for the consumers of a partner that reconciles?"""
        return False

    @property
    def maker(self) -> Instance:
        """The instance that makes the next stable slice, or would after a redo."""
        return self.run.live

    @property
    def stable(self) -> Instance | None:
        """The instance with the state at the end of the last stable slice; None: there is a mark of it only."""
        return self.run.live

    def replace_stable(self, instance: Instance) -> None:
        """Another instance with the same state takes its place."""
        self.run.live = instance

    @property
    def replay(self) -> LogReplay | None:
        """What of the checkpoint log was not replayed yet: until it is, there is no whole stable state (G4)."""
        return None if self.stable is None else self.stable.replay

    def counters(self) -> dict[str, int]:
        """Counters of the operators, of stable processing only (U7)."""
        return self.run.live.fragment.counters()

    # --- snapshots (A3), of a state that is whole, between two slices ---

    def prepare_snapshot(self) -> bool:
        """Does a portion of what must come before :meth:`snapshot`; True: there is more."""
        return self.maker.rebuild(self.run.slice_rows)

    def snapshot(self) -> tuple[Checkpoint, list[int]]:
        """State at the end of the last stable slice, and the input positions that go with it."""
        while self.prepare_snapshot():
            pass
        # Rows since a periodic checkpoint are held for a redo here; a partner that installs this begins behind it.
        end = self.run.sunion.cursors.released
        return self.maker.checkpoint(end), self.run.sunion.needed_from(end)

    # --- invariants ---

    def validate(self) -> None:
        """Asserts what holds between two events in this mode."""
        assert not self.run.sunion.tainted, f"U8: tainted in state {self.state.name}"
        assert self.run.sunion.cursors.redo is None, "R5: redo is STABILIZATION"
        assert not self.run.partners.pending, "R3: a request is open in UP_FAILURE only"

    # --- what several modes do ---

    def go_tentative(self, now: int, transition: Transition) -> bool:
        """The checkpoint comes before the first tentative release (C1); suspend announces, and taints nothing (T6).

        Returns:
          Is more due at once, beyond what one step may take (B8)?
        """
        run = self.run
        assert run.work.open is None, "C1: a checkpoint is taken between two slices"
        taint = None if run.suspends else Taint(run)
        run.become(transition, taint)
        return taint is not None and taint.release(now, run.node.during_failure)
