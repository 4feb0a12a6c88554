"""Chooses executors for nodes: replicas of a partition share none, nor a host if there are enough.  Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from spe.plan.directory import Directory

#: Number of attempts to place nodes after which a placement is assumed to exist.
_STEPS_MAX: Final = 20_000
#: Time after which the registered executors are all, if their number is not configured.
SETTLED_US: Final = 5_000_000
#: Time after which executors that have not registered never will.
PATIENCE_US: Final = 180_000_000


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of a task."""

    executor: str
    host: str

    def __str__(self) -> str:
        return f"executor {self.executor} on {self.host}"


@dataclass(frozen=True, slots=True)
class Executor:
    """A process of Spark that runs tasks.

    Attributes:
      slots: number of tasks that it runs at a time.
    """

    spot: Spot
    slots: int


def partners(directory: Directory) -> dict[str, frozenset[str]]:
    """Returns node -> the others that have a role for one of its partitions."""
    partners_of: dict[str, set[str]] = {str(node): set() for node in directory.nodes}
    for partition in directory.roles:
        for a, b in combinations(map(str, directory.hosts(partition)), 2):
            partners_of[a].add(b)
            partners_of[b].add(a)
    return {node: frozenset(others) for node, others in partners_of.items()}


def conflict(
    node: str, spot: Spot, partners: Mapping[str, Collection[str]], placed: Mapping[str, Spot], *, by_host: bool
) -> str | None:
    """Returns why a node may not run at a spot; None if it may.

    Args:
      by_host: partners may not share a host, either.
    """
    for other in sorted(partners[node]):
        at = placed.get(other)
        if at is None:
            continue
        if at.executor == spot.executor:
            return f"{other} runs on {spot}"
        if by_host and at.host == spot.host:
            return f"{other} runs on host {spot.host}"
    return None


def possible(
    partners: Mapping[str, Collection[str]],
    executors: Sequence[Executor],
    placed: Mapping[str, Spot],
    *,
    by_host: bool,
) -> bool:
    """Is there a place for each node without one?  Also True if the search takes too long."""
    free = {e.spot: e.slots for e in executors}
    for spot in placed.values():
        free[spot] = free.get(spot, 1) - 1
    at = dict(placed)
    # the node with the most partners has the least choice
    todo = sorted((n for n in partners if n not in placed), key=lambda n: (-len(partners[n]), n))
    steps = 0

    def place(number: int) -> bool:
        nonlocal steps
        if number == len(todo) or steps > _STEPS_MAX:
            return True
        node = todo[number]
        for spot in free:
            steps += 1
            if free[spot] > 0 and not conflict(node, spot, partners, at, by_host=by_host):
                free[spot] -= 1
                at[node] = spot
                if place(number + 1):
                    return True
                free[spot] += 1
                del at[node]
        return False

    return len(todo) <= sum(max(0, n) for n in free.values()) and place(0)


class Fit(enum.Enum):
    """Result of fitting nodes on executors."""

    NOT_YET = enum.auto()  # more may come
    BY_HOST = enum.auto()  # partners share no host
    BY_EXECUTOR = enum.auto()  # partners share hosts, but no executor
    NEVER = enum.auto()


def fit(
    partners: Mapping[str, Collection[str]], executors: Sequence[Executor], expected: int | None, waited_us: int
) -> Fit:
    """Do all nodes fit on the executors that have registered?

    Args:
      expected: number of executors that Spark is configured to have; None: unknown.
      waited_us: since Spark has started.
    """
    if possible(partners, executors, {}, by_host=True):
        return Fit.BY_HOST
    all_there = len(executors) >= expected if expected is not None else waited_us >= SETTLED_US
    fits = possible(partners, executors, {}, by_host=False)
    if fits and (all_there or waited_us >= PATIENCE_US):
        return Fit.BY_EXECUTOR
    if waited_us >= PATIENCE_US or (expected is not None and all_there):
        return Fit.NEVER
    return Fit.NOT_YET


def most_together(partners: Mapping[str, Collection[str]]) -> int:
    """Returns the least number of executors: the size of the largest group of mutual partners (by greed)."""
    most = min(1, len(partners))
    for first in partners:
        group = [first]
        for other in sorted(partners[first]):
            if all(other in partners[member] for member in group):
                group.append(other)
        most = max(most, len(group))
    return most


def needs(partners: Mapping[str, Collection[str]], executors: Sequence[Executor]) -> str:
    """Describes the required and the present executors."""
    nodes, least, slots = len(partners), most_together(partners), sum(e.slots for e in executors)
    return (
        f"{nodes} nodes need {nodes} tasks at a time on {least} executors or more, of which no two replicas of a "
        f"partition share one; there are {len(executors)} executors, which run {slots} tasks at a time"
    )
