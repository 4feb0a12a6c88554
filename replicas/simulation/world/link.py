"""The current state of the links between simulated hosts."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from random import Random
from typing import Final

from consistency.faults.kind import LinkFaults

#: A lost segment is sent again after this time, which doubles with each further loss.
RETRANSMIT_S: Final = 0.2


GOOD: Final = LinkFaults()
Pair = tuple[str, str]


class SimLinks:
    """All links, by (sender, receiver).

    Args:
      random: draws jitter and loss.
      base: default state of a link.

    Attributes:
      without_power: hosts that neither send nor answer.
    """

    def __init__(self, random: Random, base: LinkFaults) -> None:
        self.without_power: set[str] = set()
        self._random = random
        self._base = base
        self._plain = base == GOOD
        self._states: dict[Pair, LinkFaults] = {}
        self._refused: AbstractSet[Pair] = frozenset()

    def set(self, states: Mapping[Pair, LinkFaults], refused: AbstractSet[Pair]) -> None:
        self._states, self._refused = dict(states), refused

    def state(self, source: str, target: str) -> LinkFaults:
        states = self._states
        return states.get((source, target), self._base) if states else self._base

    def passes(self, source: str, target: str) -> bool:
        """Returns whether data arrives."""
        power = self.without_power
        return not (self.state(source, target).cut or (power and (source in power or target in power)))

    def is_refused(self, source: str, target: str) -> bool:
        return (source, target) in self._refused

    def delay(self, source: str, target: str) -> tuple[float, float | None]:
        """Returns how late data is that is sent now, and its bandwidth."""
        if self._plain and not self._states:  # the usual case
            return 0.0, None
        return self.late_s(source, target), self.state(source, target).bytes_per_s

    def late_s(self, source: str, target: str) -> float:
        """Returns how late data is that is sent now."""
        link = self.state(source, target)
        late = (link.delay_us + (self._random.random() * link.jitter_us if link.jitter_us else 0)) / 1e6
        wait = RETRANSMIT_S
        while link.loss and self._random.random() < link.loss:
            late += wait
            wait *= 2
        return late
