"""A chain of explanations: steps to the causes of a delay, and what follows from each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from consistency.explaining.model import Cause, CauseKind, Look, Step, short
from spe.status import UnreachedStatus

_NOT_KNOWN: Final = UnreachedStatus("silent", "it is not known")
#: Time to answer above which a process is overloaded.
SLOW_ANSWER_US: Final = 300_000


class Chain:
    """Collects the steps of one explanation.

    Attributes:
      causes, next: without repetition, in order.
    """

    def __init__(self, now: Look) -> None:
        self._now = now
        self.steps: list[Step] = []
        self.causes: dict[Cause, None] = {}
        self.next: dict[str, None] = {}

    def step(self, depth: int, who: str, what: str) -> None:
        self.steps.append(Step(depth, who, what))

    def cause(self, kind: CauseKind, processes: tuple[str, ...], why: str, then: str = "") -> None:
        """Adds a cause, and what happens next."""
        self.causes[Cause(kind, processes, why)] = None
        if then:
            self.next[then] = None

    def down(self, depth: int, name: str) -> None:
        """Explains a process that does not answer."""
        error = self._now.errors.get(name, _NOT_KNOWN)
        self.step(depth, name, f"does not answer: {error.why}")
        if error.kind == "refused":
            self.cause(CauseKind.REFUSED, (name,), f"{name} is refused, or refuses: {error.why}")
        else:
            self.cause(CauseKind.DOWN, (name,), f"{name} is down, frozen, cut off or far too slow: {error.why}")

    def slow_to_answer(self, name: str) -> bool:
        """Explains a process that answers late: it answers every process late."""
        took_us = self._now.took_us.get(name, 0)
        if took_us < SLOW_ANSWER_US:
            return False
        why = f"{name} answers only after {short(took_us)}: it is overloaded, or its machine or disk is slow"
        self.overloaded(name, (name,), why)
        return True

    def overloaded(self, name: str, processes: tuple[str, ...], why: str) -> None:
        self.cause(CauseKind.SLOW, processes, why, f"{name} catches up when it has more CPU, or less to do")

    def disks(self, name: str, full: Mapping[str, str]) -> None:
        """Explains a process that lacks room."""
        for what, why in full.items():
            text = f"{name} has no room for {what}: {why}"
            self.cause(CauseKind.DISK, (name,), text, f"{name} goes on by itself when there is room")

    def servers(self, name: str, away: Mapping[str, str]) -> None:
        """Explains a process whose servers outside of the cluster do not answer."""
        for what, why in away.items():
            text = f"{name}: {what}: its server does not answer: {why}"
            self.cause(CauseKind.AWAY, (name,), text, f"{name} goes on by itself when its server answers")
