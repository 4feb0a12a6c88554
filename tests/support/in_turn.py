"""Where tests run in several processes, those of some folders run in one, one after the other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

#: Real clusters have real time limits, and there is one Spark session.  These are the longest chains, and begin first.
FOLDERS: Final = ("processes", "spark")


class InTurn(LoadScopeScheduling):
    """Tests go one by one to whatever process is free, but for those of such a folder.

    xdist's own groups do not work with every release of pytest: where it cannot change the names of tests, it ignores
    groups without a word.
    """

    def _split_scope(self, nodeid: str) -> str:
        return folder if (folder := PurePosixPath(nodeid).parts[1]) in FOLDERS else nodeid


@contextmanager
def only_process(folder: str, factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails where another process of the same run has tests of the folder too."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    with (factory.getbasetemp().parent / f"{folder}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.fail(f"tests/{folder} runs in two processes at a time")
        yield
