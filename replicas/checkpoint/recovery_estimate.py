"""Estimates recovery from a checkpoint log by the configuration; nothing is measured here.

A rate is known if a unit reads sources that are generated or paced by rows; the number of groups, if ``groups`` is
configured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from replicas.checkpoint.targets import ASSUMED, Least, LogSpeeds, Workload, least, targets
from spe.plan.describe import show_duration
from spe.plan.directory import Directory
from spe.plan.log_targets import Continuous
from spe.plan.log_use import log_use
from spe.plan.plan import Plan, Unit
from spe.plan.timing import origins, rows_per_s, speed_of
from spe.problems import Path
from spe.query.declaration import Logged
from spe.stream.ids import PartitionId
from spe.stream.times import MILLISECOND, SECOND


class ExpectedRecovery(NamedTuple):
    """The expected recovery of a partition of a unit.

    Attributes:
      workload: unknown figures are 0.
      knows_groups: it has no groups, or their number is configured.
      knows_rate: the rate of its input is known.
    """

    unit: Unit
    log: Continuous
    workload: Workload
    knows_groups: bool
    knows_rate: bool

    @property
    def least(self) -> Least:
        """The least recovery time, by the known figures."""
        return least(ASSUMED, self.workload, self.log.share)


def expected(plan: Plan, directory: Directory) -> Iterator[ExpectedRecovery]:
    """Yields the expected recovery of each unit with a log, for one partition: all are assumed to be alike."""
    for unit in plan.units:
        log = directory.logs.get(PartitionId(unit.id, 0))
        if log is not None:
            yield _expected(plan, unit, log)


def _expected(plan: Plan, unit: Unit, log: Continuous) -> ExpectedRecovery:
    rate, speed = _rate(plan, unit), _speed(plan, unit)
    cells = begun = held = lifetime = 0.0
    knows_groups = True
    holders = log_use(plan, unit).holders
    for operator in holders:
        spec = operator.spec
        if spec.logged is Logged.ROWS:
            held = max(held, (rate or 0.0) * _seconds(spec.reach_us or 0, speed))
            continue
        if spec.logged is Logged.CELLS:
            knows_groups = knows_groups and (log.groups is not None or not spec.is_grouped)
            cells += ((log.groups or 0) if spec.is_grouped else 1) * spec.cells_per_group
            begun += 0 if rate is None or spec.lifetime_rows is None else rate / spec.lifetime_rows
        else:
            cells += 1
        lifetime = max(lifetime, math.inf if spec.lifetime_us is None else _seconds(spec.lifetime_us, speed, math.inf))
    replayed = (rate or 0.0) if not holders or any(o.spec.is_replayed for o in holders) else 0.0
    workload = Workload(cells, begun, replayed, held, lifetime or math.inf)
    return ExpectedRecovery(unit, log, workload, knows_groups, rate is not None)


def _rate(plan: Plan, unit: Unit) -> float | None:
    """Returns the rows per second of a partition; None: unknown."""
    rates = []
    for input in unit.inputs:
        rate = rows_per_s(plan.sources[input.stream]) if input.stream in plan.sources else None
        if rate is None:
            return None
        rates.append(rate / unit.partitions if input.key is not None else rate)
    return sum(rates)


def _speed(plan: Plan, unit: Unit) -> float | None:
    """Returns tuple time per wall time, of the slowest source."""
    speeds = [speed_of(source) for input in unit.inputs for source in origins(plan, input.stream)]
    known = [s for s in speeds if s is not None and math.isfinite(s)]
    return min(known) if known and len(known) == len(speeds) else None


def _seconds(us: int, speed: float | None, unknown: float = 0.0) -> float:
    return unknown if speed is None else us / SECOND / speed


def too_short(plan: Plan, directory: Directory) -> Iterator[tuple[Path, str]]:
    """Yields configured recovery times that are too short, with the least that is possible."""
    for recovery in expected(plan, directory):
        us, shortest = recovery.log.recovery_us, recovery.least
        if us is not None and us < shortest.seconds * SECOND:
            yield (
                ("fragments", recovery.unit.fragment, "checkpoint", "recovery"),
                f"{show_duration(us)} is too short for unit {recovery.unit.id!r}: {_show(shortest.load_s)} to load "
                f"records and {_show(shortest.replay_s)} to replay rows ({show_speeds(ASSUMED)}); expected at least "
                f"{_show(shortest.seconds)}, {_advice(recovery, us)}",
            )


def _advice(recovery: ExpectedRecovery, recovery_us: int) -> str:
    if recovery.workload.held_rows:
        return "or a shorter window, or more partitions"
    wanted = targets(recovery_us / SECOND, ASSUMED, recovery.workload)
    if wanted is None or wanted.share > 1:
        return "or more partitions"
    return f"or share: {math.ceil(100 * wanted.share)}%, or more partitions"


def show_speeds(speeds: LogSpeeds) -> str:
    return (
        f"assumed: {speeds.load_us:g} µs to load a record, {speeds.write_us:g} µs to rewrite it, "
        f"{speeds.replay_us:g} µs to replay a row"
    )


def recovery_rows(plan: Plan, directory: Directory) -> list[list[str]]:
    """Returns a row per unit with a log: the configured limit, the least recovery time, Q and U."""
    return [
        [str(recovery.unit.id), _wanted(recovery.log), _reached(recovery), _targets(recovery)]
        for recovery in expected(plan, directory)
    ]


def _wanted(log: Continuous) -> str:
    if log.recovery_us is not None:
        return f"recovery {show_duration(log.recovery_us)}"
    limits = {"records": log.records, "rows": log.rows}
    return ", ".join(f"at most {count:,} {what}" for what, count in limits.items() if count is not None)


def _reached(recovery: ExpectedRecovery) -> str:
    if not recovery.knows_groups and recovery.log.recovery_us is not None:
        most = recovery.log.recovery_us / ASSUMED.load_us
        return f"up to {most:,.0f} records could be loaded; groups: N says how many groups there are"
    text = f"least {_show(recovery.least.seconds)}"
    return text if recovery.knows_rate else f"{text}, and what replay takes at a rate that is not known"


def _targets(recovery: ExpectedRecovery) -> str:
    if recovery.log.recovery_us is None or not (recovery.knows_groups and recovery.knows_rate):
        return ""
    limits = targets(recovery.log.recovery_us / SECOND, ASSUMED, recovery.workload, recovery.log.share)
    if limits is None:
        return ""
    share = f"{100 * limits.share:.2g}% of the time for rewriting"
    return f"Q {limits.records:,.0f} records, U {limits.rows:,.0f} rows, {share}"


def _show(seconds: float) -> str:
    """Formats a duration, rounded up, so that no limit looks met when it is not."""
    step_us = (100 if seconds >= 1 else 1) * MILLISECOND
    return show_duration(math.ceil(round(seconds * SECOND) / step_us) * step_us)
