"""Origins of streams: the identity of a source's log, and combinations of identities (rule S6).

Ids are ordinals of one log.  A log that begins anew, because its folder was lost or is not mounted, counts from 1
again: by their ids its rows would look like rows that its consumers already have.  So each log has a random identity,
and the origin of every other stream is derived from the origins of its inputs.

The identity ends with the signature of the settings that the log began with (``Directory.signature``).  So a later
change of the configuration's copy is noticed, and the signature cannot be changed alone: recordings name the origin.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from random import Random
from typing import Final

from spe.errors import LogCorrupt
from spe.log.marks import read_mark
from spe.runtime.env import Storage

_NAME: Final = "identity"
_IDENTITY: Final = re.compile(r"[0-9a-f]{16}(-[0-9a-f]{16})?")


def read_identity(storage: Storage, folder: PurePosixPath) -> str:
    """Reads the identity of a source's log; "" if there is no log.

    Raises:
      LogCorrupt: the file has other content, or the rest of the log is gone.
    """
    path = folder / _NAME
    if not storage.exists(path):
        return ""
    identity = storage.read(path).decode(errors="replace").strip()
    if not _IDENTITY.fullmatch(identity):
        raise LogCorrupt(
            f"{path}: expected 16 hexadecimal digits, or twice 16, the identity of the log, got {identity[:40]!r}"
        )
    if read_mark(storage, folder) is None:
        raise LogCorrupt(f"{folder}: the log is gone, and only its identity {identity} is left; restore the folder")
    return identity


def signature_of(identity: str) -> str:
    """The signature in an identity; "" if it has none."""
    return identity.partition("-")[2]


async def identify(storage: Storage, folder: PurePosixPath, random: Random, signature: str = "") -> str:
    """Returns the identity of an open log, and draws a new one if it has none.  Raises as :func:`read_identity`."""
    identity = read_identity(storage, folder)
    if not identity:
        identity = "-".join(part for part in (f"{random.getrandbits(64):016x}", signature) if part)
        await storage.write_atomic(folder / _NAME, identity.encode())
    return identity


def combined(origins: Sequence[str]) -> str:
    """The origin of a stream made from inputs with these origins, in their order; "" while one is unknown."""
    if not all(origins):
        return ""
    return hashlib.blake2b(" ".join(origins).encode(), digest_size=8).hexdigest()
