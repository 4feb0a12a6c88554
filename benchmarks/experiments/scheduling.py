"""Which queries to recover with part of the room: best-density, operator by operator, the optimum (Su and Zhou, DEBS
2021, figure 15).  Algorithm 4 is the paper's best-density, from all single queries; ours has an exact step at the end.

100 random topologies of each kind with 18 queries, all of them lost.  A partition is needed by one or several queries;
how many, up to a most, falls with a skew.  Loads are 1 to 10.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import product
from statistics import fmean, median
from typing import Final

import numpy as np

from benchmarks.experiments.results import Row, places
from replicas.planning.recovery.choosing import Shortage, Unions, best_density, densest, dp, operator_centric
from spe.plots import Line, Panel

TITLE = "recovery with part of the room: share of all priorities that is recovered"
QUERIES: Final = 18
#: Partitions beside the outputs.
_PARTITIONS: Final = 60
#: Outputs are one deeper.
_DEPTH: Final = 4
SHARING: Final = (3, 6)
SKEWS: Final = (0.2, 0.5)
PRIORITIES: Final = ("random", "proportional")
ROOMS: Final = tuple(range(10, 100, 10))


def measure(quick: bool) -> Iterator[Row]:
    kinds = [(6, 0.5, "random")] if quick else product(SHARING, SKEWS, PRIORITIES)
    for sharing, skew, priorities in kinds:
        random = np.random.default_rng(15)
        topologies = [random_queries(random, sharing, skew, priorities) for _ in range(3 if quick else 100)]
        unions = [Unions.of(t.needs, t.priority) for t in topologies]
        costs = [u.sums(t.cost) for u, t in zip(unions, topologies, strict=True)]
        for room in (30, 60) if quick else ROOMS:
            shorts = [with_room(t, room / 100) for t in topologies]
            optima = [
                float(u.value[cost <= short.room + 1e-9].max()) / short.priority.sum()
                for u, cost, short in zip(unions, costs, shorts, strict=True)
            ]
            began = time.process_time()
            density = [_share(short, best_density(short)) for short in shorts]
            density_ms = 1000 * (time.process_time() - began) / len(shorts)
            paper = [_share(short, densest(short)) for short in shorts]
            centric = [_share(short, operator_centric(short)) for short in shorts]
            ratios = [a / b for a, b in zip(density, optima, strict=True) if b > 0]
            paper_ratios = [a / b for a, b in zip(paper, optima, strict=True) if b > 0]
            yield {
                "sharing": sharing,
                "skew": skew,
                "priorities": priorities,
                "room_percent": room,
                "operator_centric": fmean(centric),
                "best_density": fmean(density),
                "optimum": fmean(optima),
                "mean_of_optimum": fmean(ratios),
                "worst_of_optimum": min(ratios),
                "optimal": sum(r > 1 - 1e-9 for r in ratios),
                "mean_of_algorithm_4": fmean(paper_ratios),
                "worst_of_algorithm_4": min(paper_ratios),
                "algorithm_4_below_95": sum(r < 0.95 for r in paper_ratios),
                "best_density_ms": density_ms,
                "dp_ms": median(_dp_ms(short) for short in shorts[:3]),
                "findings": "",
            }


def random_queries(random: np.random.Generator, sharing: int, skew: float, priorities: str) -> Shortage:
    """What 18 queries lack; the room is left open."""
    often = np.arange(1, sharing + 1, dtype=np.float64) ** -skew
    needs = np.zeros((QUERIES, _PARTITIONS + QUERIES), np.bool_)
    for partition, times in enumerate(random.choice(sharing, _PARTITIONS, p=often / often.sum()) + 1):
        needs[random.choice(QUERIES, int(times), replace=False), partition] = True
    needs[np.arange(QUERIES), _PARTITIONS + np.arange(QUERIES)] = True
    cost = random.integers(1, 11, needs.shape[1]).astype(np.float64)
    depth = np.r_[random.integers(0, _DEPTH, _PARTITIONS), np.full(QUERIES, _DEPTH)]
    if priorities == "random":
        priority = random.integers(1, 11, QUERIES).astype(np.float64)
    else:
        load = needs @ cost
        priority = 1 + 9 * (load - load.min()) / (load.max() - load.min())
    return Shortage(needs, priority, cost, depth, 0.0)


def with_room(short: Shortage, share: float) -> Shortage:
    """Room for a share of all that is lost."""
    return Shortage(short.needs, short.priority, short.cost, short.depth, share * float(short.cost.sum()))


def panels(rows: Sequence[Row]) -> list[Panel]:
    return [
        Panel(title, places(rows, "room_percent"), _lines(rows, column), "room, % of what was lost; dashed: optimum")
        for title, column in (
            ("queries that share a partition, at most", "sharing"),
            ("skew of sharing", "skew"),
            ("priorities", "priorities"),
        )
    ]


def _lines(rows: Sequence[Row], by: str) -> list[Line]:
    """Means over everything but one setting."""
    found = []
    for one in dict.fromkeys(row[by] for row in rows):
        mine = [row for row in rows if row[by] == one]
        for column, name in (
            ("best_density", f"{one}"),
            ("optimum", ""),
            ("operator_centric", f"{one}, by operators"),
        ):
            ys = [fmean(r[column] for r in mine if r["room_percent"] == x) for x in places(rows, "room_percent")]
            found.append(Line(ys, name, dashed=column == "optimum"))
    return found


def _share(short: Shortage, chosen: np.ndarray) -> float:
    assert chosen @ short.cost <= short.room + 1e-9
    return short.value(chosen) / float(short.priority.sum())


def _dp_ms(short: Shortage) -> float:
    began = time.process_time()
    dp(short)
    return 1000 * (time.process_time() - began)
