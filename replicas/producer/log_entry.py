"""An entry of an output's log: a batch and the boundary behind it."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from spe.stream.batch import Batch, BoolArray
from spe.stream.hashing import partition_of
from spe.stream.times import BEFORE_TIME

#: Bytes of an entry apart from its arrays' contents: the objects, and an array header per column.
ENTRY_BYTES: Final = 512
COLUMN_BYTES: Final = 192

#: (index, count, columns of the key): one consumer partition's share of a stream.
Substream = tuple[int, int, tuple[int, ...]]


class Entry:
    """A batch, with the last boundary before the next one.

    Attributes:
      boundary: microseconds of tuple time; BEFORE_TIME when none followed.  Consecutive boundaries with nothing in
        between are one: the last says everything.
      rows_bytes: bytes of its rows.
      nbytes: bytes that the entry is counted as.
    """

    __slots__ = ("_partitions", "batch", "boundary", "nbytes", "rows_bytes")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.boundary = BEFORE_TIME
        self.rows_bytes = batch.rows.nbytes
        self.nbytes = self.rows_bytes + ENTRY_BYTES + COLUMN_BYTES * len(batch.rows.columns)
        self._partitions: dict[tuple[int, tuple[int, ...]], npt.NDArray[np.int32]] = {}

    def share(self, substream: Substream) -> BoolArray:
        """Returns the mask of a substream's rows.  Rows are hashed once for all consumers."""
        index, count, key = substream
        partitions = self._partitions.get((count, key))
        if partitions is None:
            columns = self.batch.rows.columns
            partitions = partition_of([columns[k] for k in key], count).astype(np.int32)
            self._partitions[count, key] = partitions
        mask: BoolArray = partitions == index
        return mask
