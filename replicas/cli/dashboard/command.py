"""``spe dashboard``: serves the page of a running cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio

from replicas.cli.control import INJECT_S
from replicas.cli.dashboard.hub import Hub
from replicas.cli.dashboard.page import Site, check_address, fault_kinds, is_local, require_extra
from replicas.cli.view.watching import Watch
from replicas.faults.model import processes_of
from replicas.local.run_dir import SUPERVISOR

#: Seconds between two polls of a process; longer where there are many replicas.
_ASK_S: Final = 0.5
_ASK_MORE_S: Final = 0.001


def dashboard(path: Path, bind: str, *, faults: bool) -> int:
    """Serves until a signal comes, or the run is over.

    Raises:
      SpeError: the extra is not installed, the address is invalid, or there is no such cluster.
    """
    require_extra("spe dashboard")
    check_address("--bind", bind)
    watch = Watch(path)
    replicas = sum(len(roles) for roles in watch.target.directory.roles.values())
    watch.poller.period_s = _ASK_S + _ASK_MORE_S * replicas
    if trio.run(_serve, watch, bind, faults):
        print(f"the run in {path} is over")
    return 0


async def _serve(watch: Watch, bind: str, faults: bool) -> bool:
    """Returns True when the run has ended, False after a signal."""
    target = watch.target

    async def inject(fault: Mapping[str, Any]) -> str:
        return await watch.poller.inject(SUPERVISOR, fault, wait_s=INJECT_S)

    hub = Hub(
        target.plan,
        target.directory,
        watch.sight,
        inject=inject if faults and target.folder is not None and is_local(bind) else None,
        kinds=fault_kinds(target.links),
        targets=processes_of(target.directory),
        asked_s=watch.poller.period_s,
    )
    async with watch.running() as nursery:
        await watch.asked()
        print(f"dashboard: {await nursery.start(Site(hub, bind).run)}", flush=True)
        await watch.until_over()
    return watch.over
