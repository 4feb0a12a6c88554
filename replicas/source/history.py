"""The published tuples of a source, by id: the newest part in memory, everything in the log."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from replicas.producer.log_entry import COLUMN_BYTES, ENTRY_BYTES
from spe.log import Position, SegmentedLog
from spe.log.log_start import KeptLog
from spe.log.source_log import SourceState, decode_rejected, decode_source_batch, decode_source_state
from spe.stream.batch import Batch, Boundary, Element, concat_rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME

#: Bytes of recent tuples kept in memory: consumers that keep up are served from there.
TAIL_BYTES: Final = 32 << 20
#: Distance between two entries of the index: the excess that a consumer reads that starts in the middle.
_INDEX_BYTES: Final = 64 << 10
_READ_BYTES: Final = 256 << 10
#: Longest time of one read, because other tasks of the process wait for it.
READ_NS: Final = 10_000_000
#: Small batches are joined once for all readers, to pieces of at most this size, in batches and in bytes.
PIECE_BATCHES: Final = 256
_PIECE_BYTES: Final = 64 << 10
#: Batches in memory are joined where so many follow each other.
_JOINED_MIN: Final = 16
#: Number of pieces of the log kept for other readers.
_PIECES_KEPT: Final = 64


class _Piece(NamedTuple):
    """Tuples of some records of the log, the boundary implied after them, and the position of the next record."""

    batch: Batch
    bound_us: int
    behind: Position


class SourceHistory:
    """Published batches and the boundaries between them.

    Args:
      tail_bytes: bytes of recent tuples kept in memory.
      step_ns: measures how long a read takes, nanoseconds.

    Attributes:
      base_id: id of the last tuple before the log, whose oldest segments may have been deleted.
      last_id: id of the last published tuple.
      rejected: number of rejected rows in the log, for a sink of their own (E8).
      reached_us: tuple time that is later than all published tuples.
      frontier_us: last published boundary.
    """

    def __init__(
        self, schema: Schema, tail_bytes: int, base_id: int = 0, step_ns: Callable[[], int] = lambda: 0
    ) -> None:
        self._schema = schema
        self._step_ns = step_ns
        #: Pieces of the log that were read last, the oldest first.
        self._pieces: list[_Piece] = []
        self._pool = StringPool()
        self._tail_limit = tail_bytes
        # The index: the position for reading beyond each of these ids, and ``reached_us`` before it.
        self._ids: list[int] = []
        self._positions: list[Position] = []
        self._reached: list[int] = []
        #: The number of rejected rows before each position.
        self._rejected: list[int] = []
        #: (last id, ``reached_us``) at the end of each segment but the last one, by its first record.
        self._ends: dict[int, tuple[int, int]] = {}
        # The tail, three parallel lists: batches, their last ids, and the boundary implied after each.
        self._batches: list[Batch] = []
        self._uptos: list[int] = []
        self._bounds: list[int] = []
        self._tail_bytes = 0
        self.base_id = self.last_id = base_id
        self.rejected = 0
        self.reached_us = self.frontier_us = BEFORE_TIME

    def add(self, state: SourceState, position: Position, batch: Batch | None) -> None:
        """Adds the next acknowledged record of the log.  ``batch`` None: not in memory, or a lease."""
        last = self._positions[-1] if self._positions else None
        if last is None or position.segment != last.segment or position.offset - last.offset >= _INDEX_BYTES:
            self._ids.append(self.last_id)
            self._positions.append(position)
            self._reached.append(self.reached_us)
            self._rejected.append(self.rejected)
            if last is not None and position.segment != last.segment:
                self._ends[last.segment] = self.last_id, self.reached_us
        assert batch is None or (batch.from_id, batch.upto_id) == (self.last_id, state.last_id), "S8: no id is left out"
        self.last_id, self.reached_us, self.rejected = state.last_id, state.reached_us, state.rejected
        if batch is not None:
            self._batches.append(batch)
            self._uptos.append(batch.upto_id)
            self._bounds.append(state.bound_us)
            self._tail_bytes += _size(batch)
            if self._tail_bytes > self._tail_limit:
                self._forget_half()

    def ends(self) -> dict[int, tuple[int, int]]:
        """Returns (last id, reached_us) at the end of each segment, by its first record; of the last one, as far as it
        goes.
        """
        last = {self._positions[-1].segment: (self.last_id, self.reached_us)} if self._positions else {}
        return self._ends | last

    @property
    def segment_begun_us(self) -> int | None:
        """Tuple time of the log at the beginning of its last segment; None: that is its first one."""
        if not self._positions:
            return None
        first = bisect_left(self._positions, self._positions[-1].segment, key=lambda position: position.segment)
        return self._reached[first]

    def begins_behind(self, beginning: KeptLog) -> None:
        """Notes that the beginning of the log was deleted and cannot be read any more."""
        assert self.base_id <= beginning.last_id <= self.last_id, "E4: only the beginning of a log goes"
        self.base_id = beginning.last_id
        self._pieces.clear()
        gone = bisect_left(self._positions, beginning.first, key=lambda position: position.sequence)
        del self._ids[:gone], self._positions[:gone], self._reached[:gone], self._rejected[:gone]
        self._ends = {segment: end for segment, end in self._ends.items() if segment >= beginning.first}

    def _forget_half(self) -> None:
        """Forgets half of the tail at a time, so that forgetting costs nothing per batch."""
        half = (len(self._batches) + 1) // 2
        self._tail_bytes -= sum(map(_size, self._batches[:half]))
        del self._batches[:half], self._uptos[:half], self._bounds[:half]

    def read_from(self, log: SegmentedLog, after_id: int, after_us: int, limit_bytes: int) -> list[Element]:
        """Returns what follows for a consumer that has all tuples up to ``after_id`` and the boundary ``after_us``.

        It consists of batches in order, about ``limit_bytes`` of them or what READ_NS allows, and the boundary after
        them if it is new; it is empty when nothing follows yet.  The boundary is never beyond ``frontier_us``.

        Raises:
          LogCorrupt: the log has been damaged since it was written.
        """
        elements: list[Element] = []
        bound = self.frontier_us
        if after_id < self.last_id:
            batches, implied = self._batches_after(log, after_id, limit_bytes)
            assert batches[0].from_id == after_id, "U10: a batch begins at the reader's position"
            elements += batches
            after_id = batches[-1].upto_id
            if after_id < self.last_id:
                bound = min(bound, implied)
        if bound > after_us:
            elements.append(Boundary(Kind.STABLE, bound, after_id))
        return elements

    def _batches_after(self, log: SegmentedLog, after_id: int, limit_bytes: int) -> tuple[list[Batch], int]:
        """Returns at least one batch, and the boundary implied after the last one."""
        if not self._batches or after_id < self._batches[0].from_id:
            return self._batches_in_log(log, after_id, limit_bytes)
        first = stop = bisect_right(self._uptos, after_id)
        begun, size = self._step_ns(), 0
        while stop < len(self._batches) and size < limit_bytes and (stop == first or not self._is_long(begun)):
            self._join_tail(stop, min(limit_bytes, _PIECE_BYTES))
            size += self._batches[stop].rows.nbytes
            stop += 1
        batches = self._batches[first:stop]
        batches[0] = batches[0].after(after_id)
        return batches, self._bounds[stop - 1]

    def _is_long(self, begun_ns: int) -> bool:
        return self._step_ns() - begun_ns >= READ_NS

    def _join_tail(self, at: int, most_bytes: int) -> None:
        """Joins small batches in memory from an index on, once for all readers, if many follow it."""
        if len(self._batches) - at < _JOINED_MIN:
            return
        stop, size = at, 0
        for batch in self._batches[at : at + PIECE_BATCHES]:
            size += batch.rows.nbytes
            if stop > at and size > most_bytes:
                break
            stop += 1
        if stop - at > 1:
            parts = self._batches[at:stop]
            joined = _joined(parts)
            self._tail_bytes += _size(joined) - sum(map(_size, parts))
            self._batches[at:stop], self._uptos[at:stop] = [joined], [joined.upto_id]
            self._bounds[at:stop] = [self._bounds[stop - 1]]

    def _batches_in_log(self, log: SegmentedLog, after_id: int, limit_bytes: int) -> tuple[list[Batch], int]:
        batches: list[Batch] = []
        begun, size, bound = self._step_ns(), 0, BEFORE_TIME
        while size < limit_bytes and after_id < self.last_id and not (batches and self._is_long(begun)):
            piece = self._piece(log, after_id, min(limit_bytes, _PIECE_BYTES), begun)
            batches.append(piece.batch.after(after_id))
            size, bound, after_id = size + batches[-1].rows.nbytes, piece.bound_us, piece.batch.upto_id
        return batches, bound

    def _piece(self, log: SegmentedLog, after_id: int, most_bytes: int, begun_ns: int) -> _Piece:
        """Returns the piece of the log with the next tuple, decoded once for all readers."""
        # With equal ids (leases) the last entry at or before the requested id is the nearest.
        position = self._positions[bisect_left(self._ids, after_id + 1) - 1]
        for piece in reversed(self._pieces):
            if piece.batch.from_id <= after_id < piece.batch.upto_id:
                return piece
            if piece.batch.upto_id == after_id and piece.behind.sequence > position.sequence:
                position = piece.behind
        piece = self._decoded(log, after_id, position, most_bytes, begun_ns)
        if piece.batch.rows.nbytes <= 2 * _PIECE_BYTES:
            self._pieces.append(piece)
            del self._pieces[:-_PIECES_KEPT]
        return piece

    def _decoded(self, log: SegmentedLog, after_id: int, position: Position, most_bytes: int, begun_ns: int) -> _Piece:
        """Decodes small records from a position on, within the time limit of a read; at least one with tuples."""
        batches: list[Batch] = []
        size, bound = 0, BEFORE_TIME
        while not batches:
            records, behind = log.read(position, _PIECE_BYTES)
            for record in records:
                position = record.position
                if batches and (
                    size + len(record.body) > most_bytes
                    or len(batches) == PIECE_BATCHES
                    or batches[-1].upto_id == self.last_id
                    or self._is_long(begun_ns)
                ):
                    return _Piece(_joined(batches), bound, position)
                state = decode_source_state(record.body)
                if state.last_id <= after_id:
                    continue
                batch = decode_source_batch(record.body, self._schema, self._pool)
                bound = state.bound_us
                if batch is not None:
                    batches.append(batch)
                    size += len(record.body)
            position = behind
        return _Piece(_joined(batches), bound, position)

    def rejected_after(
        self, log: SegmentedLog, number: int, at: Position | None
    ) -> tuple[list[Batch], Position | None]:
        """Returns rejected rows (``spe.log.rejected_rows``) after a number, which is not the last.

        Args:
          at: position to continue from; None: from the index.

        Returns:
          the rows, and the position to continue from if this read had none; None: no more rows, because they were
            deleted.

        Raises:
          LogCorrupt: the log has been damaged since it was written.
        """
        records, behind = log.read(self._positions[self._before_rejected(number)] if at is None else at, _READ_BYTES)
        batches: list[Batch] = []
        for record in records:
            count = decode_source_state(record.body).rejected
            if number < count <= self.rejected and (rows := decode_rejected(record.body, StringPool())) is not None:
                batches.append(rows.after(number))
        return batches, behind if records else None

    def needed_for_rejected(self, number: int) -> int:
        """Returns the id up to which the log may be deleted if the rejected rows after a number are needed."""
        if number >= self.rejected:  # the next one may be in a record without tuples
            return self.last_id - 1
        return self._ids[self._before_rejected(number)] - 1

    def _before_rejected(self, number: int) -> int:
        """Returns the last entry of the index before the rejected row that follows a number."""
        return max(0, bisect_right(self._rejected, number) - 1)


def _size(batch: Batch) -> int:
    """Estimates the memory of a batch: at moderate rates it has a row or two, and nearly all of it is object
    overhead.
    """
    return batch.rows.nbytes + ENTRY_BYTES + COLUMN_BYTES * len(batch.rows.columns)


def _joined(batches: Sequence[Batch]) -> Batch:
    """Joins consecutive batches to one."""
    if len(batches) == 1:
        return batches[0]
    rows = concat_rows([batch.rows for batch in batches])
    return Batch(Kind.STABLE, batches[0].from_id, batches[-1].upto_id, None, rows)
