"""Structure-aware, greedy and exact plans on random topologies (PPA section VI-C, figure 14)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

import numpy as np

from benchmarks.tables import show
from replicas.planning.exact import exact
from replicas.planning.generator import Shape, random_topology
from replicas.planning.greedy import greedy
from replicas.planning.search import Problem
from replicas.planning.structure import structure_aware
from spe.plan import Partitioning

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


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topologies", type=int, default=10, help="random-topologies: of each setting")
    parser.add_argument("--proof-seconds", type=float, default=2.0, help="random-topologies: for each exact plan")


def run(arguments: argparse.Namespace) -> None:
    rows = []
    for name, shape in SETTINGS.items():
        random = np.random.default_rng(14)
        topologies = [random_topology(shape, random) for _ in range(arguments.topologies)]
        for ratio in RATIOS:
            found: dict[str, list[float]] = {"greedy": [], "structure-aware": [], "exact": []}
            unproved, gap = 0, 0.0
            for topology in topologies:
                problem = Problem(topology, int(ratio * topology.tasks))
                best = exact(problem, now=time.monotonic, seconds=arguments.proof_seconds)
                found["exact"].append(best.value)
                found["structure-aware"].append(structure_aware(problem).value)
                found["greedy"].append(greedy(problem).value)
                unproved += (best.gap or 0.0) > 1e-5
                gap = max(gap, best.gap or 0.0)
            tasks = fmean(t.tasks for t in topologies)
            means = [f"{fmean(values):.3f}" for values in found.values()]
            rows.append(
                [
                    name,
                    f"{tasks:.0f}",
                    f"{ratio:.0%}",
                    *means,
                    f"{unproved} (gap at most {gap:.2g})" if unproved else "0",
                ]
            )
    show(
        "random topologies",
        ["setting", "tasks", "replicated", "greedy OF", "structure-aware OF", "exact OF", "unproved"],
        rows,
        [f"Means over {arguments.topologies} topologies."],
    )
