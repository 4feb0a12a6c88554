"""The contract of every operator: one page.

A unit's SUnion cuts tuple time into slices and the fragment runs each slice through all operators, in topological
order, in one synchronous pass.  So an operator is called once per slice:

    step((rows of port 0, rows of port 1, …), boundary) -> rows | None

The rows of each port are sorted by time and lie in [previous boundary, boundary); ties in time keep the order of the
stream.  No later call brings a time below ``boundary``.  What the operator returns is sorted by time and lies in the
same slice (rule U5), so the next operator can merge its ports by (time, port, position) at once (U4), and no
operator ever waits for another.

* **Cut invariance (U3).**  Cutting the same input at other times gives the same output tuples in the same order.
* **A tuple with time t is also a boundary t (U2).**  What ends at ≤ t is released *before* the tuple is taken in.
* **Determinism.**  Output depends on the order of input only: no clock, no hash(), no set order, no string codes.
  Float accumulation happens in row order (``np.add.at``), never per batch.
* **Kinds are invisible (U8).**  Nobody below SOutput knows whether a slice is tentative.
* **snapshot() is cheap and immutable.**  It returns references; what a later step writes to is saved or copied before.
  It is a tree of dict, list, tuple, int, float, str, bool, None, bytes, numpy arrays, FrozenArray, Column, Rows and
  StringDictionary, so it can be stored and sent (spe.wire.state; a FrozenArray becomes an array).  ``restore`` accepts
  it any number of times, in any process.
* **A step is bounded (B8).**  What takes time that grows with the state is divided into portions: see
  :class:`StepwiseOperator`.
* **State can be made again (undo/redo).**  ``clear``, then the input from the slice that holds ``oldest_needed`` on,
  cut anywhere, give the same state again; what the operator releases meanwhile is dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from operators.rejections import Refusals
from operators.steps import Steps
from spe.stream.batch import Rows, concat_rows
from spe.stream.schema import Schema

#: What snapshot() returns: a tree of plain values, arrays, Columns, Rows and StringDictionaries.
OperatorState = Mapping[str, Any]


class Operator(ABC):
    """A vertex of the query, running."""

    #: Schema of the output rows.
    schema: Schema

    @abstractmethod
    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        """Takes the slice's rows of each port (None: no rows) and its end; returns the rows it releases, or None."""

    #: Can the rows of one slice be given in several calls of :meth:`work`?  Rows may then have the time of the boundary
    #: that they come with, if more rows of this time follow.
    takes_portions: bool = False
    #: Where it says what it goes on without (``on_error: skip``, ``on_late: reject``); None: it does not say so.
    refusals: Refusals | None = None

    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        """The same as :meth:`step`, in portions: yields rows that it releases, and None between two portions."""
        rows = self.step(ports, boundary)
        if rows is not None:
            yield rows

    def load(self) -> bool:
        """Does a portion of what a restore has left to do; returns whether there is more.  A step does what is left."""
        return False

    def snapshot(self) -> OperatorState:
        """The state, by reference.  Stateless operators have none."""
        return {}

    def restore(self, state: OperatorState) -> None:  # noqa: B027 - stateless operators have nothing to restore
        """Puts back a snapshot; the snapshot stays usable."""

    def counters(self) -> Mapping[str, int]:
        """Counts that are part of the state (checkpointed, rolled back), e.g. tuples dropped as late."""
        return {}

    # --- undo/redo: the paper's find_oldest_tuple and clear ---

    def oldest_needed(self) -> int | None:
        """Tuple time, microseconds, of the oldest tuple that the state, or a mark in it, still owes something to.

        None: there is no state now.  BEFORE_TIME: it reaches back without bound, so nothing short of everything would
        make it again, and it is kept as a snapshot.
        """
        return None

    def clear(self, boundary: int) -> None:  # noqa: B027 - stateless operators have nothing to clear
        """As if nothing had come before ``boundary``."""

    def recount(self, counters: Mapping[str, int]) -> None:  # noqa: B027 - most count nothing
        """What :meth:`counters` returns from now on: giving tuples again has counted some of them twice."""

    def rewind(self, boundary: int) -> bool:
        """Stands at the earlier ``boundary`` again: since then no rows came and none were released.

        Returns:
          False where passing time alone has changed the state, or may have: it has to be made again.
        """
        return False


class StepwiseOperator(Operator):
    """An operator that divides its work into portions.

    A subclass defines :meth:`work` and :meth:`_restoring`.  Between two portions of a slice its state must not
    be used: the caller finishes the slice first.
    """

    takes_portions = True
    _left: Steps[None] | None = None

    @abstractmethod
    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        """See :class:`Operator`.  Begins with ``yield from self._restored()``."""

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        released = [rows for rows in self.work(ports, boundary) if rows is not None]
        return concat_rows(released) if released else None

    @abstractmethod
    def _restoring(self, state: OperatorState) -> Steps[None]:
        """Puts back a snapshot, in portions: at first what is small, so that the questions below have their answers."""

    def restore(self, state: OperatorState) -> None:
        self._left = self._restoring(state)
        self.load()

    def load(self) -> bool:
        if self._left is not None:
            for _ in self._left:
                return True
            self._left = None
        return False

    def _restored(self) -> Iterator[None]:
        while self.load():
            yield

    def _finish_restore(self) -> None:
        while self.load():
            pass
