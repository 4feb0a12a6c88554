"""File system operations of a Parquet sink; a simulation has its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from spe.runtime.storage import sync_folder


class PartFiles:
    """The operations on a disk.  Raises OSError."""

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def names(self, folder: Path) -> list[str]:
        return os.listdir(folder)

    def readable(self, path: Path) -> Any:
        """Returns the object that Arrow reads a file from."""
        return path

    def remove(self, path: Path) -> None:
        path.unlink()

    def create(self, path: Path) -> Any:
        """Creates a file; returns its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)

    def write(self, file: Any, data: memoryview) -> int:
        return os.write(file, data)

    def sync(self, file: Any) -> None:
        os.fsync(file)

    def rename(self, path: Path, other: Path) -> None:
        os.replace(path, other)

    def close(self, file: Any) -> None:
        os.close(file)

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)
