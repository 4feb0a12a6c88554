"""Stream elements <-> frames: a fixed header and the columns' own bytes.

A BATCH body is, every part padded to 8 bytes::

    <BBHIqq  kind, flags, zero, n, from_id, upto_id
    nulls    bit i: column i has a mask; 64 columns per uint64
    time     n × int64
    t_max    n × int64 if flag T_MAX, else the same as time
    ids      n × int64 if flag IDS, else from_id + 1 … upto_id
    columns  per column: n × uint8 mask (1 where valid) if its bit is set; then n values, little-endian:
             int64 and timestamp 8 bytes, float64 8, string uint32 (entry of the connection's table), bool uint8

The schema is not sent: both ends have it from the plan, whose fingerprint the hello compares.  The receiver's columns
are read-only views of the frame; nothing is copied but strings' codes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from operator import lt
from typing import Any, Final

import numpy as np

from spe.batch import (
    AnyArray,
    Batch,
    BoolArray,
    Boundary,
    Column,
    Element,
    Int64Array,
    RecDone,
    Rows,
    Undo,
    concat_rows,
)
from spe.errors import LocalProtocolError, RemoteProtocolError
from spe.plan import Limits
from spe.schema import AttributeType, Schema
from spe.states import Kind, NodeState
from spe.strings import StringPool
from spe.times import BEFORE_TIME, END_OF_TIME
from spe.wire.framing import HEADER_BYTES, MAGIC, Buffer, Frame, FrameReader, FrameType
from spe.wire.string_table import ReceiveTable, SendTable

#: What a peer accepts unless the configuration says otherwise.
FRAME_BYTES: Final = Limits().frame_bytes

FLAG_IDS: Final = 1
FLAG_T_MAX: Final = 2

_BATCH: Final = struct.Struct("<BBHIqq")
_BATCH_FRAME: Final = struct.Struct("<HBBIBBHIqq")
_BOUNDARY: Final = struct.Struct("<Bxxxxxxxqq")
_BOUNDARY_FRAME: Final = struct.Struct("<HBBIBxxxxxxxqq")
_UNDO: Final = struct.Struct("<q")
_UNDO_FRAME: Final = struct.Struct("<HBBIq")
_REC_DONE: Final = struct.Struct("<Q")
_REC_DONE_FRAME: Final = struct.Struct("<HBBIQ")

_KINDS: Final = (Kind.STABLE, Kind.TENTATIVE)
_STATES: Final = tuple(NodeState)
_ZEROS: Final = tuple(bytes(n) for n in range(8))

#: Wire forms of columns.
_INT, _FLOAT, _CODE, _BIT = range(4)
_FORMS: Final[dict[AttributeType, tuple[int, np.dtype[Any]]]] = {
    AttributeType.INT64: (_INT, np.dtype("<i8")),
    AttributeType.TIMESTAMP: (_INT, np.dtype("<i8")),
    AttributeType.FLOAT64: (_FLOAT, np.dtype("<f8")),
    AttributeType.STRING: (_CODE, np.dtype("<i4")),
    AttributeType.BOOL: (_BIT, np.dtype(np.bool_)),
}
_INT64: Final = np.dtype("<i8")
_FLOAT64: Final = np.dtype("<f8")
_UINT32: Final = np.dtype("<u4")
_UINT8: Final = np.dtype(np.uint8)
_BOOL: Final = np.dtype(np.bool_)

#: Frame bound of what never meets a peer: what the length field can say.
_STANDALONE_BYTES: Final = 2**32 - 8

#: Rows up to which Python's own lists and bytes check faster than NumPy's reductions.
_FEW: Final = 64


class _Layout:
    """What the schema says about a batch's bytes."""

    __slots__ = ("columns", "eights", "fours", "header", "nullable", "ones", "row_bytes", "sections", "words")

    def __init__(self, schema: Schema) -> None:
        #: (form, dtype, bit in ``nulls``) per column.
        self.columns = [(*_FORMS[a.type], 1 << i) for i, a in enumerate(schema)]
        self.nullable = sum(1 << i for i, a in enumerate(schema) if a.nullable)
        self.words = (len(schema) + 63) // 64
        #: Bytes before ``time``.
        self.header = _BATCH.size + 8 * self.words
        sizes = [d.itemsize for _, d, _ in self.columns]
        self.eights, self.fours, self.ones = sizes.count(8), sizes.count(4), sizes.count(1)
        #: Bytes per row at most, and parts that may need padding: for splitting what is too large for a frame.
        self.row_bytes = 24 + sum(sizes) + len(sizes)
        self.sections = 2 * len(sizes)

    def size(self, n: int, flags: int, masks: int) -> int:
        """Length of the body."""
        eights = 1 + self.eights + (flags & 1) + (flags >> 1)
        return self.header + 8 * (n * eights + (n + 1) // 2 * self.fours + (n + 7) // 8 * (self.ones + masks))


_layout = lru_cache(maxsize=256)(_Layout)


class ElementEncoder:
    """The sending end of one connection.

    Args:
      frame_bytes: largest body that the peer accepts; a batch beyond it goes out as several.
    """

    def __init__(self, schema: Schema, frame_bytes: int = FRAME_BYTES) -> None:
        self._layout = layout = _layout(schema)
        self._schema = schema
        self._frame_bytes = frame_bytes
        self._rows_max = (frame_bytes - layout.header - 8 * layout.sections) // layout.row_bytes
        if self._rows_max < 1:
            raise LocalProtocolError(f"frames of {frame_bytes} bytes cannot hold a row of {len(schema)} attributes")
        self._table = SendTable()

    def encode(self, element: Element) -> list[Any]:
        """Buffers to send one after the other; they refer to the element's arrays.

        Raises:
          LocalProtocolError: the element does not fit the schema.
        """
        out: list[Any] = []
        self._append(element, out)
        return out

    def encode_many(self, elements: Iterable[Element]) -> bytes:
        """One piece for one send: a frame costs much, however small, and a send costs more (performance.md 6)."""
        out: list[Any] = []
        for element in elements:
            self._append(element, out)
        return b"".join(out)

    def _append(self, element: Element, out: list[Any]) -> None:
        if type(element) is Batch:
            if len(element.rows.time) > self._rows_max:
                self._split(element, self._rows_max, out)
            else:
                self._batch(element, out)
        elif type(element) is Boundary:
            out.append(
                _BOUNDARY_FRAME.pack(
                    MAGIC, FrameType.BOUNDARY, 0, _BOUNDARY.size, element.kind, element.time, element.upto_id
                )
            )
        elif type(element) is Undo:
            out.append(_UNDO_FRAME.pack(MAGIC, FrameType.UNDO, 0, _UNDO.size, element.upto_id))
        elif type(element) is RecDone:
            out.append(_REC_DONE_FRAME.pack(MAGIC, FrameType.REC_DONE, 0, _REC_DONE.size, element.state))
        else:
            raise LocalProtocolError(f"{type(element).__name__} is no stream element")

    def _split(self, batch: Batch, size: int, out: list[Any]) -> None:
        """Several batches of ``size`` rows instead of one: where a sequence is cut means nothing (protocol.md U3)."""
        while len(batch) > size:
            last = batch.from_id + size if batch.ids is None else int(batch.ids[size - 1])
            ids = None if batch.ids is None else batch.ids[:size]
            self._append(Batch(batch.kind, batch.from_id, last, ids, batch.rows.slice(0, size)), out)
            batch = batch.after(last)
        self._append(batch, out)

    def _batch(self, batch: Batch, out: list[Any]) -> None:
        rows, layout = batch.rows, self._layout
        n = len(rows.time)
        if len(rows.columns) != len(layout.columns):
            raise LocalProtocolError(f"{len(rows.columns)} columns do not fit the schema ({self._schema})")
        flags = nulls = masks = 0
        parts: list[Any] = [b"", _plain(rows.time, _INT64, n)]
        if rows.t_max is not rows.time:
            flags = FLAG_T_MAX
            parts.append(_plain(rows.t_max, _INT64, n))
        if batch.ids is not None:
            flags |= FLAG_IDS
            parts.append(_plain(batch.ids, _INT64, n))
        for (form, dtype, bit), column in zip(layout.columns, rows.columns):
            valid = column.valid
            if valid is not None:
                nulls |= bit
                masks += 1
                parts.append(_plain(valid, _BOOL, n))
                parts.append(_ZEROS[-n & 7])
            values = _plain(column.values, dtype, n)
            if form == _CODE:
                if column.dictionary is None:
                    raise LocalProtocolError("a string column without a dictionary")
                parts.append(self._table.codes(values, valid, column.dictionary))
                if n & 1:
                    parts.append(_ZEROS[4])
            else:
                parts.append(values)
                if form == _BIT:
                    parts.append(_ZEROS[-n & 7])
        if nulls & ~layout.nullable:
            raise LocalProtocolError(f"a column that must not be null has a mask; the schema is: {self._schema}")
        if self._table.pending and not self._send_strings(batch, out):
            return
        size = layout.size(n, flags, masks)
        parts[0] = _BATCH_FRAME.pack(
            MAGIC, FrameType.BATCH, 0, size, batch.kind, flags, 0, n, batch.from_id, batch.upto_id
        ) + nulls.to_bytes(8 * layout.words, "little")
        out += parts

    def _send_strings(self, batch: Batch, out: list[Any]) -> bool:
        """Sends what the batch brought into the table; False when the batch was dealt with here, in another way."""
        texts = self._table.texts()
        if texts is not None:
            out += self._table.frames(texts, self._frame_bytes)
            return True
        anew = self._table.is_new
        self._table.reset()
        if not anew:
            self._append(batch, out)
        elif len(batch) > 1:
            self._split(batch, (len(batch) + 1) // 2, out)
        else:
            raise LocalProtocolError("the strings of one row are larger than a connection's table may be")
        return False


def _plain(array: AnyArray, dtype: np.dtype[Any], n: int) -> AnyArray:
    """``array`` as the wire needs it: length, type, byte order, in one piece."""
    if array.dtype != dtype:
        try:
            array = array.astype(dtype, casting="equiv")
        except TypeError:
            raise LocalProtocolError(f"a column of {array.dtype} where the schema needs {dtype}") from None
    if len(array) != n:
        raise LocalProtocolError(f"a column of {len(array)} rows in a batch of {n}")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


class ElementDecoder:
    """The receiving end of one connection.

    Args:
      pool: dictionaries that received strings go into; shared by all inputs of a unit, so that their columns
        can be put together without translation.
    """

    def __init__(self, schema: Schema, pool: StringPool) -> None:
        self._layout = layout = _layout(schema)
        self._table = ReceiveTable(pool)
        forms = {form for form, _, _ in layout.columns}
        self._has_floats, self._has_codes = _FLOAT in forms, _CODE in forms

    def decode(self, frame: Frame) -> Element | None:
        """The element in a frame; None when the frame only brought strings for later ones.

        Raises:
          RemoteProtocolError: the body is not what its type promises.
        """
        type_, body = frame
        if type_ is FrameType.BATCH:
            return self._batch(body)
        if type_ is FrameType.STRINGS:
            self._table.add(body)
            return None
        try:
            if type_ is FrameType.BOUNDARY:
                kind, time, upto_id = _BOUNDARY.unpack(body)
                if kind > 1 or upto_id < 0 or not BEFORE_TIME <= time <= END_OF_TIME:
                    raise RemoteProtocolError(f"BOUNDARY: kind {kind}, time {time}, upto {upto_id}: out of range")
                return Boundary(_KINDS[kind], time, upto_id)
            if type_ is FrameType.UNDO:
                (upto_id,) = _UNDO.unpack(body)
                if upto_id < 0:
                    raise RemoteProtocolError(f"UNDO: upto {upto_id} is below 0")
                return Undo(upto_id)
            if type_ is FrameType.REC_DONE:
                (state,) = _REC_DONE.unpack(body)
                if state >= len(_STATES):
                    raise RemoteProtocolError(f"REC_DONE: there is no state {state}")
                return RecDone(_STATES[state])
        except struct.error:
            raise RemoteProtocolError(f"{type_.name}: a body of {len(body)} bytes") from None
        raise RemoteProtocolError(f"a {type_.name} frame where a stream element was expected")

    def _batch(self, body: Buffer) -> Batch:
        layout = self._layout
        size = len(body)
        if size < layout.header:
            raise RemoteProtocolError(f"BATCH: a body of {size} bytes has no room for its header")
        kind, flags, zero, n, from_id, upto_id = _BATCH.unpack_from(body)
        nulls = int.from_bytes(body[_BATCH.size : layout.header], "little")
        if kind > 1 or flags > 3 or zero or not 0 <= from_id <= upto_id:
            raise RemoteProtocolError(f"BATCH: kind {kind}, flags {flags}, ids ({from_id}, {upto_id}]: out of range")
        if nulls & ~layout.nullable:
            raise RemoteProtocolError(f"BATCH: masks {nulls:#x} for columns that cannot be null")
        if size != layout.size(n, flags, nulls.bit_count()):
            expected = layout.size(n, flags, nulls.bit_count())
            raise RemoteProtocolError(f"BATCH: {n} rows need {expected} bytes, got {size}")
        words = np.frombuffer(body, _INT64)
        at = layout.header // 8
        time = t_max = words[at : at + n]
        _check_times(time)
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
        floats = words.view(_FLOAT64) if self._has_floats else words
        dictionary = self._table.dictionary() if self._has_codes else None
        columns = []
        for form, _, bit in layout.columns:
            valid = None
            if nulls & bit:
                valid = _bits(body, at, n)
                at += (n + 7) >> 3
            if form == _INT:
                columns.append(Column(words[at : at + n], valid))
                at += n
            elif form == _FLOAT:
                columns.append(Column(floats[at : at + n], valid))
                at += n
            elif form == _CODE:
                codes = np.frombuffer(body, _UINT32, n, 8 * at)
                columns.append(Column(self._table.codes(codes), valid, dictionary))
                at += (n + 1) >> 1
            else:
                columns.append(Column(_bits(body, at, n), valid))
                at += (n + 7) >> 3
        return Batch(_KINDS[kind], from_id, upto_id, ids, Rows(time, t_max, tuple(columns)))


def _bits(body: Buffer, at: int, n: int) -> BoolArray:
    """Booleans from word ``at`` on; a byte other than 0 and 1 would be neither true nor false to NumPy."""
    start = 8 * at
    if n <= _FEW:
        good = not bytes(body[start : start + n]).translate(None, b"\0\1")
    else:
        good = bool(np.maximum.reduce(np.frombuffer(body, _UINT8, n, start)) <= 1)
    if not good:
        raise RemoteProtocolError("BATCH: a boolean that is neither 0 nor 1")
    return np.frombuffer(body, _BOOL, n, start)


def _check_times(time: Int64Array) -> None:
    """Times stay within the ends of time, so that adding a window to them cannot overflow."""
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
    """Row ids increase strictly within (from_id, upto_id]."""
    if len(ids) == 0:
        return
    if len(ids) <= _FEW:
        values = ids.tolist()
        good = all(map(lt, values, values[1:]))
    else:
        good = bool(np.logical_and.reduce(ids[1:] > ids[:-1]))
    if not good or not from_id < ids[0] or not ids[-1] <= upto_id:
        raise RemoteProtocolError(f"BATCH: row ids do not increase within ({from_id}, {upto_id}]")


def encode_standalone(element: Element, schema: Schema) -> bytes:
    """Bytes that need no connection: the element with all the strings that it uses.  For logs and recordings.

    Raises:
      LocalProtocolError: the element does not fit the schema.
    """
    return ElementEncoder(schema, _STANDALONE_BYTES).encode_many((element,))


def decode_standalone(data: bytes, schema: Schema, pool: StringPool) -> Element:
    """What :func:`encode_standalone` made.

    Raises:
      RemoteProtocolError: the bytes are damaged, or hold more or less than one element.
    """
    reader = FrameReader(max(len(data), HEADER_BYTES))
    decoder = ElementDecoder(schema, pool)
    elements = [e for f in reader.feed(data) if (e := decoder.decode(f)) is not None]
    reader.finish()
    batches = [e for e in elements if type(e) is Batch]
    if len(batches) == len(elements) > 1:
        return _joined(batches)
    if len(elements) != 1:
        raise RemoteProtocolError(f"expected one element, found {len(elements)}")
    return elements[0]


def _joined(batches: list[Batch]) -> Batch:
    """The one batch that was cut because its strings fill more than one table."""
    first, last = batches[0], batches[-1]
    if any(b.kind is not first.kind or b.from_id != a.upto_id for a, b in pairwise(batches)):
        raise RemoteProtocolError(f"expected one element, found {len(batches)} batches")
    ids = None if all(b.ids is None for b in batches) else np.concatenate([b.row_ids() for b in batches])
    return Batch(first.kind, first.from_id, last.upto_id, ids, concat_rows([b.rows for b in batches]))
