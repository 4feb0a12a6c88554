"""The chunks that an SUnion holds of its inputs, in memory and in spill files (B6, B8, R6)."""

from __future__ import annotations

from collections.abc import Sequence

from operators.sunion.chunk import Chunk
from operators.sunion.input import SUnionInput
from operators.sunion.slice import Slice
from operators.sunion.slice_end import merge_divided, slice_end
from operators.sunion.spilled_chunk import SpilledChunk, spill_oldest
from spe.runtime.spill import piece_bytes
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME


class ChunkStore:
    """Makes slices of the chunks that inputs hold, spills and forgets them.

    Args:
      streams: how many input streams; inputs of the same stream make one sequence.
      redo_bytes: cap on stable tuples in memory; from a quarter of it on they are spilled.

    Attributes:
      stable_bytes: bytes of stable tuples held (for redo, or because an input lags).
      spilled: chunks may be on disk.
    """

    def __init__(self, inputs: Sequence[SUnionInput], streams: int, bucket_us: int, redo_bytes: int) -> None:
        self._inputs = inputs
        self._streams = streams
        self._bucket_us = bucket_us
        self.redo_bytes = redo_bytes
        self.stable_bytes = 0
        self.spilled = False
        #: Chunks before this time are being loaded piece by piece, and must not be spilled again.
        self._wanted = BEFORE_TIME

    def validate_rows(self, low: int) -> None:
        """Asserts invariants of all chunks; ``low``: all before it was released for good."""
        chunks = [chunk for port in self._inputs for chunk in port.stable]
        assert self.stable_bytes == sum(c.nbytes for c in chunks), "B6: stable tuples are counted"
        assert all(c.min >= low for c in chunks), "R6: what was released for good is forgotten"

    def fits(self, low: int, end: int, max_rows: int) -> bool:
        """Can one slice of at most ``max_rows`` rows per input hold all stable rows of [low, end)?"""
        if self.spilled:
            return False
        held = [(port.stable,) for port in self._inputs]
        return slice_end(held, low, end, max_rows=max_rows, bucket_us=self._bucket_us) >= end

    def spill(self, released: int) -> None:
        """Spills the oldest tuples from before ``released`` while they take too much memory (B6)."""
        for port in self._inputs:
            while port.spill is not None and self.stable_bytes * 4 > self.redo_bytes:
                size = piece_bytes(self.redo_bytes)
                gone = spill_oldest(port.stable, port.spill, released, size, wanted=self._wanted)
                if not gone:
                    break
                self.stable_bytes -= gone
                self.spilled = True

    def end_load(self) -> None:
        """Ends the protection of loaded pieces: the release that needed them is over."""
        self._wanted = BEFORE_TIME

    def bounded(self, low: int, end: int, max_rows: int, *, tentative: bool = False) -> int:
        """Returns ``end``, or an earlier time so that a slice holds at most ``max_rows`` rows per input (B8)."""
        held = self.stable_bytes + (sum(i.tentative_bytes for i in self._inputs) if tentative else 0)
        if held <= 8 * max_rows and not self.spilled:  # a row has a time, so it has eight bytes at least
            return end
        held_of = [(i.stable, i.tentative) if tentative else (i.stable,) for i in self._inputs]
        assert low < end, "B6: a slice has a length"
        cut = slice_end(held_of, low, end, max_rows=max_rows, bucket_us=self._bucket_us)
        if cut < end:
            for port in self._inputs:
                merge_divided(port.stable, low, cut)
                if tentative:
                    merge_divided(port.tentative, low, cut)
        return cut

    def gather(self, low: int, end: int, kind: Kind) -> Slice:
        """Returns the rows of [low, end), per stream in (input, id) order, and keeps them."""
        made = self._nothing(low, end, kind)
        tentative = kind is Kind.TENTATIVE
        for at, port in enumerate(self._inputs):
            for chunks in (port.stable, port.tentative) if tentative else (port.stable,):
                for chunk in chunks:
                    if chunk.floor >= end:
                        break
                    if chunk.max < low:
                        continue
                    if isinstance(chunk, SpilledChunk):
                        if chunk.min >= end:
                            continue
                        chunk = chunk.loaded()
                    if (rows := chunk.select(low, end)) is not None:
                        made.parts[port.stream].append(rows)
                        made.chunks[port.stream].append((at, chunk))
        return made

    def _nothing(self, begin: int, end: int, kind: Kind) -> Slice:
        streams = range(self._streams)
        return Slice([[] for _ in streams], end, kind, begin, [[] for _ in streams])

    def take(self, end: int) -> Slice:
        """Removes and returns every stable tuple with time < end.

        Raises SpillDamaged, SpillNotLoaded, with nothing changed.
        """
        if self.spilled:
            self._load(end)
        made = self._nothing(BEFORE_TIME, end, Kind.STABLE)
        for at, port in enumerate(self._inputs):
            for chunk in self._taken(port, end) if port.stable else ():
                if (rows := chunk.select(BEFORE_TIME, end)) is not None:
                    made.parts[port.stream].append(rows)
                    made.chunks[port.stream].append((at, chunk))
        return made

    def _taken(self, port: SUnionInput, end: int) -> list[Chunk]:
        """Removes the rows with time < end from an input; returns the chunks that had them."""
        chunks, taken = port.stable, list[Chunk]()
        left: list[Chunk | SpilledChunk] = []
        count = 0
        for chunk in chunks:
            if chunk.floor >= end:
                break
            count += 1
            if chunk.min >= end:
                left.append(chunk)
                continue
            assert isinstance(chunk, Chunk), "B6: what is taken was loaded"
            taken.append(chunk)
            self.stable_bytes -= chunk.nbytes
            if (rest := chunk.from_time(end)) is not None:
                self.stable_bytes += rest.nbytes
                left.append(rest)
        chunks[:count] = left
        assert self.stable_bytes >= 0, "B6: stable tuples are counted"
        return taken

    def forget(self, low: int) -> None:
        """Removes every stable tuple with time < low.  Raises SpillDamaged, SpillNotLoaded, with nothing changed."""
        self.load_divided(low)
        for port in self._inputs:
            left: list[Chunk | SpilledChunk] = []
            count = 0
            for chunk in port.stable:
                if chunk.floor >= low:
                    break
                count += 1
                rest = chunk.from_time(low)
                self.stable_bytes -= chunk.nbytes
                if rest is not None:
                    self.stable_bytes += rest.nbytes
                    left.append(rest)
            port.stable[:count] = left

    def load_divided(self, low: int) -> None:
        """Loads the pieces that ``low`` divides."""
        if self.spilled:
            self._load(low, divided=True)

    def _load(self, end: int, *, divided: bool = False) -> None:
        """Loads the spilled pieces that begin before ``end``; ``divided``: only those that reach beyond it."""
        self._wanted = end
        for port in self._inputs:
            for at, chunk in enumerate(port.stable):
                if chunk.floor >= end:
                    break
                if isinstance(chunk, SpilledChunk) and chunk.min < end and (not divided or chunk.max >= end):
                    port.stable[at] = loaded = chunk.loaded()
                    self.stable_bytes += loaded.nbytes
                    chunk.forget()
        self._wanted = BEFORE_TIME
        self.spilled = any(isinstance(chunk, SpilledChunk) for port in self._inputs for chunk in port.stable)
