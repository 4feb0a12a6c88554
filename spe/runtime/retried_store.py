"""Stores what must not be lost: while the disk is full, or the server away, it is tried again and again (A1a)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from spe.errors import LogFull, ServerAway, SpeError
from spe.runtime.disk_trouble import DISK_RETRY_US, DiskTrouble, is_full
from spe.runtime.env import Env
from spe.runtime.server_trouble import Backoff, ServerTrouble

T = TypeVar("T")


class UntilStored:
    """One for each place that is written.

    Args:
      who: what is written, for messages: ``source a: pushed batches``.
    """

    def __init__(self, env: Env, who: str) -> None:
        self._env = env
        self._who = who
        self._disk = DiskTrouble(env, who)
        self._server = ServerTrouble(env, who)

    @property
    def disk_full(self) -> str:
        """Why nothing can be written now; "" where no disk is full."""
        return self._disk.why

    @property
    def away(self) -> str:
        """The same of a server that does not answer."""
        return self._server.why

    async def __call__(self, store: Callable[[], Awaitable[T]]) -> T:
        """What ``store`` returns; where it raised, it is called again.

        Raises:
          SpeError: it was refused for good.
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
