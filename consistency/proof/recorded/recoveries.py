"""In which order lost partitions came back where nodes had too little room for all (rules O1 to O6).  Pure.

What the coordinator noted says who was told to restore what, and what had to wait; tracks say when it ran.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, Final

from consistency.proof.losses import SERVES
from consistency.proof.recorded.moved_partitions import meanwhile
from consistency.proof.report.model import OutputReport, RecoveryReport, RecoveryStep, Track
from spe.plan.directory import Directory, ExpectedLoad
from spe.stream.ids import PartitionId

#: What results are worth while nobody runs some partitions, from 0 to 1.
Value = Callable[[Collection[PartitionId]], float]

#: A report lists at most so many steps.
_MOST: Final = 200
_NEWS: Final = ("recovery_planned", "recovery_over", "coordinator_began", "ordered", "order_refused")


def recovery_report(
    directory: Directory,
    told: Iterable[Mapping[str, Any]],
    tracks: Sequence[Track],
    outputs: Sequence[OutputReport],
    value: Value,
    begun_us: int,
) -> RecoveryReport | None:
    """None: there was room for all that was lost at any time.

    Args:
      told: lines of the coordinator's trace, in order.
      begun_us: when the run began, wall time in microseconds.
    """
    order = _Order(directory, value)
    happened: list[tuple[int, Mapping[str, Any] | str]] = [
        (int(line["t"]) - begun_us, line) for line in told if line["event"] in _NEWS
    ]
    happened += _served_again(tracks)
    for at_us, what in sorted(happened, key=itemgetter(0)):
        order.hear(at_us, what)
    if not order.plans:
        return None
    return RecoveryReport(
        goal=directory.recovery.value,
        plans=order.plans,
        steps=[one.report(directory, outputs) for one in order.all_steps()[:_MOST]],
    )


def _served_again(tracks: Sequence[Track]) -> list[tuple[int, str]]:
    """(when, replica) of each time that a replica began to serve."""
    found = []
    for track in tracks:
        until_us: int | None = None
        for span in track.spans:
            if span.name in SERVES:
                if until_us != span.from_us:
                    found.append((span.from_us, track.name))
                until_us = span.until_us
    return found


@dataclass(slots=True)
class _Step:
    """See ``RecoveryStep``."""

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
        tentative, delay_max_us = meanwhile(outputs, self.wanted_us, self.back_us)
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
    """What happens, one thing after the other.

    Attributes:
      plans: how many were made.
    """

    def __init__(self, directory: Directory, value: Value) -> None:
        self._names = {str(of): of for of in directory.roles}
        self._value = cache(value)
        self.plans = 0
        self._steps: list[_Step] = []
        #: Of partitions that were told to nodes and are not back.
        self._open: dict[PartitionId, list[_Step]] = {}
        #: Since when plans name what is not back; the same of an earlier coordinator.
        self._wanted: dict[PartitionId, int] = {}
        self._before: dict[PartitionId, int] = {}

    def hear(self, at_us: int, what: Mapping[str, Any] | str) -> None:
        """A line of the coordinator's trace; or the replica that began to serve."""
        if isinstance(what, str):
            self._serves(at_us, what)
            return
        match what["event"]:
            case "recovery_planned":
                self.plans += 1
                for named in self._named(what):
                    self._wanted.setdefault(named, self._before.pop(named, at_us))
            case "recovery_over":
                self._wanted = {of: since for of, since in self._wanted.items() if of in self._open}
                self._before.clear()
            case "coordinator_began":
                self._before |= self._wanted
                self._wanted = {of: since for of, since in self._wanted.items() if of in self._open}
            case "ordered" if what["verb"] == "install":
                self._told(at_us, what["replica"])
            case "order_refused":
                of, node = self._replica(what["replica"])
                for step in self._open.get(of, ()) if of is not None else ():
                    step.why = what["why"] if step.node == node else step.why

    def all_steps(self) -> list[_Step]:
        """In the order in which they began, and then what has waited in vain."""
        waits = [_Step(of, "", since) for of, since in self._wanted.items() if of not in self._open]
        return [*sorted(self._steps, key=lambda one: one.assigned_us or one.back_us or 0), *waits]

    def _named(self, plan: Mapping[str, Any]) -> Iterator[PartitionId]:
        names = [one.partition("@")[0] for one in plan.get("installs", "").split(",")]
        for name in (*names, *plan.get("waits", "").split(",")):
            if name in self._names:
                yield self._names[name]

    def _replica(self, text: str) -> tuple[PartitionId | None, str]:
        name, _, node = text.partition("@")
        return self._names.get(name), node

    def _told(self, at_us: int, replica: str) -> None:
        of, node = self._replica(replica)
        since = None if of is None else self._wanted.get(of, self._before.get(of))
        if of is None or since is None:
            return
        self._wanted[of] = since
        steps = self._open.setdefault(of, [])
        if (again := next((one for one in steps if one.node == node), None)) is not None:
            again.why = ""
            return
        steps.append(_Step(of, node, since, at_us))
        self._steps.append(steps[-1])

    def _serves(self, at_us: int, replica: str) -> None:
        of, node = self._replica(replica)
        if of is None or (since := self._wanted.get(of)) is None:
            if of is not None:
                self._before.pop(of, None)
            return
        lost = frozenset({*self._wanted, *self._before, *self._open})
        back = next((one for one in self._open.get(of, ()) if one.node == node), None)
        if back is None:
            back = _Step(of, node, since)
            self._steps.append(back)
        back.back_us, back.why = at_us, ""
        back.before, back.after = self._value(lost), self._value(lost - {of})
        for other in self._open.pop(of, ()):
            if other is not back:
                other.why = other.why or f"{node} was first"
        del self._wanted[of]
        self._before.pop(of, None)
