"""Files that another program may renew: whether they are others than those in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

#: Of each file: what changes when it is written, replaced, or made readable; None: it is not there.
_Signature = tuple[tuple[int, int, int, int] | None, ...]

#: How often files are looked at.
LOOK_S: Final = 5.0


class WatchedFiles:
    """See the module.

    Args:
      now: seconds, of a clock that only advances.
      settle: two looks must have found the same: files of which some are still to be written do not go together.  Not
        for who looks seldom, and tries again where they do not.
    """

    def __init__(self, paths: Sequence[Path], now: Callable[[], float], *, settle: bool = True) -> None:
        self._paths = paths
        self._settle = settle
        self._now = now
        self._used = self._seen = self._look()
        self._looked_s = now()

    def changed(self) -> bool:
        """Whether there are new files, once for each change; looks every few seconds at most."""
        if (now := self._now()) - self._looked_s < LOOK_S:
            return False
        self._looked_s = now
        before, self._seen = self._seen, self._look()
        if self._seen == self._used or (self._settle and self._seen != before):
            return False
        self._used = self._seen
        return True

    def _look(self) -> _Signature:
        found: list[tuple[int, int, int, int] | None] = []
        for path in self._paths:
            try:
                one = path.stat()
                found.append((one.st_ino, one.st_mtime_ns, one.st_ctime_ns, one.st_size))
            except OSError:
                found.append(None)
        return tuple(found)
