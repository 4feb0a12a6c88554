"""Encodes columns in the binary format of PostgreSQL's COPY, without a step per row except for texts.

A tuple is a count of fields, and per field its length and its bytes; -1 is the length of a null.  All numbers are big
endian.  Fields of fixed width are in one structured array; texts and nulls between them are interleaved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from spe.stream.batch import AnyArray, BoolArray, Column, Int64Array
from spe.stream.schema import AttributeType

HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER: Final = b"\xff\xff"

#: 2000-01-01, PostgreSQL's epoch, in microseconds since 1970.
_EPOCH_US: Final = 946_684_800_000_000
#: Range of its timestamps: from 4714-11-24 BC to before 294277.
_FIRST_US: Final = -211_813_488_000_000_000
_END_US: Final = 9_223_371_331_200_000_000

_WIRE: Final = {
    AttributeType.INT64: ">i8",
    AttributeType.FLOAT64: ">f8",
    AttributeType.BOOL: "u1",
    AttributeType.TIMESTAMP: ">i8",
}


class CellRefused(ValueError):
    """A value that PostgreSQL cannot store.

    Attributes:
      row: its place among the rows, from 0.
      field: its place in the row, from 0.
    """

    def __init__(self, row: int, field: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.field = field


class Field(NamedTuple):
    """An encoded column.

    Attributes:
      values: shape (n,), big endian, of the type's width; for texts the lengths in bytes.
      valid: False for null; None: nothing is null.
      texts: UTF-8 of all texts, one after the other, a null has none; None: not texts.
    """

    values: AnyArray
    valid: BoolArray | None = None
    texts: bytes | None = None


def ints(values: AnyArray, *, width: int = 8) -> Field:
    """Encodes integers without nulls: 8 bytes for bigint, 4 for integer."""
    return Field(values.astype(f">i{width}"))


def bools(values: BoolArray) -> Field:
    return Field(values.astype("u1"))


def moments(values: Int64Array, field: int, valid: BoolArray | None = None) -> Field:
    """Encodes timestamptz from microseconds since 1970.  Raises CellRefused."""
    since = values - _EPOCH_US
    if len(values) and (int(values.min()) < _FIRST_US + _EPOCH_US or int(values.max()) >= _END_US):
        bad = (values < _FIRST_US + _EPOCH_US) | (values >= _END_US)
        if valid is not None:
            bad &= valid
        if bad.any():
            raise CellRefused(int(bad.argmax()), field, "the timestamp lies outside of 4713 BC to 294276")
    return Field(since.astype(">i8"), valid)


def texts(items: Sequence[str], field: int, valid: BoolArray | None = None) -> Field:
    """Encodes texts; "" for a null.  Raises CellRefused: a text has a NUL character."""
    encoded = [text.encode() for text in items]
    whole = b"".join(encoded)
    if b"\0" in whole:
        row = next(i for i, text in enumerate(encoded) if b"\0" in text)
        raise CellRefused(row, field, "the text has a NUL character, which PostgreSQL cannot store")
    return Field(np.fromiter(map(len, encoded), np.int64, len(encoded)), valid, whole)


def constant(text: str, count: int) -> Field:
    """Encodes the same text for each row."""
    data = text.encode()
    return Field(np.full(count, len(data), np.int64), None, data * count)


def nulls(count: int) -> Field:
    """Encodes nulls of any type."""
    return Field(np.zeros(count, "u1"), np.zeros(count, np.bool_))


def attribute(column: Column, type_: AttributeType, field: int) -> Field:
    """Encodes an attribute of a stream.  Raises CellRefused."""
    valid = None if column.valid is None or column.valid.all() else column.valid
    if type_ is AttributeType.STRING:
        assert column.dictionary is not None
        if not len(column.dictionary):
            return Field(np.zeros(len(column), np.int64), valid, b"")
        strings = column.dictionary.texts().take(column.values, mode="clip")
        if valid is not None:
            strings[~valid] = ""
        return texts(strings.tolist(), field, valid)
    if type_ is AttributeType.TIMESTAMP:
        return moments(column.values, field, valid)
    return Field(column.values.astype(_WIRE[type_]), valid)


def tuples(fields: Sequence[Field]) -> bytes:
    """Joins columns of one length to rows, without header and trailer."""
    n = len(fields[0].values)
    blocks: list[_Block] = []
    fixed: list[Field] = []
    for field in fields:
        if field.texts is None and field.valid is None:
            fixed.append(field)
            continue
        blocks += [_fixed(n, fixed, None if blocks else len(fields)), _varying(field)]
        fixed = []
    if not blocks:
        return _fixed(n, fixed, len(fields)).data.tobytes()
    if fixed:
        blocks.append(_fixed(n, fixed, None))
    return _interleave([b for b in blocks if not isinstance(b.sizes, int) or b.sizes], n).data.tobytes()


class _Block(NamedTuple):
    """Adjacent bytes of each row.

    Attributes:
      data: bytes of all rows, one after the other.
      sizes: shape (n,), bytes of each row; an int: of every row.
    """

    data: npt.NDArray[np.uint8]
    sizes: Int64Array | int


def _fixed(rows: int, fields: Sequence[Field], count: int | None) -> _Block:
    """Joins fields of fixed width, after the count of fields if given."""
    kinds: list[tuple[str, str]] = [] if count is None else [("count", ">i2")]
    for i, field in enumerate(fields):
        kinds += [(f"l{i}", ">i4"), (f"v{i}", field.values.dtype.str)]
    whole = np.empty(rows, np.dtype(kinds))
    if count is not None:
        whole["count"] = count
    for i, field in enumerate(fields):
        whole[f"l{i}"] = field.values.dtype.itemsize
        whole[f"v{i}"] = field.values
    return _Block(whole.view(np.uint8), whole.dtype.itemsize)


def _varying(field: Field) -> _Block:
    """Encodes a field of texts, or with nulls."""
    n, valid = len(field.values), field.valid
    if field.texts is not None:
        width, lengths, data = 0, field.values, np.frombuffer(field.texts, np.uint8)
    else:
        width = field.values.dtype.itemsize
        lengths = np.full(n, width, np.int64)
        present = field.values if valid is None else field.values[valid]
        data = np.ascontiguousarray(present).view(np.uint8)
    prefix = lengths.astype(">i4")
    if valid is not None:
        prefix[~valid] = -1
        lengths = np.where(valid, lengths, 0)
    return _interleave([_Block(prefix.view(np.uint8), 4), _Block(data, lengths)], n)


def _interleave(blocks: Sequence[_Block], n: int) -> _Block:
    """Interleaves blocks row by row."""
    sizes = np.zeros(n, np.int64)
    for block in blocks:
        sizes += block.sizes
    ends = np.cumsum(sizes)
    whole = np.empty(int(ends[-1]) if n else 0, np.uint8)
    at = ends - sizes
    for block in blocks:
        if isinstance(block.sizes, int):
            shaped = block.data.reshape(n, block.sizes)
            for k in range(block.sizes):
                whole[at + k] = shaped[:, k]
        else:
            begins = np.cumsum(block.sizes) - block.sizes
            whole[np.arange(len(block.data)) + np.repeat(at - begins, block.sizes)] = block.data
        at = at + block.sizes
    return _Block(whole, sizes)
