"""Delaying new tuples during UP_FAILURE reduces N_tentative: one node, a failure of 5 s, αX from 0.5 to 6 s.

As in the paper α is 1, and corrections are by undo/redo.  Computing takes no time here, so nothing becomes tentative
while it is corrected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.experiments.model import expected
from benchmarks.experiments.results import Row, beside, lines, places, play
from benchmarks.experiments.setup import Setup
from spe.plots import Panel
from spe.stream.times import MILLISECOND, SECOND

TITLE = "Delaying reduces N_tentative"
POLICIES = ("delay", "process")


def measure(quick: bool) -> Iterator[Row]:
    steps = (SECOND,) if quick else range(500 * MILLISECOND, 6 * SECOND + 1, 500 * MILLISECOND)
    for x_us in steps:
        for policy in POLICIES:
            setup = Setup(
                rate=60 if quick else 3000,
                x_us=x_us,
                alpha=1.0,
                failure=policy,
                stabilization=policy,
                reconcile="undo",
                failure_us=(2 if quick else 5) * SECOND,
                burst_us=100 * MILLISECOND,
            )
            yield {"alpha_x_s": x_us / SECOND, "policy": policy, **beside(play(setup), expected(setup))}


def panels(rows: Sequence[Row]) -> list[Panel]:
    xs = places(rows, "alpha_x_s")
    return [
        Panel(title, xs, lines(rows, "policy", "alpha_x_s", value, f"model_{value}"), "αX, seconds; dashed: model")
        for title, value in (("Delay_new, seconds", "delay_s"), ("N_tentative", "tentative"))
    ]
