"""Spill files whose threads are called by hand."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import PurePosixPath
from typing import Any, Final

from replicas.simulation.world.disk import SimDisk
from spe.runtime.spill import Handle, Shelf, SpillFolder, SpillNotLoaded
from spe.stream.batch import Batch
from spe.stream.schema import Schema

_FOLDER: Final = PurePosixPath("spill")


class Directly:
    """Computes at once, and so never waits."""

    async def run(self, function: Callable[[], Any]) -> Any:
        return function()

    async def turn(self) -> None:
        """Does nothing: there are no other tasks."""


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class Spilling:
    """A folder for spill files on a simulated disk; time stands still."""

    def __init__(self, folder: PurePosixPath = _FOLDER, limit: int = 1 << 30) -> None:
        self.path = folder
        self.storage = SimDisk()
        self.now = 0
        self.told: list[str] = []
        #: How often the folder reported that there is room again.
        self.rooms = 0
        self.folder = self.open(limit)

    def open(self, limit: int) -> SpillFolder:
        return SpillFolder(
            self.storage, Directly(), self, self.path, limit, report=self.told.append, room=self._has_room
        )

    def _has_room(self) -> None:
        self.rooms += 1

    # Clock
    def monotonic_us(self) -> int:
        return self.now

    def wall_us(self) -> int:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("time stands still")

    def shelf(self, schema: Schema) -> Shelf:
        return self.folder.shelf(schema)

    def settle(self) -> None:
        """Writes and removes all that waits for it."""
        while drive(self.folder.step()):
            pass

    def files(self) -> list[str]:
        return self.storage.list(self.path)

    def contents(self) -> bytearray:
        """Of the first file."""
        return self.storage.files[self.path / self.files()[0]].written


def loading(ask: Callable[[], Any]) -> Any:
    """The answer to what may need pieces that lie on disk."""
    loaded: list[SpillNotLoaded] = []
    try:
        while True:
            try:
                return ask()
            except SpillNotLoaded as piece:
                drive(piece.load())
                loaded.append(piece)
    finally:
        for piece in loaded:
            piece.release()


def read_back(shelf: Shelf, handle: Handle) -> Batch:
    found = loading(lambda: shelf.read(handle))
    assert isinstance(found, Batch)
    return found
