"""Chains of 1 to 4 nodes, a source at their head fails for 15 s: process & process, delay & delay, process & suspend.

X = 3 s per node.  30 tuples/s in place of the paper's 1,000, and 375 reprocessed per second in place of 12,500: all
times depend on their ratio only, and N_tentative is 3/100 of the paper's.  Nodes are pairs of replicas, as in the
paper.  For process & suspend they are alone: of a pair one goes on while the other corrects, whatever the policy says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from benchmarks.experiments.model import correcting_us, expected
from benchmarks.experiments.results import Row, beside_model, play
from benchmarks.experiments.setup import Setup
from spe.plots import Panel
from spe.stream.times import MILLISECOND, SECOND

TITLE = "Chains of nodes"
#: Policies, and replicas of each node.
COMBINATIONS: Final = (("process", "process", 2), ("delay", "delay", 2), ("process", "suspend", 1))
#: Which of two replicas corrects first is chance; longest delays and medians of these runs count.
SEEDS: Final = (1, 2, 3)
RATE: Final = 30
SPEED: Final = 375


def measure(quick: bool) -> Iterator[Row]:
    for depth in (1, 2) if quick else (1, 2, 3, 4):
        for failure, stabilization, replicas in COMBINATIONS[: 1 if quick else 3]:
            setup = Setup(
                rate=RATE,
                x_us=(1 if quick else 3) * SECOND,
                failure=failure,
                stabilization=stabilization,
                depth=depth,
                replicas=replicas,
                state=10,
                failure_us=(2 if quick else 15) * SECOND,
                burst_us=100 * MILLISECOND,
                speed=SPEED,
            )
            runs = [play(replace(setup, seed=seed)) for seed in SEEDS[: 1 if quick else 3]]
            counts = sorted(run.tentative for run in runs)
            corrected = [run.rec_done_us for run in runs if run.rec_done_us is not None]
            yield {
                "nodes": depth,
                "policies": f"{failure} & {stabilization}",
                "replicas": replicas,
                "delay_s": max(run.delay_us for run in runs) / SECOND,
                "model_delay_s": expected_delay_us(setup) / SECOND,
                "bound_s": setup.depth * setup.x_us / SECOND,
                "tentative": round(median(counts)),
                "tentative_least": counts[0],
                "tentative_most": counts[-1],
                "model_tentative": expected_tentative(setup),
                "rec_done_s": max(corrected) / SECOND if corrected else None,
                "findings": "; ".join(finding for run in runs for finding in run.findings),
            }


def expected_tentative(setup: Setup) -> int:
    """What one node gives, and what comes while each of the others corrects, for they do so one after the other."""
    first = expected(setup).tentative
    if setup.stabilization == "suspend":
        return first
    return first + (setup.depth - 1) * setup.rate * correcting_us(setup) // SECOND


def expected_delay_us(setup: Setup) -> int:
    """αX once for Process & Process, αX per node for Delay & Delay; each node's own correction where it suspends."""
    ordinary_us = setup.depth * setup.bucket_us
    if setup.stabilization == "suspend":
        assert setup.speed is not None
        each_us = setup.failure_us * setup.rate // setup.speed
        return max(setup.alpha_x_us, setup.depth * each_us) + ordinary_us
    return setup.alpha_x_us * (setup.depth if setup.failure == "delay" else 1) + ordinary_us


def panels(rows: Sequence[Row]) -> list[Panel]:
    shown = [("Delay_new, seconds", "delay_s", "model_delay_s"), ("N_tentative", "tentative", "model_tentative")]
    return beside_model(rows, "policies", "nodes", "nodes in sequence", shown)
