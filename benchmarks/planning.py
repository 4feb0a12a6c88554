"""The planner: structure-aware on 1,000 and 10,000 partitions, exact on 40, the fidelity of 10,000."""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np

from benchmarks.cpu import cpu_for
from benchmarks.tables import CHECKED, demand, show, verdict
from replicas.planning.exact import exact
from replicas.planning.fidelity import fidelity
from replicas.planning.generator import Shape, random_topology
from replicas.planning.recovery.goals import CompleteQueries, OutputFidelity
from replicas.planning.recovery.ordering import MOST_EXACT, area, by_extensions, in_order
from replicas.planning.recovery.placing import RecoveryPlan, RecoveryProblem, plan_recovery
from replicas.planning.search import PlanningProblem, ReplicationPlan
from replicas.planning.structure import structure_aware
from replicas.planning.topology import OperatorDescription, Topology
from spe.plan.plan import Partitioning

#: Five operators in a chain, by what is between them.
CHAINS = {
    "full": [Partitioning.FULL] * 4,
    "one-to-one": [Partitioning.ONE_TO_ONE] * 4,
    "mixed": [Partitioning.ONE_TO_ONE, Partitioning.FULL] * 2,
}
#: Tasks, and CPU seconds that a plan may take.
LIMITS = {1_000: 1.0, 10_000: 10.0}
#: Random topologies with joins, splits and merges: their operators, so that they have about 1,000 tasks, and how many.
GENERAL = Shape(operators=10, parallelism=(50, 90))
GENERAL_MANY = 5
#: Partitions that are lost together.
RECOVERED = (100, 300)
#: Random topologies of about 40 tasks.
PROVED = 10
#: Random topologies of few tasks, of which all orders of recovery can be looked at.
ORDERED = 120


def chain(tasks: int, kinds: list[Partitioning]) -> Topology:
    each = tasks // (len(kinds) + 1)
    rates = np.random.default_rng(1).permutation(np.arange(1, each + 1) ** -0.8)
    specs = [OperatorDescription("o0", each, {}, rates=[float(r) for r in rates])]
    for at, kind in enumerate(kinds, 1):
        specs.append(OperatorDescription(f"o{at}", each, {f"o{at - 1}": kind}))
    return Topology(specs)


def run(_: argparse.Namespace) -> None:
    rows = []
    for tasks, limit in LIMITS.items():
        for name, kinds in CHAINS.items():
            topology = chain(tasks, kinds)
            found: list[ReplicationPlan] = []
            problem = PlanningProblem(topology, tasks // 2)
            seconds = cpu_for(lambda problem=problem, found=found: found.append(structure_aware(problem)))
            demand(found[0].cost <= problem.budget, "the plan costs more than its budget")
            what = f"structure-aware, {tasks:,} tasks, {name}, half of them"
            rows.append([what, f"{seconds:.2f} s", f"OF {found[0].value:.3g}", verdict(seconds / limit, 1.0), CHECKED])
    rows.append(_general())
    for name, kinds in CHAINS.items():
        topology = chain(10_000, kinds)
        plans = np.random.default_rng(2).random((1, topology.tasks)) < 0.9
        fidelity(topology, plans)  # the topology keeps what does not change
        ms = median(1000 * cpu_for(lambda t=topology, p=plans: fidelity(t, p)) for _ in range(9))
        rows.append([f"OF of one plan, 10,000 tasks, {name}", f"{ms:.2f} ms", "", verdict(ms / 10, 1.0), ""])
    rows += _recoveries()
    rows.append(_orders())
    rows += _proved()
    show(
        "planning",
        ["what", "CPU", "found", "of the target", "check"],
        rows,
        ["One CPU; wall time for the exact planner."],
    )


def _general() -> list[str]:
    """Structure-aware plans of half of the tasks; the slowest counts."""
    random = np.random.default_rng(5)
    topologies = [random_topology(GENERAL, random) for _ in range(GENERAL_MANY)]
    took, plans = [], []
    for topology in topologies:
        problem = PlanningProblem(topology, topology.tasks // 2)
        took.append(cpu_for(lambda problem=problem: plans.append(structure_aware(problem))))
        demand(plans[-1].cost <= problem.budget, "the plan costs more than its budget")
    tasks = [topology.tasks for topology in topologies]
    what = f"structure-aware, {GENERAL_MANY} random topologies of {min(tasks):,} to {max(tasks):,} tasks, half of them"
    values = [plan.value for plan in plans]
    found = f"OF {min(values):.3g} to {max(values):.3g}"
    return [what, f"{median(took):.2f} s ({max(took):.2f})", found, verdict(max(took) / LIMITS[1_000], 1.0), CHECKED]


def _recoveries() -> list[list[str]]:
    """All is lost, and 20 nodes have room for half."""
    rows = []
    for lost in RECOVERED:
        each = lost // 5
        specs = [
            OperatorDescription("source", 1, {}, rates=[1.0], fails=False),
            OperatorDescription("parse", 2 * each, {"source": Partitioning.FULL}),
            OperatorDescription("sum", 2 * each, {"parse": Partitioning.ONE_TO_ONE}),
            OperatorDescription("best", each, {"sum": Partitioning.MERGE}),
        ]
        topology = Topology(specs)
        random = np.random.default_rng(4)
        cost, work = random.uniform(0.01, 0.1, topology.tasks), random.uniform(1, 5, topology.tasks)
        room = float(cost[topology.fails].sum()) / 2
        nodes = {f"n{at}": room / 20 for at in range(20)}
        for goal in (OutputFidelity.of(topology), CompleteQueries.of(topology)):
            plans: list[RecoveryPlan] = []
            problem = RecoveryProblem(goal, ~topology.fails, cost, work, nodes, {})
            seconds = cpu_for(lambda problem=problem, plans=plans: plans.append(plan_recovery(problem)))
            placed = [i.partition for i in plans[0].installs]
            demand(float(cost[placed].sum()) <= room and len(set(placed)) == len(placed), "the plan has no room")
            value = float(goal.values((np.isin(np.arange(topology.tasks), placed) | ~topology.fails)[None, :])[0])
            what = f"recovery, {lost:,} partitions lost, room for half, {type(goal).__name__}"
            rows.append([what, f"{seconds:.2f} s", f"value {value:.2f}", verdict(seconds, 1.0), CHECKED])
    return rows


def _orders() -> list[str]:
    """The order by extensions, which more partitions than MOST_EXACT get, against the best of all orders.

    All partitions of random topologies are lost; fidelity counts.
    """
    random = np.random.default_rng(6)
    shares: list[float] = []
    while len(shares) < ORDERED:
        topology = random_topology(Shape(operators=3, parallelism=(1, 4)), random)
        if topology.tasks > MOST_EXACT:
            continue
        goal, lost = OutputFidelity.of(topology), np.ones(topology.tasks, np.bool_)
        work = random.uniform(1, 5, topology.tasks)
        best, other = (
            area(goal, ~lost, ordered(goal, ~lost, lost, work), work) for ordered in (in_order, by_extensions)
        )
        demand(other <= best * (1 + 1e-3), "an order is better than the best of all")
        shares.append(other / best if best else 1.0)
    below = sum(share < 1 - 1e-3 for share in shares)
    what = f"order by extensions against the best of all, {ORDERED} random topologies of at most {MOST_EXACT} tasks"
    return [what, "", f"{below} below it; mean {np.mean(shares):.3f}, worst {min(shares):.2f} of its area", "", ""]


def _proved() -> list[list[str]]:
    """Random topologies of 36 to 44 tasks, budgets of half, ten seconds each."""
    random = np.random.default_rng(3)
    took, gaps = [], []
    while len(took) < PROVED:
        topology = random_topology(Shape(operators=6, parallelism=(4, 8)), random)
        if not 36 <= topology.tasks <= 44:
            continue
        began = time.perf_counter()
        plan = exact(PlanningProblem(topology, topology.tasks // 2), now=time.monotonic, seconds=10.0)
        took.append(time.perf_counter() - began)
        gaps.append(plan.gap or 0.0)
    proved = sum(gap < 1e-5 for gap in gaps)
    what = f"exact, {PROVED} random topologies of about 40 tasks"
    return [[what, f"{median(took):.2f} s ({max(took):.2f})", f"{proved} proved, largest gap {max(gaps):.2g}", "", ""]]
