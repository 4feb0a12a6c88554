"""Detects a run that is over: its processes have ended, and none would answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from replicas.local.run_dir import ENDED, Target
from spe.errors import SpeError


def why_over(target: Target) -> str:
    """Returns that the run is over, and where its figures are; "" for a running one, and for a configuration."""
    if target.folder is None:
        return ""
    over, summary = f"the run in {target.folder} is over", target.folder / "summary.json"
    if compares(target):
        return f"{over}; its results are compared now, then its figures are in {summary}"
    if alive(target.supervisor_pid):
        return ""
    return (
        f"{over}; its figures are in {summary}"
        if summary.exists()
        else f"{over}; it was ended before it wrote its figures"
    )


def compares(target: Target) -> bool:
    """Have the processes of the run ended, or do they end now?  Then its supervisor compares their recordings."""
    if target.folder is None or not alive(target.supervisor_pid):
        return False
    try:
        return bool(json.loads((target.folder / ENDED).read_text())["pid"] == target.supervisor_pid)
    except FileNotFoundError:
        return False


def refuse_running(target: Target) -> None:
    """Raises SpeError for a run that is not over, or still compares its recordings."""
    if target.folder is not None and alive(target.supervisor_pid):
        raise SpeError(f"the run in {target.folder} goes on, with process {target.supervisor_pid}; stop it first")


def refuse_over(target: Target) -> None:
    """Raises SpeError for a run that is over: no process would answer."""
    if over := why_over(target):
        raise SpeError(over)


@contextmanager
def while_it_runs(target: Target) -> Iterator[None]:
    """Refuses a run that is over.  Errors because it ends inside the block get that reason."""
    refuse_over(target)
    try:
        yield
    except SpeError:
        refuse_over(target)
        raise


def alive(pid: int) -> bool:
    """Does a process of this machine run?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
