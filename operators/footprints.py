"""Footprints: the records of an operator in a checkpoint log, and its reconstruction from them (rules G2 to G4).

A *cell* is one group in one pane, or the open count window of one group.  Its *footprint* is its state at the end of a
slice, including exactly the rows before that time.  Footprints name groups by their keys, not by slots, which differ
between replicas and after a restart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from operators.columns import where
from operators.ids import IndexArray
from operators.steps import Steps, finished
from spe.stream.batch import BoolArray, Int64Array
from spe.stream.times import BEFORE_TIME

#: Time that stands for a missing footprint.
UNWRITTEN: Final = BEFORE_TIME
#: A tree as in a snapshot.
Tree = Mapping[str, Any]
#: Cells of each pane (of pane 0, if there are no panes), ascending.
Picked = Sequence[tuple[int, IndexArray]]
#: Number of footprints above which they are made from a snapshot, while the stream goes on.
LATER: Final = 1 << 15


class LiveFootprints(NamedTuple):
    """Valid or replaced footprints: the time of each, and whether it is not final.  Many come in several parts."""

    times: Int64Array
    not_final: BoolArray


@dataclass(slots=True)
class Footprints:
    """Additions to the log at the end of a slice.

    Attributes:
      closings: records that invalidate the newest footprint of groups without an open window; before ``records``.
      records: the footprints, each tree with those of many cells; too many footprints are in :attr:`later`.
      later: the state from which the footprints are to be made, and the cells; None: all are in ``records``.
      count: number of footprints.
      rewritten: number of footprints that replace unchanged, old ones.
      not_final: number of footprints that are not final (G2).
      replaced: older footprints that are not valid any more, in parts.
      whole: the records are complete: no earlier record is valid.
    """

    closings: list[Tree] = field(default_factory=list)
    records: list[Tree] = field(default_factory=list)
    count: int = 0
    rewritten: int = 0
    not_final: int = 0
    replaced: list[LiveFootprints] = field(default_factory=list)
    whole: bool = False
    later: tuple[Tree, Picked] | None = None


class Later(NamedTuple):
    """Footprints that are to be made later.

    Attributes:
      operator: an empty operator of the same kind, not used elsewhere.
      state: the state with the cells.
    """

    operator: Any
    state: Tree
    picked: Picked

    def records(self) -> list[Tree]:
        """Makes all footprints; may be called in a thread, once."""
        self.operator.restore(self.state)
        made: list[Tree] = finished(self.operator.records(self.picked))
        return made


@dataclass(slots=True)
class Rewriting:
    """Selects old footprints to rewrite, oldest first: those before a time, and some of those at that time.

    Attributes:
      below: the time; UNWRITTEN: nothing is rewritten.
      most: number of footprints at that time that may still be rewritten.
    """

    below: int = UNWRITTEN
    most: int = 0

    def chosen(self, written: Int64Array, counts: Callable[[int, int], BoolArray] | None = None) -> Steps[IndexArray]:
        """Returns the selected footprints, ascending, in portions.

        Args:
          written: times of the footprints, shape (n,).
          counts: (start, stop) -> mask of the valid ones; None: all.
        """
        if self.below == UNWRITTEN:
            return np.empty(0, np.intp)

        def older(start: int, stop: int) -> BoolArray:
            is_older: BoolArray = written[start:stop] < self.below
            return is_older if counts is None else is_older & counts(start, stop)

        def at_that_time(start: int, stop: int) -> BoolArray:
            is_then: BoolArray = written[start:stop] == self.below
            return is_then if counts is None else is_then & counts(start, stop)

        selected = yield from where(len(written), older)
        if self.most > 0:
            some = (yield from where(len(written), at_that_time))[: self.most]
            self.most -= len(some)
            assert self.most >= 0, "G7: no more is written anew than there is time for"
            if len(some):
                selected = np.sort(np.concatenate([selected, some]))
        return selected


class CellRecord(NamedTuple):
    """A record of an operator: ``time`` is the end of its slice; ``closes``: it is a closing."""

    time: int
    tree: Tree
    closes: bool = False


class KeepsCells(ABC):
    """An operator that can write footprints.

    The caller must write its footprints to the log, or call :meth:`forget_footprints` at once: otherwise the log would
    lack them.
    """

    @abstractmethod
    def begin_log(self) -> None:
        """Starts to track footprints.  Called once, before anything else."""

    @abstractmethod
    def footprints(self, end: int, again: Rewriting) -> Steps[Footprints]:
        """Returns the additions of the slice that has just ended, in portions; no rows may come before the end.

        Args:
          end: end of the slice.
          again: selects old footprints to rewrite.
        """

    @abstractmethod
    def forget_footprints(self) -> Steps[None]:
        """Invalidates all footprints: the next slice writes everything."""

    @abstractmethod
    def live_footprints(self) -> Steps[list[LiveFootprints]]:
        """Returns the valid footprints of the present state, in portions; a restore counts them again."""

    @abstractmethod
    def log_state(self) -> Tree:
        """Returns the part of a commit besides the cells.  Its size does not depend on the number of groups."""

    @abstractmethod
    def reconstruct(self, state: Tree, start: Tree, logged: Sequence[CellRecord]) -> Steps[None]:
        """Reconstructs the cells of a commit from their footprints (G4), in portions.

        Then the rows between the commits are replayed, without results and without new cells.  A row counts if its
        cell exists and its footprint is not later than the row.  Finally :meth:`replayed` is called.

        Args:
          state: :meth:`log_state` of the commit.
          start: :meth:`log_state` of the commit from which rows are replayed.
          logged: records up to the commit, with at least the newest footprint of each live cell, oldest first.

        Raises:
          LogCorrupt: a cell is missing.
        """

    @abstractmethod
    def replays_on(self) -> None:
        """Continues the replay of another operator, whose snapshot was restored."""

    @abstractmethod
    def gave_up(self, state: Tree) -> None:
        """Ends a replay without success: rows are missing, or other rows came."""

    @abstractmethod
    def replayed(self, state: Tree) -> None:
        """Ends a replay after all rows up to the commit.

        Raises:
          LogCorrupt: the number of rows differs.
        """


class PicksCells(KeepsCells):
    """An operator with numbered cells: many footprints can be made from a snapshot while the stream goes on."""

    @abstractmethod
    def records(self, picked: Picked) -> Steps[list[Tree]]:
        """Returns the present footprints of these cells, in portions."""

    @abstractmethod
    def snapshot(self) -> Tree:
        """Returns a snapshot, as every operator."""

    def put(self, footprints: Footprints, picked: Picked) -> Steps[None]:
        """Adds the footprints of these cells, or, if there are many, the snapshot to make them from."""
        if footprints.count > LATER:
            footprints.later = self.snapshot(), picked
        else:
            footprints.records = yield from self.records(picked)
