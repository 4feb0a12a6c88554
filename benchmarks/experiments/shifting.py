"""Jobs whose load shifts, as Madsen and Zhou (CIKM 2015, section 7) describe them: loads of key groups over time.

A key group is a partition here.  Work that stays in its place, such as parsing, is a *fixed* partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from replicas.planning.topology import Floats
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId

#: Samples are 10 s apart.
SAMPLE_S: Final = 10
MINUTE: Final = 60 // SAMPLE_S


@dataclass(frozen=True)
class ShiftingJob:
    """The first place of each partition, and its load over time.

    Attributes:
      home: node of each partition.
      fixed: partitions that are not moved and have no checkpoint.
      loads: busy share of a core, [samples].
      placed: sample at which checkpoints are placed; before it loads are only measured.
      cap: of a node.
    """

    nodes: tuple[NodeId, ...]
    home: Mapping[PartitionId, NodeId]
    fixed: frozenset[PartitionId]
    loads: Mapping[PartitionId, Floats]
    placed: int
    cap: float

    @property
    def groups(self) -> list[PartitionId]:
        """Partitions that have a checkpoint."""
        return [p for p in self.home if p not in self.fixed]

    @property
    def samples(self) -> int:
        return len(next(iter(self.loads.values())))


def _id(unit: str, number: int) -> PartitionId:
    return PartitionId(UnitId(unit), number)


def pair() -> ShiftingJob:
    """Two operators of 10 groups; all input goes to the first one, and each second 1 % more of it to the second.

    Node 0 parses the input; nodes 0 and 2 are at the cap by fixed partitions.
    """
    nodes = tuple(NodeId(f"n{n}") for n in range(3))
    shift = np.arange(0, 101, SAMPLE_S) / 100
    home, loads = {}, {}
    for operator, node, share in (("a", nodes[1], 1 - shift), ("b", nodes[2], shift)):
        for number in range(10):
            home[_id(operator, number)] = node
            loads[_id(operator, number)] = 0.4 * share / 10
    fixed = {_id("other", 0): nodes[0], _id("other", 2): nodes[2]}
    loads |= dict.fromkeys(fixed, np.full(len(shift), 0.7))
    return ShiftingJob(nodes, home | fixed, frozenset(fixed), loads, placed=len(shift) // 2, cap=0.7)


def four_operators(groups: int, seed: int) -> ShiftingJob:
    """Four operators of so many groups on 24 nodes, 48 minutes, of which 15 are only measured.

    Three operators follow the input on 16 nodes, as airlines' delays do; the fourth one samples at a fixed rate on 4
    nodes; 4 nodes parse the input.  The input swings, and grows from the 15th minute on, until many of the 16 nodes are
    full.  Beside that each group drifts for itself.
    """
    random = np.random.default_rng(seed)
    nodes = tuple(NodeId(f"n{n}") for n in range(1, 25))
    samples = 48 * MINUTE
    minutes = np.arange(samples) / MINUTE
    growth = np.clip((minutes - 15) / 33, 0, 1)
    rate = (1 + 0.15 * np.sin(minutes / 12 * 2 * np.pi + random.uniform(0, 6))) * (1 + 0.45 * growth)
    home: dict[PartitionId, NodeId] = {}
    loads: dict[PartitionId, Floats] = {}
    sizes: dict[PartitionId, float] = {}
    for operator, cores in (("o1", 3.2), ("o2", 3.2), ("o3", 2.4)):
        drawn = random.lognormal(0, 0.3, groups)
        sizes |= {_id(operator, number): float(cores * size / drawn.sum()) for number, size in enumerate(drawn)}
    filled = np.zeros(16)
    for group in sorted(sizes, key=lambda g: -sizes[g]):  # the largest first, to the emptiest node
        home[group] = nodes[int(filled.argmin())]
        filled[filled.argmin()] += sizes[group]
        loads[group] = sizes[group] * rate * _drift(random, samples) * _noise(random, samples, 0.1)
    for number in range(groups):
        home[_id("o4", number)] = nodes[16 + number % 4]
        loads[_id("o4", number)] = 1.4 / groups * _noise(random, samples, 0.1)
    fixed = {_id("input", n): nodes[20 + n] for n in range(4)}
    loads |= {partition: 0.5 * rate * _noise(random, samples, 0.02) for partition in fixed}
    return ShiftingJob(nodes, home | fixed, frozenset(fixed), loads, placed=15 * MINUTE, cap=0.8)


def _noise(random: np.random.Generator, samples: int, size: float) -> Floats:
    """Around 1, each sample by itself."""
    return np.asarray(np.clip(random.normal(1, size, samples), 0.5, 1.5))


def _drift(random: np.random.Generator, samples: int) -> Floats:
    """Around 1: a walk that forgets in ten minutes, a fifth up or down."""
    keeps = np.exp(-1 / (10 * MINUTE))
    steps = random.normal(0, 0.2 * np.sqrt(1 - keeps**2), samples)
    walk = np.zeros(samples)
    walk[0] = random.normal(0, 0.2)
    for at in range(1, samples):
        walk[at] = keeps * walk[at - 1] + steps[at]
    return np.asarray(np.exp(walk))
