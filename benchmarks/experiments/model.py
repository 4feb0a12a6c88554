"""What the paper's model expects of one node (section 6.1; its formulas as they follow from sections 4 and 6).

λ tuples per second of m streams, one of which fails for D; λ_a = λ (m - 1) / m still arrive; a node reprocesses μ
tuples per second.  R_s = D λ / μ is the time to correct while new tuples wait, R_c = D λ / (μ - λ) while they do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.experiments.setup import STREAMS, Setup
from spe.stream.times import SECOND


@dataclass(frozen=True, slots=True)
class Expected:
    """Attributes: Delay_new in microseconds, N_tentative; as of :class:`benchmarks.experiments.measures.Measured`."""

    delay_us: int
    tentative: int


def expected(setup: Setup) -> Expected:
    """Of one node, for an ordinary delay of one bucket."""
    ordinary_us, wait_us, failed_us = setup.bucket_us, setup.alpha_x_us, setup.failure_us
    if failed_us <= wait_us:
        return Expected(failed_us + ordinary_us, 0)
    available = setup.rate * (len(STREAMS) - 1) / len(STREAMS)
    lost_us = failed_us - (wait_us if setup.failure == "delay" else 0)
    tentative = available * lost_us / SECOND
    if setup.stabilization == "suspend":
        held_us = wait_us if setup.failure == "delay" else 0
        return Expected(ordinary_us + max(wait_us, held_us + suspended_us(setup)), round(tentative))
    return Expected(ordinary_us + wait_us, round(tentative + setup.rate * correcting_us(setup) / SECOND))


def suspended_us(setup: Setup) -> int:
    """R_s."""
    return 0 if setup.speed is None else round(setup.failure_us * setup.rate / setup.speed)


def correcting_us(setup: Setup) -> int:
    """R_c."""
    return 0 if setup.speed is None else round(setup.failure_us * setup.rate / (setup.speed - setup.rate))
