"""What serialisation costs while all is well: delay against the width of buckets and the interval of boundaries.

One node, 150 tuples/s, runs of 14 s without a failure.  Every tuple counts: mean, standard deviation, longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.experiments.measures import WARM_UP_US, new_tuples
from benchmarks.experiments.results import Row, beside_model
from benchmarks.experiments.setup import Setup, scenario
from replicas.simulation.simulate import simulate
from spe.plots import Panel
from spe.stream.times import MILLISECOND, SECOND

TITLE = "Latency overhead of serialisation"
WIDTHS_MS = (50, 100, 200, 300)
#: The one that is held while the other is varied.
HELD_MS = 100
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
        "findings": "; ".join(map(str, outcome.findings)),
    }


def panels(rows: Sequence[Row]) -> list[Panel]:
    shown = [("mean delay, ms", "mean_ms", "model_mean_ms"), ("longest delay, ms", "longest_ms", "model_longest_ms")]
    return beside_model(rows, "varied", "width_ms", "what is varied, ms", shown)
