"""The example package, installed for the length of a test, and a real server for it."""

from __future__ import annotations

import shutil
import socket
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import trio

from spe.connectors.installed_connectors import installed
from spe.runtime.env import Network
from spe.runtime.production import production_env
from spe.runtime.server_trouble import outside
from tests.support.installed import install_points

EXAMPLE = Path(__file__).parents[2] / "examples" / "redis_streams"
#: None: there is no such program here.
SERVER = shutil.which("redis-server")


@contextmanager
def installed_example(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """As pip would install it.

    Args:
      folder: gets what says so; a process that has it, and EXAMPLE, on its path finds the package, too.
    """
    monkeypatch.syspath_prepend(str(EXAMPLE))
    points: Mapping[str, Mapping[str, str]] = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]
    install_points(monkeypatch, folder, points, "spe-redis-streams")
    yield
    installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("redis_streams")]:
        del sys.modules[name]


class RealRedis:
    """A redis-server of its own, which syncs everything before it answers."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._folder = mkdtemp(prefix="redis-", dir=folder)  # the system may give a port once more

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(
        self, network: Network | None = None, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Until it is cancelled, which kills it."""
        options = ["--port", str(self.port), "--dir", str(self._folder), "--save", "", "--loglevel", "warning"]
        command = [str(SERVER), *options, "--appendonly", "yes", "--appendfsync", "always"]
        process = await trio.lowlevel.open_process(command)
        try:
            while not await self._is_up():  # noqa: ASYNC110 - it tells nobody when it is
                await trio.sleep(0.02)
            await self.filled()
            task_status.started(self.address)
            await trio.sleep_forever()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()

    async def filled(self) -> None:
        """Puts in what is to be there."""

    async def _is_up(self) -> bool:
        try:
            return bool(await self.ask("PING") == b"PONG")
        except (OSError, RedisGone):
            return False

    async def ask(self, *words: str) -> Any:
        """One request on a connection of its own.  Raises RedisGone."""
        from redis_streams.resp import Redis

        from replicas.connectors.server_sink import GONE

        try:
            async with Redis(await outside(production_env(self._folder)).connect(self.address, 5.0)) as redis:
                return await redis.ask(*words)
        except GONE as error:
            raise RedisGone(str(error)) from error


class RedisGone(Exception):
    """It does not answer."""
