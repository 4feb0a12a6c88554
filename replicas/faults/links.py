"""Who makes the links of a local cluster fail: the processes themselves, or proxies between them.

``inside`` needs nothing and is the default; a ``proxy`` leaves the processes untouched, so what they run is production
code to the last byte.  Both play the same faults; what one cannot do it refuses by name.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

import trio

from replicas.faults.model import processes_of
from replicas.faults.proxy import FaultProxy, Route, Way
from replicas.faults.state import FaultState
from replicas.local.ports import free_addresses
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan


class LinkMode(enum.StrEnum):
    """Where the faults of links are made."""

    INSIDE = "inside"
    PROXY = "proxy"


class LinkFaultMaker(Protocol):
    """Makes what a FaultState says about links true.

    Attributes:
      via: process -> peer -> the address that it has to dial; where it says nothing, the peer's own.
      inside: the processes have to make these faults themselves.
      mode: which of the two this is.
    """

    via: Mapping[str, Mapping[str, str]]
    inside: bool
    mode: LinkMode

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        ...

    async def apply(self, state: FaultState) -> str:
        """From now on exactly these faults hold; "" or what cannot be done."""
        ...

    def reset(self, pairs: Sequence[tuple[str, str]]) -> str:
        """The connections of these pairs break; "" or why not."""
        ...

    def half_open(self, pairs: Sequence[tuple[str, str]]) -> str:
        """One connection of each of these pairs is forgotten on its way; "" or why not."""
        ...


def open_links(
    mode: LinkMode, plan: Plan, directory: Directory, addresses: Mapping[str, str], random: Random
) -> LinkFaultMaker:
    """The links of a cluster whose processes listen at ``addresses``."""
    return InsideLinks() if mode is LinkMode.INSIDE else ProxyLinks(plan, directory, addresses, random)


def dials(plan: Plan, directory: Directory) -> dict[str, list[str]]:
    """Process -> processes that it opens connections to."""
    found: dict[str, set[str]] = {name: set() for name in processes_of(directory)}
    for of in directory.placement:
        for node in directory.hosts(of):
            for channel in plan.unit[of.unit].channels_in(of.partition):
                found[node] |= set(directory.producer_addresses(plan, channel))
            found[node] |= {str(n) for n in directory.hosts(of)}
    for client in directory.clients.values():
        for stream in client.reads:
            for of in directory.placement:
                if stream in plan.unit[of.unit].outputs:
                    found[f"client:{client.name}"] |= {str(n) for n in directory.hosts(of)}
    if directory.coordinated:
        found[COORDINATOR] |= {name for name in found if not name.startswith("client:")}
    return {name: sorted(peers - {name}) for name, peers in found.items()}


class InsideLinks:
    """Each process cuts and delays what it sends and receives itself (replicas.faults.network)."""

    inside = True
    mode = LinkMode.INSIDE

    def __init__(self) -> None:
        self.via: Mapping[str, Mapping[str, str]] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()

    async def apply(self, state: FaultState) -> str:
        return ""

    def reset(self, pairs: Sequence[tuple[str, str]]) -> str:
        return "processes do not reset their own links: use --links proxy"

    def half_open(self, pairs: Sequence[tuple[str, str]]) -> str:
        return "processes do not forget their own connections: use --links proxy"


class ProxyLinks:
    """Every link goes through a listener of a proxy in the supervising process."""

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
        self._proxy.set_ways(
            {
                pair: Way(held=link.cut, delay_us=link.delay_us, jitter_us=link.jitter_us, bytes_per_s=link.bytes_per_s)
                for pair, link in links.items()
            }
        )
        await self._proxy.refuse({pair for pair, link in links.items() if link.refused})
        return ""

    def reset(self, pairs: Sequence[tuple[str, str]]) -> str:
        for a, b in pairs:
            self._proxy.reset(a, b)
        return ""

    def half_open(self, pairs: Sequence[tuple[str, str]]) -> str:
        found = [self._proxy.half_open(a, b) for a, b in sorted({(min(pair), max(pair)) for pair in pairs})]
        return "" if any(found) else "there is no connection"
