"""A simulated cluster whose links a test cuts, delays and mends by hand; a schedule is what ``FaultDriver`` plays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from consistency.faults.kind import LinkFaults
from replicas.simulation.world.cluster import SimCluster
from replicas.simulation.world.hosts import Pair


class FaultyCluster(SimCluster):
    """See the module; for everything else see :class:`SimCluster`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._cuts: set[Pair] = set()
        self._delays: dict[Pair, float] = {}

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """``*`` stands for everybody."""
        self.note(f"cut {a} {'->' if one_way else '--'} {b}")
        ends = [[h for h in self._hosts if name in (h, "*")] for name in (a, b)]
        links = [(x, y) for x in ends[0] for y in ends[1]]
        links = links if one_way else links + [(y, x) for x, y in links]
        self.began("cut", (), links)
        self._cuts.update(links)
        self._set_links()

    def delay(self, a: str, b: str, seconds: float) -> None:
        """Everything between two hosts takes this long; 0 ends it."""
        links = ((a, b), (b, a))
        for fault in [f for f in self._lasting if f.kind == "delay" and f.links == links]:
            self.ended(fault)
        for pair in links:
            self._delays.pop(pair, None)
            if seconds:
                self._delays[pair] = seconds
        if seconds:
            self.began("delay", (), links, round(1e6 * seconds))
        self._set_links()

    def heal(self) -> None:
        """Ends all cuts and delays."""
        self.note("heal")
        self._ended("cut")
        self._ended("delay")
        self._cuts.clear()
        self._delays.clear()
        self._set_links()

    def mend(self, a: str, b: str) -> None:
        """Ends the cuts between two hosts, in both directions."""
        self.note(f"mend {a} -- {b}")
        links = {(a, b), (b, a)}
        for fault in [f for f in self._lasting if f.kind == "cut" and links.issuperset(f.links)]:
            self.ended(fault)
        self._cuts -= links
        self._set_links()

    def _set_links(self) -> None:
        links: dict[Pair, LinkFaults] = {}
        for pair in self._cuts | self._delays.keys():
            links[pair] = LinkFaults(cut=pair in self._cuts, delay_us=round(1e6 * self._delays.get(pair, 0.0)))
        self.network.set_links(links)

    @contextmanager
    def explain(self) -> Iterator[None]:
        """Prints the story of the run when the block fails."""
        try:
            yield
        except BaseException:
            print("\n".join(self.log[-400:]))
            raise
