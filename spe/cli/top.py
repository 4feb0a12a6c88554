"""``spe top``: the live view of a cluster that runs, from anywhere that reaches it."""

from __future__ import annotations

import signal
from pathlib import Path

import trio
from rich.live import Live

from replicas.link.connection import secured
from spe.cli.control import alive
from spe.cli.polling import Poller, last_of
from spe.cli.run_dir import SUPERVISOR, Target, load_target, require_addresses
from spe.cli.view import STALE_US, Sight, make_console, render
from spe.errors import SpeError
from spe.runtime.env import Env
from spe.runtime.production import production_env
from spe.runtime.tls import CONTROL
from spe.status import SupervisorStatus

_DRAW_S = 0.2


def top(path: Path) -> int:
    """Draws until a signal comes, or the run is over.

    Raises:
      SpeError: the output is no terminal.
    """
    target = load_target(path)
    require_addresses(path, target)
    if not make_console().is_terminal:
        raise SpeError("spe top needs a terminal; spe status prints the same once")
    if target.folder is not None and not alive(target.supervisor_pid):
        raise SpeError(f"the run in {path} is over; its figures are in {path / 'summary.json'}")
    env = secured(production_env(Path()), target.plan, CONTROL)
    if trio.run(_Top(env, target, path).main):
        print(f"the run in {path} is over")
    return 0


class _Top:
    def __init__(self, env: Env, target: Target, path: Path) -> None:
        self._env = env
        self._target = target
        self._path = path
        self._poller = Poller(env, target.plan, target.addresses, target.token)

    async def main(self) -> bool:
        """True where the run has ended, False after a signal."""
        over = False
        async with trio.open_nursery() as nursery:
            with (
                trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals,
                Live(console=make_console(), auto_refresh=False) as live,
            ):

                async def end_on_signal() -> None:
                    async for _ in signals:
                        nursery.cancel_scope.cancel()

                nursery.start_soon(end_on_signal)
                self._poller.joined = lambda name: nursery.start_soon(self._poller.follow, name)
                for name in self._target.addresses:
                    nursery.start_soon(self._poller.follow, name)
                while not over:
                    live.update(render(self._target.plan, self._target.directory, self._sight()), refresh=True)
                    await trio.sleep(_DRAW_S)
                    over = self._target.folder is not None and not alive(self._target.supervisor_pid)
            nursery.cancel_scope.cancel()
        return over

    def _sight(self) -> Sight:
        """What the supervisor says of processes counts while it answers."""
        now = self._env.clock.wall_us()
        seen = self._poller.seen
        above = last_of(seen, SUPERVISOR, SupervisorStatus)
        if above is not None and now - seen[SUPERVISOR].at_us > STALE_US:
            above = None
        return Sight(
            title=f"{self._target.plan.cluster}   {self._path}",
            now_us=now,
            begun_us=None if above is None else above.begun_us,
            phases={} if above is None else above.phases,
            seen=seen,
            errors=self._poller.errors,
            faults=() if above is None else above.faults,
        )
