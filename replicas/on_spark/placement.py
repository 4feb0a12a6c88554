"""Decides when a node is submitted to Spark, and whether it may stay where its task has landed.  Pure.

One job of one task per attempt.  An attempt that ends, or whose task is lost, is never revived: the node
is submitted again under the next number, and messages of older attempts are refused.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from replicas.on_spark.spots import Executor, Spot, conflict, needs, possible

#: Pause before the next attempt, doubled each time until the node has a place.
FIRST_PAUSE_US: Final = 500_000
LONGEST_PAUSE_US: Final = 4_000_000
#: A node without a place for so long is reported, and again after as long.
SAY_US: Final = 20_000_000
#: Number of successive jobs of a node that may end before their task reports: more, and tasks cannot run there.
FAILURES_MAX: Final = 4


class SeatStage(enum.StrEnum):
    """Progress of a node towards a place."""

    OUT = "out"  # it shall not run
    WAITING = "waiting"  # until it is submitted
    SUBMITTED = "submitted"  # Spark shall start its task
    PLACED = "placed"


# --- what happens ---


@dataclass(frozen=True, slots=True)
class NodeWanted:
    """A node shall run."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeUnwanted:
    """A node shall not run any more, and has no place yet."""

    node: str


@dataclass(frozen=True, slots=True)
class Landed:
    """The task of an attempt runs."""

    node: str
    attempt: int
    spot: Spot


@dataclass(frozen=True, slots=True)
class Lost:
    """The task of an attempt is silent or gone."""

    node: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job of an attempt is over; ``why`` is None where its task returned."""

    node: str
    attempt: int
    why: str | None


@dataclass(frozen=True, slots=True)
class Registered:
    """The present executors."""

    executors: tuple[Executor, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = NodeWanted | NodeUnwanted | Landed | Lost | JobEnded | Registered | Tick


# --- what is to be done ---


@dataclass(frozen=True, slots=True)
class Submit:
    node: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """The job of an attempt is not needed any more."""

    node: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Accept:
    """The task may start its node."""

    node: str
    attempt: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The task shall end at once."""

    node: str
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class PlaceLost:
    """A node has lost its place."""

    node: str
    spot: Spot


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Tasks cannot run: the run is over."""

    text: str


Action = Submit | Cancel | Accept | GiveBack | PlaceLost | Say | Fail


@dataclass(slots=True)
class _Seat:
    """Progress of one node.

    Attributes:
      attempt: number of the latest one.
      due_us: when the next one is submitted, while it waits.
      since_us: when it was first without a place.
      said_us: when that was reported last.
    """

    stage: SeatStage = SeatStage.OUT
    attempt: int = 0
    due_us: int = 0
    pause_us: int = FIRST_PAUSE_US
    since_us: int = 0
    said_us: int = 0
    failures: int = 0
    why: str = ""


class SparkPlacement:
    """Places the nodes of one run.

    Args:
      partners: node -> nodes with which it shares no executor.
      by_host: partners share no host, either.
    """

    def __init__(self, partners: Mapping[str, Collection[str]], *, by_host: bool) -> None:
        self._partners = partners
        self._by_host = by_host
        self._seats = {node: _Seat() for node in partners}
        self._executors: tuple[Executor, ...] = ()
        self.placed: dict[str, Spot] = {}

    @property
    def nodes(self) -> Collection[str]:
        return self._seats.keys()

    def stage(self, node: str) -> SeatStage:
        return self._seats[node].stage

    def handle(self, event: Event, now: int) -> list[Action]:
        """Returns the actions for an event.

        Args:
          now: microseconds on a clock that never goes back.
        """
        match event:
            case NodeWanted(node):
                seat = self._seats[node]
                if seat.stage is SeatStage.OUT:
                    seat.stage, seat.due_us, seat.pause_us = SeatStage.WAITING, now, FIRST_PAUSE_US
                    seat.since_us = seat.said_us = now
                    seat.failures, seat.why = 0, ""
                return self._submit_due(now)
            case NodeUnwanted(node):
                return self._unwanted(node)
            case Landed(node, attempt, spot):
                return self._landed(node, attempt, spot, now)
            case Lost(node, attempt):
                return self._ended(node, attempt, "its task is not heard any more", now)
            case JobEnded(node, attempt, why):
                return self._ended(node, attempt, why or "its task has ended", now)
            case Registered(executors):
                self._executors = executors
                return []
            case Tick():
                return self._submit_due(now) + self._say_late(now)

    def _unwanted(self, node: str) -> list[Action]:
        seat = self._seats[node]
        if seat.stage is SeatStage.PLACED:
            return []
        before, seat.stage = seat.stage, SeatStage.OUT
        return [Cancel(node, seat.attempt)] if before is SeatStage.SUBMITTED else []

    def _submit_due(self, now: int) -> list[Action]:
        submits: list[Action] = []
        for node, seat in self._seats.items():
            if seat.stage is SeatStage.WAITING and seat.due_us <= now:
                seat.stage = SeatStage.SUBMITTED
                seat.attempt += 1
                submits.append(Submit(node, seat.attempt))
        return submits

    def _landed(self, node: str, attempt: int, spot: Spot, now: int) -> list[Action]:
        seat = self._seats.get(node)
        if seat is None or seat.stage is not SeatStage.SUBMITTED or seat.attempt != attempt:
            return [GiveBack(node, attempt, "it is the task of an earlier attempt")]
        if why := self._in_the_way(node, spot):
            self._wait(seat, now, f"its task came to {spot}, but {why}")
            return [GiveBack(node, attempt, why)]
        seat.stage, seat.pause_us, seat.failures = SeatStage.PLACED, FIRST_PAUSE_US, 0
        self.placed[node] = spot
        return [Accept(node, attempt)]

    def _in_the_way(self, node: str, spot: Spot) -> str | None:
        """Returns why a node may not stay; None if it may."""
        if why := conflict(node, spot, self._partners, self.placed, by_host=self._by_host):
            return why
        known = self._known(spot)
        if self._possible(known, self.placed) and not self._possible(known, {**self.placed, node: spot}):
            return "a node that can run nowhere else needs that place"
        return None

    def _known(self, spot: Spot) -> list[Executor]:
        """Returns the executors, with the hosts that tasks reported: Spark may have other names for them."""
        spots = {s.executor: s for s in (*self.placed.values(), spot)}
        executors = [Executor(spots.get(e.spot.executor, e.spot), e.slots) for e in self._executors]
        if spot not in [e.spot for e in executors]:  # it has registered since the last count
            executors.append(Executor(spot, 1))
        return executors

    def _possible(self, executors: Sequence[Executor], placed: Mapping[str, Spot]) -> bool:
        wanted = {n for n, seat in self._seats.items() if seat.stage is not SeatStage.OUT}
        among = {n: [o for o in self._partners[n] if o in wanted] for n in wanted}
        return possible(among, executors, placed, by_host=self._by_host)

    def _ended(self, node: str, attempt: int, why: str, now: int) -> list[Action]:
        seat = self._seats[node]
        if seat.attempt != attempt:
            return []
        if seat.stage is SeatStage.PLACED:
            seat.stage = SeatStage.OUT
            return [Cancel(node, attempt), PlaceLost(node, self.placed.pop(node))]
        if seat.stage is not SeatStage.SUBMITTED:  # it was given back, or is not wanted
            return []
        seat.failures += 1
        if seat.failures >= FAILURES_MAX:
            return [Fail(f"{node} cannot run on Spark: {seat.failures} jobs ended before their task was heard: {why}")]
        self._wait(seat, now, why)
        return []

    def _wait(self, seat: _Seat, now: int, why: str) -> None:
        seat.stage, seat.why = SeatStage.WAITING, why
        seat.due_us = now + seat.pause_us
        seat.pause_us = min(2 * seat.pause_us, LONGEST_PAUSE_US)

    def _say_late(self, now: int) -> list[Action]:
        reports: list[Action] = []
        for node, seat in self._seats.items():
            if seat.stage in (SeatStage.WAITING, SeatStage.SUBMITTED) and now - seat.said_us >= SAY_US:
                seat.said_us = now
                why = f"; {seat.why}" if seat.why else ""
                waits = round((now - seat.since_us) / 1e6)
                what = needs(self._partners, self._executors)
                reports.append(Say(f"{node} has waited {waits} s for an executor{why}; {what}"))
        return reports
