"""The state of a replica, checked after each of its steps: in tests, in simulation, and where SPE_VALIDATE is set."""

from __future__ import annotations

from operator import le
from typing import Final

from replicas.node.replica import Replica

#: Steps between two checks of all rows that are held.
ROWS_EVERY: Final = 32


class ReplicaValidation:
    """Checks one replica: invariants of each state, and values that may never decrease."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._steps = 0
        self._reached: list[int] = []
        self._acknowledged: list[int] = []

    def step(self) -> None:
        """Checks the state after a step.  Raises AssertionError, which names the rule."""
        replica, ports = self._replica, self._replica.sunion.inputs
        replica.validate()
        self._reached = _further(
            self._reached,
            [p.position for p in ports]
            + [p.frontier for p in ports]
            + [log.last_id for log in replica.logs]
            + [log.stable.frontier for log in replica.logs],
        )
        self._steps += 1
        if self._steps % ROWS_EVERY == 0:
            replica.validate_rows()
            if not replica.sunion.store.spilled:  # of rows on disk only a bound is known
                self._acknowledged = _further(self._acknowledged, [upto for _, upto in replica.recovery.acks()])


def _further(before: list[int], now: list[int]) -> list[int]:
    """Returns ``now`` after asserting that it is not behind ``before``, which may be empty."""
    assert False not in map(le, before, now), f"invariant 5: nothing goes back, but {before} became {now}"
    return now
