"""The contract of every operator.

A unit's SUnion cuts tuple time into slices and the fragment runs each slice through all operators, in topological
order, in one synchronous pass.  So an operator is called once per slice:

    step((rows of port 0, rows of port 1, …), boundary) -> rows | None

The rows of each port are sorted by time and lie in [previous boundary, boundary); ties in time keep the order of the
stream.  No later call brings a time below ``boundary``.  The result is sorted by time and lies in the same slice
(rule U5), so the next operator can merge its ports by (time, port, position) at once (U2), and no operator ever waits
for another.

* **Cut invariance (U3).**  Cutting the same input at other times gives the same output tuples in the same order.
* **A tuple with time t is also a boundary t (U2).**  Windows that end at ≤ t are released *before* the tuple counts.
* **Determinism.**  Output depends on the order of input only: no clock, no hash(), no set order, no string codes.
  Float accumulation happens in row order (``np.add.at``), never per batch.
* **Kinds are invisible (U8).**  Operators do not know whether a slice is tentative; SOutput marks its results.
* **snapshot() is cheap and immutable.**  It returns references; later steps save or copy entries before writing.
  It is a tree of dict, list, tuple, int, float, str, bool, None, bytes, numpy arrays, FrozenArray, Column, Rows and
  StringDictionary, so it can be stored and sent (spe.wire.state; a FrozenArray becomes an array).  ``restore`` accepts
  it repeatedly, in any process.
* **A step is bounded (B8).**  Work that grows with the state is divided into portions: see :class:`StepwiseOperator`.
* **State can be rebuilt (undo/redo).**  ``clear``, then the input from the slice with ``oldest_needed`` on, cut
  anywhere, give the same state again; results during this are dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from operators.rejections import Refusals
from operators.steps import Steps
from spe.stream.batch import Rows, concat_rows
from spe.stream.schema import Schema

#: A snapshot: a tree of plain values, arrays, Columns, Rows and StringDictionaries.
OperatorState = Mapping[str, Any]


class Operator(ABC):
    """A running operator of the query."""

    #: Schema of the output rows.
    schema: Schema

    @abstractmethod
    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        """Processes a slice: its rows of each port (None: no rows) and its end; returns the released rows, or None."""

    #: Can the rows of a slice be divided among several calls of :meth:`work`?  Rows may then have the time of the
    #: boundary of their call, if more rows of this time follow.
    takes_portions: bool = False
    #: Collects rejected rows (``on_error: skip``, ``on_late: reject``); None: the operator does not reject rows itself.
    refusals: Refusals | None = None

    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        """Processes a slice in portions: yields released rows, and None between two portions."""
        rows = self.step(ports, boundary)
        if rows is not None:
            yield rows

    def load(self) -> bool:
        """Does a portion of the rest of a restore; returns whether there is more.  A step does all the rest."""
        return False

    def snapshot(self) -> OperatorState:
        """Returns the state, by reference; {} for stateless operators."""
        return {}

    def restore(self, state: OperatorState) -> None:  # noqa: B027 - stateless operators have nothing to restore
        """Restores a snapshot, which stays usable."""

    def counters(self) -> Mapping[str, int]:
        """Returns counters that are part of the state (checkpointed, rolled back), e.g. tuples dropped as late."""
        return {}

    # --- undo/redo: the paper's find_oldest_tuple and clear ---

    def oldest_needed(self) -> int | None:
        """Tuple time, microseconds, of the oldest tuple that the state, or a mark in it, depends on.

        None: there is no state now.  BEFORE_TIME: the state reaches back without bound, so only all input would rebuild
        it, and a snapshot is stored instead.
        """
        return None

    def clear(self, boundary: int) -> None:  # noqa: B027 - stateless operators have nothing to clear
        """Resets the state, as if no tuples had come before ``boundary``."""

    def recount(self, counters: Mapping[str, int]) -> None:  # noqa: B027 - most count nothing
        """Sets :meth:`counters` after a replay, which counts some tuples twice."""

    def rewind(self, boundary: int) -> bool:
        """Goes back to an earlier ``boundary``, since which no rows came and none were released.

        Returns:
          False if the passing of time has or may have changed the state, which must then be rebuilt.
        """
        return False


def released_rows(portions: Iterator[Rows | None]) -> Rows | None:
    """Returns the rows of all portions of a slice; None if there are none."""
    released = [rows for rows in portions if rows is not None]
    return concat_rows(released) if released else None


class StepwiseOperator(Operator):
    """An operator that divides its work into portions.

    A subclass defines :meth:`work` and :meth:`_restoring`.  Between two portions of a slice its state must not
    be used: the caller finishes the slice first.
    """

    takes_portions = True
    _left: Steps[None] | None = None

    @abstractmethod
    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        """Processes a slice; see :class:`Operator`.  Begins with ``yield from self._restored()``."""

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        return released_rows(self.work(ports, boundary))

    @abstractmethod
    def _restoring(self, state: OperatorState) -> Steps[None]:
        """Restores a snapshot, in portions; the first one makes the small parts, so that properties are available."""

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
