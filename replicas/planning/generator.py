"""Random topologies of a given kind, for experiments (PPA section VI-C)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from replicas.planning.topology import OperatorDescription, Topology
from spe.errors import ConfigError
from spe.plan.plan import Partitioning


@dataclass(frozen=True)
class Shape:
    """What the topologies of one setting have in common.

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

    def __post_init__(self) -> None:
        low, high = self.parallelism
        problems = []
        if self.operators < 2:
            problems.append(f"operators: at least 2, got {self.operators}")
        if not 1 <= low <= high:
            problems.append(f"parallelism: expected (fewest, most) from 1 on, got {self.parallelism}")
        if any(share < 0 for share in self.partitioning.values()) or not sum(self.partitioning.values()) > 0:
            problems.append("partitioning: shares of at least 0, not all of them 0")
        problems += [
            f"{name}: a share from 0 to 1, got {value:g}"
            for name, value in (("branching", self.branching), ("joins", self.joins))
            if not 0 <= value <= 1
        ]
        if self.skew < 0:
            problems.append(f"skew: at least 0, got {self.skew:g}")
        if problems:
            raise ConfigError(problems)


def random_topology(shape: Shape, random: np.random.Generator) -> Topology:
    """One of them; equal generators make equal ones."""
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
