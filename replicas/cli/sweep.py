"""``spe sweep``: simulates one failure for several values of X, and plots delay and tentative tuples against X."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from consistency.checking.measures import Cost, cost
from replicas.cli.campaigns.simulate import read_to_simulate
from replicas.faults.model import Fault, load_faults, one_fault
from replicas.simulation.scenarios.configured_scenario import grace_us
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from spe.config import load_data
from spe.errors import ConfigError, SpeError
from spe.plan.delays import delay_bound_us
from spe.plan.describe import show_duration
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plots import Line, Panel, bars, svg
from spe.stream.times import SECOND, parse_duration
from spe.text_table import text_table

_LENGTH_US: Final = 30 * SECOND


@dataclass(frozen=True)
class Point:
    """The cost of the failure under one X.

    Attributes:
      bound_us: kX of the slowest output.
      findings: broken promises.
    """

    x_us: int
    bound_us: int
    cost: Cost
    findings: tuple[str, ...]


def lengths_of_x(text: str) -> list[int]:
    """Parses ``500ms,1s,2`` into microseconds; a bare number is in seconds.  Raises SpeError with the value."""
    lengths: list[int] = []
    for value in (part.strip() for part in text.split(",")):
        try:
            length_us = parse_duration(value if value[-1:].isalpha() else f"{value}s") if value else 0
        except ValueError:
            length_us = 0
        if length_us <= 0 or " " in value:
            raise SpeError(f"--x: expected durations above zero, with commas, such as 500ms,1s,2s; got {value!r}")
        if length_us in lengths:
            raise SpeError(f"--x: {value} is given twice; expected each value of X once")
        lengths.append(length_us)
    return lengths


def run_sweep(
    config: Path,
    xs_us: Sequence[int],
    *,
    data: Path | None = None,
    faults: Path | None = None,
    cut: str | None = None,
    for_us: int = 10 * SECOND,
    seed: int = 0,
    plot: Path | None = None,
) -> int:
    """Prints the table and a plot; returns 0 if every run kept its promises."""
    length_us = max(_LENGTH_US, 2 * for_us)
    changed, notes = read_to_simulate(config, data, length_us)
    for line in notes:
        print(line)
    plan, directory = load_data(changed)
    for x_us in xs_us:
        _check_x(changed, x_us)
    happening = _faults(plan, directory, faults, cut, for_us, length_us)
    for fault in happening:
        print(f"at {show_duration(fault.at_us):<8} {fault}")
    last_us = max((f.at_us + (f.for_us or 0) for f in happening), default=0)
    scenario = Scenario(
        seed=seed, config=changed, faults=happening, heal_us=max(length_us, last_us), grace_us=grace_us(changed)
    )
    processes = min(len(xs_us), os.cpu_count() or 1)
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        points = list(pool.map(partial(measure, scenario), xs_us))
    print(table(points))
    if plot is not None:
        plot.write_text(svg(panels(points)), encoding="utf-8")
        print(f"plot: {plot}")
    return 1 if any(p.findings for p in points) else 0


def measure(scenario: Scenario, x_us: int) -> Point:
    """Simulates one run with the same X on every node."""
    config = with_x(scenario.config, x_us)
    plan, directory = load_data(config)
    outcome = simulate(
        Scenario(
            seed=scenario.seed,
            config=config,
            faults=scenario.faults,
            heal_us=scenario.heal_us,
            grace_us=scenario.grace_us,
        )
    )
    costs = [cost(outcome.history, plan, directory, name) for name in directory.clients]
    whole = Cost(
        tuple(sorted(d for c in costs for d in c.delays_us)),
        sum(c.never for c in costs),
        sum(c.tentative for c in costs),
        sum(c.stable for c in costs),
    )
    bound_us = max(delay_bound_us(plan, directory, s) for s in plan.query.outputs)
    return Point(x_us, bound_us, whole, tuple(map(str, outcome.findings)))


def _check_x(config: Mapping[str, Any], x_us: int) -> None:
    """Checks an X before anything runs.  Raises ConfigError, which names the X."""
    try:
        load_data(with_x(config, x_us))
    except ConfigError as error:
        raise ConfigError([f"X = {show_duration(x_us)}: {mistake}" for mistake in error.problems]) from error


def with_x(config: Mapping[str, Any], x_us: int) -> dict[str, Any]:
    """Returns the configuration with a fixed X for all nodes."""
    changed = deepcopy(dict(config))
    if isinstance(changed.get("outputs"), Mapping):
        changed["outputs"] = list(changed["outputs"])
    changed["defaults"] = {**(changed.get("defaults") or {}), "x": show_duration(x_us)}
    nodes = changed.get("nodes")
    if isinstance(nodes, Mapping):
        changed["nodes"] = {n: {k: v for k, v in (e or {}).items() if k != "x"} for n, e in nodes.items()}
    return changed


def _faults(
    plan: Plan, directory: Directory, path: Path | None, cut: str | None, for_us: int, length_us: int
) -> tuple[Fault, ...]:
    """Returns the faults of a file, or one cut (of the first source by default) in the middle of the run."""
    if path is not None:
        return tuple(load_faults(path, directory))
    target = cut or f"source:{next(iter(plan.sources))}"
    at_us = (length_us - for_us) // 2
    data = {"kind": "cut", "target": target, "for": show_duration(for_us), "at": show_duration(at_us)}
    return (one_fault(data, directory),)


def table(points: Sequence[Point]) -> str:
    """Draws delay of new results and tentative tuples against X, with bars."""
    rows = [["X", "kX", "median", "p99", "longest", "tentative", "stable", "", ""]]
    marks = zip(bars([p.cost.quantile_us(1) for p in points]), bars([p.cost.tentative for p in points]), strict=True)
    for point, (delay, tentative) in zip(points, marks, strict=True):
        times = [point.x_us, point.bound_us, *(point.cost.quantile_us(q) for q in (0.5, 0.99, 1))]
        tuples = [f"{n:,}" for n in (point.cost.tentative, point.cost.stable)]
        rows.append([*map(_seconds, times), *tuples, f"delay {delay}", f"tentative {tentative}"])
    lines = text_table(rows, right=range(7))
    for point in points:
        lines += [f"X = {_seconds(point.x_us)}: {finding}" for finding in point.findings[:3]]
        if point.cost.never:
            lines.append(f"X = {_seconds(point.x_us)}: {point.cost.never:,} inputs were never covered by a result")
    return "\n".join(lines)


def panels(points: Sequence[Point]) -> list[Panel]:
    """Plots the longest delay, and the number of tentative tuples, against X."""
    xs = [p.x_us / SECOND for p in points]
    longest = [p.cost.quantile_us(1) / SECOND for p in points]
    return [
        Panel(
            "longest delay of new results, seconds",
            xs,
            [Line(longest), Line([p.bound_us / SECOND for p in points], "kX", dashed=True)],
        ),
        Panel("tentative tuples", xs, [Line([float(p.cost.tentative) for p in points])]),
    ]


def _seconds(us: int) -> str:
    return f"{float(f'{us / SECOND:.3g}'):,.10g} s"
