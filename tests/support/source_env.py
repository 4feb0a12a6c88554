"""An Env for source proxies: memory for a disk, trio's clock (virtual in tests) for both clocks, a trace to look at."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import trio

from replicas.simulation.world.disk import SimDisk
from spe.runtime.env import Awaited, Env, Trace
from spe.runtime.network import TcpNetwork

T = TypeVar("T")


class TrioClock:
    """Both clocks are trio's; the wall clock began at ``epoch_us`` and may be stepped."""

    def __init__(self, epoch_us: int) -> None:
        self.epoch_us = epoch_us

    def monotonic_us(self) -> int:
        return round(trio.current_time() * 1e6)

    def wall_us(self) -> int:
        return self.epoch_us + self.monotonic_us()

    def step_ns(self) -> int:
        return 0

    def cpu_ns(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def wait(self, signal: Awaited, token: int, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await signal.wait(token)


class AtOnceCompute:
    """Runs on the loop, so that virtual time stands still meanwhile."""

    async def run(self, function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return function()

    async def turn(self) -> None:
        await trio.lowlevel.checkpoint()


class ListTrace:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, /, **fields: Any) -> None:
        self.events.append((name, fields))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for found, fields in self.events if found == name]


def source_env(storage: SimDisk | None = None, *, epoch_us: int = 0, trace: Trace | None = None) -> Env:
    """``epoch_us``: what the wall clock shows at trio's time 0."""
    return Env(
        clock=TrioClock(epoch_us),
        network=TcpNetwork(),
        storage=storage if storage is not None else SimDisk(),
        compute=AtOnceCompute(),
        random=Random(0),
        trace=trace if trace is not None else ListTrace(),
    )
