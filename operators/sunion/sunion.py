"""SUnion: puts a unit's inputs into one order that all replicas agree on, and times the waits of buckets.

Pure: elements and the time ``now`` come in, slices go out.  Rules B1-B7, T1-T3 and A1 are here;
*whether* to go tentative or to reconcile is decided by the consistency manager, which asks :meth:`SUnion.due` and
:meth:`SUnion.oldest_unstable_is_young`, and then calls one of the ``release`` methods.

Tuples are held per input in chunks, as they came.  A slice is everything of [next, end), and its order, per input
*stream*, is (time, input index, id): arrival order differs between replicas, that key does not.  The receiver of a
slice merges its parts, so that a union of several streams copies them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from operators.sunion.chunk_store import ChunkStore
from operators.sunion.clocks import ArrivalClocks
from operators.sunion.cursors import Cursors
from operators.sunion.input import SUnionInput
from operators.sunion.slice import Slice
from spe.runtime.spill import Spill
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME, END_OF_TIME, floor_to

Int64Array = npt.NDArray[np.int64]


class SUnion:
    """The serialiser of a unit.

    Args:
      inputs: per input, in index order, (stream index, sorted): sources are not sorted by time, all else is.
      streams: how many input streams; inputs of the same stream make one sequence.
      bucket_us: width d of a bucket, microseconds of tuple time.  Wider buckets mean fewer, larger slices and
        more latency while all is well.
      tentative_bytes: per input, how many tentative tuples are held, also those already released, for a second
        release after a forced rec_done (B6); beyond it the oldest go, counted.
      spills: per input, takes stable tuples that only a redo will need (B6); None: they stay in memory.
      redo_bytes: cap on stable tuples in memory; from a quarter of it on they are spilled.
      old_us: ages are never compared with more than this, so older buckets share one clock, however long a failure
        lasts.
      ahead_us: rows further beyond their input's boundary than this are ahead, microseconds of tuple time.

    Attributes:
      waits: the clocks of buckets; ``clocks``: those of rows that are not ahead.
      cursors: positions of the live instance and a redo.
      store: the chunks of the inputs.
    """

    def __init__(
        self,
        *,
        inputs: Sequence[tuple[int, bool]],
        streams: int,
        bucket_us: int,
        tentative_bytes: int = 64 << 20,
        spills: Sequence[Spill] | None = None,
        redo_bytes: int = 256 << 20,
        old_us: int = 3_600_000_000,
        ahead_us: int = END_OF_TIME,
    ) -> None:
        self._bucket_us = bucket_us
        self.tentative_limit = tentative_bytes
        self.inputs = [
            SUnionInput(self, stream, sorted_by_time=in_order, spill=None if spills is None else spills[at])
            for at, (stream, in_order) in enumerate(inputs)
        ]
        self.store = ChunkStore(self.inputs, streams, bucket_us, redo_bytes)
        self.cursors = Cursors()
        self.tentative_dropped = 0
        self.waits = ArrivalClocks(bucket_us, old_us, ahead_us)
        self.clocks = self.waits.near

    def validate(self) -> None:
        """Asserts what holds between two events, at the cost of a few comparisons per input."""
        for port in self.inputs:
            port.validate()
        assert self.stable_bytes >= 0, "B6: stable tuples are counted"

    def validate_rows(self) -> None:
        """Asserts invariants of all that is held, chunk by chunk."""
        self.waits.validate()
        for port in self.inputs:
            port.validate_rows()
        self.store.validate_rows(self.cursors.needed_from)

    # --- frontiers ---

    @property
    def frontier(self) -> int:
        """F: everything below is stable on every input."""
        return min([i.frontier for i in self.inputs])

    @property
    def stable_end(self) -> int:
        """Fd: the end of the last stable bucket."""
        frontier = min([i.frontier for i in self.inputs])
        if BEFORE_TIME < frontier < END_OF_TIME:
            return frontier - frontier % self._bucket_us
        return frontier

    @property
    def next(self) -> int:
        """Start of the next bucket of the live instance."""
        return self.cursors.live

    @property
    def tainted(self) -> bool:
        return self.cursors.tainted

    @property
    def stable_bytes(self) -> int:
        """Bytes of stable tuples held."""
        return self.store.stable_bytes

    def count_stable(self, nbytes: int) -> None:
        """Adds to the bytes of stable tuples held."""
        self.store.stable_bytes += nbytes

    # --- clocks ---

    def rows_came(self, latest: int, boundary: int, now: int) -> None:
        """Notes rows up to time ``latest``, on an input whose boundary of either kind is ``boundary``."""
        # An input that was just installed has heard no boundary yet.
        self.waits.rows_came(latest, max(boundary, self.cursors.released), now)

    def _forget_clocks(self) -> None:
        at = self.cursors
        low = at.live if at.redo is None else min(at.live, at.redo)
        if at.tainted:
            # Released, but unstable: R1 needs their age, and they are released again (R7).
            low = min(low, self.stable_end)
        self.waits.forget(low)

    def due(self, now: int, *, wait_us: int, hard_us: int, fresh: Sequence[bool]) -> int | None:
        """Returns the end of the last bucket that may not wait any longer (T3), or None.

        Args:
          wait_us: age from which a bucket goes as soon as every fresh input has delivered it.
          hard_us: age from which it goes in any case; one with only rows that are ahead, once no other input was fresh
            for as long.
          fresh: per input, whether data are to be expected of it soon (T2).
        """
        waiting = [max(i.tentative_frontier, i.frontier) for i, alive in zip(self.inputs, fresh, strict=True) if alive]
        complete = floor_to(min(waiting), self._bucket_us) if waiting else None
        end = self.waits.end(complete, now, wait_us=wait_us, hard_us=hard_us)
        return end if end > self.next else None

    def oldest_unstable_is_young(self, now: int, age_us: int) -> bool:
        """Would a redo now leave the replica stable (R1)?"""
        start = self.clocks.start(self.stable_end)
        return start is None or now - start < age_us

    # --- releases ---

    def release_stable(self, max_rows: int, until: int = END_OF_TIME) -> Slice | None:
        """Releases all stable rows since the last release, at most ``max_rows`` per input; None: there are none (B1).

        Args:
          until: the slice ends there at the latest.
        """
        at = self.cursors
        assert not at.tainted, "invariant 2: no stable release while tainted"
        end = min(self.stable_end, until)
        if end <= at.live:
            return None
        end = self.store.bounded(at.live, end, max_rows)
        released = self.store.take(end) if at.kept_from is None else self.store.gather(at.live, end, Kind.STABLE)
        self.cursors = at.with_live(end)
        self._forget_clocks()
        return released

    def keep_from(self, checkpoint: int) -> None:
        """Notes a checkpoint: forgets stable tuples before it, and keeps all later ones (R8)."""
        assert not self.tainted, "R8: a periodic checkpoint holds nothing tentative"
        self.store.forget(checkpoint)
        self.cursors = replace(self.cursors, kept_from=checkpoint)

    def taint(self) -> None:
        """Prepares the first tentative release: from here on all stable tuples are kept for redo (C1)."""
        assert not self.tainted, "C1: n* stays where tentative releases began"
        self.cursors = replace(self.cursors, restart=self.cursors.live)

    def release_tentative(self, end: int, max_rows: int) -> Slice:
        """Releases all rows of [next, end), stable or not; the stable part stays for redo (B6).

        With more than ``max_rows`` of an input the slice ends sooner; it has its end.

        Raises:
          SpillDamaged: a piece that must be released again is lost; nothing has changed.
          SpillNotLoaded: a piece is on disk; nothing has changed.
        """
        assert self.tainted, "C1: the checkpoint comes before the first tentative release"
        assert end > self.next, "B6: a slice has a length"
        at, store = self.cursors, self.store
        low = at.live
        end = store.bounded(low, end, max_rows, tentative=True)
        # Redo has taken the rows before this: they are held for live alone.
        done = None if at.redo is None or low >= at.redo else min(end, at.redo)
        if done is not None:
            store.load_divided(done)
        released = store.gather(low, end, Kind.TENTATIVE)
        for port in self.inputs:
            self.tentative_dropped += port.trim_tentative(self.tentative_limit, end)
        self.cursors = at.with_live(end)
        if done is not None:
            store.forget(done)
        self._forget_clocks()
        self.spill_redo_data()
        return released

    def spill_redo_data(self) -> None:
        """Spills rows that were released tentatively, which only the redo needs."""
        if self.tainted:
            self.store.spill(self.next)

    def begin_redo(self, *, live_runs: bool = False) -> None:
        """Begins a redo by a second instance, rolled back to the checkpoint: at n*, or before it (R5, R8).

        Args:
          live_runs: live runs during the redo.
        """
        at = self.cursors
        assert at.tainted, "C1: redo starts at n* or before"
        assert at.redo is None, "R5: one redo at a time"
        self.cursors = replace(at, redo=at.restart_point, kept_from=None, beside_redo=live_runs)

    def release_redo(self, max_rows: int, until: int = END_OF_TIME) -> Slice | None:
        """Releases the next stable slice to the redo instance.  None: caught up.

        Its rows are forgotten at once, except those that live has not released (R6).

        Args:
          until: the slice ends there at the latest.
        """
        at, store = self.cursors, self.store
        assert at.redo is not None, "R6: only a redo takes these slices"
        end = min(self.stable_end, until)
        if end <= at.redo:
            return None
        if at.beside_redo and at.redo < at.live:
            end = min(end, at.live)
        end = store.bounded(at.redo, end, max_rows)
        live_needs = at.beside_redo and end > at.live
        released = store.gather(at.redo, end, Kind.STABLE) if live_needs else store.take(end)
        self.cursors = at.with_redo(end)
        return released

    def redo_is_short(self, max_rows: int) -> bool:
        """Is the rest of the redo one slice, of at most ``max_rows`` rows per input?"""
        return self.store.fits(self.cursors.restart_point, self.stable_end, max_rows)

    @property
    def redo_is_ahead(self) -> bool:
        """Has redo released all that live did?  Later rows were never shown as tentative."""
        at = self.cursors
        return at.redo is not None and at.redo >= at.live

    def finish_redo(self) -> None:
        """live := redo (R7).  Released tuples that are still tentative will be released again."""
        assert self.cursors.redo is not None, "R7: there is a redo that ends"
        self.pause_live()
        self.store.end_load()
        self.cursors = Cursors(live=self.cursors.redo)
        self._forget_clocks()

    def resume_live(self) -> bool:
        """Resumes live during the redo.

        Returns:
          Is redo ahead?  Then its released rows are forgotten, and live must take over its state.
        """
        at = self.cursors
        assert at.redo is not None, "R5: live runs beside a redo"
        self.cursors = replace(at, live=max(at.live, at.redo), beside_redo=True)
        return at.redo > at.live

    def pause_live(self) -> None:
        """Pauses live: rows that were kept for it alone are forgotten."""
        at = self.cursors
        assert at.redo is not None, "R5: live runs beside a redo"
        if at.beside_redo and at.redo > at.live:
            self.store.forget(at.redo)
        self.cursors = replace(at, beside_redo=False)

    def install(self, restart: int, positions: Sequence[int]) -> None:
        """Continues from a snapshot, whose state holds everything below ``restart`` (A3)."""
        assert not self.tainted, "A3: a snapshot is installed before anything is released"
        self.cursors = Cursors(live=restart)
        for port, position in zip(self.inputs, positions, strict=True):
            port.position = position
            port.skip_below = restart

    @property
    def within_bucket(self) -> bool:
        """Was a part of a bucket released for good, and not yet all of it?"""
        end = self.cursors.released
        return end != floor_to(end, self._bucket_us)

    def needs(self, index: int) -> bool:
        """Does a stable release wait for this input?  Then it must be read, however full it is."""
        end = self.stable_end
        return end <= self.cursors.released and floor_to(self.inputs[index].frontier, self._bucket_us) <= end

    def acknowledged(self) -> list[int]:
        return self.needed_from(self.cursors.restart_point)

    def needed_from(self, restart: int) -> list[int]:
        """Returns the last id of each input that a copy restored at ``restart`` does not need."""
        return [i.acknowledged(restart) for i in self.inputs]
