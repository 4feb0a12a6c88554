"""A folder that holds results of a client, its recording or a sink: of one process, one query and the same source logs.

Rules U14 and S6 of docs/internals/rules.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from types import MappingProxyType

from spe.errors import LogError, SpeError
from spe.log.provenance import PROVENANCE, Provenance, encode_provenance, read_provenance
from spe.runtime.env import Storage
from spe.stream.ids import Channel


class ResultFolder:
    """Locks the folder, and refuses one whose results are those of another query.

    Made before anything in the folder is opened; :meth:`keep` follows before anything is written.

    Args:
      storage, folder: where.
      name: as messages call it.
      queries: fingerprint of what each channel that will be written follows from.

    Raises:
      LogError: another process writes there; says which.
      SpeError: a channel was written for another query, or what says so is damaged.
    """

    def __init__(self, storage: Storage, folder: PurePosixPath, name: str, queries: Mapping[Channel, str]) -> None:
        self._storage = storage
        self._path = folder / PROVENANCE
        self.name = name
        self._queries = queries
        try:
            storage.lock(folder / ".spe.lock")
        except LogError as error:
            raise LogError(f"{name} is written by another process: {error}") from None
        try:
            self._known = read_provenance(storage, self._path)
        except SpeError as error:
            raise SpeError(f"{name}: {error}; without this file the folder is taken as it is") from None
        for channel, query in queries.items():
            known = self._known.get(str(channel))
            if known is not None and known.query != query:
                raise SpeError(
                    f"{name} ({self._path.name}) holds {channel} of another query: it was made for {known.query}, "
                    f"and the plan now has {query}. Give the client another folder, or move this one away"
                )

    def unlabelled(self, channel: Channel) -> bool:
        """Nothing says what the channel's results here were made for, if there are any."""
        return str(channel) not in self._known

    def origin(self, channel: Channel) -> str:
        """Where the channel's results here come from (S6); "" where that is not known."""
        known = self._known.get(str(channel))
        return "" if known is None else known.origin

    async def keep(self, origins: Mapping[Channel, str] = MappingProxyType({})) -> None:
        """Writes down what the channels are made for, and come from, where that is new.  Raises OSError."""
        known = self._known | {
            str(c): Provenance(query, origins.get(c) or self.origin(c)) for c, query in self._queries.items()
        }
        if known != self._known:
            await self._storage.write_atomic(self._path, encode_provenance(known))
            self._known = known
