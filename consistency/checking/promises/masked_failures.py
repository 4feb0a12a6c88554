"""Failures that clients must not notice: short ones, which a replica or a buffer covers, make nothing tentative."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from consistency.checking.bounds import Bounds
from consistency.checking.checked_run import CheckedRun
from consistency.checking.finding import Finding, show_row
from consistency.checking.schedule import FaultInterval, World
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plan.timing import needed_wait_us, stall_us
from spe.stream.batch import Batch
from spe.stream.history import Delivered, FaultBegan
from spe.stream.names import Kind


def check_masked(run: CheckedRun) -> Iterator[Finding]:
    """Yields a finding for each client that saw something tentative in a run whose failures can all be masked.

    A connection that became half open is noticed when something is missing, which may be any time later, and who was
    refused a connection tries again a while later: of such a run nothing is claimed.
    """
    history, static, plan, directory, in_force, bounds, counters = run
    placed = {f"{of}@{n}" for of, nodes in directory.placement.items() for n in nodes}
    static = [replace(i, world=replace(i.world, recovering=i.world.recovering & placed)) for i in static]
    unseen = any(isinstance(e, FaultBegan) and e.kind in ("half-open", "refuse") for e in history)
    alpha_x_us = in_force.shortest_alpha_x_us([(p, n) for p, nodes in directory.placement.items() for n in nodes])
    if unseen or not is_masked(static, plan, directory, alpha_x_us, bounds):
        return
    counters.add("masked runs")
    told: set[str] = set()
    for event in history:
        if not isinstance(event, Delivered) or not isinstance(event.element, Batch) or event.consumer in told:
            continue
        if event.element.kind is Kind.TENTATIVE and len(event.element):
            told.add(event.consumer)
            what = f"{event.channel}: {show_row(event.element.rows, 0)} is tentative, though no failure lasted"
            yield Finding("masked", "short failures make nothing tentative", event.at_us, event.consumer, what)


def is_masked(
    static: Sequence[FaultInterval], plan: Plan, directory: Directory, alpha_x_us: int, bounds: Bounds
) -> bool:
    """Was every failure short enough for αX, or of a node whose partitions all have a replica elsewhere?

    And did each begin only after everything was well, and every process had recovered from the one before?
    """
    begun = _begun(static)
    outages = _outages(static[begun:])
    if not outages or any(replace(one.world, recovering=frozenset()) != World() for one in static[:begun]):
        return False
    needed = max(needed_wait_us(plan, u)[1] for u in plan.units)
    channels = (c for of in directory.placement for c in plan.unit[of.unit].channels_in(of.partition))
    patience = 2 * (max(stall_us(plan, c) for c in channels) + plan.timing.connect_us)
    for before, after in pairwise(outages):
        if after[0].from_us - before[-1].to_us < bounds.settle_us:
            return False
    for outage in outages:
        short = outage[-1].to_us - outage[0].from_us + needed + 4 * plan.timing.heartbeat_us <= alpha_x_us
        spared = alpha_x_us >= patience and all(_spared(directory, one.world) for one in outage)
        if any(one.world.disturbed or (one.world.cut and not short) for one in outage) or not (short or spared):
            return False
    return True


def _begun(static: Sequence[FaultInterval]) -> int:
    """The first interval in which everything is well."""
    return next((i for i, one in enumerate(static) if one.world == World()), len(static))


def _outages(static: Sequence[FaultInterval]) -> list[list[FaultInterval]]:
    """Runs of intervals in which something is wrong; in the first interval nothing is."""
    well = World()
    found: list[list[FaultInterval]] = []
    for before, one in pairwise(static):
        if one.world == well:
            continue
        if before.world == well:
            found.append([])
        found[-1].append(one)
    return found


def _spared(directory: Directory, world: World) -> bool:
    """Only nodes are down, and of each partition one replica lives; not everything at once."""
    if world.cut or not world.down <= set(directory.nodes) or len(world.down) > 1:
        return False
    return all(
        any(n not in world.down and f"{of}@{n}" not in world.recovering for n in nodes)
        for of, nodes in directory.placement.items()
    )
