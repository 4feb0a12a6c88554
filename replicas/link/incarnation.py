"""The incarnation of a process: grows with each start, even if its clock steps back in between."""

from __future__ import annotations

from pathlib import PurePosixPath

from replicas.link.stored_number import decode_number, encode_number
from spe.runtime.env import Env


async def claim(env: Env, path: PurePosixPath) -> int:
    """Returns an incarnation larger than all claimed at ``path`` before, and at least the wall clock.

    A2: peers take a process with a smaller number for an older one and ignore its acknowledgements.
    """
    before = 0
    if env.storage.exists(path):
        try:
            before = decode_number(env.storage.read(path))
        except ValueError as error:
            env.trace.event("incarnation_damaged", path=str(path), why=str(error))
    mine = max(before + 1, env.clock.wall_us())
    try:
        await env.storage.write_atomic(path, encode_number(mine))
    except OSError as error:
        env.trace.event("incarnation_not_kept", path=str(path), why=str(error))
    return mine
