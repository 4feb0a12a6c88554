"""Structure-aware, greedy and exact plans on random topologies (PPA section VI-C, figure 14)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.tables import show
from replicas.planning.exact import exact
from replicas.planning.generator import Shape, random_topology
from replicas.planning.greedy import greedy
from replicas.planning.search import PlanningProblem
from replicas.planning.structure import structure_aware
from spe.plan.plan import Partitioning
from spe.plots import Line, Panel, svg

STRUCTURED = {Partitioning.ONE_TO_ONE: 1.0, Partitioning.SPLIT: 1.0, Partitioning.MERGE: 1.0}
BASE = Shape(operators=5, parallelism=(2, 6))
SETTINGS: Mapping[str, Shape] = {
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
RATIOS = (0.2, 0.4, 0.6, 0.8)
#: OF that the exact planner cannot tell apart.
SAME = 1e-5


#: Settings that are drawn together.
PANELS: Mapping[str, Sequence[str]] = {
    "skew of the rates": ("skew 0", "base", "skew 1"),
    "parallelism": ("parallelism 2-4", "parallelism 4-8"),
    "partitioning": ("structured", "full"),
    "joins": ("no joins", "base", "all joins"),
}


@dataclass(frozen=True)
class Found:
    """Means over the topologies of a setting, at one budget.

    Attributes:
      optimal: topologies for which the structure-aware plan is as good as the exact one.
      unproved: exact plans that might not be the best, and by how much at most.
    """

    setting: str
    ratio: float
    tasks: float
    greedy: float
    structure_aware: float
    exact: float
    optimal: int
    unproved: int
    gap: float


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topologies", type=int, default=10, help="random-topologies: of each setting")
    parser.add_argument("--proof-seconds", type=float, default=2.0, help="random-topologies: for each exact plan")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="random-topologies: draw them into an SVG file")


def run(arguments: argparse.Namespace) -> None:
    found = [
        one
        for name, shape in SETTINGS.items()
        for one in compare(name, shape, arguments.topologies, arguments.proof_seconds)
    ]
    head = ["setting", "tasks", "replicated", "greedy OF", "structure-aware OF", "exact OF", "as good", "unproved"]
    show("random topologies", head, [_cells(one) for one in found], [f"Means over {arguments.topologies} topologies."])
    if arguments.plot is not None:
        arguments.plot.write_text(svg(panels(found)), encoding="utf-8")


def compare(name: str, shape: Shape, many: int, seconds: float) -> Iterator[Found]:
    """One setting: the same topologies at each budget."""
    random = np.random.default_rng(14)
    topologies = [random_topology(shape, random) for _ in range(many)]
    for ratio in RATIOS:
        problems = [PlanningProblem(topology, int(ratio * topology.tasks)) for topology in topologies]
        best = [exact(problem, now=time.monotonic, seconds=seconds) for problem in problems]
        aware = [structure_aware(problem).value for problem in problems]
        gaps = [plan.gap or 0.0 for plan in best]
        yield Found(
            setting=name,
            ratio=ratio,
            tasks=fmean(t.tasks for t in topologies),
            greedy=fmean(greedy(problem).value for problem in problems),
            structure_aware=fmean(aware),
            exact=fmean(plan.value for plan in best),
            optimal=sum(mine >= plan.value - SAME for mine, plan in zip(aware, best, strict=True)),
            unproved=sum(gap > SAME for gap in gaps),
            gap=max(gaps),
        )


def _cells(one: Found) -> list[str]:
    unproved = f"{one.unproved} (gap at most {one.gap:.2g})" if one.unproved else "0"
    means = [f"{value:.3f}" for value in (one.greedy, one.structure_aware, one.exact)]
    return [one.setting, f"{one.tasks:.0f}", f"{one.ratio:.0%}", *means, f"{one.optimal}", unproved]


def panels(found: Sequence[Found]) -> list[Panel]:
    """OF over the share that is replicated, structure-aware, a panel for each pair of settings; dashed: greedy."""
    drawn = []
    for title, settings in PANELS.items():
        drawn_lines = []
        for setting in settings:
            mine = [one for one in found if one.setting == setting]
            drawn_lines.append(Line([one.structure_aware for one in mine], setting))
            drawn_lines.append(Line([one.greedy for one in mine], dashed=True))
        drawn.append(Panel(f"OF, {title}", [100 * r for r in RATIOS], drawn_lines, "% replicated; dashed: greedy"))
    return drawn
