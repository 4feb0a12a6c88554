"""Progress of ``spe report --follow``: a small file that tells processes which log segments they may delete (E2).

{"version": 1, "sources": {"orders": {"identity": "…", "record": 812}}, "clients": {"dashboard": {"totals/0": 97}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from spe.runtime.env import Storage

#: Path below the directory of a run.
PROVED: Final = PurePosixPath("follow", "proved.json")
PROVED_VERSION: Final = 1


def encode_proved(sources: Mapping[str, tuple[str, int]], clients: Mapping[str, Mapping[str, int]]) -> str:
    """Encodes the progress.

    Args:
      sources: identity of each log, and the first record of it that is still needed.
      clients: by client and channel, the first record of the recording that is still needed.
    """
    logs = {name: {"identity": identity, "record": record} for name, (identity, record) in sources.items()}
    return json.dumps({"version": PROVED_VERSION, "sources": logs, "clients": clients}) + "\n"


def proved_of_source(storage: Storage, stream: str, identity: str) -> int | None:
    """The first record of a source's log that the proof needs; None: no proof follows the run."""
    data = _read(storage)
    if data is None:
        return None
    try:
        progress = data["sources"][stream]
        return int(progress["record"]) if progress["identity"] == identity else 1
    except (KeyError, ValueError, TypeError):
        return 1


def proved_of_recording(storage: Storage, client: str, channel: str) -> int | None:
    """The first record of a client's recording of a channel that the proof needs; None: no proof follows the run."""
    data = _read(storage)
    if data is None:
        return None
    try:
        return int(data["clients"][client][channel])
    except (KeyError, ValueError, TypeError):
        return 1


def _read(storage: Storage) -> dict[str, Any] | None:
    """Reads the file; {} if it is damaged or of another version: then nothing counts as proved."""
    if not storage.exists(PROVED):
        return None
    try:
        data = json.loads(storage.read(PROVED))
        return dict(data) if data["version"] == PROVED_VERSION else {}
    except (KeyError, ValueError, TypeError, OSError):
        return {}
