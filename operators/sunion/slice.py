"""What an SUnion releases at once."""

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
    """One release: what is there of [previous end, ``end``).

    Attributes:
      parts: per input stream its rows, as they are held, none of them empty: put one after the other and sorted by
        time, stably, they are in the order (time, input, id).
      begin: of what the parts were taken from the chunks, or before it.
      chunks: of each part, the index of its input, and the chunk that it was taken from.
    """

    parts: list[list[Rows]]
    end: int
    kind: Kind
    begin: int = BEFORE_TIME
    chunks: list[list[tuple[int, Chunk]]] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(rows) for parts in self.parts for rows in parts)

    def merged(self) -> list[Rows | None]:
        """Per input stream all rows, sorted by (time, input, id), or None where there are none."""
        return [merge_rows(parts) if parts else None for parts in self.parts]

    def ids_of(self, stream: int, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Index of the input, and id there, of rows of a stream, given by number in the order (time, input, id).

        Looks at all rows of the stream: for those of which somebody has to be told.
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
