"""A folder of client results, a recording or a sink: of one process, one query and the same source logs.

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
    """Locks the folder, and refuses it if its results are those of another query.

    It is made before anything in the folder is opened; :meth:`keep` is called before anything is written.

    Args:
      storage, folder: location.
      name: name in messages.
      queries: fingerprint of the query of each channel that will be written.

    Raises:
      LogError: another process writes there; says which.
      SpeError: a channel was written for another query, or the file with the fingerprints is damaged.
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
        """Returns whether the query of a channel's results is unknown."""
        return str(channel) not in self._known

    def origin(self, channel: Channel) -> str:
        """Returns the origin of the channel's results (S6); "" where it is unknown."""
        known = self._known.get(str(channel))
        return "" if known is None else known.origin

    async def keep(self, origins: Mapping[Channel, str] = MappingProxyType({})) -> None:
        """Stores the query and the origin of channels where they are new.  Raises OSError."""
        known = self._known | {
            str(c): Provenance(query, origins.get(c) or self.origin(c)) for c, query in self._queries.items()
        }
        if known != self._known:
            await self._storage.write_atomic(self._path, encode_provenance(known))
            self._known = known
