"""Makes the links of a local cluster fail, inside the processes or by proxies between them.

``inside`` needs nothing and is the default; a ``proxy`` leaves the processes untouched, so that they run production
code only.  Both support the same faults; those that one cannot cause it refuses by name.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

import trio

from consistency.faults.kind import Once
from replicas.faults.model import processes_of
from replicas.faults.proxy import FaultProxy, Route
from replicas.faults.state import FaultState
from replicas.local.ports import free_addresses
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan


class LinkMode(enum.StrEnum):
    """The place where link faults are made."""

    INSIDE = "inside"
    PROXY = "proxy"


class LinkFaultMaker(Protocol):
    """Applies the link faults of a FaultState.

    Attributes:
      via: process -> peer -> the address that it has to dial; by default the peer's own.
      inside: the processes have to make these faults themselves.
      mode: which of the two this is.
    """

    via: Mapping[str, Mapping[str, str]]
    inside: bool
    mode: LinkMode

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled."""
        ...

    async def apply(self, state: FaultState) -> str:
        """Sets exactly these faults; returns "" or an error."""
        ...

    def once(self, action: Once, pairs: Sequence[tuple[str, str]]) -> str:
        """Breaks the connections of these pairs, or drops one of each silently; returns "" or why not."""
        ...


def open_links(
    mode: LinkMode, plan: Plan, directory: Directory, addresses: Mapping[str, str], random: Random
) -> LinkFaultMaker:
    """Returns the links of a cluster whose processes listen at ``addresses``."""
    return InsideLinks() if mode is LinkMode.INSIDE else ProxyLinks(plan, directory, addresses, random)


def dials(plan: Plan, directory: Directory) -> dict[str, list[str]]:
    """Returns process -> processes to which it opens connections."""
    peers_of: dict[str, set[str]] = {name: set() for name in processes_of(directory)}
    for partition in directory.placement:
        for node in directory.hosts(partition):
            for channel in plan.unit[partition.unit].channels_in(partition.partition):
                peers_of[node] |= set(directory.producer_addresses(plan, channel))
            peers_of[node] |= {str(n) for n in directory.hosts(partition)}
    for client in directory.clients.values():
        for stream in client.reads:
            for partition in directory.placement:
                if stream in plan.unit[partition.unit].outputs:
                    peers_of[f"client:{client.name}"] |= {str(n) for n in directory.hosts(partition)}
    if directory.coordinated:
        peers_of[COORDINATOR] |= {name for name in peers_of if not name.startswith("client:")}
    return {name: sorted(peers - {name}) for name, peers in peers_of.items()}


class InsideLinks:
    """Lets each process cut and delay its own traffic (replicas.faults.network)."""

    inside = True
    mode = LinkMode.INSIDE

    def __init__(self) -> None:
        self.via: Mapping[str, Mapping[str, str]] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()

    async def apply(self, state: FaultState) -> str:
        return ""

    def once(self, action: Once, pairs: Sequence[tuple[str, str]]) -> str:
        return "processes do not break their own connections: use --links proxy"


class ProxyLinks:
    """Routes every link through a listener of a proxy in the supervising process."""

    inside = False
    mode = LinkMode.PROXY

    def __init__(self, plan: Plan, directory: Directory, addresses: Mapping[str, str], random: Random) -> None:
        pairs = [(a, b) for a, peers in dials(plan, directory).items() for b in peers]
        taken = set(addresses.values())
        free = [a for a in free_addresses(len(pairs) + len(taken)) if a not in taken]
        routes = [Route(a, b, listen, addresses[b]) for (a, b), listen in zip(pairs, free, strict=False)]
        self.via: Mapping[str, Mapping[str, str]] = {
            a: {r.listener: r.listen for r in routes if r.dialler == a} for a, _ in pairs
        }
        self._proxy = FaultProxy(routes, random)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self._proxy.run(task_status=task_status)

    async def apply(self, state: FaultState) -> str:
        links = state.links()
        self._proxy.set_ways(links)
        await self._proxy.refuse({pair for pair, link in links.items() if link.refused})
        return ""

    def once(self, action: Once, pairs: Sequence[tuple[str, str]]) -> str:
        if action is Once.RESET:
            for a, b in pairs:
                self._proxy.reset(a, b)
            return ""
        dropped = [self._proxy.half_open(a, b) for a, b in sorted({(min(pair), max(pair)) for pair in pairs})]
        return "" if any(dropped) else "there is no connection"
