"""Rates per second of counters that are seen now and then.  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

#: Results come in bursts, one per window: over a shorter time the rate would jump.
OVER_US: Final = 5_000_000
#: Of one counter; more are further apart than they need to be.
_SAMPLES: Final = 64


@dataclass(slots=True)
class _Counter:
    incarnation: int
    samples: deque[tuple[int, int]] = field(default_factory=deque)


class Rates:
    """Remembers what counters were."""

    def __init__(self) -> None:
        self._counters: dict[Hashable, _Counter] = {}

    def of(self, key: Hashable, incarnation: int, at_us: int, count: int) -> float | None:
        """Mean rate over the last seconds; None until the counter was seen twice.

        Args:
          incarnation: of the process; its counters begin again with each.
          at_us: when the count was that.
        """
        one = self._counters.get(key)
        if one is None or one.incarnation != incarnation or (one.samples and count < one.samples[-1][1]):
            one = self._counters[key] = _Counter(incarnation)
        samples = one.samples
        if not samples or at_us > samples[-1][0]:
            samples.append((at_us, count))
        while len(samples) > 2 and (samples[1][0] <= at_us - OVER_US or len(samples) > _SAMPLES):
            samples.popleft()
        (first_us, first), (last_us, last) = samples[0], samples[-1]
        return None if last_us <= first_us else (last - first) * 1e6 / (last_us - first_us)
