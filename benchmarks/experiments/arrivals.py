"""Nodes that come one at a time: the paper's example of recovery by operators and by queries (Su and Zhou, DEBS 2021,
figure 2).

Ten of twelve partitions are lost.  Five nodes come, each with room for two.  The figure is a drawing; the streams here
give the schedules of its table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from benchmarks.experiments.results import Row
from replicas.planning.recovery.forecast import NodeArrival, forecast
from replicas.planning.recovery.goals import CompleteQueries, OutputFidelity, QueryChoice, RecoveryGoal
from replicas.planning.recovery.schedule import RecoverySchedule
from replicas.planning.topology import OperatorDescription, Topology
from spe.plan.plan import Partitioning
from spe.plots import Line, Panel

TITLE = "five nodes, one after the other: complete queries and output fidelity"
NODES: Final = 5
#: Who reads whom; p1 and p2 run, p9 to p12 are the outputs.
READS: Final[Mapping[str, str]] = {
    "p1": "", "p2": "", "p3": "p1", "p4": "p1", "p5": "p1", "p6": "p2", "p7": "p3 p5", "p8": "p4 p5 p6",
    "p9": "p7", "p10": "p4 p7", "p11": "p8", "p12": "p8",
}  # fmt: skip
QUERIES: Final = 4


def measure(quick: bool) -> Iterator[Row]:
    topology = figure()
    goals: dict[str, RecoveryGoal] = {
        "operators": CompleteQueries.of(topology, QueryChoice.OPERATOR_CENTRIC),
        "complete queries": CompleteQueries.of(topology, QueryChoice.BEST_DENSITY),
        "fidelity": OutputFidelity.of(topology),
    }
    yield _row(topology, "all at once", [np.zeros(topology.tasks, np.bool_)] * (NODES - 1) + [topology.fails])
    for name, goal in goals.items():
        yield _row(topology, name, back_by_node(topology, goal))


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
    """What has come back with each node, at moments 1 to 5."""
    schedule = RecoverySchedule(
        goal,
        np.ones(topology.tasks),
        np.zeros(topology.tasks),
        cap=1.0,
        always=np.flatnonzero(~topology.fails).tolist(),
    )
    played = forecast(schedule, [NodeArrival(at, f"n{at}", 2.0) for at in range(1, NODES + 1)])
    found = []
    for at in range(1, NODES + 1):
        back = np.zeros(topology.tasks, np.bool_)
        back[[i.install.partition for i in played.installs if i.back <= at]] = True
        found.append(back)
    return found


def _row(topology: Topology, order: str, back: Sequence[np.ndarray]) -> Row:
    rows = np.array(back) | ~topology.fails
    complete = QUERIES * CompleteQueries.of(topology).values(rows)
    fidelity = OutputFidelity.of(topology).values(rows)
    names = np.array([topology.operators[int(o)].name for o in topology.operator_of])
    new = np.diff(rows.astype(np.int64), axis=0, prepend=(~topology.fails).astype(np.int64)[None, :]) > 0
    return {
        "order": order,
        **{f"n{at}": " ".join(names[came]) for at, came in enumerate(new, 1)},
        **{f"queries_{at}": float(q) for at, q in enumerate(complete, 1)},
        **{f"of_{at}": float(v) for at, v in enumerate(fidelity, 1)},
        "area_queries": float(complete.sum()),
        "area_of": float(fidelity.sum()),
        "findings": "",
    }


def panels(rows: Sequence[Row]) -> list[Panel]:
    xs = [float(at) for at in range(1, NODES + 1)]
    return [
        Panel(
            title,
            xs,
            [Line([row[f"{column}_{at}"] for at in range(1, NODES + 1)], row["order"]) for row in rows],
            "nodes that have come",
        )
        for title, column in (("complete queries", "queries"), ("output fidelity", "of"))
    ]
