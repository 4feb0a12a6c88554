"""The SUnion alone: buffering, boundaries, release; against concatenate, stable argsort and take of the same rows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from benchmarks.cpu import cpu_for_both
from benchmarks.data import STREAMS, Plain, Shape, buckets, elements, merged
from benchmarks.tables import beside, chosen, demand, show
from operators.sunion.sunion import SUnion
from spe.stream.batch import Batch, Boundary, Element, Rows

#: Tuples per stream and slice, slices of a round, what the ratio should not exceed.
SHAPES = ((10, 4_000, None), (100, 2_000, None), (1_000, 400, 1.3), (10_000, 60, 1.3), (100_000, 8, 1.3))
ROUNDS = 9


def pairs(made: list[Element]) -> Iterator[tuple[Batch, Boundary]]:
    """Batches and their boundaries as a decoder hands them out: it has looked at the times (its check, see `codec`)."""
    for batch, boundary in zip(made[::2], made[1::2], strict=True):
        assert isinstance(batch, Batch)
        assert isinstance(boundary, Boundary)
        batch.rows.span()
        yield batch, boundary


def release(sunion: SUnion, slices: Sequence[Sequence[tuple[Batch, Boundary]]], kept: list[Rows] | None) -> None:
    for streams in slices:
        for one, (batch, boundary) in zip(sunion.inputs, streams, strict=True):
            one.add_stable(batch, 0)
            one.add_boundary(boundary, 0)
        piece = sunion.release_stable(1 << 30)
        assert piece is not None
        (rows,) = piece.merged()
        assert rows is not None
        if kept is not None:
            kept.append(rows)


def kernels(parts: Sequence[Sequence[Plain]], kept: list[Plain] | None) -> None:
    for bucket in parts:
        result = merged(bucket)
        if kept is not None:
            kept.append(result)


def measure(shape: Shape) -> tuple[list[float], list[float]]:
    """CPU seconds per tuple of SUnion and kernels, round by round."""
    took = []
    sunion = SUnion(inputs=[(0, True)] * len(STREAMS), streams=1, bucket_us=shape.bucket_us)
    for number in range(ROUNDS + 1):
        slices = list(zip(*(pairs(elements(shape, number, s)) for s in range(len(STREAMS))), strict=True))
        parts = buckets(shape, number)
        released: list[Rows] = []
        expected: list[Plain] = []
        keep = number == 0  # what is kept is not freed, and that costs: only the round that does not count keeps it
        ours = partial(release, sunion, slices, released if keep else None)
        theirs = partial(kernels, parts, expected if keep else None)
        took.append([seconds / (shape.tuples * len(STREAMS)) for seconds in cpu_for_both(ours, theirs, number)])
        demand(len(released) == len(expected), "a slice is missing")
        for rows, arrays in zip(released, expected, strict=True):
            for mine, wanted in zip([rows.time, *[c.values for c in rows.columns]], arrays, strict=True):
                demand(bool(np.array_equal(mine, wanted)), "SUnion and kernels disagree")
    return [ours for ours, _ in took[1:]], [theirs for _, theirs in took[1:]]


def run(arguments: argparse.Namespace) -> None:
    rows = []
    for batch, batches, limit in chosen(SHAPES, arguments):
        rows.append([f"{batch:,}", *beside(*measure(Shape(batch, batches)), limit)])
    show(
        "SUnion alone",
        ["tuples/stream and slice", "NumPy, CPU ns/tuple", "SUnion, CPU ns/tuple", "ratio", "target", "check"],
        rows,
        [
            "Three inputs of one stream, one bucket a slice: three batches, as a decoder has",
            "checked them, and boundaries in, one sorted run out; against",
            "concatenate, stable argsort and take of the same five columns.  In process,",
            f"{ROUNDS} paired rounds: median (min-max).",
        ],
    )
