"""What a process tells the people who run it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

#: What stands before a line: the time, in a process of a cluster; nothing in a command that somebody waits for.
_prefix: Callable[[], str] = str


def begin_lines_with(prefix: Callable[[], str]) -> None:
    """From now on, in this process, each line begins so."""
    global _prefix
    _prefix = prefix


def log_time(wall_us: int) -> str:
    """As before a line of a log: UTC, milliseconds."""
    moment = datetime.fromtimestamp(wall_us / 1e6, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def say(text: str) -> None:
    """A line on standard error.  Where that fails, for its disk is full or its reader gone, we go on: what
    is said is often that a disk is full.
    """
    with suppress(OSError, ValueError):  # ValueError: it is closed
        print(f"{_prefix()}{text}", file=sys.stderr, flush=True)
