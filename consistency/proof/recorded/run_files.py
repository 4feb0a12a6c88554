"""The files of a run that the proof reads."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from spe.log.issued_directories import PATH as DATABASE
from spe.log.provenance import PROVENANCE

#: Patterns of the files that the proof reads below the directory of a run.
_READ: Final = (
    "config.yaml",
    "cluster.json",
    "events.jsonl",
    "summary.json",
    "trace/*.jsonl",
    "malformed/*.jsonl",
    "sources/*/*",
    "clients/*/*/*.seg",
    "clients/*/*/kept.?",
    f"clients/*/{PROVENANCE}",
    str(DATABASE),
)
_LOCK: Final = "lock"


def read_of(folder: Path) -> list[Path]:
    """Returns the files below the directory of a run that the proof reads, in order."""
    files = {p for pattern in _READ for p in folder.glob(pattern) if p.is_file()}
    return sorted(p for p in files if p.name != _LOCK)


def is_read(name: PurePosixPath) -> bool:
    """Does the proof read the file with this path below the directory?"""
    patterns = [pattern for pattern in _READ if len(PurePosixPath(pattern).parts) == len(name.parts)]
    return name.name != _LOCK and any(map(name.match, patterns))


def files_of(folder: Path) -> list[Path]:
    """Returns the files below the directory of a run that the verdict rests on, in order.

    The coordinator's database has no digest, since reading may change it.  Facts from it are computed again.
    """
    return [p for p in read_of(folder) if p != folder / DATABASE]
