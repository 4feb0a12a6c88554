"""Which partner is asked for a snapshot next (rule A3).  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Tries:
    """What came of asking one partner: how often it failed in a row, and when it may be asked again."""

    failures: int = 0
    again_at: int = 0


class SnapshotTurns:
    """Asks partners in turn.  Each failure makes the pause before that partner is asked again twice as long.

    Args:
      pause_us: the first pause.
      longest_us: as below.

    Attributes:
      longest_us: no pause is longer.
    """

    def __init__(self, *, pause_us: int, longest_us: int) -> None:
        self._pause_us = pause_us
        self.longest_us = longest_us
        self._tries: dict[str, _Tries] = {}
        self._asked_first_at: int | None = None

    def next(self, partners: Sequence[str], now: int) -> str | None:
        """The one that failed least among those whose pause is over; of equals the first.  None: all pause."""
        ready = [p for p in partners if self._of(p).again_at <= now]
        if ready and self._asked_first_at is None:
            self._asked_first_at = now
        return min(ready, key=lambda p: self._of(p).failures, default=None)

    def failed(self, partner: str, now: int) -> None:
        """The partner refused, or sent nothing that can be used."""
        tries = self._of(partner)
        tries.again_at = now + min(self._pause_us << min(tries.failures, 30), self.longest_us)
        tries.failures += 1

    def came(self, partner: str) -> None:
        """The partner gave a snapshot."""
        self._tries.pop(partner, None)

    def asking_for(self, now: int) -> int:
        """Microseconds since a partner was asked for the first time."""
        return 0 if self._asked_first_at is None else now - self._asked_first_at

    def _of(self, partner: str) -> _Tries:
        return self._tries.setdefault(partner, _Tries())
