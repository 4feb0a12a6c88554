"""The two queries of the PPA paper under the loss of all that no active replica covers, budgets from 0 to 100 %.

Beside each other: output fidelity (OF) and internal completeness (IC) as the planner computes them under measured
rates, and the accuracy of what is left, against the truth: of the true hundred pages how many are found, of the true
jams how many.  What is left is computed in one process: the same partitions, but those that are lost send no tuples.
For some budgets a simulated cluster says the same: all first replicas die, and the client's tentative results count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.experiments.results import CPU_S, Row
from replicas.faults.model import Fault, FaultKind
from replicas.planning.cluster_topology import costs_of, partitions_of, topology_of
from replicas.planning.fidelity import as_masks, completeness, fidelity
from replicas.planning.planners import Algorithm, make_plan
from replicas.planning.search import PlanningProblem
from replicas.planning.topology import Topology
from replicas.planning.trees import trees
from replicas.reference import collect_rows, run_reference
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from replicas.simulation.world.clock import EPOCH_US
from replicas.source.proxy import Intake, reference_elements
from spe.config import load_data
from spe.config.document import parse
from spe.plan.directory import COORDINATOR
from spe.plots import Line, Panel
from spe.problems import Problems
from spe.stream.batch import Batch, Rows
from spe.stream.history import Delivered
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import Kind
from spe.stream.times import SECOND

TITLE = "OF, IC and accuracy"
CONFIGS: Final = Path(__file__).parents[2] / "configs"
#: Configuration, and seconds of tuples.
QUERIES: Final = {"top-100 pages": ("hottest_pages_tree.yaml", 20), "jams": ("traffic.yaml", 40)}
#: What has the largest IC, found by trying everything, the first of equals: of plans that consist of complete trees, as
#: a planner of the paper would find it with IC in the place of OF; and of all plans (Bellavista et al.).
IC_OF_TREES: Final = "best IC of whole trees"
IC_OF_ALL: Final = "best IC"
PLANNERS: Final = ("dynamic", "structure-aware", "greedy", IC_OF_TREES, IC_OF_ALL)
#: Windows that begin before the first one is full are left out.
WARM_UP_US: Final = 4 * SECOND
#: Of the simulated cluster: when all first replicas and the coordinator die, for how long; for the simulator's sake it
#: gets a quarter of the rates.
DIES_US: Final = 8 * SECOND
DEAD_US: Final = 10 * SECOND
LASTS_US: Final = 22 * SECOND
SLOWER: Final = 4

#: What makes two results the same: their time and the values of the key.
Results = Mapping[int, frozenset[tuple[Any, ...]]]


class Query:
    """A configuration, its truth, and what is left of it when partitions are lost."""

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
        return {time: found for time, found in self.left(()).items() if time >= WARM_UP_US}

    def accuracy(self, lost: frozenset[PartitionId]) -> float:
        """Share of the true results that are found."""
        if lost not in self._measured:
            self._measured[lost] = share_found(self.truth, self.left(lost))
        return self._measured[lost]

    def results(self, parts: Sequence[Rows]) -> Results:
        schema = self.plan.query.schema_of(self.output)
        places = [schema.index(name) for name in self.key]
        found: dict[int, set[tuple[Any, ...]]] = {}
        for rows in parts:
            columns = [rows.columns[at].to_list() for at in places]
            for time, *values in zip(rows.time.tolist(), *columns, strict=True):
                found.setdefault(time, set()).add(tuple(values))
        return {time: frozenset(values) for time, values in found.items()}

    def _inputs(self) -> dict[Any, Any]:
        return {s: reference_elements(source, Intake()) for s, source in self.plan.sources.items()}


def share_found(truth: Results, found: Results) -> float:
    total = sum(len(values) for values in truth.values())
    return sum(len(values & found.get(time, frozenset())) for time, values in truth.items()) / total


def measure(quick: bool) -> Iterator[Row]:
    for name, (file, seconds) in QUERIES.items():
        query = Query(file, 8 if quick else seconds)
        topology = topology_of(query.plan, query.directory, query.rates)
        tasks_are = partitions_of(query.plan, topology)
        candidates = np.flatnonzero(topology.fails)
        for budget in range(0, len(candidates) + 1, 4 if quick else 1):
            problem = PlanningProblem(topology, budget, costs_of(query.plan, query.directory, topology))
            for planner in PLANNERS:
                tasks = _chosen(problem, planner)
                alive = ~topology.fails
                alive[list(tasks)] = True
                lost = frozenset(of for of, lives in zip(tasks_are, alive, strict=True) if of is not None and not lives)
                simulated, findings = None, ""
                if planner == "structure-aware" and not quick and budget in _simulated(len(candidates)):
                    simulated, findings = _simulate(query, lost)
                yield {
                    "query": name,
                    "planner": planner,
                    "budget": budget,
                    "of": float(fidelity(topology, alive[None, :])[0]),
                    "ic": float(completeness(topology, alive[None, :])[0]),
                    "accuracy": query.accuracy(lost),
                    "simulated": simulated,
                    "findings": findings,
                }


def _simulated(most: int) -> tuple[int, ...]:
    return tuple(round(most * part) for part in (0.4, 0.5, 0.7, 0.8))


def _chosen(problem: PlanningProblem, planner: str) -> tuple[int, ...]:
    if planner not in (IC_OF_TREES, IC_OF_ALL):
        return tuple(make_plan(problem, Algorithm(planner), now=lambda: 0.0).tasks)
    topology, budget = problem.topology, int(problem.budget)
    plans = _of_trees(topology, budget) if planner == IC_OF_TREES else combinations(problem.candidates.tolist(), budget)
    chosen = list(plans)
    alive = ~topology.fails | as_masks(chosen, topology.tasks)
    return chosen[int(completeness(topology, alive).argmax())]


def _of_trees(topology: Topology, budget: int) -> list[tuple[int, ...]]:
    """All unions of complete trees that the budget pays for."""
    found = {frozenset[int]()}
    for tree in set(trees(topology)):
        found |= {plan | tree for plan in found if len(plan | tree) <= budget}
    return sorted(tuple(sorted(plan)) for plan in found)


def _simulate(query: Query, lost: frozenset[PartitionId]) -> tuple[float, str]:
    """Accuracy of the client's tentative results while all first replicas are dead; and what was broken."""
    config = _with_replicas(query, lost)
    first = {str(nodes[0]) for of, nodes in query.directory.placement.items() if of in query.directory.standbys}
    faults = tuple(
        Fault(FaultKind.KILL, (name,), for_us=DEAD_US, at_us=DIES_US) for name in (*sorted(first), COORDINATOR)
    )
    outcome = simulate(Scenario(1, config, {}, faults, LASTS_US, 2 * LASTS_US), cpu_s=CPU_S)
    stable: list[Rows] = []
    tentative: list[Rows] = []
    for event in outcome.history:
        if isinstance(event, Delivered) and isinstance(event.element, Batch):
            (stable if event.element.kind is Kind.STABLE else tentative).append(event.element.rows)
    found, truth = query.results(tentative), query.results(stable)
    reach = range(EPOCH_US + DIES_US, EPOCH_US + DIES_US + DEAD_US - 2 * SECOND)
    broken = [*map(str, outcome.findings), *outcome.skipped]
    if not outcome.finished:
        broken.append("not everything was corrected when the run ended")
    return share_found({time: truth[time] for time in truth if time in reach}, found), "; ".join(broken)


def _with_replicas(query: Query, lost: frozenset[PartitionId]) -> dict[str, Any]:
    """The configuration with a second replica in place of each standby that is active, and with slower sources."""
    config = deepcopy(query.config)
    config.pop("accuracy")
    for source in config["sources"].values():
        generator = source["from"]["generator"]
        generator |= {"duration": f"{LASTS_US // SECOND}s", "rate": generator["rate"] / SLOWER}
        del generator["start"]
    for name, fragment in config["fragments"].items():
        standbys = fragment.pop("standby", None)
        if standbys is None:
            continue
        many = "partitions" in fragment
        nodes, standbys = (fragment["replicas"], standbys) if many else ([fragment["replicas"]], [standbys])
        units = [u.id for u in query.plan.units if u.fragment == name]
        active = [all(PartitionId(u, p) not in lost for u in units) for p in range(len(nodes))]
        placed = [own + more if a else own for own, more, a in zip(nodes, standbys, active, strict=True)]
        backed = [[] if a else more for more, a in zip(standbys, active, strict=True)]
        fragment["replicas"] = placed if many else placed[0]
        if any(backed):
            fragment["standby"] = backed if many else backed[0]
        else:
            fragment.pop("checkpoint", None)
    config["clients"] = {"client": {"reads": config["outputs"]}}
    return config


def panels(rows: Sequence[Row]) -> list[Panel]:
    found = []
    for name in dict.fromkeys(row["query"] for row in rows):
        for planner in PLANNERS:
            mine = [row for row in rows if row["query"] == name and row["planner"] == planner]
            lines = [Line([row[c] for row in mine], c) for c in ("accuracy", "of", "ic")]
            if planner != IC_OF_ALL:
                found.append(Panel(f"{name}, {planner}", [row["budget"] for row in mine], lines, "active replicas"))
    return found
