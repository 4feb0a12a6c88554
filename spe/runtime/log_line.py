"""What a process tells the people who run it."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """A line on standard error.  Where that fails, for its disk is full or its reader gone, we go on: what
    is said is often that a disk is full.
    """
    with suppress(OSError, ValueError):  # ValueError: it is closed
        print(text, file=sys.stderr, flush=True)
