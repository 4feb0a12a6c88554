"""Follows a running cluster from outside, by the statuses of its processes and its supervisor."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from replicas.local.polling import Poller, last_of
from replicas.local.run_dir import SUPERVISOR, Target, load_target, require_addresses
from replicas.local.run_over import refuse_over, why_over
from spe.figures.sight import STALE_US, Sight
from spe.status import SupervisorStatus

#: Signals that end a command which watches.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S: Final = 0.5
_ASKED_S: Final = 0.05


class Watch:
    """Polls every process of a cluster.

    Raises:
      SpeError: there is no such cluster, or the run is over.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.target: Target = load_target(path)
        require_addresses(path, self.target)
        refuse_over(self.target)
        self.poller = Poller.of(self.target)

    @property
    def over(self) -> bool:
        """Whether the processes of the run have ended; False for a cluster without a supervisor."""
        return bool(why_over(self.target))

    async def until_over(self) -> None:
        """Returns when the run is over; never without a supervisor."""
        while True:
            await trio.sleep(_LOOK_S)
            if self.over:
                return

    async def asked(self) -> None:
        """Returns when every process has answered or failed to answer once."""
        while True:
            await trio.sleep(_ASKED_S)
            if all(name in self.poller.seen or name in self.poller.errors for name in self.target.addresses):
                return

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        """Polls while the block lasts; a signal cancels it."""
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            async with trio.open_nursery() as nursery:

                async def end_on_signal() -> None:
                    async for _ in signals:
                        nursery.cancel_scope.cancel()

                nursery.start_soon(end_on_signal)
                self.poller.joined = lambda name: nursery.start_soon(self.poller.follow, name)
                for name in self.target.addresses:
                    nursery.start_soon(self.poller.follow, name)
                yield nursery
                nursery.cancel_scope.cancel()

    def sight(self) -> Sight:
        """Returns the current sight; phases of processes count only while the supervisor answers."""
        now = self.poller.now_us()
        answers = self.poller.seen
        above = last_of(answers, SUPERVISOR, SupervisorStatus)
        if above is not None and now - answers[SUPERVISOR].at_us > STALE_US:
            above = None
        return Sight(
            title=f"{self.target.plan.cluster}   {self.path}",
            now_us=now,
            begun_us=None if above is None else above.begun_us,
            phases={} if above is None else above.phases,
            seen=answers,
            errors=self.poller.errors,
            faults=() if above is None else above.faults,
        )
