"""System figures of this process, and of the disk that it writes to."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Time of import of this module, near the start of the process.
_BEGAN_S: Final = time.time()


def process_figures(storage_root: Path) -> Iterator[tuple[str, float]]:
    """Metrics (spe.metrics.status_metrics) with their values, as far as the system gives them."""
    yield "process_cpu_seconds_total", time.process_time()
    yield "process_start_time_seconds", _BEGAN_S
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        yield "process_resident_memory_bytes", pages * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError):
        yield "process_open_fds", len(os.listdir("/proc/self/fd"))
    yield "process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with suppress(OSError):
        disk = os.statvfs(storage_root)
        yield "spe_storage_free_bytes", disk.f_bavail * disk.f_frsize
        yield "spe_storage_size_bytes", disk.f_blocks * disk.f_frsize
