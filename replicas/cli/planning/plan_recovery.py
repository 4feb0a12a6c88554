"""``spe plan --lost``: plans the order and places in which lost partitions recover, and its value over time."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console

from replicas.cli.options import duration_us
from replicas.cli.planning.plan import share, text_of
from replicas.cli.planning.plan_options import PlanOptions
from replicas.cli.view.formats import columns
from replicas.planning.cluster_topology import topology_of, without_rates
from replicas.planning.files import is_topology, read_layout, read_rates, read_topology
from replicas.planning.planners import Algorithm, make_plan
from replicas.planning.recovery.bound import best_area
from replicas.planning.recovery.cluster import RecoverableCluster, cluster_of, cluster_of_file, read_measured
from replicas.planning.recovery.forecast import NodeArrival, RecoveryForecast, forecast
from replicas.planning.recovery.goals import CompleteQueries, OutputFidelity, QueryChoice, RecoveryGoal
from replicas.planning.recovery.schedule import RecoverySchedule
from spe.config import load
from spe.errors import ConfigError
from spe.plots import Line, Panel, bars, svg
from spe.problems import did_you_mean, one_of
from spe.stream.times import SECOND, parse_duration

#: Seconds shown after the last change, by default.
_BEHIND: Final = 10.0
#: Largest number of installs and waiting partitions that are listed individually.
_LISTED: Final = 60


def plan_recovery(target: Path, options: PlanOptions) -> int:
    """Prints the order, the value over time, and the distance from the best possible; returns 0."""
    until_us = None if options.until is None else duration_us("--until", options.until)
    cluster, value = _read(target, options)
    lost = _lost(cluster, options.lost or "")
    arrivals = _arrivals(cluster, lost, options.arrive or ())
    goal = _goal(cluster, value, options)
    away = {*lost, *(a.node for a in arrivals)}
    schedule = cluster.schedule(goal, away)
    running = schedule.running
    console = Console(highlight=False, width=None if Console().is_terminal else 110)
    _head(console, cluster, schedule, lost, value)
    played = forecast(schedule, arrivals)
    until = until_us / SECOND if until_us is not None else _end(played, arrivals)
    _print_installs(console, cluster, played, schedule.waits)
    _print_curve(console, played, value, until)
    area = played.area(until)
    try:
        best = best_area(
            goal, running, cluster.loads, cluster.work, played.rooms, until, now=time.monotonic, seconds=options.seconds
        )
    except ConfigError as error:
        console.print(f"area {area:.2f} until {until:g} s; how much more is possible is not known: {error}")
    else:
        short = max(0.0, 1 - area / best) if best > 0 else 0.0
        console.print(f"area {area:.2f} until {until:g} s; no order has more than {best:.2f}: {short:.1%} below")
    if options.plot is not None:
        options.plot.write_text(svg([_panel(played, value, until)]), encoding="utf-8")
        console.print(f"plot: {options.plot}")
    return 0


def _read(target: Path, options: PlanOptions) -> tuple[RecoverableCluster, str]:
    """Returns the cluster, and the kind of value."""
    text = text_of(target)
    measured = {} if options.loads is None else read_measured(text_of(options.loads), str(options.loads))
    if is_topology(text):
        if options.rates is not None:
            raise ConfigError([f"--rates goes with a configuration; the topology {target} has rates of its own"])
        read = read_topology(text, str(target))
        if options.domains is not None:
            homes = read.layout.homes if read.layout is not None else None
            layout = read_layout(text_of(options.domains), str(options.domains), read.topology, homes)
            read = replace(read, layout=layout)
        return cluster_of_file(read, measured), options.value or "fidelity"
    if options.domains is not None:
        raise ConfigError(["--domains goes with a topology; a configuration has its own nodes"])
    plan, directory = load(target, options.data)
    rates = {} if options.rates is None else read_rates(text_of(options.rates), str(options.rates))
    topology = topology_of(plan, directory, rates, directory.recovery.priorities)
    cluster = cluster_of(plan, directory, topology, measured)
    if unknown := without_rates(plan, rates):
        note = f"nothing is known of the rate of {', '.join(unknown)}: 1 tuple per second is assumed (--rates)"
        cluster = replace(cluster, notes=(note, *cluster.notes))
    return cluster, options.value or directory.recovery.value


def _lost(cluster: RecoverableCluster, text: str) -> list[str]:
    names = text.replace(",", " ").split()
    if not names:
        raise ConfigError(["--lost: expected names of nodes, such as n1,n2"])
    for at, name in enumerate(names):
        _known(cluster, "--lost", name)
        if name in names[:at]:
            raise ConfigError([f"--lost: {name!r} is named twice"])
    return names


def _arrivals(cluster: RecoverableCluster, lost: Collection[str], options: Sequence[str]) -> list[NodeArrival]:
    arrivals: list[NodeArrival] = []
    for word in " ".join(options).replace(",", " ").split():
        name, at, when = word.rpartition("@")
        if not at:
            raise ConfigError([f"--arrive {word}: expected NODE@TIME, such as n7@10s"])
        _known(cluster, "--arrive", name)
        try:
            after_us = parse_duration(when)
        except ValueError as error:
            raise ConfigError([f"--arrive {word}: {error}"]) from None
        if after_us < 0:
            raise ConfigError([f"--arrive {word}: expected a time of zero or more after the loss, got {when}"])
        if name not in lost and (runs := cluster.runs_on(name)):
            task = cluster.topology.name_of(runs[0])
            raise ConfigError(
                [
                    f"--arrive {word}: {name} is not lost, and runs {task}; expected a node that --lost names, or a "
                    "spare one, which runs nothing"
                ]
            )
        if name in (a.node for a in arrivals):
            raise ConfigError([f"--arrive {word}: {name} arrives twice"])
        arrivals.append(NodeArrival(after_us / SECOND, name, cluster.capacity[name]))
    return arrivals


def _known(cluster: RecoverableCluster, option: str, name: str) -> None:
    if name not in cluster.capacity:
        hint = did_you_mean(name, cluster.capacity)
        raise ConfigError([f"{option}: no node {name!r}{hint}; expected {one_of(list(cluster.capacity))}"])


def _goal(cluster: RecoverableCluster, value: str, options: PlanOptions) -> RecoveryGoal:
    algorithm = options.algorithm
    known = list(QueryChoice if value == "complete" else Algorithm)
    if algorithm is not None and algorithm not in known:
        raise ConfigError([f"--algorithm {algorithm} is not for --value {value}; expected {one_of(known)}"])
    if value == "complete":
        return CompleteQueries.of(cluster.topology, QueryChoice(algorithm or QueryChoice.BEST_DENSITY))
    planner = Algorithm(algorithm or Algorithm.STRUCTURE_AWARE)
    make = partial(make_plan, algorithm=planner, now=time.monotonic, seconds=options.seconds)
    return OutputFidelity.of(cluster.topology, make)


def _head(
    console: Console, cluster: RecoverableCluster, schedule: RecoverySchedule, lost: Collection[str], value: str
) -> None:
    gone = cluster.without(lost)
    rooms = [room for room in schedule.room().values() if room > 0]
    everything = sum(bool(homes) for homes in cluster.homes)
    console.print(
        f"{', '.join(lost)} lost: {len(gone)} of {everything} partitions have no replica left; "
        f"{_said(value)} {share(schedule.value)}"
    )
    needed, room = float(cluster.loads[gone].sum()), sum(rooms)
    console.print(f"they need {needed:.2f} cores; the other nodes have room for {room:.2f}")
    for note in cluster.notes:
        console.print(f"note: {note}")


def _print_installs(
    console: Console, cluster: RecoverableCluster, played: RecoveryForecast, waits: Mapping[int, str]
) -> None:
    heads = ("ordered", "partition", "load", "on", "checkpoint", "runs from")
    table = columns(*heads, right=("ordered", "load", "runs from"), title="order")
    for ordered, back, (partition, node, fetch) in played.installs[:_LISTED]:
        held = node in cluster.checkpoints[partition]
        source = "its own" if held else f"of {fetch}" if fetch is not None else "none"
        load = f"{cluster.loads[partition]:.3f}"
        table.add_row(_time(ordered), cluster.topology.name_of(partition), load, node, source, _time(back))
    if len(played.installs) > _LISTED:
        table.caption = f"and {len(played.installs) - _LISTED:,} more"
    console.print(table)
    if waits:
        table = columns("partition", "why", title="waits in the end")
        for partition, why in list(waits.items())[:_LISTED]:
            table.add_row(cluster.topology.name_of(partition), why)
        if len(waits) > _LISTED:
            table.caption = f"and {len(waits) - _LISTED:,} more"
        console.print(table)


def _print_curve(console: Console, played: RecoveryForecast, value: str, until: float) -> None:
    table = columns("from", _said(value), "", right=("from",), title="value over time")
    shown = [(at, worth) for at, worth in played.points if at <= until]
    lengths = bars([*(worth for _, worth in shown), 1.0])
    for (at, worth), bar in zip(shown, lengths, strict=False):
        table.add_row(_time(at), share(worth), bar)
    console.print(table)


def _panel(played: RecoveryForecast, value: str, until: float) -> Panel:
    """Draws steps: each value stays until the next."""
    shown = [(at, worth) for at, worth in played.points if at <= until]
    ends = [*(at for at, _ in shown[1:]), until]
    xs = np.ravel([(at, end) for (at, _), end in zip(shown, ends, strict=True)])
    ys = np.repeat([worth for _, worth in shown], 2)
    return Panel("value while partitions come back", xs.tolist(), [Line(ys.tolist(), _said(value))], "seconds")


def _end(played: RecoveryForecast, arrivals: Sequence[NodeArrival]) -> float:
    return _BEHIND + max([0.0, *(a.after for a in arrivals), *(i.back for i in played.installs)])


def _said(value: str) -> str:
    return "complete queries" if value == "complete" else "OF"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s"
