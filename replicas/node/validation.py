"""The state of a replica, checked after each of its steps: in tests, in simulation, and where SPE_VALIDATE is set."""

from __future__ import annotations

from typing import Final

from replicas.node.replica import Replica

#: All that is held is looked at in one step of so many.
ROWS_EVERY: Final = 32


class ReplicaValidation:
    """Of one replica: what holds in each state, and what never goes back from one to the next."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._steps = 0
        self._reached: list[int] = []

    def step(self) -> None:
        """Raises AssertionError, which names the rule."""
        self._replica.validate()
        reached = self._far()
        assert all(a <= b for a, b in zip(self._reached, reached, strict=False)), "invariant 5: nothing goes back"
        self._reached = reached
        self._steps += 1
        if self._steps % ROWS_EVERY == 0:
            self._replica.validate_rows()

    def _far(self) -> list[int]:
        """Positions, boundaries, ids that were made, and acknowledgements, which come last: there are none at first."""
        replica = self._replica
        ports = replica.sunion.inputs
        far = [p.position for p in ports] + [p.frontier for p in ports] + [log.last_id for log in replica.logs]
        return far + [log.stable.frontier for log in replica.logs] + [upto for _, upto in replica.recovery.acks()]
