"""``spe restore``: restores the deleted beginning of logs from their archive."""

from __future__ import annotations

from pathlib import Path

import trio

from replicas.retention.archiving import open_archive
from replicas.retention.restoring import restore_all
from spe.errors import SpeError
from spe.runtime.storage import DiskStorage


def restore(folder: Path) -> int:
    """Restores all logs below a folder: a run directory, or the storage of a process.  Raises SpeError."""
    if not folder.is_dir():
        raise SpeError(f"{folder}: there is no such directory")
    try:
        restored = trio.run(restore_all, DiskStorage(folder), open_archive)
    except OSError as error:
        raise SpeError(f"{folder}: {error}") from error
    for log in restored:
        print(f"{log.folder}: {log.segments:,} segments, {log.bytes:,} bytes")
    if not restored:
        print("nothing was deleted")
    return 0
