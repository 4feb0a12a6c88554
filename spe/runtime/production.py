"""The Env for production: the machine's clocks, threads, network and disk, and a trace in a file."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final, TypeVar

import trio

from spe.runtime.env import Awaited, Clock, Env, Trace
from spe.runtime.gc_tuning import THRESHOLDS
from spe.runtime.network import TcpNetwork
from spe.runtime.storage import DiskStorage

T = TypeVar("T")

#: Size at which a trace begins a new file; one old file is kept.
TRACE_BYTES: Final = 64 << 20

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
#: glibc accepts no larger threshold for mmap.
_MMAP_BYTES: Final = 32 << 20
_TRIM_BYTES: Final = 256 << 20
#: Shortest pause between two trims of the heap, seconds, and ratio of a pause to the trim before it: for a heap of
#: 1 GB a trim takes some 40 ms, in which the process does nothing else.
TRIM_EVERY_S: Final = 60.0
TRIM_PAUSE_FACTOR: Final = 10_000


class SystemClock:
    """trio's clock for deadlines, the system's for wall time.  Use inside trio only."""

    #: Not the CPU time of the thread: reading it is a system call, which takes ten times as long.
    step_ns = staticmethod(time.perf_counter_ns)
    cpu_ns = staticmethod(time.process_time_ns)

    def monotonic_us(self) -> int:
        return int(trio.current_time() * 1_000_000)

    def wall_us(self) -> int:
        return time.time_ns() // 1_000

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def wait(self, signal: Awaited, token: int, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await signal.wait(token)


class ThreadCompute:
    """Runs long computations in worker threads; the caller waits for the end even if it is cancelled."""

    async def run(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function)

    async def turn(self) -> None:
        await trio.lowlevel.checkpoint()


class NullTrace:
    """Drops all events."""

    def event(self, name: str, /, **fields: Any) -> None:
        pass


class FileTrace:
    """Writes one JSON object per line: ``{"t": wall microseconds, "event": name, …}``.

    Each line is written at once, so the trace of a killed process is complete.  Events that cannot be written (disk
    full) are dropped silently: a trace must never end its process.

    Args:
      limit_bytes: size at which the file is renamed to ``PATH.1``, replacing the previous one.
    """

    def __init__(self, path: Path, clock: Clock, limit_bytes: int = TRACE_BYTES) -> None:
        self._path = path
        self._clock = clock
        self._limit_bytes = limit_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    def event(self, name: str, /, **fields: Any) -> None:
        line = json.dumps({"t": self._clock.wall_us(), "event": name, **fields}, default=str) + "\n"
        data = line.encode("utf-8", "replace")
        with suppress(OSError):
            if self._size and self._size + len(data) > self._limit_bytes:
                self._rotate()
            self._size += os.write(self._descriptor, data)

    def _rotate(self) -> None:
        old = self._descriptor
        os.replace(self._path, self._path.with_name(self._path.name + ".1"))
        self._open()
        os.close(old)

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._size = os.fstat(self._descriptor).st_size


def production_env(storage_root: Path, seed: int | None = None, trace: Path | Trace | None = None) -> Env:
    """Returns the Env of a real process.

    Args:
      storage_root: folder for everything durable.
      seed: seed of the random source; None: drawn from the system.
      trace: file for the trace, or a receiver of its events; None: no trace.
    """
    clock = SystemClock()
    if isinstance(trace, Path):
        trace = FileTrace(trace, clock)
    events: Trace = NullTrace() if trace is None else trace
    return Env(
        clock=clock,
        network=TcpNetwork(trace=events),
        storage=DiskStorage(storage_root),
        compute=ThreadCompute(),
        random=Random(SystemRandom().getrandbits(64) if seed is None else seed),
        trace=events,
        validates=bool(os.environ.get("SPE_VALIDATE")),
    )


def tune_malloc() -> bool:
    """Makes glibc keep freed memory instead of giving it back page by page, which costs more than most kernels here
    (concatenation was measured 11 to 25 times faster).  Call once at start.  Returns False without glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


def malloc_trim() -> Callable[[], object] | None:
    """Returns glibc's function that releases free pages of the heap to the system; None without glibc."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return partial(trim, 0)


async def give_back_memory(clock: Clock, trim: Callable[[], object]) -> None:
    """Trims the heap from time to time, until cancelled.

    Small, long-lived objects lie between short-lived arrays.  So the end of the heap is never free, and without a trim
    a node with a small steady load grows by megabytes a minute.
    """
    pause_s = TRIM_EVERY_S
    while True:
        await clock.sleep(pause_s)
        begun = clock.step_ns()
        trim()
        pause_s = max(TRIM_EVERY_S, TRIM_PAUSE_FACTOR * (clock.step_ns() - begun) / 1e9)


def tune_gc() -> None:
    """Makes cycle collections rare, and exempts objects made at start-up.  Call once, when everything is imported."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
