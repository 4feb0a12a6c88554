"""A slice: the rows that an SUnion releases at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from operators.sunion.chunk import Chunk
from spe.stream.batch import Rows, merge_rows
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME


@dataclass(slots=True, eq=False)
class Slice:
    """One release: the rows of [previous end, ``end``).

    Attributes:
      parts: rows of each input stream as they are held, none empty: joined and stably sorted by time they are in the
        order (time, input, id).
      begin: smallest time that the parts may have.
      chunks: index of the input and the chunk of each part.
    """

    parts: list[list[Rows]]
    end: int
    kind: Kind
    begin: int = BEFORE_TIME
    chunks: list[list[tuple[int, Chunk]]] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(rows) for parts in self.parts for rows in parts)

    def merged(self) -> list[Rows | None]:
        """Returns all rows of each input stream, sorted by (time, input, id), or None where there are none."""
        return [merge_rows(parts) if parts else None for parts in self.parts]

    def ids_of(self, stream: int, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the input's index and the id of rows of a stream, numbered in the order (time, input, id).

        Reads all rows of the stream: for rare reports only.
        """
        assert len(self.chunks[stream]) == len(self.parts[stream]), "U15: each part names the chunk that has its ids"
        times = [rows_of_part.time for rows_of_part in self.parts[stream]]
        places = np.concatenate(times).argsort(kind="stable")[list(rows)]
        begins = np.cumsum([0, *map(len, times)])
        parts = begins.searchsorted(places, side="right") - 1
        inputs, ids = np.empty((2, len(places)), np.int64)
        for part in np.unique(parts).tolist():
            here = parts == part
            inputs[here], chunk = self.chunks[stream][part]
            ids[here] = chunk.ids_in(self.begin, self.end, places[here] - begins[part])
        return list(zip(inputs.tolist(), ids.tolist(), strict=True))
