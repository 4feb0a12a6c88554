"""The six combinations of policies for failures of 2 to 60 s: who keeps X, and what it costs.

One node that is alone, as the paper's: what it does while it corrects is then up to the policy, for nobody stands in
for it.  The paper has 4,500 tuples/s and a machine that reprocesses 12,500.  Both are a tenth of that here, for the
simulator's sake: all times depend on their ratio only, and N_tentative is a tenth (4,500 are simulated as well, with
``RATE`` set to it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.experiments.model import expected
from benchmarks.experiments.results import Row, beside, lines, places, play
from benchmarks.experiments.setup import Setup
from spe.plots import Panel
from spe.stream.times import MILLISECOND, SECOND

TITLE = "Six combinations of policies"
#: Tuples per second, and how many of the paper's one of ours stands for.
RATE: Final = 450
#: What the paper's machine reprocessed for each tuple per second that arrived: 11 to 13 thousand at 4,500.
SPEED_UP: Final = 12_500 / 4500
FAILURES_S: Final = (2, 4, 8, 10, 15, 30, 60)
COMBINATIONS: Final = tuple((f, s) for f in ("process", "delay") for s in ("process", "delay", "suspend"))


def measure(quick: bool) -> Iterator[Row]:
    if quick:
        return points(90, SPEED_UP, (4,), COMBINATIONS[::5])
    return points(RATE, SPEED_UP, FAILURES_S, COMBINATIONS)


def points(
    rate: int, speed_up: float, failures_s: Sequence[int], combinations: Sequence[tuple[str, str]]
) -> Iterator[Row]:
    """For each failure and combination; a node reprocesses ``speed_up`` times the rate."""
    for failure_s in failures_s:
        for failure, stabilization in combinations:
            setup = Setup(
                rate=rate,
                failure=failure,
                stabilization=stabilization,
                failure_us=failure_s * SECOND,
                burst_us=100 * MILLISECOND,
                speed=round(speed_up * rate),
            )
            ours = play(setup)
            yield {
                "failure_s": failure_s,
                "policies": f"{failure} & {stabilization}",
                **beside(ours, expected(setup)),
                "correcting_s": ours.correcting_us / SECOND,
                "keeps_x": ours.delay_us <= setup.x_us,
            }


def panels(rows: Sequence[Row]) -> list[Panel]:
    near = [row for row in rows if row["failure_s"] <= 15]
    return [
        Panel(f"{title}{which}", places(some, "failure_s"), lines(some, "policies", "failure_s", value), "failure, s")
        for title, value in (("Delay_new, seconds", "delay_s"), ("N_tentative", "tentative"))
        for which, some in (("", rows), (", up to 15 s", near))
    ]
