"""The epoch of the latest coordinator that a node has heard of, kept over restarts (H6)."""

from __future__ import annotations

from pathlib import PurePosixPath

import trio

from replicas.link.directory import DirectoryKeeper
from replicas.link.stored_number import decode_number, encode_number
from spe.runtime.env import Env
from spe.stream.names import NodeId


class FollowedEpoch:
    """Reads the epoch at the start and keeps it on disk; works without a disk that is full or damaged.

    Args:
      keeper: learns of coordinators.
    """

    def __init__(self, env: Env, node: NodeId, keeper: DirectoryKeeper) -> None:
        self._env = env
        self._path = PurePosixPath("nodes", node, "epoch")
        self._keeping = trio.Lock()
        self._keeper = keeper
        keeper.heard_of(self._known())

    @property
    def latest(self) -> int:
        """Latest epoch; 0 before any was heard of."""
        return self._keeper.epoch

    async def keep(self) -> None:
        """Writes the latest epoch; of two calls at once the later epoch stays."""
        async with self._keeping:
            try:
                await self._env.storage.write_atomic(self._path, encode_number(self.latest))
            except OSError as error:
                self._env.trace.event("epoch_not_kept", why=str(error))

    def _known(self) -> int:
        storage, path = self._env.storage, self._path
        try:
            return decode_number(storage.read(path)) if storage.exists(path) else 0
        except (OSError, ValueError) as error:
            self._env.trace.event("epoch_damaged", path=str(path), why=str(error))
            return 0
