"""What serialisation costs while all is well: delay against the width of buckets and the interval of boundaries.

One node, 150 tuples/s, runs of 14 s without a failure.  Every tuple counts: mean, standard deviation, longest.

And what an SUnion holds, which in the mean is what comes within the mean delay: three inputs of 1,000 tuples/s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from benchmarks.data import Shape, elements
from benchmarks.experiments.measures import WARM_UP_US, new_tuples
from benchmarks.experiments.results import Row, beside_model
from benchmarks.experiments.setup import Setup, scenario
from benchmarks.sunion import pairs
from operators.sunion.sunion import SUnion
from replicas.simulation.simulate import simulate
from spe.plots import Panel
from spe.stream.batch import Int64Array
from spe.stream.times import MILLISECOND, SECOND

TITLE = "Latency overhead of serialisation"
WIDTHS_MS = (50, 100, 200, 300)
#: The one that is held while the other is varied.
HELD_MS = 100
#: What comes to an SUnion: 10 tuples of each of three inputs, a hundred times a second, for 6 s.
COMES: Final = Shape(batch=10, batches=600, rate=1_000)
INPUTS: Final = 3
BOTH, BUCKET, BOUNDARY = "bucket = boundary", f"bucket, boundary {HELD_MS}", f"boundary, bucket {HELD_MS}"


def measure(quick: bool) -> Iterator[Row]:
    for varied in (BOTH,) if quick else (BOTH, BUCKET, BOUNDARY):
        for width_ms in (50, 200) if quick else WIDTHS_MS:
            bucket_ms = HELD_MS if varied == BOUNDARY else width_ms
            boundary_ms = HELD_MS if varied == BUCKET else width_ms
            yield _point(varied, width_ms, bucket_ms, boundary_ms, (1 if quick else 6) * SECOND)


def _point(varied: str, width_ms: int, bucket_ms: int, boundary_ms: int, lasts_us: int) -> Row:
    setup = Setup(
        rate=150,
        failure_us=lasts_us,  # in which nothing happens
        bucket_us=bucket_ms * MILLISECOND,
        boundary_us=boundary_ms * MILLISECOND,
    )
    outcome = simulate(scenario(setup, faults=()))
    made, delays = new_tuples(outcome.history)
    ms = delays[made >= WARM_UP_US] / MILLISECOND
    held = held_tuples(setup.bucket_us, setup.boundary_us)
    return {
        "varied": varied,
        "width_ms": width_ms,
        "bucket_ms": bucket_ms,
        "boundary_ms": boundary_ms,
        "mean_ms": float(ms.mean()),
        "deviation_ms": float(ms.std()),
        "longest_ms": float(ms.max()),
        "model_mean_ms": (bucket_ms + boundary_ms) / 2,
        "model_longest_ms": float(bucket_ms + boundary_ms),
        "tuples": len(ms),
        "held": float(held.mean()),
        "most_held": int(held.max()),
        "model_held": INPUTS * COMES.rate * max(bucket_ms, boundary_ms) / 2_000,  # boundaries end buckets
        "findings": "; ".join(map(str, outcome.findings)),
    }


def held_tuples(bucket_us: int, boundary_us: int) -> Int64Array:
    """Tuples in an SUnion each 10 ms, before it releases what is stable and after that, but for the first second."""
    sunion = SUnion(inputs=[(0, True)] * INPUTS, streams=1, bucket_us=bucket_us)
    held = []
    for comes in zip(*(pairs(elements(COMES, 0, stream)) for stream in range(INPUTS)), strict=True):
        for one, (batch, boundary) in zip(sunion.inputs, comes, strict=True):
            one.add_stable(batch, 0)
            if boundary.time % boundary_us == 0:
                one.add_boundary(boundary, 0)
        for releases in (False, True):
            if releases:
                sunion.release_stable(1 << 30)
            held.append(sum(len(chunk) for one in sunion.inputs for chunk in one.stable))
    return np.array(held[2 * SECOND // COMES.bucket_us :])


def panels(rows: Sequence[Row]) -> list[Panel]:
    shown = [
        ("mean delay, ms", "mean_ms", "model_mean_ms"),
        ("longest delay, ms", "longest_ms", "model_longest_ms"),
        ("tuples in an SUnion", "held", "model_held"),
    ]
    return beside_model(rows, "varied", "width_ms", "what is varied, ms", shown)
