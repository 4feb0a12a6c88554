"""CPU time of this and of other processes."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable


def cpu_of(pid: int) -> float:
    """CPU seconds, user and system, of all threads of a process so far.  Linux only; nanosecond resolution."""
    return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid makes of a pid


def cpu_of_ended() -> float:
    """CPU seconds, user and system, of all processes that we started and that have ended, and of those that these
    started and waited for.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cores_of_ended() -> Callable[[], float]:
    """Call what it returns for the cores that such processes used in the mean since, as far as they have ended."""
    begun, used = time.monotonic(), cpu_of_ended()
    return lambda: (cpu_of_ended() - used) / (time.monotonic() - begun)


def cpu_for(function: Callable[[], object]) -> float:
    """CPU seconds of this process for a call."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def cpu_for_both(ours: Callable[[], object], theirs: Callable[[], object], round_: int) -> tuple[float, float]:
    """CPU seconds of each, in turns from round to round: whoever comes first finds a colder cache."""
    if round_ % 2:
        mine = cpu_for(ours)
        return mine, cpu_for(theirs)
    its = cpu_for(theirs)
    return cpu_for(ours), its
