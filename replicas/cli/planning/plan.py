"""``spe plan``: chooses the partitions to replicate within a budget, and shows the effect of other budgets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from replicas.cli.planning.plan_options import PlanOptions
from replicas.cli.view.formats import columns
from replicas.planning.cluster_topology import (
    UNKNOWN_RATE,
    costs_of,
    layout_of,
    standby_places,
    topology_of,
    without_rates,
)
from replicas.planning.files import is_topology, read_layout, read_rates, read_topology
from replicas.planning.layout import Placement
from replicas.planning.planners import Algorithm, make_plan
from replicas.planning.search import PlanningProblem, ReplicationPlan
from replicas.planning.topology import Topology
from replicas.planning.trees import count_trees
from spe.config import load
from spe.errors import ConfigError
from spe.plots import Line, Panel, bars, svg
from spe.problems import one_of

#: Largest number of budgets on the curve.
_POINTS: Final = 25
#: Largest number of tasks that are listed individually.
_LISTED: Final = 60


@dataclass(frozen=True)
class _Input:
    topology: Topology
    costs: tuple[float, ...]
    layout: Placement | None
    notes: tuple[str, ...] = ()
    standbys: Mapping[int, str] = field(default_factory=dict)


def plan(target: Path, options: PlanOptions) -> int:
    """Prints the plan; returns 0."""
    algorithm = options.algorithm or Algorithm.STRUCTURE_AWARE
    if algorithm not in list(Algorithm):
        raise ConfigError([f"--algorithm {algorithm} is for --lost; expected {one_of(list(Algorithm))}"])
    assert options.budget is not None
    planned = _read(target, options)
    layout = planned.layout
    if layout is not None:
        layout.check(planned.costs)
    # A layout in which only "everything fails" is likely is the worst case, which all planners assume anyway.
    failures = layout.failures() if layout is not None and set(layout.likely) != {"all"} else ()
    problem = PlanningProblem(planned.topology, options.budget, planned.costs, failures)
    chosen = make_plan(problem, Algorithm(algorithm), now=time.monotonic, seconds=options.seconds)
    placed: Mapping[int, str] = {}
    if planned.standbys:
        placed = {task: planned.standbys[task] for task in chosen.tasks}
    elif layout is not None:
        placed = layout.place(chosen.tasks, planned.costs)
    console = Console(highlight=False, width=None if Console().is_terminal else 110)
    _head(console, problem, chosen, planned.notes)
    if layout is not None and failures:
        fidelity = share(layout.value(problem, placed))
        console.print(f"with these places for replicas, which fail with their domains: OF {fidelity}")
    console.print(_why(problem, chosen, layout, placed))
    console.print(_comparison(problem, chosen, options.seconds))
    curve = _curve(problem, Algorithm(algorithm), options.seconds)
    console.print(_curve_table(curve))
    if options.plot is not None:
        options.plot.write_text(svg(_panels(curve)), encoding="utf-8")
        console.print(f"plot: {options.plot}")
    return 0


def _read(target: Path, options: PlanOptions) -> _Input:
    text, domains, rates = text_of(target), options.domains, options.rates
    if is_topology(text):
        if rates is not None:
            raise ConfigError([f"--rates goes with a configuration; the topology {target} has rates of its own"])
        read = read_topology(text, str(target))
        layout = read.layout
        if domains is not None:
            homes = layout.homes if layout is not None else None
            layout = read_layout(text_of(domains), str(domains), read.topology, homes)
        return _Input(read.topology, read.costs, layout)
    plan, directory = load(target, options.data)
    measured = {} if rates is None else read_rates(text_of(rates), str(rates))
    topology = topology_of(plan, directory, measured)
    notes = [
        f"nothing is known of the rate of {name}: {UNKNOWN_RATE:g} tuple per second is assumed (--rates)"
        for name in without_rates(plan, measured)
    ]
    layout = layout_of(plan, directory, topology)
    if domains is not None:
        layout = read_layout(text_of(domains), str(domains), topology, layout.homes)
    elif len(layout.nodes) < 2:
        layout, notes = None, [*notes, "one node only: nothing is said of places for replicas"]
    places = {} if domains is not None else standby_places(plan, directory, topology)
    return _Input(topology, tuple(costs_of(plan, directory, topology)), layout, tuple(notes), places)


def text_of(path: Path) -> str:
    """Reads a text file.  Raises ConfigError: it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from error


def _head(console: Console, problem: PlanningProblem, chosen: ReplicationPlan, notes: Sequence[str]) -> None:
    topology = problem.topology
    console.print(
        f"{len(topology.operators)} operators, {topology.tasks} tasks ({int(topology.fails.sum())} can fail), "
        f"{count_trees(topology):,} complete trees"
    )
    for note in notes:
        console.print(f"note: {note}")
    what = "expected OF" if problem.failures else "OF"
    proved = "" if chosen.gap is None else f", proved to within {chosen.gap:.2g}"
    console.print(
        f"{chosen.algorithm}: {len(chosen.tasks)} replicas for {chosen.cost:g} of {problem.budget:g}; "
        f"{what} {share(chosen.value)}{proved}; IC {share(chosen.completeness)}"
    )


def _why(
    problem: PlanningProblem, chosen: ReplicationPlan, layout: Placement | None, placed: Mapping[int, str]
) -> Table:
    """Lists the replicated tasks, and the value of the plan without each."""
    topology = problem.topology
    places = ("runs on", "replica on") if layout is not None else ()
    table = columns("task", *places, "rate/s", "cost", "OF without it", right=("rate/s", "cost"), title="replicated")
    shown = chosen.tasks[:_LISTED]
    masks = np.zeros((len(shown), topology.tasks), np.bool_)
    masks[:, list(chosen.tasks)] = True
    masks[np.arange(len(shown)), list(shown)] = False
    values = problem.values(masks) if shown else np.empty(0)
    for task, value in zip(shown, values.tolist(), strict=True):
        operator = topology.operators[int(topology.operator_of[task])]
        where = [str(layout.homes[task]), placed[task]] if layout is not None else []
        rate = f"{operator.rate[task - operator.first]:,.6g}"
        table.add_row(topology.name_of(task), *where, rate, f"{problem.cost[task]:g}", share(value))
    if len(shown) < len(chosen.tasks):
        table.caption = f"and {len(chosen.tasks) - len(shown):,} more"
    return table


def _comparison(problem: PlanningProblem, chosen: ReplicationPlan, seconds: float) -> Table:
    table = columns("", "OF", "IC", "cost", "proved gap", "seconds", title="algorithms")
    for algorithm in Algorithm:
        began = time.perf_counter()
        try:
            made = make_plan(problem, algorithm, now=time.monotonic, seconds=seconds)
        except ConfigError as error:
            table.add_row(algorithm, "–", "–", "–", error.problems[0], "")
            continue
        took = time.perf_counter() - began
        gap = "" if made.gap is None else f"{made.gap:.2g}"
        mark = f"{algorithm} *" if algorithm == chosen.algorithm else str(algorithm)
        table.add_row(mark, share(made.value), share(made.completeness), f"{made.cost:g}", gap, f"{took:.2f}")
    return table


@dataclass(frozen=True)
class _Curve:
    algorithm: Algorithm
    budgets: tuple[float, ...]
    plans: tuple[ReplicationPlan, ...]


def _curve(problem: PlanningProblem, algorithm: Algorithm, seconds: float) -> _Curve:
    """Computes OF over budgets, from none to full replication."""
    most = problem.most
    if most <= _POINTS and (problem.cost == np.round(problem.cost)).all():
        budgets = np.arange(0, most + 1)
    else:
        budgets = np.linspace(0, most, _POINTS)
    share = seconds / len(budgets)
    plans = [
        make_plan(replace(problem, budget=float(b)), algorithm, now=time.monotonic, seconds=share) for b in budgets
    ]
    return _Curve(algorithm, tuple(budgets.tolist()), tuple(plans))


def _curve_table(curve: _Curve) -> Table:
    table = columns("budget", "OF", "", "IC", right=("budget",), title=f"over all budgets, {curve.algorithm}")
    for budget, best, bar in zip(curve.budgets, curve.plans, bars([p.value for p in curve.plans]), strict=True):
        table.add_row(f"{budget:.4g}", share(best.value), bar, share(best.completeness))
    return table


def _panels(curve: _Curve) -> list[Panel]:
    values = [Line([p.value for p in curve.plans], "OF"), Line([p.completeness for p in curve.plans], "IC")]
    return [Panel(f"replicas that {curve.algorithm} chooses", curve.budgets, values, "budget")]


def share(value: float) -> str:
    """Formats an OF."""
    return f"{value:.4f}" if value >= 0.0001 or value == 0 else f"{value:.1e}"
