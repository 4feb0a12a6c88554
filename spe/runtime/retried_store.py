"""Stores data that must not be lost: tries again while the disk is full, or the server is away (A1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from spe.errors import LogFull, ServerAway, SpeError
from spe.runtime.disk_trouble import DISK_RETRY_US, DiskTrouble, is_full
from spe.runtime.env import Env
from spe.runtime.server_trouble import Backoff, ServerTrouble

T = TypeVar("T")


class UntilStored:
    """Repeats a write until it succeeds; one object for each place that is written.

    Args:
      who: name of the written data, for messages: ``source a: pushed batches``.
    """

    def __init__(self, env: Env, who: str) -> None:
        self._env = env
        self._who = who
        self._disk = DiskTrouble(env, who)
        self._server = ServerTrouble(env, who)

    @property
    def disk_full(self) -> str:
        """The reason why nothing can be written now; "" if no disk is full."""
        return self._disk.why

    @property
    def away(self) -> str:
        """The reason why a server does not answer; "" if it does."""
        return self._server.why

    async def __call__(self, store: Callable[[], Awaitable[T]]) -> T:
        """Calls ``store`` until it does not raise; returns its result.

        Raises:
          SpeError: the error is permanent.
        """
        backoff = Backoff(self._env)
        while True:
            try:
                done = await store()
            except ServerAway as error:
                self._server.met(error)
                await backoff.wait()
            except (OSError, LogFull) as error:
                if not is_full(error):
                    raise SpeError(f"{self._who} cannot be written: {error}") from error
                self._disk.met(error)
                await self._env.clock.sleep(DISK_RETRY_US / 1e6)
            else:
                self._disk.over()
                self._server.over()
                return done
