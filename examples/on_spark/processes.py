"""Processes of this machine: which executor runs a node."""

from __future__ import annotations

from pathlib import Path


def executor_of(node: str, run: Path) -> int:
    """Process id of the executor, on this machine, that runs a node of a run.  Raises LookupError: there is none."""
    log = f"spe-{node}-"
    for one in Path("/proc").glob("[0-9]*"):
        words = words_of(int(one.name))
        if "--node" in words and log in words[4] and str(run) in words:
            pid = int(one.name)
            while pid > 1:
                if "--executor-id" in words_of(pid):
                    return pid
                pid = parent_of(pid)
    raise LookupError(f"no executor on this machine runs {node}")


def words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def parent_of(pid: int) -> int:
    """0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
