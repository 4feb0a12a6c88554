"""Chooses the partner to ask next for a snapshot (rule A3).  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Tries:
    """The results of asking one partner: its failures in a row, and the time before which it is not asked again."""

    failures: int = 0
    again_at: int = 0


class SnapshotTurns:
    """Asks partners in turn.  Each failure doubles the pause before that partner is asked again.

    Args:
      pause_us: the first pause.
      longest_us: the attribute.

    Attributes:
      longest_us: largest pause.
    """

    def __init__(self, *, pause_us: int, longest_us: int) -> None:
        self._pause_us = pause_us
        self.longest_us = longest_us
        self._tries: dict[str, _Tries] = {}
        self._asked_first_at: int | None = None

    def next(self, partners: Sequence[str], now: int) -> str | None:
        """Returns the partner with the fewest failures whose pause is over; of equals the first.  None: all pause."""
        ready = [p for p in partners if self._of(p).again_at <= now]
        if ready and self._asked_first_at is None:
            self._asked_first_at = now
        return min(ready, key=lambda p: self._of(p).failures, default=None)

    def failed(self, partner: str, now: int) -> None:
        """Notes that the partner refused, or sent unusable data."""
        tries = self._of(partner)
        tries.again_at = now + min(self._pause_us << min(tries.failures, 30), self.longest_us)
        tries.failures += 1

    def came(self, partner: str) -> None:
        """Notes that the partner gave a snapshot."""
        self._tries.pop(partner, None)

    def asking_for(self, now: int) -> int:
        """Returns the microseconds since a partner was asked for the first time."""
        return 0 if self._asked_first_at is None else now - self._asked_first_at

    def _of(self, partner: str) -> _Tries:
        return self._tries.setdefault(partner, _Tries())
