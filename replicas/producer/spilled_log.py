"""The part of a stable log in spill files: entries keep their numbers, and are read back in pieces."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from replicas.producer.log_entry import Entry
from spe.runtime.spill import Handle, Spill, SpillDamaged
from spe.stream.batch import Batch, concat_rows
from spe.stream.names import Kind

#: Pieces that stay in memory after reading: about one for each lagging consumer.
LOADED_PIECES: Final = 4

#: Memory of a piece apart from its list of entries, bytes.
PIECE_OVERHEAD: Final = 512


class _Piece:
    """Consecutive entries as one batch in a file, with the end of each."""

    __slots__ = ("base_id", "boundaries", "handle", "number", "uptos")

    def __init__(self, number: int, entries: Sequence[Entry], handle: Handle) -> None:
        #: Number of the first entry.
        self.number = number
        self.base_id = entries[0].batch.from_id
        self.uptos = np.array([e.batch.upto_id for e in entries], np.int64)
        self.boundaries = np.array([e.boundary for e in entries], np.int64)
        self.handle = handle

    @property
    def upto_id(self) -> int:
        return int(self.uptos[-1])

    @property
    def end(self) -> int:
        return self.number + len(self.uptos)

    @property
    def nbytes(self) -> int:
        return PIECE_OVERHEAD + self.uptos.nbytes + self.boundaries.nbytes

    def entries(self, batch: Batch) -> list[Entry]:
        out: list[Entry] = []
        first = self.base_id
        for upto, boundary in zip(self.uptos.tolist(), self.boundaries.tolist(), strict=True):
            rows = batch.rows.slice(first - self.base_id, upto - self.base_id)
            entry = Entry(Batch(Kind.STABLE, first, upto, None, rows))
            entry.boundary = boundary
            out.append(entry)
            first = upto
        return out


class SpilledEntries:
    """Pieces in order, forgotten whole from the front.

    Args:
      spill: stores the pieces.
    """

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._pieces: list[_Piece] = []
        #: Entries of the last pieces read, by number of the piece; oldest first.
        self._loaded: dict[int, list[Entry]] = {}
        #: Memory of the lists of pieces, bytes.
        self.nbytes = 0
        #: Last id that was lost by damage; 0: none.
        self.lost_id = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def stored_bytes(self) -> int:
        """Bytes in spill files."""
        return sum(piece.handle.length for piece in self._pieces)

    @property
    def start(self) -> int:
        """Number of the first entry."""
        return self._pieces[0].number

    @property
    def base_id(self) -> int:
        """Id before the first entry."""
        return self._pieces[0].base_id

    def add(self, number: int, entries: Sequence[Entry]) -> bool:
        """Appends entries; False when there is no room for them."""
        rows = concat_rows([e.batch.rows for e in entries])
        batch = Batch(Kind.STABLE, entries[0].batch.from_id, entries[-1].batch.upto_id, None, rows)
        handle = self._spill.write(batch)
        if handle is None:
            return False
        self._pieces.append(_Piece(number, entries, handle))
        self.nbytes += self._pieces[-1].nbytes
        return True

    def __getitem__(self, number: int) -> Entry:
        """Returns an entry by its number.

        Raises:
          SpillDamaged: its piece is lost, and everything up to it is forgotten.
        """
        piece = self._piece(number)
        return self._load(piece)[number - piece.number]

    def end_of(self, number: int) -> tuple[int, int]:
        """Returns (boundary after it, its last id) of an entry, without reading it."""
        piece = self._piece(number)
        at = number - piece.number
        return int(piece.boundaries[at]), int(piece.uptos[at])

    def number_after(self, last_id: int) -> int:
        """Returns the number of the first entry that reaches beyond an id, or the number after the last entry."""
        at = bisect_right(self._pieces, last_id, key=lambda p: p.upto_id)
        if at == len(self._pieces):
            return self._pieces[-1].end
        piece = self._pieces[at]
        return piece.number + int(piece.uptos.searchsorted(last_id, side="right"))

    def entries_after(self, last_id: int) -> Iterator[Entry]:
        """Yields the entries that reach beyond an id, reading a piece at a time.  Raises SpillDamaged as above."""
        number = self.number_after(last_id)
        for piece in [p for p in self._pieces if p.end > number]:
            yield from self._load(piece)[max(0, number - piece.number) :]

    def piece_after(self, last_id: int) -> list[Entry]:
        """Returns the entries of the first piece that reaches beyond an id, if any.  Raises SpillDamaged as above."""
        number = self.number_after(last_id)
        if number == self._pieces[-1].end:
            return []
        piece = self._piece(number)
        return self._load(piece)[number - piece.number :]

    def forget_through(self, last_id: int) -> None:
        """Forgets every piece that lies wholly at or below an id."""
        count = bisect_right(self._pieces, last_id, key=lambda p: p.upto_id)
        for piece in self._pieces[:count]:
            self._spill.forget(piece.handle)
            self._loaded.pop(piece.number, None)
            self.nbytes -= piece.nbytes
        del self._pieces[:count]

    def _piece(self, number: int) -> _Piece:
        return self._pieces[bisect_right(self._pieces, number, key=lambda p: p.number) - 1]

    def _load(self, piece: _Piece) -> list[Entry]:
        entries = self._loaded.pop(piece.number, None)
        if entries is None:
            try:
                entries = piece.entries(self._spill.read(piece.handle))
            except SpillDamaged:
                self.forget_through(piece.upto_id)
                self.lost_id = piece.upto_id
                raise
            if len(self._loaded) >= LOADED_PIECES:
                del self._loaded[next(iter(self._loaded))]
        self._loaded[piece.number] = entries
        return entries
