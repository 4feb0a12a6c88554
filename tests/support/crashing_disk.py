"""A simulated disk whose machine dies before a given operation."""

from __future__ import annotations

from pathlib import PurePosixPath

from replicas.simulation.world.disk import SimDisk


class Crashed(Exception):
    """The machine is gone."""


class CrashingDisk(SimDisk):
    """Counts what changes whole files; dies before the ``left``-th of these, and refuses everything from then on.

    Attributes:
      left: so many more happen; None: all.
      done: so many have happened.
    """

    def __init__(self, disk: SimDisk, left: int | None = None) -> None:
        super().__init__()
        self.files = disk.files
        self.left = left
        self.done = 0

    def _step(self) -> None:
        if self.left == 0:
            raise Crashed
        if self.left is not None:
            self.left -= 1
        self.done += 1

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        self._step()
        await super().write_atomic(path, data)

    def remove(self, path: PurePosixPath) -> None:
        self._step()
        super().remove(path)

    def died(self) -> SimDisk:
        """What is left of it after the power failed: what was synced."""
        return self.power_loss(lambda path, synced, written: synced)
