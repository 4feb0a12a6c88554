"""Works on a slice in portions (B8): between them the node does other work, but the unit starts nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from consistency.dpc.events import Action, Emit, Reject
from consistency.dpc.instance import Released
from consistency.dpc.partners import Alone
from operators.sunion.slice import Slice
from spe.stream.names import Kind


@dataclass(slots=True)
class OpenSlice:
    """A slice in work; the unit starts nothing else before its end.

    Attributes:
      portions: the rest of the work.
      kind: kind of the results.
      for_log: the work is for the checkpoint log, and makes no results.
      leave: leave to reconcile after the slice (R4): number of the granted request, or no partner was left.
    """

    portions: Iterator[Released]
    kind: Kind
    for_log: bool = False
    leave: int | Alone | None = None


class SliceWork:
    """The work on one slice at a time.

    Args:
      do: takes the actions that emit results.

    Attributes:
      open: the slice in work, if it needs more than one step; None between two slices.
      largest: rows of the largest slice so far.
    """

    def __init__(self, do: Callable[[Action], None]) -> None:
        self._do = do
        self.open: OpenSlice | None = None
        self.largest = 0

    @property
    def is_for_log(self) -> bool:
        """Is the open slice for the log?"""
        return self.open is not None and self.open.for_log

    def begin(self, piece: Slice, portions: Iterator[Released], kind: Kind) -> None:
        """Does the first portion of the work on a slice; ``open`` is None if that was all."""
        assert kind is Kind.TENTATIVE or piece.kind is Kind.STABLE, "U8: only a stable slice makes stable results"
        self.largest = max(self.largest, len(piece))
        self._run(OpenSlice(portions, kind))

    def begin_again(self, portions: Iterator[Released]) -> None:
        """Begins a replayed slice, which makes no results (G4)."""
        self._run(OpenSlice(portions, Kind.STABLE))

    def begin_log(self, portions: Iterator[Released]) -> None:
        """Begins work for the checkpoint log."""
        self._run(OpenSlice(portions, Kind.STABLE, for_log=True))

    def go_on(self) -> OpenSlice | None:
        """Does the next portion of the open slice; returns the slice if that was the last."""
        assert self.open is not None, "B8: a portion belongs to a slice"
        before, self.open = self.open, None  # an operator that raises leaves it closed
        self._run(before)
        return None if self.open is before else before

    def _run(self, slice: OpenSlice) -> None:
        assert self.open is None, "B8: one slice at a time"
        for released in slice.portions:
            if released is None:
                self.open = slice
                return
            if isinstance(released, tuple):
                self._do(Emit(slice.kind, *released))
            else:
                self._do(Reject(released))
