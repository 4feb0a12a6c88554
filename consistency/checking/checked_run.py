"""The input of the checkers: a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from consistency.checking.bounds import Bounds
from consistency.checking.counters import Counters
from consistency.checking.node_settings import InForce
from consistency.checking.schedule import FaultInterval
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.history import History


class CheckedRun(NamedTuple):
    """A run with everything that the checkers need.

    Attributes:
      static: the intervals of the history in which no fault began or ended.
      in_force: X, its shares and policies of nodes, and when they held.
      bounds: allowed durations.
      counters: amount of what was checked.
    """

    history: History
    static: Sequence[FaultInterval]
    plan: Plan
    directory: Directory
    in_force: InForce
    bounds: Bounds
    counters: Counters
