"""How many checkpoints lie where they are of use (CIKM 2015, figure 8), by how they are placed.

Of each group on a node that is beyond its cap: could the node that holds its checkpoint take it and stay within its
own?  The mean over all later samples.  Beside it what the placement costs (rule L2), and what the best one would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Final

import numpy as np

from benchmarks.experiments.results import Row, lines, places
from benchmarks.experiments.shifting import SAMPLE_S, ShiftingJob, four_operators, pair
from replicas.planning.layout import Place
from replicas.planning.load import LoadHistory, LoadSample
from replicas.planning.placement import baseline, best, correlated, even
from replicas.planning.placement_problem import CheckpointProblem, checkpoint_problem
from replicas.planning.topology import Ints
from spe.plots import Panel
from spe.stream.times import SECOND

TITLE = "Usable checkpoints"
GROUPS: Final = (16, 24, 32, 40, 48)
SEEDS: Final = 10
#: Of the mean checkpoint load of a node; the paper has no bound.
DELTAS: Final = (np.inf, 1.0)
#: Of the solver, for each placement, and up to how many groups per operator it is asked.
PROOF_S: Final = 10.0
PROVED: Final = 24


def measure(quick: bool) -> Iterator[Row]:
    yield from _rows("pair", 10, [pair()] * SEEDS, DELTAS[:1])
    for groups in GROUPS[:1] if quick else GROUPS:
        jobs = [four_operators(groups, seed) for seed in range(1 if quick else SEEDS)]
        yield from _rows("four operators", groups, jobs, DELTAS[:1] if quick else DELTAS)


@dataclass(frozen=True)
class _Placed:
    """What a placement is worth for one job.

    Attributes:
      score: its cost, of the load of all checkpoints.
      fullest: the largest checkpoint load of a node, against the mean.
      best, best_usable: score and use of the best placement; None: not asked for.
    """

    usable: float
    score: float
    fullest: float
    cpu_s: float
    best: float | None = None
    best_usable: float | None = None


def _rows(name: str, groups: int, jobs: Sequence[ShiftingJob], deltas: Sequence[float]) -> Iterator[Row]:
    """A row for each placement.  The last bounds checkpoint loads as *even* does, so that these two compare alike."""
    for placement, draw in (("baseline", baseline), ("even", even)):
        drawn = [_placed(job, np.inf, partial(draw, random=np.random.default_rng(s))) for s, job in enumerate(jobs)]
        yield _row(name, groups, placement, drawn)
    for delta in deltas:
        label = "correlated" if np.isinf(delta) else f"correlated, δ = {delta:g} of the mean"
        yield _row(name, groups, label, [_placed(job, delta, correlated, prove=groups <= PROVED) for job in jobs])
    spreads = [spread_of(problem_of(job), even, seed) for seed, job in enumerate(jobs)]
    alike = [_placed(job, spread, correlated) for job, spread in zip(jobs, spreads, strict=True)]
    yield _row(name, groups, "correlated, δ as even has it", alike)


def _placed(
    job: ShiftingJob, delta: float, place: Callable[[CheckpointProblem], Ints], *, prove: bool = False
) -> _Placed:
    problem = problem_of(job, delta)
    began = time.process_time()
    placed = place(problem)
    cpu_s, total = time.process_time() - began, problem.load.sum()
    optimum = best(problem, PROOF_S) if prove else None
    return _Placed(
        usable(job, placed),
        problem.score(placed) / total,
        float(problem.loads(placed).max() / total * len(job.nodes)),
        cpu_s,
        None if optimum is None else problem.score(optimum) / total,
        None if optimum is None else usable(job, optimum),
    )


def _row(name: str, groups: int, placement: str, found: Sequence[_Placed]) -> Row:
    scores = [one.best for one in found if one.best is not None]
    used = [one.best_usable for one in found if one.best_usable is not None]
    return {
        "job": name,
        "groups": groups,
        "placement": placement,
        "usable": fmean(one.usable for one in found),
        "least": min(one.usable for one in found),
        "score": fmean(one.score for one in found),
        "best_score": fmean(scores) if len(scores) == len(found) else None,
        "best_usable": fmean(used) if len(used) == len(found) else None,
        "fullest": fmean(one.fullest for one in found),
        "cpu_s": fmean(one.cpu_s for one in found),
        "findings": "",
    }


def problem_of(job: ShiftingJob, delta: float = np.inf) -> CheckpointProblem:
    """One checkpoint of each group, under the loads up to where they are placed; ``delta`` against the mean."""
    history, now = LoadHistory(), 0
    for at in range(job.placed):
        now = at * SAMPLE_S * SECOND
        for partition, loads in job.loads.items():
            history.sample(partition, LoadSample(float(loads[at])), now)
    running = {p: (n,) for p, n in job.home.items()}
    return checkpoint_problem(history, now, job.groups, running, dict.fromkeys(job.nodes, Place())).bounded(delta)


def spread_of(problem: CheckpointProblem, draw: Callable[..., Ints], seed: int) -> float:
    """How far the fullest node of a drawn placement is above the mean, as share of it."""
    loads = problem.loads(draw(problem, random=np.random.default_rng(seed)))
    return float(loads.max() / loads.mean() - 1)


def usable(job: ShiftingJob, placed: Ints) -> float:
    """See the module; nobody moves."""
    at = {node: n for n, node in enumerate(job.nodes)}
    of_nodes = np.zeros((len(job.nodes), job.samples))
    for partition, node in job.home.items():
        of_nodes[at[node]] += job.loads[partition]
    homes = np.array([at[job.home[p]] for p in job.groups])
    loads = np.array([job.loads[p] for p in job.groups])
    full = of_nodes[homes] > job.cap + 1e-9
    fits = of_nodes[placed] + loads <= job.cap + 1e-9
    later = np.arange(job.samples) >= job.placed
    return float((full & fits)[:, later].sum() / full[:, later].sum())


def panels(rows: Sequence[Row]) -> list[Panel]:
    mine = [{**row, "percent": 100 * row["usable"]} for row in rows if row["job"] != "pair"]
    drawn = lines(mine, "placement", "groups", "percent")
    return [Panel("usable checkpoints, %", places(mine, "groups"), drawn, "groups per operator; 24 nodes")]
