"""Limits connections after the hello: each configured peer has its own places, all others share a few.

A *reader*, a client that the configuration does not have, gets places too.  There are at most READERS_MAX readers
with READERS_PLACES together; further ones are refused and retry later.

Where a peer has no place left, its own oldest connection is closed: half-open connections make room for new ones, and
a peer that opens without end closes only its own.  A writer's new connection is refused instead, and retries later:
each connection is a running task, and tasks that close each other's connections would never end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from replicas.link.connection import Identity
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.runtime.connection_limits import CONNECTIONS_MAX
from spe.stream.names import NodeId

#: Connections of a configured peer apart from subscriptions: heartbeats, snapshots, closing ones.
PLACES: Final = 8
#: Places for each possible subscription of a peer: two feeds, and two that are closing.
PLACES_PER_SUBSCRIPTION: Final = 4
#: Connections of a writer: one for each running task; other tasks wait.
WRITER_PLACES: Final = 64
#: Readers that a process serves: output is encoded again for each.
READERS_MAX: Final = 16
#: Connections of each reader.
READER_PLACES: Final = 256
#: Connections of all readers: a listener has CONNECTIONS_MAX, some of which peers of the plan need.
READERS_PLACES: Final = CONNECTIONS_MAX // 2
READERS: Final = "(readers)"
#: Connections of other peers that are not in the plan: the command line.
GUESTS_MAX: Final = 64
GUESTS: Final = "(not in the plan)"


def subscriptions(plan: Plan, directory: Directory, producer: str, consumer: str) -> int:
    """Counts the channels of a process that another process reads, once per reading replica."""
    if consumer in directory.nodes:
        hosted = directory.replicas_on(NodeId(consumer)) + directory.standbys_on(NodeId(consumer))
        channels = [c for replica in hosted for c in plan.unit[replica.unit].channels_in(replica.partition)]
        return sum(producer in directory.producer_addresses(plan, channel) for channel in channels)
    reads = next((c.reads for c in directory.clients.values() if f"client:{c.name}" == consumer), ())
    return sum(plan.partitions_of(stream) for stream in reads)


def checkpoints(directory: Directory, maker: str, consumer: str) -> int:
    """Counts the partitions whose checkpoints a node may request from another at once."""
    return sum(maker in directory.hosts(id.of) for id in directory.standbys_on(NodeId(consumer)))


class Reception:
    """Admits connections within the limits.

    Attributes:
      sent_away: number of connections that had to make room.
    """

    def __init__(self, plan: Plan, directory: Directory, me: Identity) -> None:
        self._plan = plan
        self._me = me
        #: Connections of each peer, in order of arrival.
        self._inside: dict[str, dict[trio.CancelScope, None]] = {}
        #: Connections of each reader and incarnation.
        self._readers: dict[str, dict[trio.CancelScope, None]] = {}
        self.sent_away = 0
        self.redirect(directory)

    def redirect(self, directory: Directory) -> None:
        """Follows a changed directory.  Present connections stay, even of peers without places of their own now."""
        plan, me = self._plan, self._me
        peers = [
            *directory.nodes,
            *(f"source:{s}" for s in plan.sources),
            *(f"client:{c}" for c in directory.clients),
        ]
        if directory.coordinated:
            peers.append(COORDINATOR)
        self._places = (
            {GUESTS: GUESTS_MAX}
            | dict.fromkeys(plan.writers, WRITER_PLACES)
            | {
                peer: PLACES
                + PLACES_PER_SUBSCRIPTION * subscriptions(plan, directory, me.name, peer)
                + checkpoints(directory, me.name, peer)
                for peer in peers
            }
        )
        for peer in self._places:
            self._inside.setdefault(peer, {})

    @contextmanager
    def visit(self, peer: str, incarnation: int = 0) -> Iterator[trio.CancelScope | None]:
        """Yields the scope of a connection, cancelled when it must make room.  None: there is no room for it."""
        visits, who = self._inside, peer if peer in self._places else GUESTS
        places = self._places[who]
        if who == GUESTS and peer.startswith("client:"):  # several readers may have one name
            visits, who, places = self._readers, f"{peer} #{incarnation}", READER_PLACES
        inside = visits.get(who, {})
        turned_away = who in self._plan.writers and len(inside) >= places
        if visits is self._readers:
            turned_away = (who not in visits and len(visits) >= READERS_MAX) or self._of_readers() >= READERS_PLACES
        if turned_away:
            yield None
            return
        visits[who] = inside
        with trio.CancelScope() as scope:
            inside[scope] = None
            if len(inside) > places:
                oldest = next(iter(inside))
                del inside[oldest]
                oldest.cancel()
                self.sent_away += 1
            try:
                yield scope
            finally:
                inside.pop(scope, None)
                if visits is self._readers and not inside:
                    visits.pop(who, None)

    def _of_readers(self) -> int:
        return sum(map(len, self._readers.values()))

    def connections(self) -> dict[str, int]:
        """Returns the number of connections by peer, those of all readers together."""
        readers = self._of_readers()
        counts = {peer: len(inside) for peer, inside in self._inside.items() if inside}
        return counts | ({READERS: readers} if readers else {})
