"""What enough simulated runs must have met, and what of it they have not; and their sums as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from consistency.checking.counters import Cell, Counters
from replicas.cli.campaigns.campaign import Sums
from replicas.cli.campaigns.campaign_report import ranges
from spe.stream.names import NodeState

_STATES: Final = tuple(s.name for s in NodeState)
_SERVING: Final = ("STABLE", "UP_FAILURE", "STABILIZATION")

#: What can happen to a replica in each state, if enough is tried.
REACHABLE_EVENTS: Final[frozenset[Cell]] = frozenset(
    {(s, e) for s in _STATES for e in ("stable tuples", "stable boundary", "subscribes", "loses a feed", "dies")}
    | {(s, e) for s in _SERVING for e in ("tentative tuples", "tentative boundary", "undo on main", "is subscribed to")}
    | {(s, "rec_done on main") for s in _SERVING}
    | {(s, e) for s in ("UP_FAILURE", "STABILIZATION") for e in ("rec_done on corrections", "promotes")}
    | {("UP_FAILURE", "undo on corrections"), ("RECOVERING", "tentative tuples"), ("RECOVERING", "tentative boundary")}
    | {("STABLE", "becomes UP_FAILURE"), ("UP_FAILURE", "becomes STABILIZATION"), ("UP_FAILURE", "becomes STABLE")}
    | {("STABILIZATION", "becomes STABLE"), ("STABILIZATION", "becomes UP_FAILURE")}
    | {("RECOVERING", "becomes STABLE"), ("RECOVERING", "becomes UP_FAILURE")}
    | {("STABLE", "partner asks"), ("UP_FAILURE", "partner asks"), ("UP_FAILURE", "asks a partner")}
)

#: Faults that befall nodes; each should find them in each state in which they can be for long.
NODE_FAULTS: Final = ("kill", "power", "freeze", "cut", "half-open")
REACHABLE_FAULTS: Final[frozenset[Cell]] = frozenset((kind, s) for kind in NODE_FAULTS for s in _SERVING)

#: What a run can be like as a whole, and faults that the tables do not ask for: each an amount of the counters.
REACHABLE_RUNS: Final[frozenset[str]] = frozenset(
    {
        "runs with links cut for 10 X",
        "runs with links cut one way for 10 X",
        "runs with a node left dead",
        "runs of nodes that differ in X",
        "runs of nodes that differ in policy",
        "runs of nodes that differ in reconcile",
        "runs with checkpoints further apart than X",
        "runs in which state costs time",
        "runs in which X or its shares changed",
        "fault slow-disk",
        "fault lie",
        "fault wipe",
        "fault replan query",
        "fault replan bucket",
        "fault replan limits",
        "fault replan timing",
        "fault replan checkpoints",
        "recordings compared",
        "sinks compared, mode stable",
        "sinks compared, mode corrections",
        "nulls delivered",
        "NaN delivered",
        "infinities delivered",
        "ends of int64 delivered",
    }
)


def empty_cells(table: Mapping[Cell, int], reachable: Iterable[Cell]) -> list[Cell]:
    """Cells that should have been met and were not, in order."""
    return sorted(cell for cell in reachable if not table.get(cell))


def _empty_cells(sums: Sums) -> list[tuple[str, str]]:
    return empty_cells(sums.counters.events, REACHABLE_EVENTS) + empty_cells(sums.counters.faults, REACHABLE_FAULTS)


def empty_text(sums: Sums) -> str:
    """The situations that never occurred, though enough runs should have them."""
    cells = [f"{a} × {b}" for a, b in _empty_cells(sums)]
    cells += sorted(name for name in REACHABLE_RUNS if not sums.counters.amounts[name])
    return f"never met, though it should be: {', '.join(cells)}" if cells else "every cell that can be reached was met"


def counters_data(counters: Counters) -> dict[str, Any]:
    """In an order that does not depend on the run's."""
    return {
        "amounts": dict(sorted(counters.amounts.items())),
        "events": [[*cell, n] for cell, n in sorted(counters.events.items())],
        "faults": [[*cell, n] for cell, n in sorted(counters.faults.items())],
    }


def sums_data(sums: Sums) -> dict[str, Any]:
    """What ``sums_text`` says, for a machine."""
    return {
        "runs": len(sums.seeds),
        "seeds": ranges(sums.seeds),
        "simulated_hours": round(sums.virtual_s / 3600, 4),
        "cpu_seconds": round(sums.cpu_s, 1),
        "faults": dict(sorted(sums.faults.items())),
        "counters": counters_data(sums.counters),
        "empty_cells": [list(cell) for cell in _empty_cells(sums)],
        "failed": [{"seed": r.seed, "findings": list(map(str, r.findings))} for r in sums.failed],
    }
