"""Servers outside of the cluster that do not answer: messages, and waits between attempts."""

from __future__ import annotations

from typing import ClassVar, Final

from spe.runtime.disk_trouble import Trouble
from spe.runtime.env import Env, Network
from spe.runtime.log_line import Level

#: First and longest wait before an attempt; waits double.
FIRST_S: Final = 0.1
LONGEST_S: Final = 5.0


def outside(env: Env) -> Network:
    """The network for servers outside of the cluster, without certificates: those are for its own processes."""
    plain: Network = getattr(env.network, "plain", env.network)
    return plain


class ServerTrouble(Trouble):
    """A server that does not answer."""

    BEGINS = "server_away"
    ENDS = "server_back"
    HOPE = "trying again"
    OVER = "it answers again"
    LEVEL: ClassVar[Level] = Level.WARNING


class Backoff:
    """Waits before each attempt, longer each time."""

    def __init__(self, env: Env) -> None:
        self._clock = env.clock
        self._next_s = FIRST_S

    async def wait(self) -> None:
        await self._clock.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, LONGEST_S)

    def over(self) -> None:
        """Resets the wait after a success."""
        self._next_s = FIRST_S
