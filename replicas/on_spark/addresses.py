"""Addresses that are names: a node on Spark keeps its own while it moves from executor to executor.

``n1.node:1`` stands for the node in the plan of the run.  A file has its real address, and is read again when
it has changed; so only the network knows of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from spe.errors import LinkBroken, PortInUse
from spe.runtime.env import Env, Network

#: File in the folder of a run: name -> ``host:port``.
PLACES: Final = "places.json"
_SUFFIX: Final = ".node:1"


def address_of(node: str) -> str:
    """Returns the address that is the name of a node."""
    return f"{node}{_SUFFIX}"


def write_places(folder: Path, places: Mapping[str, str]) -> None:
    """Replaces the file as a whole."""
    aside = folder / f".{PLACES}.new"
    aside.write_text(json.dumps(places))
    os.replace(aside, folder / PLACES)


def placed(env: Env, folder: Path | None) -> Env:
    """Returns an environment that finds nodes by the file in a run's folder; without a folder the same one."""
    if folder is None or not (folder / PLACES).exists():
        return env
    return replace(env, network=PlacedNetwork(env.network, folder))


class PlacedNetwork:
    """A network that looks up names.

    Args:
      inner: a network that knows hosts and ports only.
      folder: contains the file.
    """

    def __init__(self, inner: Network, folder: Path) -> None:
        self._inner = inner
        self._file = folder / PLACES
        self._read: tuple[int, int] | None = None
        self._places: Mapping[str, str] = {}

    def _find(self, address: str) -> str | None:
        """Returns the real address; None: it has none now."""
        if not address.endswith(_SUFFIX):
            return address
        stat = self._file.stat()
        if (stat.st_mtime_ns, stat.st_ino) != self._read:
            self._places = json.loads(self._file.read_text())
            self._read = stat.st_mtime_ns, stat.st_ino
        return self._places.get(address.removesuffix(_SUFFIX))

    async def connect(self, address: str, seconds: float) -> trio.abc.Stream:
        try:
            at = self._find(address)
        except (OSError, ValueError) as error:
            raise LinkBroken(f"{self._file} does not say where {address} is: {error}") from error
        if at is None:
            await trio.lowlevel.checkpoint()
            raise LinkBroken(f"cannot connect to {address}: it has no place on Spark now")
        return await self._inner.connect(at, seconds)

    async def serve(
        self,
        address: str,
        handler: Callable[[trio.abc.Stream], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            at = self._find(address)
        except (OSError, ValueError) as error:
            raise PortInUse(f"{self._file} does not say where {address} is: {error}") from error
        if at is None:
            raise PortInUse(f"{self._file} does not say where {address} is")
        await self._inner.serve(at, handler, task_status=task_status)
