"""Computing in virtual time, proportional to the state held.

A node's step of work blocks the whole process, as a synchronous step does: no task of its host runs during it.  A
computation in a thread (such as encoding a snapshot) takes as long, and other tasks go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from replicas.node.replica import Replica
from replicas.simulation.world.clock import current_clock, now_us
from spe.stream.batch import Rows
from spe.stream.frozen import FrozenArray
from spe.stream.times import MILLISECOND

#: Longest step, whatever the state: as guaranteed by a node's own limits.
STEP_MAX_US: Final = 50 * MILLISECOND
#: Rows and groups held are counted again after this time.
_COUNTED_US: Final = 100 * MILLISECOND


class StateCompute:
    """Implements spe.runtime.env.Compute for one host.

    Args:
      turn_us: fixed duration of each slice of work.
      state_ns: duration per row or group held, nanoseconds.
      replicas: returns the replicas on the host.
      occupy: blocks all other tasks of the host for so many seconds.
    """

    def __init__(
        self,
        turn_us: int,
        state_ns: int,
        replicas: Callable[[], Iterable[Replica]],
        occupy: Callable[[float], None],
    ) -> None:
        self._turn_us = turn_us
        self._state_ns = state_ns
        self._replicas = replicas
        self._occupy = occupy
        self._held = 0
        self._counted_at: int | None = None

    async def run(self, function: Callable[[], Any]) -> Any:
        await current_clock().sleep(self._state_us() / 1e6)
        return function()

    async def turn(self) -> None:
        self._occupy(self._state_us() / 1e6)
        await current_clock().sleep(self._turn_us / 1e6)

    def _state_us(self) -> int:
        now = now_us()
        if self._counted_at is None or now - self._counted_at >= _COUNTED_US:
            self._held, self._counted_at = sum(map(held, self._replicas())), now
        return min(STEP_MAX_US, self._held * self._state_ns // 1000)


def held(replica: Replica) -> int:
    """Returns the number of rows that wait in a replica's inputs, and of rows and groups in its operators."""
    waiting = sum(len(chunk) for input in replica.sunion.inputs for chunk in input.stable)
    return waiting + sum(_largest(state) for state in replica.core.operator_states())


def _largest(state: Any) -> int:
    """Returns the length of the longest array, with pieces of one list together: the rows or groups of an operator."""
    if isinstance(state, np.ndarray | FrozenArray | Rows):
        return len(state)
    if isinstance(state, Mapping):
        return max(map(_largest, state.values()), default=0)
    if isinstance(state, Sequence) and not isinstance(state, str | bytes):
        return sum(map(_largest, state))
    return 0
