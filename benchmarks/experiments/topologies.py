"""Structure-aware, greedy and exact plans on random topologies (PPA section VI-C, figure 14).

Means over the topologies of a setting, at one budget.  ``as_good``: topologies for which the structure-aware plan is as
good as the exact one; ``unproved``: exact plans that might not be the best, by ``gap`` at most.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

import numpy as np

from benchmarks.experiments.results import Row, lines
from replicas.planning.exact import exact
from replicas.planning.generator import Shape, random_topology
from replicas.planning.greedy import greedy
from replicas.planning.search import PlanningProblem
from replicas.planning.structure import structure_aware
from spe.plan.plan import Partitioning
from spe.plots import Panel

TITLE = "Plans on random topologies"
STRUCTURED: Final = {Partitioning.ONE_TO_ONE: 1.0, Partitioning.SPLIT: 1.0, Partitioning.MERGE: 1.0}
BASE: Final = Shape(operators=5, parallelism=(2, 6))
SETTINGS: Final[Mapping[str, Shape]] = {
    "base": BASE,
    "skew 0": replace(BASE, skew=0.0),
    "skew 1": replace(BASE, skew=1.0),
    "parallelism 2-4": replace(BASE, parallelism=(2, 4)),
    "parallelism 4-8": replace(BASE, parallelism=(4, 8)),
    "structured": replace(BASE, partitioning=STRUCTURED),
    "full": replace(BASE, partitioning={Partitioning.FULL: 1.0}),
    "no joins": replace(BASE, joins=0.0),
    "all joins": replace(BASE, joins=1.0),
}
#: Share of the tasks that is replicated, %.
BUDGETS: Final = (20, 40, 60, 80)
#: Topologies of each setting, and seconds for each exact plan.
MANY: Final = 100
EXACT_S: Final = 0.1
#: OF that the exact planner cannot tell apart.
SAME: Final = 1e-5
#: Settings that are drawn together.
PANELS: Final[Mapping[str, Sequence[str]]] = {
    "skew of the rates": ("skew 0", "base", "skew 1"),
    "parallelism": ("parallelism 2-4", "parallelism 4-8"),
    "partitioning": ("structured", "full"),
    "joins": ("no joins", "base", "all joins"),
}


def measure(quick: bool) -> Iterator[Row]:
    for name, shape in list(SETTINGS.items())[: 1 if quick else None]:
        random = np.random.default_rng(14)
        topologies = [random_topology(shape, random) for _ in range(3 if quick else MANY)]
        for budget in BUDGETS:
            problems = [PlanningProblem(topology, budget * topology.tasks // 100) for topology in topologies]
            best = [exact(problem, now=time.monotonic, seconds=EXACT_S) for problem in problems]
            aware = [structure_aware(problem).value for problem in problems]
            gaps = [plan.gap or 0.0 for plan in best]
            yield {
                "setting": name,
                "tasks": fmean(t.tasks for t in topologies),
                "replicated": budget,
                "greedy": fmean(greedy(problem).value for problem in problems),
                "structure_aware": fmean(aware),
                "exact": fmean(plan.value for plan in best),
                "as_good": sum(mine >= plan.value - SAME for mine, plan in zip(aware, best, strict=True)),
                "unproved": sum(gap > SAME for gap in gaps),
                "gap": max(gaps),
                "findings": "",
            }


def panels(rows: Sequence[Row]) -> list[Panel]:
    """OF over the share that is replicated, structure-aware, a panel for each group of settings; dashed: greedy."""
    drawn = []
    for title, settings in PANELS.items():
        if some := [row for row in rows if row["setting"] in settings]:
            found = lines(some, "setting", "replicated", "structure_aware", "greedy")
            drawn.append(Panel(f"OF, {title}", list(BUDGETS), found, "% replicated; dashed: greedy"))
    return drawn
