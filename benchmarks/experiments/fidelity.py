"""The two queries of the PPA paper under the loss of all that no active replica covers, budgets from 0 to 100 %.

Beside each other: output fidelity (OF) and internal completeness (IC) as the planner computes them under measured
rates, and the accuracy of what is left, against the truth: the share of the true hundred pages, and of the true jams.
What is left is computed in one process: the same partitions, but lost ones send no tuples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from benchmarks.experiments.played_run import CONFIGS
from benchmarks.experiments.record import Plot, Row, experiment, sweep
from replicas.planning.cluster_topology import costs_of, partitions_of, topology_of
from replicas.planning.fidelity import as_masks, completeness, fidelity
from replicas.planning.planners import Algorithm, make_plan
from replicas.planning.search import PlanningProblem
from replicas.planning.topology import Topology
from replicas.planning.trees import trees
from replicas.reference import collect_rows, run_reference
from replicas.source.reference_stream import Intake, reference_elements
from spe.config import load_data
from spe.config.document import parse
from spe.problems import Problems
from spe.stream.batch import Rows
from spe.stream.ids import Channel, PartitionId
from spe.stream.times import SECOND

#: Configuration, and seconds of tuples.
QUERIES: Final = {"top-100 pages": ("hottest_pages_tree.yaml", 20), "jams": ("traffic.yaml", 40)}
#: The largest IC of plans that consist of complete trees, as a planner of the paper would find it with IC in the place
#: of OF; found by trying all of them, the first of equals.
IC_OF_TREES: Final = "best IC of whole trees"
PLANNERS: Final = ("dynamic", "structure-aware", "greedy", IC_OF_TREES)
#: Windows that begin before the first one is full are left out.
WARM_UP_US: Final = 4 * SECOND

#: Results by time, each by the values of its key.
Results = Mapping[int, frozenset[tuple[Any, ...]]]


class Query:
    """A configuration, its true results, and those that are left when partitions are lost."""

    def __init__(self, file: str, seconds: int) -> None:
        self.config: dict[str, Any] = parse((CONFIGS / file).read_text(encoding="utf-8"), file, Problems()).data
        for source in self.config["sources"].values():
            source["from"]["generator"] |= {"duration": f"{seconds}s", "start": "1970-01-01T00:00:00"}
        self.plan, self.directory = load_data(self.config)
        (self.output,) = self.plan.query.outputs
        key = self.config["accuracy"][self.output]["key"]
        self.key = [key] if isinstance(key, str) else list(key)
        self._measured: dict[frozenset[PartitionId], float] = {}

    @cached_property
    def rates(self) -> dict[str, list[float]]:
        """Tuples per second of every unit's partitions, counted; those of sources are configured."""
        everything = replace(
            self.plan, query=replace(self.plan.query, outputs=tuple(s for u in self.plan.units for s in u.outputs))
        )
        rows = collect_rows(everything, run_reference(everything, self._inputs()))
        seconds = max(int(r.time[-1]) for _, r in rows.values() if len(r)) / SECOND
        return {
            str(u.id): [sum(len(rows[Channel(s, p)][1]) for s in u.outputs) / seconds for p in range(u.partitions)]
            for u in self.plan.units
        }

    def left(self, lost: Collection[PartitionId]) -> Results:
        """Results by time when some partitions are lost."""
        rows = collect_rows(self.plan, run_reference(self.plan, self._inputs(), lost=lost))
        return self.results([r for _, r in rows.values()])

    @cached_property
    def truth(self) -> Results:
        return {time: results for time, results in self.left(()).items() if time >= WARM_UP_US}

    def accuracy(self, lost: frozenset[PartitionId]) -> float:
        """Share of the true results that are left."""
        if lost not in self._measured:
            self._measured[lost] = share_left(self.truth, self.left(lost))
        return self._measured[lost]

    def results(self, parts: Sequence[Rows]) -> Results:
        schema = self.plan.query.schema_of(self.output)
        places = [schema.index(name) for name in self.key]
        by_time: dict[int, set[tuple[Any, ...]]] = {}
        for rows in parts:
            columns = [rows.columns[at].to_list() for at in places]
            for time, *values in zip(rows.time.tolist(), *columns, strict=True):
                by_time.setdefault(time, set()).add(tuple(values))
        return {time: frozenset(values) for time, values in by_time.items()}

    def _inputs(self) -> dict[Any, Any]:
        return {s: reference_elements(source, Intake()) for s, source in self.plan.sources.items()}


def share_left(truth: Results, left: Results) -> float:
    total = sum(len(values) for values in truth.values())
    return sum(len(values & left.get(time, frozenset())) for time, values in truth.items()) / total


@experiment(
    "fidelity",
    "PPA, section VI-B",
    lambda quick: sweep(query=QUERIES),
    Plot("budget", "query planner", "accuracy of ic"),
)
def fidelities(quick: bool, query: str) -> Iterator[Row]:
    """OF, IC and accuracy."""
    file, seconds = QUERIES[query]
    queried = Query(file, 8 if quick else seconds)
    topology = topology_of(queried.plan, queried.directory, queried.rates)
    partitions = partitions_of(queried.plan, topology)
    for budget in range(0, int(topology.fails.sum()) + 1, 4 if quick else 1):
        problem = PlanningProblem(topology, budget, costs_of(queried.plan, queried.directory, topology))
        for planner in PLANNERS:
            alive = ~topology.fails
            alive[list(_chosen(problem, planner))] = True
            lost = frozenset(p for p, lives in zip(partitions, alive, strict=True) if p is not None and not lives)
            yield {
                "planner": planner,
                "budget": budget,
                "of": float(fidelity(topology, alive[None, :])[0]),
                "ic": float(completeness(topology, alive[None, :])[0]),
                "accuracy": queried.accuracy(lost),
            }


def _chosen(problem: PlanningProblem, planner: str) -> tuple[int, ...]:
    if planner != IC_OF_TREES:
        return tuple(make_plan(problem, Algorithm(planner), now=lambda: 0.0).tasks)
    topology = problem.topology
    plans = _of_trees(topology, int(problem.budget))
    alive = ~topology.fails | as_masks(plans, topology.tasks)
    return plans[int(completeness(topology, alive).argmax())]


def _of_trees(topology: Topology, budget: int) -> list[tuple[int, ...]]:
    """All unions of complete trees that the budget pays for."""
    unions = {frozenset[int]()}
    for tree in set(trees(topology)):
        unions |= {plan | tree for plan in unions if len(plan | tree) <= budget}
    return sorted(tuple(sorted(plan)) for plan in unions)
