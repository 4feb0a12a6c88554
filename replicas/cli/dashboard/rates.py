"""Rates per second of counters, from samples.  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

#: Results come in bursts, one per window: over a shorter time the rate would jump.
OVER_US: Final = 5_000_000
#: Largest number of samples per counter.
_SAMPLES: Final = 64


@dataclass(slots=True)
class _Counter:
    incarnation: int
    samples: deque[tuple[int, int]] = field(default_factory=deque)


class Rates:
    """Computes the rates of counters from their past values."""

    def __init__(self) -> None:
        self._counters: dict[Hashable, _Counter] = {}

    def of(self, key: Hashable, incarnation: int, at_us: int, count: int) -> float | None:
        """Returns the mean rate over the last seconds; None before the second sample.

        Args:
          incarnation: incarnation of the process; its counters begin at zero in each.
          at_us: time of the sample.
        """
        counter = self._counters.get(key)
        if (
            counter is None
            or counter.incarnation != incarnation
            or (counter.samples and count < counter.samples[-1][1])
        ):
            counter = self._counters[key] = _Counter(incarnation)
        samples = counter.samples
        if not samples or at_us > samples[-1][0]:
            samples.append((at_us, count))
        while len(samples) > 2 and (samples[1][0] <= at_us - OVER_US or len(samples) > _SAMPLES):
            samples.popleft()
        (first_us, first), (last_us, last) = samples[0], samples[-1]
        return None if last_us <= first_us else (last - first) * 1e6 / (last_us - first_us)
