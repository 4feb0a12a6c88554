"""N_tentative beside the least that is possible: λ_a (D - αX) where new tuples are delayed, λ_a D where not.

One node, 3,000 tuples/s.  The stream fails as in the paper: its source goes on and sends nothing, while its connection
stays (a stall), so that no time is spent on connecting again.  Computing takes no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.experiments.measures import measured
from benchmarks.experiments.model import expected
from benchmarks.experiments.results import CPU_S, Row, beside, lines, places
from benchmarks.experiments.setup import FAILED, FAILS_US, Setup, scenario
from replicas.faults.model import Fault, FaultKind
from replicas.simulation.simulate import simulate
from spe.plots import Panel
from spe.stream.times import MILLISECOND, SECOND

TITLE = "N_tentative beside its lower bound"
FAILURES_S: Final = (4, 6, 10, 15, 30)
#: Narrower buckets divide the failure more finely.
BUCKETS_MS: Final = (100, 20)


def measure(quick: bool) -> Iterator[Row]:
    for bucket_ms in BUCKETS_MS[: 1 if quick else 2]:
        for failure_s in (6,) if quick else FAILURES_S:
            for policy in ("delay", "process"):
                yield _point(policy, failure_s, bucket_ms, 300 if quick else 3000)


def _point(policy: str, failure_s: int, bucket_ms: int, rate: int) -> Row:
    setup = Setup(
        rate=rate,
        failure=policy,
        stabilization=policy,
        failure_us=failure_s * SECOND,
        bucket_us=bucket_ms * MILLISECOND,
        boundary_us=bucket_ms * MILLISECOND,
        burst_us=bucket_ms * MILLISECOND,
    )
    silent = Fault(FaultKind.STALL, (f"source:{FAILED}",), for_us=setup.failure_us, at_us=FAILS_US)
    ours = measured(setup, simulate(scenario(setup, (silent,)), cpu_s=CPU_S))
    return {
        "failure_s": failure_s,
        "bucket_ms": bucket_ms,
        "policy": policy,
        "curve": f"{policy}, buckets of {bucket_ms} ms",
        **beside(ours, expected(setup)),
    }


def panels(rows: Sequence[Row]) -> list[Panel]:
    xs = places(rows, "failure_s")
    percent = lines(rows, "curve", "failure_s", "tentative_off", scale=100.0)
    return [
        Panel("N_tentative", xs, lines(rows, "curve", "failure_s", "tentative", "model_tentative"), "failure, seconds"),
        Panel("above the bound, %", xs, percent, "failure, seconds"),
    ]
