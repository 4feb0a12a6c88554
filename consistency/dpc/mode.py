"""A mode of a replica: its behaviour in one state of the table (consistency/dpc/states.py)."""

from __future__ import annotations

from typing import ClassVar

from consistency.dpc.instance import Checkpoint, Instance, LogReplay
from consistency.dpc.slice_work import OpenSlice
from consistency.dpc.states import Transition
from consistency.dpc.taint import Taint
from consistency.dpc.unit_run import UnitRun
from spe.stream.names import NodeState


class Mode:
    """Base of the modes: the live instance makes the stable results, and no request is open.

    Attributes:
      state: state of the table.
    """

    state: ClassVar[NodeState]

    def __init__(self, run: UnitRun) -> None:
        self.run = run

    # --- events ---

    def advance(self, now: int) -> bool:
        """Does what can be done now; returns whether more is waiting."""
        raise NotImplementedError

    def slice_through(self, slice: OpenSlice, now: int) -> None:
        """Follows the end of a slice that took several steps: does the work that waited for it."""

    def granted(self, number: int, now: int) -> None:
        """Takes a partner's grant, which is valid only for an open request (K1)."""

    def replayed(self, now: int) -> None:
        """Follows the end of a replay of the checkpoint log (G4)."""

    # --- questions ---

    @property
    def serves(self) -> bool:
        """Do consumers wait for this replica?"""
        return True

    @property
    def live_runs(self) -> bool:
        """Do live results continue while a redo corrects (R5)?"""
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
        """The instance with the state at the end of the last stable slice; None: there is only a mark of it."""
        return self.run.live

    def replace_stable(self, instance: Instance) -> None:
        """Replaces it by an instance with the same state."""
        self.run.live = instance

    @property
    def replay(self) -> LogReplay | None:
        """The rest of a replay of the checkpoint log; while there is one, the stable state is not complete (G4)."""
        return None if self.stable is None else self.stable.replay

    def counters(self) -> dict[str, int]:
        """Returns the operators' counters, of stable processing only (U7)."""
        return self.run.live.fragment.counters()

    # --- snapshots (A3), of a complete state, between two slices ---

    def prepare_snapshot(self) -> bool:
        """Does a portion of the preparation of :meth:`snapshot`; True: there is more."""
        return self.maker.rebuild(self.run.slice_rows)

    def snapshot(self) -> tuple[Checkpoint, list[int]]:
        """Returns the state at the end of the last stable slice, and its input positions."""
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

    # --- shared by several modes ---

    def go_tentative(self, now: int, transition: Transition) -> bool:
        """Checkpoints before the first tentative release (C1); under suspend only announces the failure (T3).

        Returns:
          Is more due at once, beyond what one step may take (B8)?
        """
        run = self.run
        assert run.work.open is None, "C1: a checkpoint is taken between two slices"
        taint = None if run.suspends else Taint(run)
        run.become(transition, taint)
        return taint is not None and taint.release(now, run.node.during_failure)
