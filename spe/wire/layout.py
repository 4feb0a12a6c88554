"""Layout of stream elements in frames: a fixed header and the bytes of the columns.

A BATCH body consists of these parts, each padded to 8 bytes::

    <BBHIqq  kind, flags, zero, n, from_id, upto_id
    nulls    bit i: column i has a mask; 64 columns per uint64
    time     n × int64
    t_max    n × int64 if flag T_MAX, else the same as time
    ids      n × int64 if flag IDS, else from_id + 1 … upto_id
    columns  per column: n × uint8 mask (1 where valid) if its bit is set; then n values, little-endian:
             int64 and timestamp 8 bytes, float64 8, string uint32 (entry of the connection's table), bool uint8

The schema is not sent: both ends have it from the plan, whose fingerprint the hello compares.  The receiver's columns
are read-only views of large received batches; small batches are joined instead.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final

import numpy as np

from spe.stream.schema import AttributeType, Schema

FLAG_IDS: Final = 1
FLAG_T_MAX: Final = 2

BATCH: Final = struct.Struct("<BBHIqq")
#: Header with the masks of up to 64 columns.
MASKED_BATCH: Final = struct.Struct("<BBHIqqQ")
#: The same header with kind, flags and zero as one number, which is 0 for a plain batch, as ``nulls`` is.
PLAIN_BATCH: Final = struct.Struct("<IIqqQ")
BATCH_FRAME: Final = struct.Struct("<HBBIBBHIqq")
BOUNDARY: Final = struct.Struct("<Bxxxxxxxqq")
BOUNDARY_FRAME: Final = struct.Struct("<HBBIBxxxxxxxqq")
UNDO: Final = struct.Struct("<q")
UNDO_FRAME: Final = struct.Struct("<HBBIq")
REC_DONE: Final = struct.Struct("<Q")
REC_DONE_FRAME: Final = struct.Struct("<HBBIQ")


#: Wire forms of columns.
INT, FLOAT, CODE, BIT = range(4)
_FORMS: Final[dict[AttributeType, tuple[int, np.dtype[Any]]]] = {
    AttributeType.INT64: (INT, np.dtype("<i8")),
    AttributeType.TIMESTAMP: (INT, np.dtype("<i8")),
    AttributeType.FLOAT64: (FLOAT, np.dtype("<f8")),
    AttributeType.STRING: (CODE, np.dtype("<i4")),
    AttributeType.BOOL: (BIT, np.dtype(np.bool_)),
}
INT64: Final = np.dtype("<i8")
FLOAT64: Final = np.dtype("<f8")
UINT32: Final = np.dtype("<u4")
UINT8: Final = np.dtype(np.uint8)
BOOL: Final = np.dtype(np.bool_)


class RowLayout:
    """The layout of batches with a schema."""

    __slots__ = (
        "_widths",
        "columns",
        "eights",
        "fours",
        "header",
        "nullable",
        "ones",
        "row_bytes",
        "sections",
        "words",
    )

    def __init__(self, schema: Schema) -> None:
        #: (form, dtype, bit in ``nulls``) per column.
        self.columns = [(*_FORMS[a.type], 1 << i) for i, a in enumerate(schema)]
        self.nullable = sum(1 << i for i, a in enumerate(schema) if a.nullable)
        self.words = (len(schema) + 63) // 64
        #: Bytes before ``time``.
        self.header = BATCH.size + 8 * self.words
        sizes = [d.itemsize for _, d, _ in self.columns]
        self._widths = (8, *sizes)
        self.eights, self.fours, self.ones = sizes.count(8), sizes.count(4), sizes.count(1)
        #: Most bytes per row, and number of parts that may need padding, for splitting large batches.
        self.row_bytes = 24 + sum(sizes) + len(sizes)
        self.sections = 2 * len(sizes)

    def size(self, n: int, flags: int, masks: int) -> int:
        """Returns the length of the body."""
        if not (flags or masks):
            return self.header + 8 * (n * (1 + self.eights) + (n + 1 >> 1) * self.fours + (n + 7 >> 3) * self.ones)
        eights = 1 + self.eights + (flags & 1) + (flags >> 1)
        return self.header + 8 * (n * eights + (n + 1) // 2 * self.fours + (n + 7) // 8 * (self.ones + masks))

    def cuts(self, n: int) -> list[slice]:
        """Returns the places of time and the columns in the body of a plain batch, without flags and masks."""
        places, at = [], self.header
        for width in self._widths:
            stop = at + width * n
            places.append(slice(at, stop))
            at = stop + (-stop & 7)
        return places


layout_of = lru_cache(maxsize=256)(RowLayout)
