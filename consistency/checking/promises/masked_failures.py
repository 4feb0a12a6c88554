"""Masked failures: short ones, which a replica or a buffer covers, make nothing tentative."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from consistency.checking.bounds import Bounds
from consistency.checking.checked_run import CheckedRun
from consistency.checking.finding import Finding, show_row
from consistency.checking.schedule import FaultInterval, World
from consistency.faults.kinds import kind_of
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plan.timing import needed_wait_us, stall_us
from spe.stream.batch import Batch
from spe.stream.history import Delivered, FaultBegan
from spe.stream.names import Kind


def check_masked(run: CheckedRun) -> Iterator[Finding]:
    """Yields a finding for each client that received tentative tuples in a run whose failures can all be masked.

    A half-open connection is noticed when something is missing, which may be any time later, and a refused connection
    is tried again a while later: nothing is claimed of such runs.
    """
    history, static, plan, directory, in_force, bounds, counters = run
    placed = {f"{partition}@{n}" for partition, nodes in directory.placement.items() for n in nodes}
    static = [replace(i, world=replace(i.world, recovering=i.world.recovering & placed)) for i in static]
    unseen = any(isinstance(e, FaultBegan) and kind_of(e.kind).unnoticed for e in history)
    alpha_x_us = in_force.shortest_alpha_x_us([(p, n) for p, nodes in directory.placement.items() for n in nodes])
    if unseen or not is_masked(static, plan, directory, alpha_x_us, bounds):
        return
    counters.add("masked runs")
    reported: set[str] = set()
    for event in history:
        if not isinstance(event, Delivered) or not isinstance(event.element, Batch) or event.consumer in reported:
            continue
        if event.element.kind is Kind.TENTATIVE and len(event.element):
            reported.add(event.consumer)
            what = f"{event.channel}: {show_row(event.element.rows, 0)} is tentative, though no failure lasted"
            yield Finding("masked", "short failures make nothing tentative", event.at_us, event.consumer, what)


def is_masked(
    static: Sequence[FaultInterval], plan: Plan, directory: Directory, alpha_x_us: int, bounds: Bounds
) -> bool:
    """Was every failure short enough for αX, or of a node whose partitions all have a replica elsewhere?

    And did each begin only after everything was well, and every process had recovered from the previous one?
    """
    begun = _begun(static)
    outages = _outages(static[begun:])
    if not outages or any(replace(interval.world, recovering=frozenset()) != World() for interval in static[:begun]):
        return False
    needed = max(needed_wait_us(plan, u)[1] for u in plan.units)
    channels = (
        c for partition in directory.placement for c in plan.unit[partition.unit].channels_in(partition.partition)
    )
    patience = 2 * (max(stall_us(plan, c) for c in channels) + plan.timing.connect_us)
    for before, after in pairwise(outages):
        if after[0].from_us - before[-1].to_us < bounds.settle_us:
            return False
    for outage in outages:
        short = outage[-1].to_us - outage[0].from_us + needed + 4 * plan.timing.heartbeat_us <= alpha_x_us
        spared = alpha_x_us >= patience and all(_spared(directory, interval.world) for interval in outage)
        if any(interval.world.disturbed or (interval.world.cut and not short) for interval in outage) or not (
            short or spared
        ):
            return False
    return True


def _begun(static: Sequence[FaultInterval]) -> int:
    """Returns the first interval in which everything is well."""
    return next((i for i, interval in enumerate(static) if interval.world == World()), len(static))


def _outages(static: Sequence[FaultInterval]) -> list[list[FaultInterval]]:
    """Returns runs of intervals in which something is wrong; the first interval is well."""
    well = World()
    outages: list[list[FaultInterval]] = []
    for before, interval in pairwise(static):
        if interval.world == well:
            continue
        if before.world == well:
            outages.append([])
        outages[-1].append(interval)
    return outages


def _spared(directory: Directory, world: World) -> bool:
    """Are only nodes down, and does one replica of each partition live?"""
    if world.cut or not world.down <= set(directory.nodes) or len(world.down) > 1:
        return False
    return all(
        any(n not in world.down and f"{partition}@{n}" not in world.recovering for n in nodes)
        for partition, nodes in directory.placement.items()
    )
