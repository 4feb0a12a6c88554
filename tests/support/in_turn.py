"""Where tests run in several processes: which ones run in one, and what runs first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

#: Real clusters have real time limits, and there is one Spark session.  These are the longest chains, and begin first.
CHAINS: Final = ("processes", "spark")
#: One file has most tests here; they take long each, and share nothing.
ALONE: Final = ("mutants",)


def first_chains(items: list[pytest.Item]) -> None:
    """Puts the tests of the chains before all others; else the order remains."""
    items.sort(key=lambda item: folder_of(item.nodeid) not in CHAINS)


def folder_of(nodeid: str) -> str:
    return PurePosixPath(nodeid).parts[1]


class InTurn(LoadScopeScheduling):
    """Tests go file by file, in their order, to whatever process is free; those of such a folder all to one.

    A file's tests share what they make once.  xdist's own groups do not work with every release of pytest: where it
    cannot change the names of tests, it ignores groups without a word.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by xdist, what has the most tests, and not the longest ones, is first

    def _split_scope(self, nodeid: str) -> str:
        folder = folder_of(nodeid)
        if folder in CHAINS:
            return folder
        return nodeid if folder in ALONE else nodeid.split("::")[0]


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
