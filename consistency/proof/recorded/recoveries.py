"""The order in which lost partitions came back where nodes lacked the room for all of them (rules O1 to O6).  Pure.

The coordinator's notes have its orders and the partitions that had to wait; tracks show when each partition ran.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, Final

from consistency.proof.losses import SERVES
from consistency.proof.recorded.moved_partitions import received_during
from consistency.proof.report.model import OutputReport, RecoveryReport, RecoveryStep, Track
from spe.plan.directory import Directory, ExpectedLoad
from spe.stream.ids import PartitionId

#: Returns the value of results while no node runs some partitions, from 0 to 1.
Value = Callable[[Collection[PartitionId]], float]

#: Maximum number of steps in a report.
_MOST: Final = 200
_NEWS: Final = ("recovery_planned", "recovery_over", "coordinator_began", "ordered", "order_refused")


def recovery_report(
    directory: Directory,
    trace: Iterable[Mapping[str, Any]],
    tracks: Sequence[Track],
    outputs: Sequence[OutputReport],
    value: Value,
    begun_us: int,
) -> RecoveryReport | None:
    """Returns the order of recovery; None: there was room for all lost partitions at any time.

    Args:
      trace: lines of the coordinator's trace, in order.
      begun_us: when the run began, wall time in microseconds.
    """
    order = _Order(directory, value)
    happened: list[tuple[int, Mapping[str, Any] | str]] = [
        (int(line["t"]) - begun_us, line) for line in trace if line["event"] in _NEWS
    ]
    happened += _served_again(tracks)
    for at_us, what in sorted(happened, key=itemgetter(0)):
        order.hear(at_us, what)
    if not order.plans:
        return None
    return RecoveryReport(
        goal=directory.recovery.value,
        plans=order.plans,
        steps=[step.report(directory, outputs) for step in order.all_steps()[:_MOST]],
    )


def _served_again(tracks: Sequence[Track]) -> list[tuple[int, str]]:
    """Returns (time, replica) of each time that a replica began to serve."""
    times = []
    for track in tracks:
        until_us: int | None = None
        for span in track.spans:
            if span.name in SERVES:
                if until_us != span.from_us:
                    times.append((span.from_us, track.name))
                until_us = span.until_us
    return times


@dataclass(slots=True)
class _Step:
    """One step of a recovery, see ``RecoveryStep``."""

    partition: PartitionId
    node: str
    wanted_us: int
    assigned_us: int | None = None
    back_us: int | None = None
    before: float | None = None
    after: float | None = None
    why: str = ""

    def report(self, directory: Directory, outputs: Sequence[OutputReport]) -> RecoveryStep:
        works = directory.recovery.loads.get(self.partition.unit, ExpectedLoad()).install_us
        tentative, delay_max_us = received_during(outputs, self.wanted_us, self.back_us)
        return RecoveryStep(
            partition=str(self.partition),
            node=self.node,
            wanted_us=self.wanted_us,
            assigned_us=self.assigned_us,
            back_us=self.back_us,
            predicted_us=works[self.partition.partition % len(works)] if works else None,
            value_before=self.before,
            value=self.after,
            tentative=tentative,
            delay_max_us=delay_max_us,
            why=self.why,
        )


class _Order:
    """Takes events in order and finds the steps.

    Attributes:
      plans: number of recovery plans.
    """

    def __init__(self, directory: Directory, value: Value) -> None:
        self._names = {str(partition): partition for partition in directory.roles}
        self._value = cache(value)
        self.plans = 0
        self._steps: list[_Step] = []
        #: Steps of partitions that nodes were ordered to restore and that are not back.
        self._open: dict[PartitionId, list[_Step]] = {}
        #: Time since when plans name a partition that is not back; and the same of an earlier coordinator.
        self._wanted: dict[PartitionId, int] = {}
        self._before: dict[PartitionId, int] = {}

    def hear(self, at_us: int, what: Mapping[str, Any] | str) -> None:
        """Takes a line of the coordinator's trace, or the name of a replica that began to serve."""
        if isinstance(what, str):
            self._serves(at_us, what)
            return
        match what["event"]:
            case "recovery_planned":
                self.plans += 1
                for named in self._named(what):
                    self._wanted.setdefault(named, self._before.pop(named, at_us))
            case "recovery_over":
                self._wanted = {
                    partition: since for partition, since in self._wanted.items() if partition in self._open
                }
                self._before.clear()
            case "coordinator_began":
                self._before |= self._wanted
                self._wanted = {
                    partition: since for partition, since in self._wanted.items() if partition in self._open
                }
            case "ordered" if what["verb"] == "install":
                self._ordered(at_us, what["replica"])
            case "order_refused":
                partition, node = self._replica(what["replica"])
                for step in self._open.get(partition, ()) if partition is not None else ():
                    step.why = what["why"] if step.node == node else step.why

    def all_steps(self) -> list[_Step]:
        """Returns the steps in the order in which they began, and then those that never did."""
        waits = [
            _Step(partition, "", since) for partition, since in self._wanted.items() if partition not in self._open
        ]
        return [*sorted(self._steps, key=lambda step: step.assigned_us or step.back_us or 0), *waits]

    def _named(self, plan: Mapping[str, Any]) -> Iterator[PartitionId]:
        names = [replica.partition("@")[0] for replica in plan.get("installs", "").split(",")]
        for name in (*names, *plan.get("waits", "").split(",")):
            if name in self._names:
                yield self._names[name]

    def _replica(self, text: str) -> tuple[PartitionId | None, str]:
        name, _, node = text.partition("@")
        return self._names.get(name), node

    def _ordered(self, at_us: int, replica: str) -> None:
        partition, node = self._replica(replica)
        since = None if partition is None else self._wanted.get(partition, self._before.get(partition))
        if partition is None or since is None:
            return
        self._wanted[partition] = since
        steps = self._open.setdefault(partition, [])
        if (again := next((step for step in steps if step.node == node), None)) is not None:
            again.why = ""
            return
        steps.append(_Step(partition, node, since, at_us))
        self._steps.append(steps[-1])

    def _serves(self, at_us: int, replica: str) -> None:
        partition, node = self._replica(replica)
        if partition is None or (since := self._wanted.get(partition)) is None:
            if partition is not None:
                self._before.pop(partition, None)
            return
        lost = frozenset({*self._wanted, *self._before, *self._open})
        back = next((step for step in self._open.get(partition, ()) if step.node == node), None)
        if back is None:
            back = _Step(partition, node, since)
            self._steps.append(back)
        back.back_us, back.why = at_us, ""
        back.before, back.after = self._value(lost), self._value(lost - {partition})
        for other in self._open.pop(partition, ()):
            if other is not back:
                other.why = other.why or f"{node} was first"
        del self._wanted[partition]
        self._before.pop(partition, None)
