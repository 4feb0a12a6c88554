"""``spe restore``: logs whose oldest part was deleted, whole again from their archive."""

from __future__ import annotations

from pathlib import Path

import trio

from replicas.retention.archiving import open_archive
from replicas.retention.restoring import restore_all
from spe.errors import SpeError
from spe.runtime.storage import DiskStorage


def restore(folder: Path) -> int:
    """Restores what lies below the directory of a run, or the storage of a process.  Raises SpeError."""
    if not folder.is_dir():
        raise SpeError(f"{folder}: there is no such directory")
    try:
        found = trio.run(restore_all, DiskStorage(folder), open_archive)
    except OSError as error:
        raise SpeError(f"{folder}: {error}") from error
    for one in found:
        print(f"{one.folder}: {one.segments:,} segments, {one.bytes:,} bytes")
    if not found:
        print("nothing was deleted")
    return 0
