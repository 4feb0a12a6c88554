"""CPU time of this and of other processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def cpu_of(pid: int) -> float:
    """CPU seconds, user and system, of all threads of a process so far.  Linux only; nanosecond resolution."""
    return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid makes of a pid


def cpu_for(function: Callable[[], object]) -> float:
    """CPU seconds of this process for a call."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def cpu_for_both(ours: Callable[[], object], theirs: Callable[[], object], round_: int) -> tuple[float, float]:
    """CPU seconds of each, in turns from round to round: the first one has a colder cache."""
    if round_ % 2:
        mine = cpu_for(ours)
        return mine, cpu_for(theirs)
    its = cpu_for(theirs)
    return cpu_for(ours), its


def memory_mib(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of a process; ``VmHWM``: the most so far.  Linux only."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def cpu_of_family(root: int) -> float:
    """CPU seconds so far of a process and all below it, the ended ones included.  Linux only."""
    ticks: dict[int, int] = {}
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(entry.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))
    inside = {root}
    while more := {p for p, parent in parents.items() if parent in inside} - inside:
        inside |= more
    return sum(ticks.get(p, 0) for p in inside) / os.sysconf("SC_CLK_TCK")
