"""Reports a full disk, at a low rate, for as long as it is full."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import ClassVar, Final

from spe.errors import LogFull
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say

#: Time between two attempts to write.
DISK_RETRY_US: Final = 200_000
#: Time between two messages.
_REPORT_US: Final = 60_000_000
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException) -> bool:
    """Is the disk full, so that there may be room later?  Other errors of a disk are permanent."""
    return isinstance(error, LogFull) or (isinstance(error, OSError) and error.errno in _FULL)


def sync_failed(error: OSError, path: Path) -> OSError:
    """Returns the error of a failed sync: permanent, whatever the cause.

    The kernel reports data that it could not write only once, even if the disk was full.
    """
    return OSError(errno.EIO, f"a sync failed ({error.strerror}), so the contents of the disk are unknown", str(path))


class Trouble:
    """A lasting failure of one writer.

    Args:
      who: name of the writer, for messages.
    """

    #: Names of the events in the trace; the end of the first message; and the last message.
    BEGINS: ClassVar[str]
    ENDS: ClassVar[str]
    HOPE: ClassVar[str]
    OVER: ClassVar[str]
    LEVEL: ClassVar[Level] = Level.ERROR

    def __init__(self, env: Env, who: str) -> None:
        self._env = env
        self._who = who
        #: The last error; "" while there is no failure.
        self.why = ""
        #: Time of the last message, also of an earlier failure: failures that come and go are reported seldom.
        self._reported_us: int | None = None
        #: Has the current failure been reported?
        self._is_reported = False

    def met(self, error: BaseException) -> None:
        """Handles a failed attempt."""
        now = self._env.clock.monotonic_us()
        if not self.why:
            self._env.trace.event(self.BEGINS, who=self._who, why=str(error))
        self.why = str(error) or type(error).__name__
        if self._reported_us is None or now - self._reported_us >= _REPORT_US:
            self._reported_us, self._is_reported = now, True
            say(f"{self._who}: {error}; {self.HOPE}", self.LEVEL, event=self.BEGINS)

    def over(self) -> None:
        """Handles a successful attempt."""
        if not self.why:
            return
        self.why = ""
        self._env.trace.event(self.ENDS, who=self._who)
        if self._is_reported:
            self._is_reported = False
            say(f"{self._who}: {self.OVER}", event=self.ENDS)


class DiskTrouble(Trouble):
    """A full disk."""

    BEGINS = "disk_full"
    ENDS = "disk_has_room"
    HOPE = "waiting for room"
    OVER = "there is room again"
