"""Detects changes of files that another program may renew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

#: Per file, values that change when it is written, replaced, or made readable; None: the file does not exist.
_Signature = tuple[tuple[int, int, int, int] | None, ...]

#: Time between two checks, seconds.
LOOK_S: Final = 5.0


class WatchedFiles:
    """Compares files with those in use.

    Args:
      now: returns seconds of a clock that only advances.
      settle: require two equal checks, since a set of files may be half written.  Unnecessary for callers that check
        seldom and retry.
    """

    def __init__(self, paths: Sequence[Path], now: Callable[[], float], *, settle: bool = True) -> None:
        self._paths = paths
        self._settle = settle
        self._now = now
        self._used = self._latest = self._look()
        self._looked_s = now()

    def changed(self) -> bool:
        """Returns True once for each change; checks every few seconds at most."""
        if (now := self._now()) - self._looked_s < LOOK_S:
            return False
        self._looked_s = now
        before, self._latest = self._latest, self._look()
        if self._latest == self._used or (self._settle and self._latest != before):
            return False
        self._used = self._latest
        return True

    def _look(self) -> _Signature:
        signatures: list[tuple[int, int, int, int] | None] = []
        for path in self._paths:
            try:
                status = path.stat()
                signatures.append((status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size))
            except OSError:
                signatures.append(None)
        return tuple(signatures)
