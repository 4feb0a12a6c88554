"""Decodes the stream elements of one connection; every field is checked.  The layout is in ``spe.wire.layout``."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import lt
from typing import Final

import numpy as np
import numpy.typing as npt

from spe.errors import RemoteProtocolError
from spe.stream.batch import Batch, BoolArray, Boundary, Column, Element, Int64Array, RecDone, Rows, Undo
from spe.stream.names import Kind, NodeState
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.framing import Buffer, Frame, FrameType
from spe.wire.layout import (
    BATCH,
    BOOL,
    BOUNDARY,
    CODE,
    FLAG_IDS,
    FLAG_T_MAX,
    FLOAT,
    FLOAT64,
    INT,
    INT64,
    MASKED_BATCH,
    PLAIN_BATCH,
    REC_DONE,
    UINT8,
    UINT32,
    UNDO,
    layout_of,
)
from spe.wire.string_table import ReceiveTable

_KINDS: Final = (Kind.STABLE, Kind.TENTATIVE)
_STATES: Final = tuple(NodeState)
#: Most rows of joined batches: about as many as one read brings
#: (replicas.link.connection.RECEIVE_BYTES).
_RUN_ROWS: Final = 32_768
#: Larger bodies are used in place, however few rows they have.
_RUN_BYTES: Final = 512 << 10
#: Looked up once: accessing an enum member takes five times as long as accessing a module's name.
_BATCH: Final = FrameType.BATCH
_BOUNDARY: Final = FrameType.BOUNDARY
_PLAIN_BYTES: Final = PLAIN_BATCH.size
_BOUNDARY_BYTES: Final = BOUNDARY.size
_NO_BOOLEAN: Final = "BATCH: a boolean that is neither 0 nor 1"

#: Rows up to which Python's own lists, and bytes, check faster than NumPy's reductions.
_FEW: Final = 64
_MANY: Final = 2_048


class ElementDecoder:
    """Decodes the elements of one connection.

    Args:
      pool: dictionaries for received strings; shared by all inputs of a unit, so that their columns can be
        concatenated without translation.
    """

    def __init__(self, schema: Schema, pool: StringPool) -> None:
        self._layout = layout = layout_of(schema)
        self._table = ReceiveTable(pool)
        forms = {form for form, _, _ in layout.columns}
        #: Larger bodies are not joined with the following ones: two have more rows than a run may have.
        self._run_bytes = min(layout.size(_RUN_ROWS // 2, 0, 0), _RUN_BYTES)
        self._has_floats, self._has_codes = FLOAT in forms, CODE in forms

    def decode(self, frame: Frame) -> Element | None:
        """Decodes a frame; returns None if it only brings strings for later ones.

        Raises:
          RemoteProtocolError: the body does not fit its type.
        """
        type_, body, keep = frame
        if type_ is _BATCH:
            return self._batch(body if keep else bytes(body))
        if type_ is FrameType.STRINGS:
            self._table.add(body)
            return None
        try:
            if type_ is _BOUNDARY:
                kind, time, upto_id = BOUNDARY.unpack(body)
                if kind > 1 or upto_id < 0 or not BEFORE_TIME <= time <= END_OF_TIME:
                    raise RemoteProtocolError(f"BOUNDARY: kind {kind}, time {time}, upto {upto_id}: out of range")
                return Boundary(_KINDS[kind], time, upto_id)
            if type_ is FrameType.UNDO:
                (upto_id,) = UNDO.unpack(body)
                if upto_id < 0:
                    raise RemoteProtocolError(f"UNDO: upto {upto_id} is below 0")
                return Undo(upto_id)
            if type_ is FrameType.REC_DONE:
                (state,) = REC_DONE.unpack(body)
                if state >= len(_STATES):
                    raise RemoteProtocolError(f"REC_DONE: there is no state {state}")
                return RecDone(_STATES[state])
        except struct.error:
            raise RemoteProtocolError(f"{type_.name}: a body of {len(body)} bytes") from None
        raise RemoteProtocolError(f"a {type_.name} frame where a stream element was expected")

    def decode_all(self, frames: Sequence[Frame]) -> Iterator[Element | Frame]:
        """Decodes the frames of one read, in order; CONTROL frames are passed through.

        Consecutive small stable batches are joined, with the last of the boundaries between them.  U3: cuts of a
        sequence have no meaning.  A frame alone costs as much as hundreds of rows.

        Raises:
          RemoteProtocolError: see :meth:`decode`; the elements before it have been yielded.
        """
        at, end = 0, len(frames)
        while at < end:
            frame = frames[at]
            small = frame.type is _BATCH and len(frame.body) <= self._run_bytes
            if small and end - at > 1 and (run := self._run(frames, at)) is not None:
                at, batch, boundary = run
                yield batch
                if boundary is not None:
                    yield boundary
                continue
            at += 1
            if frame.type is FrameType.CONTROL:
                yield frame
            elif (element := self.decode(frame)) is not None:
                yield element

    def _run(self, frames: Sequence[Frame], start: int) -> tuple[int, Batch, Boundary | None] | None:
        """Joins a run: (next frame, joined batch, last boundary); None if there is nothing to join.

        A run has only whole stable batches without nulls, with consecutive ids, and boundaries in their proper places.
        Any other frame, or a wrong one, ends the run and is decoded alone.
        """
        layout = self._layout
        if layout.words != 1:
            return None
        bodies: list[Buffer] = []
        counts: list[int] = []
        floors: list[int] = []  # the boundary before each batch
        places: list[int] = []  # its frame
        first = position = total = 0
        rows = size = -1  # of the previous batch
        bound, stop = BEFORE_TIME, start
        for stop in range(start, len(frames)):
            type_, body, _ = frames[stop]
            if type_ is _BATCH:
                if len(body) < _PLAIN_BYTES:
                    break
                plain, n, from_id, upto_id, nulls = PLAIN_BATCH.unpack_from(body)
                if n != rows:
                    rows, size = n, layout.size(n, 0, 0)
                if plain or nulls or not n or len(body) != size or n != upto_id - from_id:
                    break
                if not bodies:
                    first = from_id
                elif from_id != position or total + n > _RUN_ROWS:
                    break
                bodies.append(body)
                counts.append(n)
                floors.append(bound)
                places.append(stop)
                position = upto_id
                total += n
            elif type_ is _BOUNDARY and len(body) == _BOUNDARY_BYTES:
                kind, time, upto_id = BOUNDARY.unpack(body)
                if kind or upto_id != position or not bound <= time <= END_OF_TIME:
                    break
                bound = time
            else:
                break
        else:
            stop += 1
        if len(bodies) < 2 or first < 0:
            return None
        joined = self._joined(bodies, counts)
        if bound > BEFORE_TIME:
            for place, low, floor in zip(places, _lowest(joined, counts), floors, strict=True):
                if low < floor:  # a tuple below a boundary before it: the consumer handles that, so the run ends here
                    return self._run(frames[:place], start)
        batch = Batch(Kind.STABLE, first, position, None, joined)
        return stop, batch, None if bound == BEFORE_TIME else Boundary(Kind.STABLE, bound, position)

    def _joined(self, bodies: Sequence[Buffer], counts: Sequence[int]) -> Rows:
        """Concatenates the rows of several bodies without flags and masks; checks all of them at once."""
        cuts_of = self._layout.cuts
        # Joined as bytes: for NumPy's concatenate each piece must be an array, which costs more than copying it.
        if min(counts) == max(counts):
            parts = [b"".join([body[cut] for body in bodies]) for cut in cuts_of(counts[0])]
        else:
            cuts = zip(*map(cuts_of, counts), strict=True)
            parts = [b"".join([body[cut] for body, cut in zip(bodies, column)]) for column in cuts]
        time = np.frombuffer(parts[0], INT64)
        columns = []
        for (form, _, _), part in zip(self._layout.columns, parts[1:], strict=True):
            if form == INT:
                columns.append(Column(np.frombuffer(part, INT64)))
            elif form == FLOAT:
                columns.append(Column(np.frombuffer(part, FLOAT64)))
            elif form == CODE:
                dictionary = self._table.dictionary()
                columns.append(Column(self._table.codes(np.frombuffer(part, UINT32)), None, dictionary))
            else:
                _check_bits(np.frombuffer(part, UINT8))
                columns.append(Column(np.frombuffer(part, BOOL)))
        rows = Rows(time, time, tuple(columns))
        _check_span(rows)
        return rows

    def _header(self, body: Buffer) -> tuple[int, int, int, int, int, int]:
        """Returns kind, flags, number of rows, the ids covered, and which columns have masks, all checked."""
        layout = self._layout
        size = len(body)
        if size < layout.header:
            raise RemoteProtocolError(f"BATCH: a body of {size} bytes has no room for its header")
        if layout.words == 1:
            kind, flags, zero, n, from_id, upto_id, nulls = MASKED_BATCH.unpack_from(body)
        else:
            kind, flags, zero, n, from_id, upto_id = BATCH.unpack_from(body)
            nulls = int.from_bytes(body[BATCH.size : layout.header], "little")
        if kind > 1 or flags > 3 or zero or not 0 <= from_id <= upto_id:
            raise RemoteProtocolError(f"BATCH: kind {kind}, flags {flags}, ids ({from_id}, {upto_id}]: out of range")
        if nulls & ~layout.nullable:
            raise RemoteProtocolError(f"BATCH: masks {nulls:#x} for columns that cannot be null")
        if size != layout.size(n, flags, nulls.bit_count()):
            expected = layout.size(n, flags, nulls.bit_count())
            raise RemoteProtocolError(f"BATCH: {n} rows need {expected} bytes, got {size}")
        return kind, flags, n, from_id, upto_id, nulls

    def _batch(self, body: Buffer) -> Batch:
        kind, flags, n, from_id, upto_id, nulls = self._header(body)
        words = np.frombuffer(body, INT64)
        at = self._layout.header // 8
        time = t_max = words[at : at + n]
        at += n
        if flags & FLAG_T_MAX:
            t_max = words[at : at + n]
            _check_times(t_max)
            at += n
        ids = None
        if flags & FLAG_IDS:
            ids = words[at : at + n]
            _check_ids(ids, from_id, upto_id)
            at += n
        elif n != upto_id - from_id:
            raise RemoteProtocolError(f"BATCH: {n} rows cover the ids ({from_id}, {upto_id}]")
        floats = words.view(FLOAT64) if self._has_floats else words
        dictionary = self._table.dictionary() if self._has_codes else None
        columns = []
        for form, _, bit in self._layout.columns:
            valid = None
            if nulls & bit:
                valid = _bits(body, at, n)
                at += (n + 7) >> 3
            if form == INT:
                columns.append(Column(words[at : at + n], valid))
                at += n
            elif form == FLOAT:
                columns.append(Column(floats[at : at + n], valid))
                at += n
            elif form == CODE:
                codes = np.frombuffer(body, UINT32, n, 8 * at)
                columns.append(Column(self._table.codes(codes), valid, dictionary))
                at += (n + 1) >> 1
            else:
                columns.append(Column(_bits(body, at, n), valid))
                at += (n + 7) >> 3
        rows = Rows(time, t_max, tuple(columns))
        _check_span(rows)
        return Batch(_KINDS[kind], from_id, upto_id, ids, rows)


def _lowest(joined: Rows, counts: Sequence[int]) -> list[int]:
    """Returns the least time of each of the batches that were joined."""
    starts = [0, *accumulate(counts[:-1])]
    lowest: Int64Array = joined.time.take(starts) if joined.span()[0] else np.minimum.reduceat(joined.time, starts)
    times: list[int] = lowest.tolist()
    return times


def _bits(body: Buffer, at: int, n: int) -> BoolArray:
    """Reads booleans from word ``at`` on; a byte other than 0 and 1 would be neither true nor false to NumPy."""
    start = 8 * at
    if n > _MANY:
        _check_bits(np.frombuffer(body, UINT8, n, start))
    elif bytes(body[start : start + n]).translate(None, b"\0\1"):
        raise RemoteProtocolError(_NO_BOOLEAN)
    return np.frombuffer(body, BOOL, n, start)


def _check_bits(bits: npt.NDArray[np.uint8]) -> None:
    if np.maximum.reduce(bits) > 1:
        raise RemoteProtocolError(_NO_BOOLEAN)


def _check_span(rows: Rows) -> None:
    """Checks that times are within the ends of time, so that adding a window cannot overflow."""
    if len(rows.time):
        _, low, high = rows.span()
        if low < BEFORE_TIME or high > END_OF_TIME:
            raise RemoteProtocolError(f"BATCH: a time outside the ends of time: {low} … {high}")


def _check_times(time: Int64Array) -> None:
    """Checks times other than ``Rows.time`` in the same way."""
    if len(time) == 0:
        return
    if len(time) <= _FEW:
        values = time.tolist()
        low, high = min(values), max(values)
    else:
        low, high = np.minimum.reduce(time), np.maximum.reduce(time)
    if low < BEFORE_TIME or high > END_OF_TIME:
        raise RemoteProtocolError(f"BATCH: a time outside the ends of time: {low} … {high}")


def _check_ids(ids: Int64Array, from_id: int, upto_id: int) -> None:
    """Checks that row ids increase strictly within (from_id, upto_id]."""
    if len(ids) == 0:
        return
    if len(ids) <= _FEW:
        values = ids.tolist()
        good = all(map(lt, values, values[1:]))
    else:
        good = bool(np.logical_and.reduce(ids[1:] > ids[:-1]))
    if not good or not from_id < ids[0] or not ids[-1] <= upto_id:
        raise RemoteProtocolError(f"BATCH: row ids do not increase within ({from_id}, {upto_id}]")
