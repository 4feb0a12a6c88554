"""CPU time of this and of other processes."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_of(pid: int) -> float:
    """CPU seconds, user and system, of all threads of a process so far.  Linux only; nanosecond resolution."""
    return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid makes of a pid


def cpu_for(function: Callable[..., object], repeat: int = 1) -> float:
    """CPU seconds of this process per call."""
    begin = time.process_time()
    for _ in range(repeat):
        function()
    return (time.process_time() - begin) / repeat
