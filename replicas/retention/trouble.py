"""Reports about logs that are not as ``retain`` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from spe.errors import SpeError
from spe.runtime.disk_trouble import Trouble
from spe.runtime.log_line import Level
from spe.status import HolderStatus
from spe.stream.times import SECOND, format_timestamp

#: Time between two looks at what is due.
LOOK_US: Final = SECOND
#: Who holds what is due is named in the log after so long; ``spe status`` names them at once.
PATIENCE_US: Final = 60 * SECOND


class HeldLog(Trouble):
    """A log is larger, or older, than it should be, for somebody needs it."""

    BEGINS = "log_held"
    ENDS = "log_free"
    HOPE = "nothing is deleted that is needed"
    OVER = "the log is as `retain` says again"
    LEVEL: ClassVar[Level] = Level.WARNING


class NotReleased(Trouble):
    """The archive or the disk refuses."""

    BEGINS = "log_not_released"
    ENDS = "log_released_again"
    HOPE = "nothing is deleted; tried again"
    OVER = "the oldest segments can be deleted again"
    LEVEL: ClassVar[Level] = Level.WARNING


def tell_if_long(trouble: HeldLog, held: Sequence[HolderStatus], now_us: int) -> None:
    """Names who has held what is due for the longest time, once that is long."""
    if not held:
        trouble.over()
        return
    one = min(held, key=lambda h: h.since_us)
    if now_us - one.since_us > PATIENCE_US:
        size = f"{one.bytes / 1e6:,.1f} MB that are due to be deleted"
        trouble.met(SpeError(f"{one.holder} needs {size}, since {format_timestamp(one.since_us)}"))
