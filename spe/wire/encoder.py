"""Encodes the stream elements of one connection.  The layout is in ``spe.wire.layout``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from spe.errors import LocalProtocolError
from spe.stream.batch import AnyArray, Batch, Boundary, Element, RecDone, Undo
from spe.stream.schema import Schema
from spe.wire.framing import FRAME_BYTES, MAGIC, FrameType
from spe.wire.layout import (
    BATCH_FRAME,
    BIT,
    BOOL,
    BOUNDARY,
    BOUNDARY_FRAME,
    CODE,
    FLAG_IDS,
    FLAG_T_MAX,
    INT64,
    REC_DONE,
    REC_DONE_FRAME,
    UNDO,
    UNDO_FRAME,
    layout_of,
)
from spe.wire.string_table import SendTable

_ZEROS: Final = tuple(bytes(n) for n in range(8))


class ElementEncoder:
    """Encodes the elements of one connection.

    Args:
      frame_bytes: largest body that the peer accepts; a larger batch is split.
    """

    def __init__(self, schema: Schema, frame_bytes: int = FRAME_BYTES) -> None:
        self._layout = layout = layout_of(schema)
        self._schema = schema
        self._frame_bytes = frame_bytes
        self._rows_max = (frame_bytes - layout.header - 8 * layout.sections) // layout.row_bytes
        if self._rows_max < 1:
            raise LocalProtocolError(f"frames of {frame_bytes} bytes cannot hold a row of {len(schema)} attributes")
        self._table = SendTable()

    def encode(self, element: Element) -> list[Any]:
        """Returns buffers to send in order; they refer to the element's arrays.

        Raises:
          LocalProtocolError: the element does not fit the schema.
        """
        out: list[Any] = []
        self._append(element, out)
        return out

    def encode_many(self, elements: Iterable[Element], head: bytes = b"") -> bytes:
        """Encodes elements, after ``head``, into one piece for one send: sends are expensive."""
        out: list[Any] = [head]
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
                BOUNDARY_FRAME.pack(
                    MAGIC, FrameType.BOUNDARY, 0, BOUNDARY.size, element.kind, element.time, element.upto_id
                )
            )
        elif type(element) is Undo:
            out.append(UNDO_FRAME.pack(MAGIC, FrameType.UNDO, 0, UNDO.size, element.upto_id))
        elif type(element) is RecDone:
            out.append(REC_DONE_FRAME.pack(MAGIC, FrameType.REC_DONE, 0, REC_DONE.size, element.state))
        else:
            raise LocalProtocolError(f"{type(element).__name__} is no stream element")

    def _split(self, batch: Batch, size: int, out: list[Any]) -> None:
        """Splits a batch into batches of ``size`` rows.  U3: cuts of a sequence have no meaning."""
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
        parts: list[Any] = [b"", _plain(rows.time, INT64, n)]
        if rows.t_max is not rows.time:
            flags = FLAG_T_MAX
            parts.append(_plain(rows.t_max, INT64, n))
        if batch.ids is not None:
            flags |= FLAG_IDS
            parts.append(_plain(batch.ids, INT64, n))
        for (form, dtype, bit), column in zip(layout.columns, rows.columns):
            valid = column.valid
            if valid is not None:
                nulls |= bit
                masks += 1
                parts.append(_plain(valid, BOOL, n))
                parts.append(_ZEROS[-n & 7])
            values = column.values
            if values.dtype is not dtype or len(values) != n or not values.flags.c_contiguous:
                values = _plain(values, dtype, n)
            if form == CODE:
                if column.dictionary is None:
                    raise LocalProtocolError("a string column without a dictionary")
                parts.append(self._table.codes(values, valid, column.dictionary))
                if n & 1:
                    parts.append(_ZEROS[4])
            else:
                parts.append(values)
                if form == BIT:
                    parts.append(_ZEROS[-n & 7])
        if nulls & ~layout.nullable:
            raise LocalProtocolError(f"a column that must not be null has a mask; the schema is: {self._schema}")
        if self._table.pending and not self._send_strings(batch, out):
            return
        size = layout.size(n, flags, masks)
        parts[0] = BATCH_FRAME.pack(
            MAGIC, FrameType.BATCH, 0, size, batch.kind, flags, 0, n, batch.from_id, batch.upto_id
        ) + nulls.to_bytes(8 * layout.words, "little")
        out += parts

    def _send_strings(self, batch: Batch, out: list[Any]) -> bool:
        """Sends the batch's new strings; False if the batch has been encoded here, split or with a new table."""
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
    """Returns ``array`` in wire form: checked length and type, byte order, contiguous."""
    if array.dtype is not dtype and array.dtype != dtype:
        try:
            array = array.astype(dtype, casting="equiv")
        except TypeError:
            raise LocalProtocolError(f"a column of {array.dtype} where the schema needs {dtype}") from None
    if len(array) != n:
        raise LocalProtocolError(f"a column of {len(array)} rows in a batch of {n}")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
