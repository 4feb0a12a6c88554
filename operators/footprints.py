"""What an operator puts into a checkpoint log, slice by slice, and how it is made again from it (rules G2 to G4).

A *cell* is one group in one pane, or the open count window of one group.  Its *footprint* is its state at the end of a
slice, which holds exactly the rows before that time.  Footprints name groups by their keys, not by slots, which differ
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

#: The time of the footprint of a cell that has none.
UNWRITTEN: Final = BEFORE_TIME
#: A tree as in a snapshot.
Tree = Mapping[str, Any]
#: Cells of each pane (of pane 0, where there are none), ascending.
Picked = Sequence[tuple[int, IndexArray]]
#: More footprints than this are made of a snapshot, while the stream goes on.
LATER: Final = 1 << 15


class LiveFootprints(NamedTuple):
    """Footprints that count, or did: the time of each, and whether it is not final.  Many come in several parts."""

    times: Int64Array
    not_final: BoolArray


@dataclass(slots=True)
class Footprints:
    """What the end of a slice adds to the log.

    Attributes:
      closings: of groups whose newest footprint counts no more, and that have no open window; before the records.
      records: the footprints, each tree with those of many cells; those of many more are :attr:`later`.
      later: the state that the footprints are still to be made of, and the cells; None: all are in ``records``.
      count: how many footprints these are.
      rewritten: how many of them only because the older one was from too long ago.
      not_final: how many of them are not final (G3).
      replaced: older footprints that count no more, in parts.
      whole: the records are all there is: nothing that was written before counts.
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
    """Footprints that are still to be made.

    Attributes:
      operator: one like that whose they are; it is empty, and nobody else has it.
      state: whose footprints they are.
    """

    operator: Any
    state: Tree
    picked: Picked

    def records(self) -> list[Tree]:
        """All of them; may be called in a thread, once."""
        self.operator.restore(self.state)
        made: list[Tree] = finished(self.operator.records(self.picked))
        return made


@dataclass(slots=True)
class Rewriting:
    """What is written anew, oldest first: footprints from before a time, and some of those from then.

    Attributes:
      below: that time; UNWRITTEN: nothing is.
      most: how many from then there is still time for.
    """

    below: int = UNWRITTEN
    most: int = 0

    def chosen(self, written: Int64Array, counts: Callable[[int, int], BoolArray] | None = None) -> Steps[IndexArray]:
        """Which footprints these are, ascending, in portions.

        Args:
          written: the time of each, (n,).
          counts: (start, stop) -> which of these count; None: all.
        """
        if self.below == UNWRITTEN:
            return np.empty(0, np.intp)

        def older(start: int, stop: int) -> BoolArray:
            found: BoolArray = written[start:stop] < self.below
            return found if counts is None else found & counts(start, stop)

        def at_that_time(start: int, stop: int) -> BoolArray:
            found: BoolArray = written[start:stop] == self.below
            return found if counts is None else found & counts(start, stop)

        found = yield from where(len(written), older)
        if self.most > 0:
            some = (yield from where(len(written), at_that_time))[: self.most]
            self.most -= len(some)
            if len(some):
                found = np.sort(np.concatenate([found, some]))
        return found


class CellRecord(NamedTuple):
    """Attributes: ``time``: end of the slice that it was written in; ``closes``: is it a closing?"""

    time: int
    tree: Tree
    closes: bool = False


class KeepsCells(ABC):
    """An operator that can write footprints.

    What it writes at the end of a slice is in the log, or is *forgotten* at once (:meth:`forget_footprints`): else
    the log would lack it.
    """

    @abstractmethod
    def begin_log(self) -> None:
        """From now on it knows what is written.  Called once, before anything else."""

    @abstractmethod
    def footprints(self, end: int, again: Rewriting) -> Steps[Footprints]:
        """What the slice that has just ended adds to the log, in portions; nothing may come meanwhile.

        Args:
          end: of the slice.
          again: what is written anew.
        """

    @abstractmethod
    def forget_footprints(self) -> Steps[None]:
        """The next slice writes everything: what was written before counts no more, or may be missing."""

    @abstractmethod
    def live_footprints(self) -> Steps[list[LiveFootprints]]:
        """Those that count, of the present state, in portions; after a restore the log is counted anew."""

    @abstractmethod
    def log_state(self) -> Tree:
        """What a commit says beside the cells.  Its size does not depend on the number of groups."""

    @abstractmethod
    def reconstruct(self, state: Tree, start: Tree, logged: Sequence[CellRecord]) -> Steps[None]:
        """Makes the cells of a commit from their footprints (G4), in portions.

        Then the rows between the commits are given again; nothing is released for them, and no cell is made.  A row
        counts if its cell exists and its footprint is not after the row.  At last :meth:`replayed` is called.

        Args:
          state: of the commit, as :meth:`log_state` said it.
          start: the same of the commit that rows are replayed from.
          logged: what the log holds up to the commit, at least the newest footprint of each live cell, oldest first.

        Raises:
          LogCorrupt: a cell is missing.
        """

    @abstractmethod
    def replays_on(self) -> None:
        """It was given a snapshot of one that such rows are given, and is given the rest of them."""

    @abstractmethod
    def gave_up(self, state: Tree) -> None:
        """No more rows up to the commit come: some are missing, or others came than there had been."""

    @abstractmethod
    def replayed(self, state: Tree) -> None:
        """All rows up to the commit were given again.

        Raises:
          LogCorrupt: not as many as there had been.
        """


class PicksCells(KeepsCells):
    """One that finds its cells by number, so that many footprints are made of a snapshot, while the stream goes on."""

    @abstractmethod
    def records(self, picked: Picked) -> Steps[list[Tree]]:
        """Footprints of these cells, as they are now, in portions."""

    @abstractmethod
    def snapshot(self) -> Tree:
        """As that of every operator."""

    def put(self, found: Footprints, picked: Picked) -> Steps[None]:
        """Puts the footprints of these cells to what was found, or where they are many what they can be made of."""
        if found.count > LATER:
            found.later = self.snapshot(), picked
        else:
            found.records = yield from self.records(picked)
