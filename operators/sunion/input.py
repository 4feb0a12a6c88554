"""One input of an SUnion: its chunks and its frontiers (rules B4, F1, U10)."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from operators.sunion.chunk import Chunk, put_together
from operators.sunion.clocks import BucketClocks
from operators.sunion.spilled_chunk import SpilledChunk
from spe.runtime.spill import Spill
from spe.stream.batch import Batch, Boundary, RecDone, Rows
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME, END_OF_TIME, saturating_add

Int64Array = npt.NDArray[np.int64]


class Arrivals(Protocol):
    """Receives news of an input: rows that came, and bytes that it holds."""

    clocks: BucketClocks
    tentative_dropped: int
    tentative_limit: int

    @property
    def next(self) -> int:
        """Start of the next bucket of the live instance."""

    def count_stable(self, nbytes: int) -> None:
        """Adds to the bytes of stable tuples held."""

    def rows_came(self, latest: int, boundary: int, now: int) -> None:
        """Notes rows up to time ``latest``, on an input whose boundary of either kind is ``boundary``."""


class SUnionInput:
    """One input of the SUnion: a stream of one upstream partition.

    Attributes:
      position: p; all stable tuples of this (sub)stream with id ≤ p are here.
      frontier: SB; largest stable boundary.
      last_time: τ; time of the last stable tuple (BEFORE_TIME for sources, which are not sorted).
      tentative_frontier: TB; largest boundary of either kind since the last undo.
      cut_time: tcut; tentative tuples up to here were taken or are not needed.
      held: tentative elements were taken since the last undo.
    """

    __slots__ = (
        "_owner",
        "_texts",
        "_width",
        "cut_time",
        "frontier",
        "held",
        "last_time",
        "position",
        "skip_below",
        "sorted",
        "spill",
        "stable",
        "stream",
        "tentative",
        "tentative_bytes",
        "tentative_frontier",
    )

    def __init__(self, owner: Arrivals, stream: int, *, sorted_by_time: bool, spill: Spill | None) -> None:
        self._owner = owner
        self.spill = spill
        self._width = 0
        #: Which columns have texts.
        self._texts: tuple[int, ...] = ()
        self.stream = stream
        self.sorted = sorted_by_time
        self.position = 0
        self.frontier = BEFORE_TIME
        self.last_time = BEFORE_TIME
        self.tentative_frontier = BEFORE_TIME
        self.cut_time = BEFORE_TIME
        self.held = False
        self.skip_below = BEFORE_TIME
        self.stable: list[Chunk | SpilledChunk] = []
        self.tentative: list[Chunk] = []
        self.tentative_bytes = 0

    @property
    def tentative_from(self) -> int:
        """φ: where tentative data may begin."""
        if self.sorted and self.last_time >= self.frontier:
            return saturating_add(self.last_time, 1)
        return self.frontier

    def t_star(self) -> int:
        """T*: a new MAIN need not send tentative tuples up to it: we have them, or the buckets are gone (F1)."""
        latest = max((c.max for c in self.tentative), default=BEFORE_TIME)
        edges = (self.tentative_frontier, self.frontier, self._owner.next)
        return max(latest, self.cut_time, self.last_time, *(saturating_add(edge, -1) for edge in edges))

    def add_stable(self, batch: Batch, now: int) -> None:
        """Stores a stable batch that begins at or before our position; duplicates are dropped by id (U10)."""
        assert batch.kind is Kind.STABLE, "B4: what is tentative is kept apart"
        if batch.from_id < self.position:
            batch = batch.after(min(self.position, batch.upto_id))
        if batch.upto_id > self.position:
            self.position = batch.upto_id
        rows = batch.rows
        if not len(rows.time):
            return
        nbytes = len(rows.time) * (self._width or self._width_of(rows))
        for at in self._texts:
            nbytes += rows.columns[at].text_bytes
        chunk = Chunk(rows, batch.from_id + 1, batch.ids, self.frontier, nbytes)
        latest = chunk.max
        if chunk.min < self.skip_below:
            # After an install the state already contains all below the restart point (B7, A3).
            rest = chunk.from_time(self.skip_below)
            if rest is None:
                return
            chunk = rest
        if self.sorted and latest > self.last_time:
            self.last_time = latest
        self.stable.append(chunk)
        put_together(self.stable)
        owner = self._owner
        owner.count_stable(chunk.nbytes)
        if self.tentative:
            self._drop_tentative()
        if latest >= owner.clocks.reached:
            owner.rows_came(latest, self.tentative_frontier, now)

    def _width_of(self, rows: Rows) -> int:
        """Returns bytes per row without texts, as in the first batch: exact except for masks that come later."""
        self._width = max(1, (rows.nbytes - rows.text_bytes) // len(rows))
        self._texts = tuple(at for at, c in enumerate(rows.columns) if c.dictionary is not None)
        return self._width

    def add_tentative(self, batch: Batch, now: int) -> None:
        """Stores the new tuples of a tentative batch: time ≥ φ, > tcut and ≥ next; counts and drops the rest (B4)."""
        assert batch.kind is Kind.TENTATIVE, "B4: stable tuples are never dropped"
        rows = batch.rows
        if len(rows) == 0:
            return
        self.held = True
        owner = self._owner
        low = max(self.tentative_from, self.cut_time + 1, owner.next)
        owner.rows_came(int(rows.time[-1]), self.tentative_frontier, now)
        nbytes = len(rows) * (self._width or self._width_of(rows)) + sum(
            [rows.columns[c].text_bytes for c in self._texts]
        )
        chunk = Chunk(rows, 0, None, low, nbytes).from_time(low)
        owner.tentative_dropped += len(rows) - (0 if chunk is None else len(chunk.rows))
        if chunk is not None:
            self.tentative.append(chunk)
            put_together(self.tentative)
            self.tentative_bytes += chunk.nbytes
            if len(self.tentative) > 1:  # suspend never releases
                owner.tentative_dropped += self.trim_tentative(owner.tentative_limit, END_OF_TIME)

    def add_boundary(self, boundary: Boundary, now: int) -> None:
        """Advances the frontier of the boundary's kind; a stable one also covers ids (U10)."""
        time = boundary.time
        if boundary.kind is Kind.STABLE:
            if boundary.upto_id > self.position:
                self.position = boundary.upto_id
            if time > self.frontier:
                self.frontier = time
                if time >= self.skip_below:
                    self.skip_below = BEFORE_TIME
                if self.tentative:
                    self._drop_tentative()
        else:
            self.held = True
        if time > self.tentative_frontier:
            self.tentative_frontier = time
        clocks = self._owner.clocks
        if time >= clocks.reached:
            clocks.arrived(time, now)

    def undo(self) -> None:
        """Drops tentative tuples: the producer withdraws its tentative suffix (B4)."""
        self.tentative.clear()
        self.tentative_bytes = 0
        self.tentative_frontier = self.frontier
        self.cut_time = BEFORE_TIME
        self.held = False

    def rec_done(self, element: RecDone) -> None:
        """Takes the end of a correction, which changes no data here; frontiers decide what is due (B4, R7)."""

    def main_changed(self) -> None:
        """Follows a change of MAIN: tentative tuples of the new producer count only beyond those taken."""
        self.cut_time = self.t_star()

    def ended(self) -> bool:
        return self.frontier >= END_OF_TIME

    def acknowledged(self, restart: int) -> int:
        """A1: returns the id up to which all is in state that survives a restart at ``restart``."""
        for chunk in self.stable:  # ids ascend from chunk to chunk
            smallest = chunk.smallest_id(restart)
            if smallest is not None:
                return smallest - 1
        return self.position

    def validate(self) -> None:
        """Asserts what holds between two events."""
        assert self.tentative_frontier >= self.frontier, "B1: a stable boundary is a boundary of either kind"
        assert self.held or not self.tentative, "F1: who holds tentative tuples says so to the next producer"

    def validate_rows(self) -> None:
        """Asserts invariants of all rows that are held."""
        assert self.tentative_bytes == sum(c.nbytes for c in self.tentative), "B4: tentative tuples are counted"
        low = self.tentative_from
        assert all(c.min >= low for c in self.tentative), "B4: nothing tentative lies below φ"
        ids = [c.first_id for c in self.stable]
        assert all(a < b for a, b in pairwise([0, *ids, self.position + 1])), "U10: ids ascend, up to the position"

    def trim_tentative(self, limit_bytes: int, released: int) -> int:
        """Drops the oldest tentative chunks before ``released`` beyond the limit; returns the number of tuples."""
        gone = at = 0
        while self.tentative_bytes > limit_bytes and at < len(self.tentative) and self.tentative[at].max < released:
            self.tentative_bytes -= self.tentative[at].nbytes
            gone += len(self.tentative[at].rows)
            at += 1
        del self.tentative[:at]
        return gone

    def _drop_tentative(self) -> None:
        low = self.tentative_from
        if self.tentative[0].min < low:
            self.tentative = [c for c in (c.from_time(low) for c in self.tentative) if c is not None]
            self.tentative_bytes = sum(c.nbytes for c in self.tentative)
