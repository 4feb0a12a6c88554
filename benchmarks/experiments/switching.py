"""A replica is lost: how long its client hears nothing, by how the replica is lost.

One node in two replicas, 150 tuples/s, buckets and boundaries of 20 ms, so that results come every 20 ms.  The replica
that the client reads is killed (its connections break), cut off from everybody or frozen (they fall silent), at
moments spread over a period of heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from benchmarks.experiments.measures import deliveries
from benchmarks.experiments.results import Row, lines, places
from benchmarks.experiments.setup import CLIENT, FAILS_US, Setup, scenario
from replicas.faults.model import ALL, READS, Fault, FaultKind
from replicas.simulation.simulate import simulate
from spe.plan.plan import Timing
from spe.plots import Panel
from spe.stream.batch import Batch
from spe.stream.names import Kind
from spe.stream.times import MILLISECOND, SECOND

TITLE = "Switching between replicas"
KINDS: Final = (FaultKind.KILL, FaultKind.CUT, FaultKind.FREEZE)
#: Moments of failing, over one period of heartbeats.
MOMENTS: Final = 4


def measure(quick: bool) -> Iterator[Row]:
    for kind in KINDS[:2] if quick else KINDS:
        for moment in range(1 if quick else MOMENTS):
            yield _point(kind, moment * Timing().heartbeat_us // MOMENTS)


def _point(kind: FaultKind, later_us: int) -> Row:
    setup = Setup(
        rate=150,
        replicas=2,
        bucket_us=20 * MILLISECOND,
        boundary_us=20 * MILLISECOND,
        failure_us=SECOND,
        x_us=2 * SECOND,
    )
    second = (ALL,) if kind is FaultKind.CUT else ()
    at_us = FAILS_US + later_us
    lost = Fault(kind, (f"{READS}{CLIENT}",), second, for_us=2 * SECOND, at_us=at_us)
    outcome = simulate(scenario(setup, (lost,)))
    batches = [
        (e.at_us, e.element) for e in deliveries(outcome.history) if isinstance(e.element, Batch) and len(e.element)
    ]
    times = np.array([at for at, _ in batches])
    gaps = np.diff(times)
    around = (times[1:] > at_us) & (times[:-1] < at_us + SECOND)
    findings = [*map(str, outcome.findings), *outcome.skipped]
    return {
        "lost_by": str(kind),
        "moment_ms": later_us / MILLISECOND,
        "ordinary_ms": float(np.median(gaps)) / MILLISECOND,
        "gap_ms": float(gaps[around].max()) / MILLISECOND,
        "tentative": sum(len(batch) for _, batch in batches if batch.kind is Kind.TENTATIVE),
        "findings": "; ".join(findings),
    }


def panels(rows: Sequence[Row]) -> list[Panel]:
    found = lines(rows, "lost_by", "moment_ms", "gap_ms")
    return [Panel("longest gap at the client, ms", places(rows, "moment_ms"), found, "moment of failing, ms")]
