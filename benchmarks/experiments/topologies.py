"""Structure-aware, greedy and exact plans on random topologies (PPA section VI-C, figure 14).

Means over the topologies of a setting, at one budget.  ``as_good``: topologies for which the structure-aware plan is as
good as the exact one; ``unproved``: exact plans that might not be the best, by ``gap`` at most.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final

import numpy as np

from benchmarks.experiments.record import Plot, Row, experiment, sweep
from replicas.planning.exact import exact
from replicas.planning.greedy import greedy
from replicas.planning.search import PlanningProblem
from replicas.planning.structure import structure_aware
from replicas.planning.topology import OperatorDescription, Topology
from spe.plan.plan import Partitioning


@dataclass(frozen=True)
class Shape:
    """The common properties of the topologies of one setting.

    Attributes:
      operators: on the way from the first source to the sink; a second input of one of them is a source of its own.
      parallelism: fewest and most tasks of an operator.
      partitioning: how often each is chosen, where it fits; full always does.
      branching: share of operators with two inputs.
      joins: share of those that are joins.
      skew: rates of sources, and shares of divided streams, fall as rank ** -skew; 0: all are equal.
    """

    operators: int = 5
    parallelism: tuple[int, int] = (2, 8)
    partitioning: Mapping[Partitioning, float] = field(default_factory=lambda: dict.fromkeys(Partitioning, 1.0))
    branching: float = 0.4
    joins: float = 0.5
    skew: float = 0.5


def random_topology(shape: Shape, random: np.random.Generator) -> Topology:
    """A random topology of this shape; equal generators make equal ones."""
    low, high = shape.parallelism
    specs = [_source("source0", int(random.integers(low, high + 1)), shape, random)]
    before = specs[0]
    for at in range(1, shape.operators):
        kind, tasks = _neighbour(before.tasks, shape, random)
        inputs = {before.name: kind}
        correlated = False
        if random.random() < shape.branching:
            other, senders = _neighbour(tasks, shape, random)
            turned = {Partitioning.SPLIT: Partitioning.MERGE, Partitioning.MERGE: Partitioning.SPLIT}.get(other, other)
            specs.append(_source(f"source{at}", senders, shape, random))
            inputs[specs[-1].name] = turned
            correlated = bool(random.random() < shape.joins)
        before = OperatorDescription(f"operator{at}", tasks, inputs, correlated, shares=_skewed(tasks, shape, random))
        specs.append(before)
    return Topology(specs)


def _neighbour(tasks: int, shape: Shape, random: np.random.Generator) -> tuple[Partitioning, int]:
    """A partitioning that fits so many senders, and a number of receivers."""
    low, high = shape.parallelism
    fitting = {
        Partitioning.ONE_TO_ONE: [tasks],
        Partitioning.SPLIT: [n for n in range(2 * tasks, high + 1, tasks)],
        Partitioning.MERGE: [n for n in range(low, tasks) if tasks % n == 0],
        Partitioning.FULL: list(range(low, high + 1)),
    }
    kinds = [k for k, share in shape.partitioning.items() if share > 0 and fitting[k]] or [Partitioning.FULL]
    shares = np.array([shape.partitioning.get(k) or 1.0 for k in kinds])
    kind = kinds[int(random.choice(len(kinds), p=shares / shares.sum()))]
    return kind, int(random.choice(fitting[kind]))


def _source(name: str, tasks: int, shape: Shape, random: np.random.Generator) -> OperatorDescription:
    return OperatorDescription(name, tasks, {}, rates=_skewed(tasks, shape, random))


def _skewed(tasks: int, shape: Shape, random: np.random.Generator) -> list[float]:
    ranked = np.arange(1, tasks + 1, dtype=np.float64) ** -shape.skew
    return [float(r) for r in random.permutation(ranked)]


# --- the experiment ---

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


@experiment(
    "random-topologies",
    "PPA, section VI-C, figure 14",
    lambda quick: sweep(setting=list(SETTINGS)[: 1 if quick else None]),
    Plot("replicated", "setting", "structure_aware/greedy"),
)
def random_topologies(quick: bool, setting: str) -> Iterator[Row]:
    """Plans on random topologies."""
    random = np.random.default_rng(14)
    topologies = [random_topology(SETTINGS[setting], random) for _ in range(3 if quick else MANY)]
    for budget in BUDGETS:
        problems = [PlanningProblem(topology, budget * topology.tasks // 100) for topology in topologies]
        best = [exact(problem, now=time.monotonic, seconds=EXACT_S) for problem in problems]
        aware = [structure_aware(problem).value for problem in problems]
        gaps = [plan.gap or 0.0 for plan in best]
        yield {
            "tasks": fmean(t.tasks for t in topologies),
            "replicated": budget,
            "greedy": fmean(greedy(problem).value for problem in problems),
            "structure_aware": fmean(aware),
            "exact": fmean(plan.value for plan in best),
            "as_good": sum(mine >= plan.value - SAME for mine, plan in zip(aware, best, strict=True)),
            "unproved": sum(gap > SAME for gap in gaps),
            "gap": max(gaps),
        }
