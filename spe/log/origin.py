"""Origins of streams: the identity of a source's log, and the combination of several (rule S6).

Ids are ordinals of one log.  A log that begins anew, for its folder was lost or is not mounted, counts from 1 again:
with the ids alone its rows would look like those that its consumers have already.  So a log has an identity, drawn
when it is made, and every other stream has one that follows from those of its inputs.

Behind it stands the signature of the settings that the log began with (``Directory.signature``).  So a later change of
the configuration's copy is seen, and the signature cannot be changed alone: recordings name the origin.
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
    """The identity of a source's log; "" where it has none: there is no log, or an earlier version made it.

    Raises:
      LogCorrupt: there is something else in its place, or the log is gone from beside it.
    """
    path = folder / _NAME
    if not storage.exists(path):
        return ""
    found = storage.read(path).decode(errors="replace").strip()
    if not _IDENTITY.fullmatch(found):
        raise LogCorrupt(
            f"{path}: expected 16 hexadecimal digits, or twice 16, the identity of the log, got {found[:40]!r}"
        )
    if read_mark(storage, folder) is None:
        raise LogCorrupt(f"{folder}: the log is gone, and only its identity {found} is left; restore the folder")
    return found


def signature_of(identity: str) -> str:
    """The signature in an identity; "" where an earlier version made the log."""
    return identity.partition("-")[2]


async def identify(storage: Storage, folder: PurePosixPath, random: Random, signature: str = "") -> str:
    """The identity of a log that has been opened, drawn where it has none.  Raises as :func:`read_identity`."""
    found = read_identity(storage, folder)
    if not found:
        found = "-".join(part for part in (f"{random.getrandbits(64):016x}", signature) if part)
        await storage.write_atomic(folder / _NAME, found.encode())
    return found


def combined(origins: Sequence[str]) -> str:
    """The origin of what is made from inputs with these origins, in their order; "" while one is unknown."""
    if not all(origins):
        return ""
    return hashlib.blake2b(" ".join(origins).encode(), digest_size=8).hexdigest()
