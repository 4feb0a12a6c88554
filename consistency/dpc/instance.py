"""One running copy of a unit's operators, and how it gets back behind tentative data: checkpoint/redo.

A replica has up to two instances (docs/rules.md R5): *live*, and *redo*, which a mark brings back.  Here the mark is
a snapshot by reference; consistency.undo_redo has the other way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from operators.fragment import Fragment, Watch
from operators.soutput import SOutput
from operators.sunion.sunion import Slice
from spe.plan.plan import Unit
from spe.stream.batch import Element


class Mark(Protocol):
    """A place that an instance can be brought back to."""

    @property
    def restart(self) -> int:
        """Tuple time, microseconds: everything below is processed, nothing tentative is in it."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a replica at ``restart``; a Mark, and what a restarting replica installs."""

    restart: int
    fragment: Mapping[str, Any]
    outputs: Sequence[Mapping[str, Any]]


class Instance:
    """Operators and the counters of their outputs."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self.fragment = Fragment(unit)
        self.outputs = [SOutput(stream) for stream in unit.outputs]
        #: Rows that operators were given once more to make their state again.
        self.rebuilt = 0

    def stable(self, piece: Slice) -> list[list[Element]]:
        """Elements of each output for a stable slice.  Raises OperatorFailed."""
        results = self.fragment.step(piece, self._watch_stable())
        return [o.stable(rows, piece.end) for o, rows in zip(self.outputs, results, strict=True)]

    def tentative(self, piece: Slice) -> list[list[Element]]:
        """Elements of each output for a tentative slice.  Raises OperatorFailed."""
        results = self.fragment.step(piece, self._watch_tentative())
        return [o.tentative(rows, piece.end) for o, rows in zip(self.outputs, results, strict=True)]

    def checkpoint(self, restart: int) -> Checkpoint:
        """The state by reference."""
        return Checkpoint(restart, self.fragment.snapshot(), [o.snapshot() for o in self.outputs])

    def install(self, checkpoint: Checkpoint) -> None:
        self.fragment.restore(checkpoint.fragment)
        for output, state in zip(self.outputs, checkpoint.outputs, strict=True):
            output.restore(state)

    def mark(self, restart: int) -> Mark:
        """Remembers the present state, which is that at ``restart``."""
        return self.checkpoint(restart)

    def back(self, mark: Any) -> Instance:
        """A second instance, at one of our marks; it is complete when :meth:`rebuild` says so."""
        assert isinstance(mark, Checkpoint)
        redo = type(self)(self._unit)
        redo.fragment.restore(mark.fragment)
        self._put_back_outputs(redo, mark.outputs)
        return redo

    @property
    def rebuilding(self) -> bool:
        return False

    def rebuild(self, max_rows: int) -> bool:
        """Works on the state of an instance that was brought back; True: there is more to do (R6)."""
        return False

    def _put_back_outputs(self, redo: Instance, states: Sequence[Mapping[str, Any]]) -> None:
        """What we let through since the mark, the copy will recognise and drop (R8)."""
        for ours, theirs, state in zip(self.outputs, redo.outputs, states, strict=True):
            theirs.restore(state, ours.released())

    def _watch_stable(self) -> Watch | None:
        return None

    def _watch_tentative(self) -> Watch | None:
        return None
