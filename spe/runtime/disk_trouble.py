"""Reports that a disk is full, at a low rate, for as long as it lasts."""

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
_SAID_US: Final = 60_000_000
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException) -> bool:
    """Will there be room later?  Any other error of a disk is for good."""
    return isinstance(error, LogFull) or (isinstance(error, OSError) and error.errno in _FULL)


def sync_failed(error: OSError, path: Path) -> OSError:
    """What a failed sync is from the first time on: for good, whatever the disk said.

    The kernel tells of data that it could not write only once, even where it was for want of room.
    """
    return OSError(errno.EIO, f"a sync failed ({error.strerror}), so nobody knows what is on the disk", str(path))


class Trouble:
    """What one writer has met, and meets again until it is over.

    Args:
      who: writes, for the messages.
    """

    #: Names of the events in the trace, and what is said after what happened, and when it is over.
    BEGINS: ClassVar[str]
    ENDS: ClassVar[str]
    HOPE: ClassVar[str]
    OVER: ClassVar[str]
    LEVEL: ClassVar[Level] = Level.ERROR

    def __init__(self, env: Env, who: str) -> None:
        self._env = env
        self._who = who
        #: What happened last; "" while all is well.
        self.why = ""
        #: When it was reported last, also an earlier trouble: what begins and ends again and again is reported seldom.
        self._said_us: int | None = None
        #: It was said of this time.
        self._said = False

    def met(self, error: BaseException) -> None:
        """Something could not be done now."""
        now = self._env.clock.monotonic_us()
        if not self.why:
            self._env.trace.event(self.BEGINS, who=self._who, why=str(error))
        self.why = str(error) or type(error).__name__
        if self._said_us is None or now - self._said_us >= _SAID_US:
            self._said_us, self._said = now, True
            say(f"{self._who}: {error}; {self.HOPE}", self.LEVEL, event=self.BEGINS)

    def over(self) -> None:
        """It could be done."""
        if not self.why:
            return
        self.why = ""
        self._env.trace.event(self.ENDS, who=self._who)
        if self._said:
            self._said = False
            say(f"{self._who}: {self.OVER}", event=self.ENDS)


class DiskTrouble(Trouble):
    """A disk is full."""

    BEGINS = "disk_full"
    ENDS = "disk_has_room"
    HOPE = "waiting for room"
    OVER = "there is room again"
