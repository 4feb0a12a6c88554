"""Ends slices so that one step takes in a limited number of rows, even within a bucket (B8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from operators.sunion.chunk import Chunk
from operators.sunion.spilled_chunk import SpilledChunk
from spe.stream.batch import Int64Array
from spe.stream.times import BEFORE_TIME, floor_to, saturating_add

#: Chunks that a cut divides are joined up to this many rows, eight times those of one read (spe.wire.decoder), and from
#: this many chunks on.
_MERGED_ROWS: Final = 262_144
_MERGED_CHUNKS: Final = 4

#: Chunks of one input: stable ones, and for a tentative slice also tentative ones.
Held = Sequence[Sequence[Chunk | SpilledChunk]]


def slice_end(inputs: Sequence[Held], low: int, end: int, *, max_rows: int, bucket_us: int) -> int:
    """Returns ``end``, or an earlier time so that no input has more than ``max_rows`` rows in [low, that time).

    Prefers the end of a bucket; else the slice ends within a bucket, between two rows of different time: operators
    accept any true boundary (U3).  A boundary cannot divide rows of one instant; if these alone are more, they stay
    together.
    """
    assert max_rows > 0, "B8: a slice has rows"
    cut = end
    for held in inputs:
        cut = _cut(held, low, cut, max_rows)
    if cut == end:
        return end
    assert low < cut < end, "B8: a slice that is cut goes on"
    begin = min(max(c.min, low) for held in inputs for chunks in held for c in chunks if c.max >= low)
    whole = floor_to(cut, bucket_us)
    return whole if whole > begin else cut


def _cut(held: Held, low: int, end: int, max_rows: int) -> int:
    """Does the same for one input; looks at a few times ``max_rows`` rows at most."""
    if len(held) == 1 and (cut := _cut_in_order(held[0], low, end, max_rows)) is not None:
        return cut
    times: list[Int64Array] = []
    count, limit = 0, 2 * max_rows
    for chunks in held:
        for chunk in chunks:
            if chunk.floor >= end:
                break
            if chunk.max < low or chunk.min >= end:
                continue
            times.append(in_range := chunk.times(low, end))
            count += len(in_range)
            if count > limit:
                end, first = _first(times, max_rows)
                times, count = [first], len(first)
                limit = 2 * max(max_rows, count)
    return _first(times, max_rows)[0] if count > max_rows else end


def _cut_in_order(chunks: Sequence[Chunk | SpilledChunk], low: int, end: int, max_rows: int) -> int | None:
    """Does the same for consecutive chunks, each sorted by time, by counting.  None: they are not such."""
    count, first, last, cut_found = 0, end, BEFORE_TIME, False
    for chunk in chunks:
        if chunk.floor >= end:
            break
        if chunk.max < low or chunk.min >= end:
            continue
        if not isinstance(chunk, Chunk) or not chunk.sorted or chunk.min < last:
            return None
        if cut_found:  # rows of the same instant as the last
            continue
        last = chunk.max
        times = chunk.times(low, end)
        if not count and len(times):
            first = int(times[0])
        if count + len(times) > max_rows:
            cut = int(times[max_rows - count])
            end, cut_found = (
                cut if cut > first else saturating_add(cut, 1),
                True,
            )  # later chunks may not begin before it
        count += len(times)
    return end


def _first(times: list[Int64Array], max_rows: int) -> tuple[int, Int64Array]:
    """Returns a time with at most ``max_rows`` rows before it, and their times; never divides an instant."""
    every = np.concatenate(times)
    every.partition(max_rows)
    cut = int(every[max_rows])
    first = every[:max_rows]
    first = first[first < cut]
    if not len(first):
        cut = saturating_add(cut, 1)
        first = every[every < cut]
    return cut, first


def merge_divided(chunks: list[Any], low: int, end: int) -> None:
    """Joins chunks that ``low`` or ``end`` divides, where they are many.

    Where a source sends rows in an order far from that of time, hundreds of chunks cover a whole bucket, and each of
    its slices would take a few rows of each chunk.
    """
    out: list[Any] = []
    group: list[Chunk] = []
    rows = 0
    for chunk in chunks:
        divided = chunk.min < end <= chunk.max or chunk.min < low <= chunk.max
        mergeable = divided and isinstance(chunk, Chunk)
        if group and not (mergeable and rows + len(chunk) <= _MERGED_ROWS):
            out += [Chunk.merged(group)] if len(group) >= _MERGED_CHUNKS else group
            group, rows = [], 0
        if mergeable:
            group.append(chunk)
            rows += len(chunk)
        else:
            out.append(chunk)
    chunks[:] = out + ([Chunk.merged(group)] if len(group) >= _MERGED_CHUNKS else group)
