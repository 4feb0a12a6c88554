"""The query and the source logs that a client's results come from: a small JSON file next to them (rules U14, S6).

{"version": 1, "channels": {"per_second/0": {"query": "…", "origin": "…"}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from spe.errors import SpeError, other_version
from spe.runtime.env import Storage

PROVENANCE_VERSION: Final = 1
#: Name of the file, in a client's folder and in a sink's.
PROVENANCE: Final = ".spe.json"


class Provenance(NamedTuple):
    """The query and sources that a channel's stable tuples follow from.

    Attributes:
      query: fingerprint of the part of the query before the stream (spe.plan.results).
      origin: origin of the sources' logs (rule S6); "" before the first stable tuple.
    """

    query: str
    origin: str = ""


def read_provenance(storage: Storage, path: PurePosixPath) -> dict[str, Provenance]:
    """Reads the provenance of each channel; {} if there is no file.

    Raises:
      SpeError: the file is damaged, or of another version.
    """
    if not storage.exists(path):
        return {}
    try:
        data = json.loads(storage.read(path))
        if why := other_version(path, data["version"], PROVENANCE_VERSION):
            raise SpeError(why)
        channels = data["channels"].items()
        return {str(c): Provenance(str(entry["query"]), str(entry["origin"])) for c, entry in channels}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpeError(f"{path}: expected what these results were made for, as JSON: {error}") from None


def encode_provenance(channels: Mapping[str, Provenance]) -> bytes:
    """Encodes a file for :func:`read_provenance`."""
    known = {channel: place._asdict() for channel, place in channels.items()}
    return json.dumps({"version": PROVENANCE_VERSION, "channels": known}).encode()
