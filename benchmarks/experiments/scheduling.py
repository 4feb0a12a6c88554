"""Which queries to recover with part of the room: best-density, operator by operator, the optimum (Su and Zhou, DEBS
2021, figure 15).  Our best-density has an exact step at the end, which the paper's algorithm 4 has not.

100 random topologies of each kind with 18 queries, all of them lost.  A partition is needed by one or several queries;
how many, up to a maximum, falls with a skew.  Loads are 1 to 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

import numpy as np

from benchmarks.experiments.record import Plot, Row, experiment, sweep
from replicas.planning.recovery.choosing import Shortage, Unions, best_density, operator_centric
from replicas.planning.recovery.forecast import NodeArrival, forecast
from replicas.planning.recovery.goals import CompleteQueries, OutputFidelity, QueryChoice, RecoveryGoal
from replicas.planning.recovery.schedule import RecoverySchedule
from replicas.planning.topology import OperatorDescription, Topology
from spe.plan.plan import Partitioning

QUERIES: Final = 18
#: Partitions beside the outputs.
_PARTITIONS: Final = 60
#: Outputs are one deeper.
_DEPTH: Final = 4


@experiment(
    "scheduling",
    "DEBS 2021, figure 15",
    lambda quick: sweep(
        sharing=(6,) if quick else (3, 6),
        skew=(0.5,) if quick else (0.2, 0.5),
        priorities=("random",) if quick else ("random", "proportional"),
    ),
    *(Plot("room_percent", by, "best_density/optimum operator_centric") for by in ("sharing", "skew", "priorities")),
)
def scheduling(quick: bool, sharing: int, skew: float, priorities: str) -> Iterator[Row]:
    """Recovery with part of the room: share of all priorities that is recovered."""
    random = np.random.default_rng(15)
    topologies = [random_queries(random, sharing, skew, priorities) for _ in range(3 if quick else 100)]
    unions = [Unions.of(t.needs, t.priority) for t in topologies]
    costs = [u.sums(t.cost) for u, t in zip(unions, topologies, strict=True)]
    for room in (30, 60) if quick else range(10, 100, 10):
        shorts = [replace(t, room=room / 100 * float(t.cost.sum())) for t in topologies]
        optima = [
            float(u.value[cost <= short.room + 1e-9].max()) / short.priority.sum()
            for u, cost, short in zip(unions, costs, shorts, strict=True)
        ]
        density = [_share(short, best_density(short)) for short in shorts]
        ratios = [a / b for a, b in zip(density, optima, strict=True) if b > 0]
        yield {
            "room_percent": room,
            "operator_centric": fmean(_share(short, operator_centric(short)) for short in shorts),
            "best_density": fmean(density),
            "optimum": fmean(optima),
            "mean_of_optimum": fmean(ratios),
            "worst_of_optimum": min(ratios),
            "optimal": sum(r > 1 - 1e-9 for r in ratios),
        }


def random_queries(random: np.random.Generator, sharing: int, skew: float, priorities: str) -> Shortage:
    """The partitions that 18 queries lack; without room."""
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


def _share(short: Shortage, chosen: np.ndarray) -> float:
    assert chosen @ short.cost <= short.room + 1e-9
    return short.value(chosen) / float(short.priority.sum())


# --- nodes that come one at a time ---

NODES: Final = 5
#: The partitions that each partition reads; p1 and p2 run, p9 to p12 are the outputs.
READS: Final[Mapping[str, str]] = {
    "p1": "", "p2": "", "p3": "p1", "p4": "p1", "p5": "p1", "p6": "p2", "p7": "p3 p5", "p8": "p4 p5 p6",
    "p9": "p7", "p10": "p4 p7", "p11": "p8", "p12": "p8",
}  # fmt: skip
OUTPUTS: Final = 4


@experiment(
    "arrivals",
    "DEBS 2021, figure 2",
    lambda quick: sweep(order=("all at once", "operators", "complete queries", "fidelity")),
    Plot("order", "", "area_queries area_of"),
)
def arrivals(_: bool, order: str) -> Row:
    """Five nodes, one after the other: complete queries and output fidelity.

    Ten of twelve partitions are lost; each node has room for two.  The paper's figure is a drawing: its streams are
    made so that they give the schedules of its table.
    """
    topology = figure()
    goals: dict[str, Callable[[], RecoveryGoal]] = {
        "operators": lambda: CompleteQueries.of(topology, QueryChoice.OPERATOR_CENTRIC),
        "complete queries": lambda: CompleteQueries.of(topology, QueryChoice.BEST_DENSITY),
        "fidelity": lambda: OutputFidelity.of(topology),
    }
    if order == "all at once":
        return _arrived(topology, [np.zeros(topology.tasks, np.bool_)] * (NODES - 1) + [topology.fails])
    return _arrived(topology, back_by_node(topology, goals[order]()))


def figure() -> Topology:
    specs = [
        OperatorDescription(
            name,
            1,
            dict.fromkeys(inputs.split(), Partitioning.FULL),
            rates=None if inputs else [1.0],
            fails=bool(inputs),
            selectivity=1 / max(1, len(inputs.split())),
        )
        for name, inputs in READS.items()
    ]
    return Topology(specs)


def back_by_node(topology: Topology, goal: RecoveryGoal) -> list[np.ndarray]:
    """The partitions that are back with each node, at moments 1 to 5."""
    schedule = RecoverySchedule(
        goal,
        np.ones(topology.tasks),
        np.zeros(topology.tasks),
        cap=1.0,
        always=np.flatnonzero(~topology.fails).tolist(),
    )
    played = forecast(schedule, [NodeArrival(at, f"n{at}", 2.0) for at in range(1, NODES + 1)])
    back = np.zeros((NODES, topology.tasks), np.bool_)
    for at in range(1, NODES + 1):
        back[at - 1, [i.install.partition for i in played.installs if i.back <= at]] = True
    return list(back)


def _arrived(topology: Topology, back: Sequence[np.ndarray]) -> Row:
    rows = np.array(back) | ~topology.fails
    complete = OUTPUTS * CompleteQueries.of(topology).values(rows)
    fidelity = OutputFidelity.of(topology).values(rows)
    names = np.array([topology.operators[int(o)].name for o in topology.operator_of])
    new = np.diff(rows.astype(np.int64), axis=0, prepend=(~topology.fails).astype(np.int64)[None, :]) > 0
    return {
        **{f"n{at}": " ".join(names[came]) for at, came in enumerate(new, 1)},
        **{f"queries_{at}": float(q) for at, q in enumerate(complete, 1)},
        **{f"of_{at}": float(v) for at, v in enumerate(fidelity, 1)},
        "area_queries": float(complete.sum()),
        "area_of": float(fidelity.sum()),
    }
