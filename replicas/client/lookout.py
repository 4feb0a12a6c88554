"""Finds the processes that a client asks: partitions may have moved while it was away (rule D2).  Pure but for time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from replicas.link.directory import DirectoryKeeper
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.stream.ids import Channel


class Lookout:
    """Looks for producers of a client's channels.

    Args:
      served: has every channel a producer?
      watch: called with the processes to ask, when they change because of that.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        keeper: DirectoryKeeper,
        channels: Sequence[Channel],
        served: Callable[[], bool],
        watch: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._env = env
        self._plan = plan
        self._keeper = keeper
        self._channels = channels
        self._served = served
        self._watch = watch
        #: A channel has had no producer for a while.
        self._unserved = False

    def peers(self) -> dict[str, str]:
        """Address of every process that makes the channels; of all processes, while a channel has no producer."""
        directory = self._keeper.current
        producers = (directory.producer_addresses(self._plan, channel) for channel in self._channels)
        others = directory.addresses() if self._unserved else {}
        return others | {name: address for addresses in producers for name, address in addresses.items()}

    async def run(self) -> None:
        """Asks the other processes, too, after a channel has had no producer for a while; until cancelled."""
        clock, timing = self._env.clock, self._plan.timing
        since: int | None = None
        while True:
            await clock.sleep(timing.heartbeat_us / 1e6)
            if self._served():
                since = None
            elif since is None:
                since = clock.monotonic_us()
            unserved = since is not None and clock.monotonic_us() - since >= timing.gone_us()
            if unserved != self._unserved:
                self._unserved = unserved
                self._watch(self.peers())
