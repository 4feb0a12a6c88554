"""Serves the page of a cluster, and limits who may inject faults there."""

from __future__ import annotations

import importlib
import secrets
from importlib.util import find_spec
from typing import Final

import trio

from replicas.cli.dashboard.door import Door
from replicas.cli.dashboard.hub import Hub
from replicas.faults.model import real_kinds
from spe.errors import SpeError
from spe.runtime.http_port import HERE
from spe.runtime.network import parse_address

#: Any free port of this machine.
LOOPBACK: Final = "127.0.0.1:0"
_EXTRA: Final = ("quart_trio", "hypercorn")


def installed() -> bool:
    """Returns whether the extra is installed, without importing it."""
    return all(find_spec(name) is not None for name in _EXTRA)


def bind_address(address: str) -> str:
    """Returns the address at which ``spe run`` serves the page; "" where it does not.

    Raises:
      SpeError: not an address; or not the default, and the extra is not installed.
    """
    if address == "off":
        return ""
    check_address("--dashboard", address)
    if not installed():
        if address != LOOPBACK:
            require_extra("--dashboard")
        return ""
    return address


def check_address(option: str, address: str) -> None:
    """Raises SpeError: the option's value is not an address."""
    try:
        parse_address(address)
    except ValueError as error:
        raise SpeError(f"{option}: {error}") from None


def require_extra(what: str) -> None:
    """Raises SpeError: the extra is not installed."""
    if not installed():
        raise SpeError(f"{what} needs the extra dashboard: pip install '.[dashboard]'")


def is_local(bind: str) -> bool:
    """Returns whether only this machine can reach an address; faults are injected from nowhere else."""
    return parse_address(bind)[0] in HERE


def fault_kinds(links: str) -> dict[str, tuple[str, ...]]:
    """Returns the kinds of faults that can be injected into a run, and the fields of each."""
    return {name: kind.fields for name, kind in real_kinds(links).items()}


class Site:
    """Serves the page of one cluster at an address.

    Args:
      hub: makes the frames.
      bind: ``host:port``; port 0 is any free one.
    """

    def __init__(self, hub: Hub, bind: str = LOOPBACK) -> None:
        self._hub = hub
        self._bind = bind
        #: Key for injecting faults; made at each start, and only printed.
        self.key = secrets.token_urlsafe(12)
        self.door = Door(self._serve)

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; ``task_status`` gets the URL to open."""
        async with trio.open_nursery() as nursery:
            address = await nursery.start(self.door.run, self._bind)
            nursery.start_soon(self._hub.run)
            task_status.started(f"http://{address}/" + (f"#{self.key}" if self._hub.inject is not None else ""))

    async def _serve(self, path: str, task_status: trio.TaskStatus[None]) -> None:
        # The import takes a third of a second, so it runs in a thread beside the supervisor's other work.
        site = await trio.to_thread.run_sync(importlib.import_module, "replicas.cli.dashboard.site")
        hosts = HERE | {"[::1]"} if is_local(self._bind) else None
        await site.serve_site(self._hub, self.key, hosts, path, task_status)
