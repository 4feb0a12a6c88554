"""The state at a mark, made in portions for a partner that restarts (A3)."""

from __future__ import annotations

from collections.abc import Callable

from consistency.dpc.instance import Checkpoint
from operators.steps import Steps


class SnapshotWork:
    """Makes one state at a time, which is handed over once.

    Args:
      begin: begins to make the state; with undo/redo operators get their input again.
    """

    def __init__(self, begin: Callable[[], Steps[Checkpoint]]) -> None:
        self._begin = begin
        self._steps: Steps[Checkpoint] | None = None
        self._state: Checkpoint | None = None

    def go_on(self) -> bool:
        """Does a portion; True: there is more.  Raises OperatorFailed."""
        if self._state is not None:
            return False
        if self._steps is None:
            self._steps = self._begin()
        try:
            next(self._steps)
        except StopIteration as end:
            self._state, self._steps = end.value, None
            return False
        return True

    def take(self) -> Checkpoint:
        """Returns the state, after finishing the work at once."""
        while self.go_on():
            pass
        state, self._state = self._state, None
        assert state is not None, "A3: a snapshot is of a complete state"
        return state
