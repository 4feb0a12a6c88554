"""Files that a simulated disk has handed out."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

from replicas.simulation.world.disk import SimDisk


def watch_files(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every file that is opened from now on; each knows whether it was closed."""
    opened: list[Any] = []
    real = disk.open

    def open_(path: PurePosixPath) -> Any:
        opened.append(real(path))
        return opened[-1]

    monkeypatch.setattr(disk, "open", open_)
    return opened
