"""Reports about logs that exceed the limits of ``retain``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final

from spe.errors import SpeError
from spe.runtime.disk_trouble import Trouble
from spe.runtime.env import Env
from spe.runtime.log_line import Level
from spe.status import HolderStatus
from spe.stream.times import SECOND, format_timestamp

#: Time between two checks for due segments.
LOOK_US: Final = SECOND
#: Time after which the holder of due segments is named in the log; ``spe status`` names it at once.
PATIENCE_US: Final = 60 * SECOND


class HeldLog(Trouble):
    """A log is larger, or older, than it should be, since a consumer needs it."""

    BEGINS = "log_held"
    ENDS = "log_free"
    HOPE = "nothing is deleted that is needed"
    OVER = "the log is as `retain` says again"
    LEVEL: ClassVar[Level] = Level.WARNING


class NotReleased(Trouble):
    """The archive or the disk refuses a deletion."""

    BEGINS = "log_not_released"
    ENDS = "log_released_again"
    HOPE = "nothing is deleted; tried again"
    OVER = "the oldest segments can be deleted again"
    LEVEL: ClassVar[Level] = Level.WARNING


async def look_again_and_again(env: Env, look: Callable[[], Awaitable[None]], refused: NotReleased) -> None:
    """Deletes due segments, until cancelled; what the archive or the disk refuses is tried again."""
    while True:
        await env.clock.sleep(LOOK_US / 1e6)
        try:
            await look()
        except (OSError, SpeError) as error:
            refused.met(error)
        else:
            refused.over()


def tell_if_long(trouble: HeldLog, held: Sequence[HolderStatus], now_us: int) -> None:
    """Names the holder of due segments for the longest time, once that is long."""
    if not held:
        trouble.over()
        return
    holder = min(held, key=lambda h: h.since_us)
    if now_us - holder.since_us > PATIENCE_US:
        size = f"{holder.bytes / 1e6:,.1f} MB that are due to be deleted"
        trouble.met(SpeError(f"{holder.holder} needs {size}, since {format_timestamp(holder.since_us)}"))
