"""The SUnion alone: buffering, boundaries, release; against concatenate, stable argsort and take of the same rows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.cpu import cpu_for
from benchmarks.data import NAMES, STREAMS, Plain, Shape, elements, plain
from benchmarks.node_cpu import cut
from benchmarks.tables import beside, demand, show
from operators.sunion.sunion import SUnion, SUnionInput
from spe.runtime.production import tune_gc, tune_malloc
from spe.stream.batch import AnyArray, Batch, Boundary, Element, Rows
from spe.stream.strings import StringDictionary

#: Tuples per stream and slice, slices of a round, what the ratio should not exceed.
SHAPES = ((10, 4_000, None), (100, 2_000, None), (1_000, 400, 1.3), (10_000, 60, 1.3), (100_000, 8, 1.3))
ROUNDS = 9


def options(parser: argparse.ArgumentParser) -> None:
    """Those of node-cpu."""


def bare(parts: list[Plain]) -> tuple[AnyArray, ...]:
    time = np.concatenate([p.time for p in parts])
    order = time.argsort(kind="stable")
    return (
        time.take(order),
        np.concatenate([p.key for p in parts]).take(order),
        np.concatenate([p.value for p in parts]).take(order),
        np.concatenate([p.flag for p in parts]).take(order),
        np.concatenate([p.name for p in parts]).take(order),
    )


def pairs(made: list[Element]) -> Iterator[tuple[Batch, Boundary]]:
    """Batches and their boundaries as a decoder hands them out: it has looked at the times (its check, see `codec`)."""
    for batch, boundary in zip(made[::2], made[1::2], strict=True):
        assert isinstance(batch, Batch)
        assert isinstance(boundary, Boundary)
        batch.rows.span()
        yield batch, boundary


def measure(shape: Shape) -> tuple[list[float], list[float]]:
    """CPU seconds per tuple of SUnion and kernels, round by round."""
    dictionary = StringDictionary(NAMES)
    ours: list[float] = []
    theirs: list[float] = []
    sunion = SUnion(inputs=[(0, True)] * len(STREAMS), streams=1, bucket_us=shape.bucket_us)
    for number in range(ROUNDS + 1):
        made = [list(pairs(elements(shape, number, s, dictionary))) for s in range(len(STREAMS))]
        slices = [[(sunion.inputs[s], *made[s][at]) for s in range(len(STREAMS))] for at in range(shape.batches)]
        parts = [list(p) for p in zip(*[cut(plain(shape, number, s), shape) for s in range(len(STREAMS))], strict=True)]
        released: list[Rows] = []
        expected: list[tuple[AnyArray, ...]] = []
        keep = number == 0  # what is kept is not freed, and that costs: only the round that does not count keeps it

        def merge(
            slices: list[list[tuple[SUnionInput, Batch, Boundary]]] = slices,
            released: list[Rows] = released,
            keep: bool = keep,
        ) -> None:
            for streams in slices:
                for one, batch, boundary in streams:
                    one.add_stable(batch, 0)
                    one.add_boundary(boundary, 0)
                piece = sunion.release_stable(1 << 30)
                assert piece is not None
                (rows,) = piece.merged()
                assert rows is not None
                if keep:
                    released.append(rows)

        def kernels(
            parts: list[list[Plain]] = parts,
            expected: list[tuple[AnyArray, ...]] = expected,
            keep: bool = keep,
        ) -> None:
            for bucket in parts:
                result = bare(bucket)
                if keep:
                    expected.append(result)

        tuples = shape.tuples * len(STREAMS)
        jobs: list[tuple[Callable[..., object], list[float]]] = [(merge, ours), (kernels, theirs)]
        for function, into in jobs[:: 1 if number % 2 else -1]:  # whoever comes first finds a colder cache
            into.append(cpu_for(function) / tuples)
        demand(len(released) == len(expected), "a slice is missing")
        for rows, arrays in zip(released, expected, strict=True):
            for mine, wanted in zip([rows.time, *[c.values for c in rows.columns]], arrays, strict=True):
                demand(bool(np.array_equal(mine, wanted)), "SUnion and kernels disagree")
    return ours[1:], theirs[1:]


def run(arguments: argparse.Namespace) -> None:
    tune_malloc()
    tune_gc()
    rows = []
    for batch, batches, limit in SHAPES:
        if arguments.sizes and batch not in arguments.sizes:
            continue
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
