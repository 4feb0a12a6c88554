"""SUnion: puts a unit's inputs into one order that all replicas agree on, and knows how long it has waited.

Pure: elements and the time ``now`` come in, slices go out.  Rules B1-B7, T1-T6 and A1 are here;
*whether* to go tentative or to reconcile is decided by the consistency manager, which asks :meth:`SUnion.due` and
:meth:`SUnion.oldest_unstable_is_young`, and then calls one of the ``release`` methods.

Tuples are held per input in chunks, as they came.  A slice is everything of [next, end), and its order, per input
*stream*, is (time, input index, id): arrival order differs between replicas, that key does not.  Who takes a slice
merges its parts, so that a union of several streams copies them once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from operators.sunion.chunk import Chunk
from operators.sunion.clocks import BucketClocks
from operators.sunion.input import SUnionInput
from operators.sunion.slice import Slice
from operators.sunion.slice_end import merge_divided, slice_end
from operators.sunion.spilled_chunk import SpilledChunk, spill_oldest
from spe.runtime.spill import Spill, piece_bytes
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME, END_OF_TIME, floor_to, saturating_add

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
      spills: per input, where stable tuples go that only a redo will need (B6); None: they stay in memory.
      redo_bytes: cap on stable tuples in memory; from a quarter of it on they are spilled.
      old_us: no age is ever compared with more than this, so buckets that are older share one clock: a failure may last
        as long as it likes.
      ahead_us: rows are ahead that are further beyond their input's boundary than this, microseconds of tuple time.

    Attributes:
      clocks: how long buckets have waited.
      ahead: how long those have waited in which only rows are that are ahead.  An operator that ends releases its last
        windows, however far they reach: that says nothing about when the other inputs are to be expected there.
      next: start of the next bucket of the live instance.
      redo_next: of the redo instance; None when there is none.
      restart: n*, the start of the first bucket released tentatively; None while untainted.
      kept_from: the last periodic checkpoint, from where on stable tuples are kept though released (R8); None: there is
        none, and redo would start where tentative data began.
      spilled: something of what the inputs hold may be on disk.
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
        self._streams = streams
        self.inputs = [
            SUnionInput(self, stream, sorted_by_time=in_order, spill=None if spills is None else spills[at])
            for at, (stream, in_order) in enumerate(inputs)
        ]
        self._redo_bytes = redo_bytes
        self.next = BEFORE_TIME
        self.redo_next: int | None = None
        self.restart: int | None = None
        #: Live releases beside redo: it needs the rows that it has not released, also those that redo has.
        self._beside_redo = False
        self.kept_from: int | None = None
        self.tentative_dropped = 0
        #: Bytes of stable tuples held (for redo, or because an input lags).
        self.stable_bytes = 0
        self.clocks, self.ahead = BucketClocks(bucket_us, old_us), BucketClocks(bucket_us, old_us)
        self._ahead_us = ahead_us
        #: Since when no input is fresh that is not as far as the rows that are ahead; None: one is, or none is ahead.
        self._alone_since: int | None = None
        self.spilled = False
        #: What lies before is being loaded, piece by piece, and must not be spilled again meanwhile.
        self._wanted = BEFORE_TIME

    def validate(self) -> None:
        """Asserts what holds between two events, at the cost of a few comparisons per input."""
        for one in self.inputs:
            one.validate()
        assert self.tainted or self.redo_next is None, "R5: there is nothing to redo where nothing was tentative"
        assert self.restart is None or self.restart <= self.next, "C1: n* is where tentative releases began"
        assert self.kept_from is None or self.kept_from <= self.released_for_good(), "R8: redo starts at or before n*"
        assert not self._beside_redo or self.redo_next is not None, "R5: live runs beside a redo"
        assert self.stable_bytes >= 0, "B6: stable tuples are counted"

    def validate_rows(self) -> None:
        """The same of all that is held, chunk by chunk."""
        self.clocks.validate()
        self.ahead.validate()
        for one in self.inputs:
            one.validate_rows()
        chunks = [chunk for one in self.inputs for chunk in one.stable]
        assert self.stable_bytes == sum(c.nbytes for c in chunks), "B6: stable tuples are counted"
        low = min(self.next, self.restart_point()) if self._beside_redo else self.restart_point()
        assert all(c.min >= low for c in chunks), "R6: what was released for good is forgotten"

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
    def tainted(self) -> bool:
        return self.restart is not None

    # --- clocks ---

    def rows_came(self, latest: int, boundary: int, now: int) -> None:
        """Rows up to time ``latest`` came, on an input whose boundary of either kind is ``boundary``."""
        known = max(boundary, self.released_for_good())  # whoever was just installed has heard no boundary yet
        near = latest if known == BEFORE_TIME else min(latest, saturating_add(known, self._ahead_us))
        self.clocks.arrived(near, now)
        if near < latest:
            self.ahead.arrived(latest, now)

    def set_old(self, old_us: int) -> None:
        """Another X counts."""
        self.clocks.old_us = self.ahead.old_us = old_us

    def shift_clocks(self, gap_us: int, now: int) -> None:
        """We were not running for the last ``gap_us`` (T1)."""
        self.clocks.shift(gap_us, now)
        self.ahead.shift(gap_us, now)
        if self._alone_since is not None:
            self._alone_since = min(self._alone_since + gap_us, now)

    def may_be_due(self, now: int, wait_us: int) -> bool:
        """May a bucket be due that has waited for so long?  Else :meth:`due` need not be asked."""
        return bool(self.ahead) or self.clocks.waited(now) >= wait_us

    def _forget_clocks(self) -> None:
        low = self.next if self.redo_next is None else min(self.next, self.redo_next)
        if self.restart is not None:
            # Released, but unstable: R1 asks for their age, and they are released once more (R7).
            low = min(low, self.stable_end)
        self.clocks.forget(low)
        self.ahead.forget(low)

    def due(self, now: int, *, wait_us: int, hard_us: int, fresh: Sequence[bool]) -> int | None:
        """End of the last bucket that may not wait any longer (T3, T4), or None.

        Args:
          wait_us: age from which a bucket goes as soon as every fresh input has delivered it.
          hard_us: age from which it goes in any case; one with only rows that are ahead, once no other input was fresh
            for as long.
          fresh: per input, whether something is still to be expected of it soon (T2).
        """
        end = self.clocks.end_by_age(hard_us, now)
        waiting = [max(i.tentative_frontier, i.frontier) for i, alive in zip(self.inputs, fresh, strict=True) if alive]
        if waiting:
            complete = floor_to(min(waiting), self._bucket_us)
            end = max(end, min(complete, self.clocks.end_by_age(wait_us, now)))
        else:
            complete = END_OF_TIME
        if self._is_alone(complete, now, hard_us):
            end = max(end, self.ahead.end_by_age(hard_us, now))
        return end if end > self.next else None

    def _is_alone(self, complete: int, now: int, hard_us: int) -> bool:
        """Was no input fresh for long that has yet to come as far as the rows that are ahead?

        Args:
          complete: what all fresh ones have delivered.
        """
        if not self.ahead or complete < self.ahead.reached:
            self._alone_since = None
            return False
        if self._alone_since is None:
            self._alone_since = now
        return now - self._alone_since >= hard_us

    def oldest_unstable_is_young(self, now: int, age_us: int) -> bool:
        """Would we stay stable if we redid now? (R1)"""
        start = self.clocks.start(self.stable_end)
        return start is None or now - start < age_us

    def waits_since(self, time: int) -> int | None:
        """When the clock of the bucket that ``time`` lies in began; None: nothing has reached it."""
        return self.clocks.start(floor_to(time, self._bucket_us))

    # --- releases ---

    def release_stable(self, max_rows: int, until: int = END_OF_TIME) -> Slice | None:
        """Everything stable since the last release, at most ``max_rows`` per input; None when there is nothing (B1).

        Args:
          until: the slice ends there at the latest.
        """
        assert self.restart is None, "invariant 2: no stable release while tainted"
        end = min(self.stable_end, until)
        if end <= self.next:
            return None
        end = self._bounded(self.next, end, max_rows)
        if self.kept_from is None:
            released = self._take(end)
        else:
            released = self._gather(self.next, end, Kind.STABLE)
        self.next = end
        self._forget_clocks()
        return released

    def keep_from(self, checkpoint: int) -> None:
        """A checkpoint was taken at ``checkpoint``: what lies before it is not needed any more, all else is (R8)."""
        assert not self.tainted, "R8: a periodic checkpoint holds nothing tentative"
        self._forget(checkpoint)
        self.kept_from = checkpoint

    def taint(self) -> None:
        """The first tentative release follows: from here on all stable tuples are kept for redo (C1)."""
        assert not self.tainted, "C1: n* stays where tentative releases began"
        self.restart = self.next

    def release_tentative(self, end: int, max_rows: int) -> Slice:
        """What is here of [next, end), stable or not; the stable part stays for redo (B6).

        With more than ``max_rows`` of an input it ends sooner, and says where.

        Raises:
          SpillDamaged: a piece that must be released once more is lost; nothing has changed.
          SpillNotLoaded: a piece is on disk; nothing has changed.
        """
        assert self.tainted, "C1: the checkpoint comes before the first tentative release"
        assert end > self.next, "B6: a slice has a length"
        low = self.next
        end = self._bounded(low, end, max_rows, tentative=True)
        if self.redo_next is not None and low < self.redo_next:
            self._load_divided(min(end, self.redo_next))
        released = self._gather(low, end, Kind.TENTATIVE)
        for one in self.inputs:
            self.tentative_dropped += one.trim_tentative(self.tentative_limit, end)
        self.next = end
        if self.redo_next is not None and low < self.redo_next:
            self._forget(min(end, self.redo_next))
        self._forget_clocks()
        self.spill_redo_data()
        return released

    def spill_redo_data(self) -> None:
        """What was released tentatively is needed by the redo only: it need not be in memory."""
        if not self.tainted:
            return
        for one in self.inputs:
            while one.spill is not None and self.stable_bytes * 4 > self._redo_bytes:
                size = piece_bytes(self._redo_bytes)
                gone = spill_oldest(one.stable, one.spill, self.next, size, wanted=self._wanted)
                if not gone:
                    break
                self.stable_bytes -= gone
                self.spilled = True

    def begin_redo(self, *, live_runs: bool = False) -> None:
        """A second instance, brought back to the checkpoint, starts there: at n*, or before it (R5, R8).

        Args:
          live_runs: live goes on beside it.
        """
        assert self.restart is not None, "C1: redo starts at n* or before"
        assert self.redo_next is None, "R5: one redo at a time"
        self.redo_next = self.restart if self.kept_from is None else self.kept_from
        self.kept_from = None
        self._beside_redo = live_runs

    def release_redo(self, max_rows: int, until: int = END_OF_TIME) -> Slice | None:
        """The next stable slice for the redo instance.  None: caught up.

        It is forgotten at once, but for what live has still to release (R6).

        Args:
          until: the slice ends there at the latest.
        """
        assert self.redo_next is not None
        end = min(self.stable_end, until)
        if end <= self.redo_next:
            return None
        if self._beside_redo and self.redo_next < self.next:
            end = min(end, self.next)
        end = self._bounded(self.redo_next, end, max_rows)
        if self._beside_redo and end > self.next:
            released = self._gather(self.redo_next, end, Kind.STABLE)
        else:
            released = self._take(end)
        self.redo_next = end
        return released

    def redo_is_short(self, max_rows: int) -> bool:
        """Is what redo has still to release for good one slice, of at most ``max_rows`` rows per input?"""
        if self.spilled:
            return False
        low, end = self.restart_point(), self.stable_end
        held = [(one.stable,) for one in self.inputs]
        return slice_end(held, low, end, max_rows=max_rows, bucket_us=self._bucket_us) >= end

    @property
    def redo_is_ahead(self) -> bool:
        """Has redo released all that live did?  What follows was never shown as tentative."""
        return self.redo_next is not None and self.redo_next >= self.next

    def finish_redo(self) -> None:
        """live := redo (R7).  Released tentative tuples that are still tentative will be released once more."""
        assert self.redo_next is not None
        self.pause_live()
        self._wanted = BEFORE_TIME
        self.next = self.redo_next
        self.redo_next = None
        self.restart = None
        self._forget_clocks()

    def resume_live(self) -> bool:
        """Live goes on beside redo.

        Returns:
          Redo is ahead, and what it has released is gone from here: live must take over its state.
        """
        assert self.redo_next is not None
        self._beside_redo = True
        if self.redo_next <= self.next:
            return False
        self.next = self.redo_next
        return True

    def pause_live(self) -> None:
        """Live releases nothing more: what was kept for it alone goes."""
        assert self.redo_next is not None
        if self._beside_redo and self.redo_next > self.next:
            self._forget(self.redo_next)
        self._beside_redo = False

    def install(self, restart: int, positions: Sequence[int]) -> None:
        """Continue from a snapshot: state holds everything below ``restart`` (A3)."""
        assert not self.tainted, "A3: a snapshot is installed before anything is released"
        self.next = restart
        self.kept_from = None
        for one, position in zip(self.inputs, positions, strict=True):
            one.position = position
            one.skip_below = restart

    def restart_point(self) -> int:
        """From where a restored copy would need the stable tuples (A1)."""
        return self.released_for_good() if self.kept_from is None else self.kept_from

    def released_for_good(self) -> int:
        """End of the last stable slice."""
        if self.redo_next is not None:
            return self.redo_next
        return self.next if self.restart is None else self.restart

    @property
    def within_bucket(self) -> bool:
        """Was a part of a bucket released for good, and not yet all of it?"""
        end = self.released_for_good()
        return end != floor_to(end, self._bucket_us)

    def needs(self, index: int) -> bool:
        """Can nothing more be released for good before this input moves on?  Then it must be read, however full."""
        end = self.stable_end
        return end <= self.released_for_good() and floor_to(self.inputs[index].frontier, self._bucket_us) <= end

    def acknowledged(self) -> list[int]:
        return self.needed_from(self.restart_point())

    def needed_from(self, restart: int) -> list[int]:
        """Per input the last id that a copy restored at ``restart`` does not need."""
        return [i.acknowledged(restart) for i in self.inputs]

    def _bounded(self, low: int, end: int, max_rows: int, *, tentative: bool = False) -> int:
        """``end``, or an earlier time so that a slice holds at most ``max_rows`` rows per input (B8)."""
        held = self.stable_bytes + (sum(i.tentative_bytes for i in self.inputs) if tentative else 0)
        if held <= 8 * max_rows and not self.spilled:  # a row has a time, so it has eight bytes at least
            return end
        held_of = [(i.stable, i.tentative) if tentative else (i.stable,) for i in self.inputs]
        cut = slice_end(held_of, low, end, max_rows=max_rows, bucket_us=self._bucket_us)
        if cut < end:
            for one in self.inputs:
                merge_divided(one.stable, low, cut)
                if tentative:
                    merge_divided(one.tentative, low, cut)
        return cut

    def _gather(self, low: int, end: int, kind: Kind) -> Slice:
        """What is here of [low, end), per stream in (input, id) order; nothing is forgotten."""
        made = self._nothing(low, end, kind)
        tentative = kind is Kind.TENTATIVE
        for at, one in enumerate(self.inputs):
            for chunks in (one.stable, one.tentative) if tentative else (one.stable,):
                for chunk in chunks:
                    if chunk.floor >= end:
                        break
                    if chunk.max < low:
                        continue
                    if isinstance(chunk, SpilledChunk):
                        if chunk.min >= end:
                            continue
                        chunk = chunk.loaded()
                    if (rows := chunk.select(low, end)) is not None:
                        made.parts[one.stream].append(rows)
                        made.chunks[one.stream].append((at, chunk))
        return made

    def _nothing(self, begin: int, end: int, kind: Kind) -> Slice:
        streams = range(self._streams)
        return Slice([[] for _ in streams], end, kind, begin, [[] for _ in streams])

    def _take(self, end: int) -> Slice:
        """Removes and returns every stable tuple with time < end.

        Raises SpillDamaged, SpillNotLoaded, with nothing changed.
        """
        if self.spilled:
            self._load(end)
        made = self._nothing(BEFORE_TIME, end, Kind.STABLE)
        for at, one in enumerate(self.inputs):
            chunks = one.stable
            if not chunks:
                continue
            into, where = made.parts[one.stream], made.chunks[one.stream]
            if len(chunks) == 1 and isinstance(chunks[0], Chunk) and chunks[0].max < end:  # the usual case
                into.append(chunks[0].rows)
                where.append((at, chunks[0]))
                self.stable_bytes -= chunks[0].nbytes
                chunks.clear()
                continue
            kept: list[Chunk | SpilledChunk] = []
            seen = 0
            for chunk in chunks:
                if chunk.floor >= end:
                    break
                seen += 1
                if chunk.min >= end:
                    kept.append(chunk)
                    continue
                assert isinstance(chunk, Chunk)
                if chunk.max < end:
                    into.append(chunk.rows)
                    where.append((at, chunk))
                    self.stable_bytes -= chunk.nbytes
                    continue
                if (rows := chunk.select(BEFORE_TIME, end)) is not None:
                    into.append(rows)
                    where.append((at, chunk))
                    self.stable_bytes -= chunk.nbytes
                    rest = chunk.from_time(end)
                    assert rest is not None
                    self.stable_bytes += rest.nbytes
                    chunk = rest
                kept.append(chunk)
            if seen:
                chunks[:seen] = kept
        return made

    def _forget(self, low: int) -> None:
        """Removes every stable tuple with time < low.  Raises SpillDamaged, SpillNotLoaded, with nothing changed."""
        self._load_divided(low)
        for one in self.inputs:
            kept: list[Chunk | SpilledChunk] = []
            seen = 0
            for chunk in one.stable:
                if chunk.floor >= low:
                    break
                seen += 1
                rest = chunk.from_time(low)
                self.stable_bytes -= chunk.nbytes
                if rest is not None:
                    self.stable_bytes += rest.nbytes
                    kept.append(rest)
            one.stable[:seen] = kept

    def _load_divided(self, low: int) -> None:
        """Brings back the pieces that ``low`` divides."""
        if self.spilled:
            self._load(low, divided=True)

    def _load(self, end: int, *, divided: bool = False) -> None:
        """Brings back what is spilled of the time before ``end``; ``divided``: and reaches beyond it."""
        self._wanted = end
        for one in self.inputs:
            for at, chunk in enumerate(one.stable):
                if chunk.floor >= end:
                    break
                if isinstance(chunk, SpilledChunk) and chunk.min < end and (not divided or chunk.max >= end):
                    one.stable[at] = loaded = chunk.loaded()
                    self.stable_bytes += loaded.nbytes
                    chunk.forget()
        self._wanted = BEFORE_TIME
        self.spilled = any(isinstance(chunk, SpilledChunk) for one in self.inputs for chunk in one.stable)
