"""SOutput: turns the operators' results of a slice into elements of an output channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operators.digest import RollingDigest
from spe.errors import LocalProtocolError
from spe.stream.batch import Batch, Boundary, Element, Rows
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME, END_OF_TIME, format_timestamp


class SOutput:
    """Numbers the tuples of an output and marks them stable or tentative.

    U9: stable ids are the ordinals 1, 2, 3, … of the stable stream, so every replica gives the same tuple the same id.
    Tentative ids continue from the last stable id and are local to this instance.  No stable slice may follow a
    tentative one until :meth:`restore`: the operators have processed data that may be undone.

    During a redo there are two of these, one per instance of the operators, and both feed one OutputLog: the live one
    continues its tentative run, the restored one makes the stable ids after the checkpoint.

    R8: after a restore to a checkpoint before the last released id, results up to this id are counted and dropped; the
    digest shows whether they equal the released ones.

    Args:
      stream: name of the stream, for error messages.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._digest = RollingDigest()
        #: End of the last slice, microseconds of tuple time.  Only a restore decreases it.
        self._boundary = BEFORE_TIME
        #: Number of tentative tuples since the last stable one; None before the first tentative slice.
        self._tentative: int | None = None
        self._tentative_boundary = BEFORE_TIME
        #: End of the results released before a restore: consumers have them, so they are dropped.
        self._released_id = 0
        self._released_digest = 0
        self._released_boundary = BEFORE_TIME
        #: Number of dropped tuples.
        self.dropped = 0

    @property
    def last_id(self) -> int:
        """Id of the last stable tuple."""
        return self._digest.count

    @property
    def last_released_id(self) -> int:
        """Id of the last released stable tuple, by this instance or, before a restore, by another (R8)."""
        return max(self._digest.count, self._released_id)

    @property
    def tainted(self) -> bool:
        """Has there been a tentative slice since the last restore?"""
        return self._tentative is not None

    @property
    def ended(self) -> bool:
        """Has the stable stream ended?"""
        return self._boundary >= END_OF_TIME

    def marks(self) -> Mapping[int, int]:
        """Returns id -> digest of the stream up to it, at each 1,000 tuples and at the end of the stream, to compare
        replicas (invariant 4)."""
        marks = self._digest.marks()
        return {**marks, self.last_id: self._digest.value()} if self.ended else marks

    @property
    def newest_mark(self) -> tuple[int, int]:
        """(id, digest) of the last mark; (0, 0) if there is none."""
        return (self.last_id, self._digest.value()) if self.ended else self._digest.newest_mark()

    def stable(self, rows: Rows | None, boundary: int, *, more: bool = False) -> list[Element]:
        """Returns the elements of a stable slice that ends at ``boundary``; ``more``: further rows of it follow.

        Raises:
          LocalProtocolError: the slice is out of order, follows a tentative one, or differs from released results.
        """
        if self._tentative is not None:
            raise LocalProtocolError(f"{self._stream}: a stable slice after a tentative one, without a restore")
        last = self._boundary
        self._check(rows, boundary, last)
        self._boundary = int(rows.time[-1]) if more and rows is not None and len(rows) else boundary
        out: list[Element] = []
        if rows is not None and len(rows) and self._digest.count < self._released_id:
            rows = self._drop_released(rows)
        if rows is not None and len(rows):
            before = self._digest.count
            self._digest.add(rows)
            assert self._digest.count == before + len(rows), "U9: ids are the ordinals of the stable stream"
            out.append(Batch(Kind.STABLE, before, self._digest.count, None, rows))
        if more:
            return out
        if self._released_id:
            self._check_count(boundary)
        if boundary > max(last, self._released_boundary):
            out.append(Boundary(Kind.STABLE, boundary, self._digest.count))
        return out

    def tentative(self, rows: Rows | None, boundary: int, *, more: bool = False) -> list[Element]:
        """Returns the elements of a tentative slice that ends at ``boundary``; ``more``: further rows of it follow."""
        if self._tentative is None:
            self._tentative = 0
            self._tentative_boundary = self._boundary
        self._check(rows, boundary, self._tentative_boundary)
        out: list[Element] = []
        if rows is not None and len(rows):
            before = self._digest.count + self._tentative
            self._tentative += len(rows)
            out.append(Batch(Kind.TENTATIVE, before, before + len(rows), None, rows))
            if more:
                self._tentative_boundary = int(rows.time[-1])
        if more:
            return out
        if boundary > self._tentative_boundary:
            out.append(Boundary(Kind.TENTATIVE, boundary, self._digest.count + self._tentative))
        self._tentative_boundary = boundary
        return out

    def snapshot(self) -> dict[str, Any]:
        """Returns the counters.  C1: only before the first tentative slice, or on the redo instance.

        Raises:
          LocalProtocolError: there was a tentative slice, so there is no consistent state.
        """
        if self._tentative is not None:
            raise LocalProtocolError(f"{self._stream}: a checkpoint while tainted")
        state = {"last_id": self._digest.count, "digest": self._digest.value(), "boundary": self._boundary}
        return {**state, "released": self.released()}

    def released(self) -> dict[str, Any]:
        """Returns the end of the released results, also while tainted: an older copy must not repeat them."""
        if self._digest.count >= self._released_id:
            boundary = max(self._boundary, self._released_boundary)
            return {"last_id": self._digest.count, "digest": self._digest.value(), "boundary": boundary}
        last_id, digest, boundary = self._released_id, self._released_digest, self._released_boundary
        return {"last_id": last_id, "digest": digest, "boundary": boundary}

    def restore(self, state: Mapping[str, Any], released: Mapping[str, Any] | None = None) -> None:
        """Restores a snapshot.

        Args:
          state: result of :meth:`snapshot`.
          released: result of :meth:`released`, the end of the released results; None: that of the snapshot's maker or
            of this instance, whichever is later.
        """
        reached = released or max(self.released(), state["released"], key=lambda r: (r["last_id"], r["boundary"]))
        self._released_id, self._released_digest = int(reached["last_id"]), int(reached["digest"])
        self._released_boundary = int(reached["boundary"])
        self._digest = RollingDigest(int(state["last_id"]), int(state["digest"]))
        assert self._digest.count <= self._released_id, "R8: a restore goes back, never beyond what was released"
        self._boundary = int(state["boundary"])
        self._tentative = None
        self._tentative_boundary = BEFORE_TIME

    def _check(self, rows: Rows | None, boundary: int, last: int) -> None:
        """Checks invariant 2: a run is sorted, and lies in [last boundary, boundary)."""
        if boundary < last:
            raise LocalProtocolError(
                f"{self._stream}: boundary {format_timestamp(boundary)} after {format_timestamp(last)}"
            )
        if rows is None or not len(rows):
            return
        in_order, low, high = rows.span()
        if low < last or high >= boundary or not in_order:
            raise LocalProtocolError(
                f"{self._stream}: tuples from {format_timestamp(low)} to {format_timestamp(high)} "
                f"in the slice [{format_timestamp(last)}, {format_timestamp(boundary)})"
            )

    def _drop_released(self, rows: Rows) -> Rows:
        """Removes rows that were released before; after the last of them the digest must be the same."""
        known = min(self._released_id - self._digest.count, len(rows))
        assert known > 0, "R8: only rows that were released before are dropped"
        self._digest.add(rows.slice(0, known))
        self.dropped += known
        if self._digest.count == self._released_id and self._digest.value() != self._released_digest:
            raise LocalProtocolError(
                f"{self._stream}: the stable tuples up to id {self._released_id} were made again, and differ from "
                "what was released: an operator is not deterministic"
            )
        return rows.slice(known, len(rows))

    def _check_count(self, boundary: int) -> None:
        """Checks that as many tuples come before a boundary as were released before it."""
        count, known, last = self._digest.count, self._released_id, self._released_boundary
        if (boundary <= last and count > known) or (boundary >= last and count < known):
            raise LocalProtocolError(
                f"{self._stream}: {count} stable tuples up to {format_timestamp(boundary)} on the second time, "
                f"but {known} were released up to {format_timestamp(last)}"
            )
