"""Interfaces that the simulation replaces: clock, network, storage, compute, randomness, trace.

A shell gets one :class:`Env` and reaches the outside world through it and through trio's deadlines only.  Production
implementations are in ``spe.runtime.network`` and ``spe.runtime.storage``; a simulator brings its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from random import Random
from typing import Any, Protocol, TypeVar

import trio

T = TypeVar("T")


class Clock(Protocol):
    """Two clocks, for deadlines and for wall time, and two that measure computing time (rule L1)."""

    def monotonic_us(self) -> int:
        """Microseconds on the clock of deadlines (trio's); never goes back."""
        ...

    def wall_us(self) -> int:
        """Microseconds since the epoch; may step."""
        ...

    def step_ns(self) -> int:
        """Nanoseconds; differences give the duration of steps that do not wait.  Cheap."""
        ...

    def cpu_ns(self) -> int:
        """Nanoseconds of CPU that this process has used, all threads together.  Not cheap."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleeps as ``trio.sleep``."""
        ...

    async def wait(self, signal: Awaited, token: int, seconds: float) -> None:
        """Waits for a signal with a token, ``seconds`` at most."""
        ...


class Awaited(Protocol):
    """A signal (replicas.link.signal), as a clock uses it."""

    def token(self) -> int: ...

    async def wait(self, token: int) -> None: ...

    def wake(self) -> None: ...


class Network(Protocol):
    """Byte streams between addresses ``host:port``."""

    async def connect(self, address: str, seconds: float) -> trio.abc.Stream:
        """Opens a stream.  Raises LinkBroken if it is refused, or takes longer than ``seconds``."""
        ...

    async def serve(
        self,
        address: str,
        handler: Callable[[trio.abc.Stream], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str],
    ) -> None:
        """Accepts connections until cancelled; one task per connection.  ``task_status`` gets the bound address.

        Raises PortInUse (a SpeError) naming the address if it is in use.
        """
        ...


class AppendFile(Protocol):
    """A file that is appended to, synced, and read at any offset."""

    def append(self, *parts: bytes | memoryview) -> None:
        """Appends the parts in order; views are of bytes.  Raises OSError; the file may then hold some of the bytes."""
        ...

    async def sync(self) -> None:
        """Writes everything appended to the disk.  Raises OSError, after which the file is unusable."""
        ...

    def read(self, offset: int, length: int) -> bytes: ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Storage(Protocol):
    """Durable files below one root; paths are relative and use ``/``."""

    def open(self, path: PurePosixPath) -> AppendFile:
        """Opens for append and read, creating the file and its folders."""
        ...

    def exists(self, path: PurePosixPath) -> bool: ...

    def list(self, folder: PurePosixPath) -> list[str]:
        """Names in a folder, sorted; empty if the folder does not exist."""
        ...

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        """Replaces a file as a whole: writes a temporary file, syncs, renames, syncs the folder."""
        ...

    def read(self, path: PurePosixPath) -> bytes: ...

    def remove(self, path: PurePosixPath) -> None: ...

    def lock(self, path: PurePosixPath) -> None:
        """Takes an exclusive lock until the process ends.  Raises LogError naming the holder."""
        ...

    def unlock(self, path: PurePosixPath) -> None:
        """Releases a lock taken by :meth:`lock`."""
        ...


class Compute(Protocol):
    """Runs long computations."""

    async def run(self, function: Callable[[], T]) -> T:
        """Runs ``function`` off the event loop (a thread in production, virtual time in simulation)."""
        ...

    async def turn(self) -> None:
        """Yields between two slices of work on the loop (in simulation the slice takes its time)."""
        ...


class Trace(Protocol):
    """Receives the events of a run: one per decision, never per tuple."""

    def event(self, name: str, /, **fields: Any) -> None: ...


@dataclass(frozen=True)
class Env:
    """The outside world of a shell.

    Attributes:
      history: takes the events from which checkers judge a run (consistency.checking.history); None: not recorded.
      validates: replicas check their whole state after each step (docs/internals/rules.md, invariants).
    """

    clock: Clock
    network: Network
    storage: Storage
    compute: Compute
    random: Random
    trace: Trace
    history: Callable[[Any], None] | None = None
    validates: bool = False
