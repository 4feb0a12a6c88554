"""Connections after the hello: every configured peer has places of its own, all others share a few.

So does each client that the configuration does not have, a *reader*.  There are at most READERS_MAX, with at most
READERS_PLACES together; one more is turned away, to come again later.

Where a peer has no place left, its own oldest connection is closed: half-open connections make room for new ones, and
a peer that opens without end closes only its own.  A writer's new one is turned away instead, to come again later: each
of its connections is a task at work, and tasks that push each other out would never end.
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

#: Connections of a configured peer beside its subscriptions: heartbeats, snapshots, and what is closing.
PLACES: Final = 8
#: Places for each subscription that a peer may have: two feeds, and two that are closing.
PLACES_PER_SUBSCRIPTION: Final = 4
#: Connections of a writer: each task that it has at work has one, others wait.
WRITER_PLACES: Final = 64
#: Readers that a process serves: each makes it encode all that is read once more.
READERS_MAX: Final = 16
#: Connections of each.
READER_PLACES: Final = 256
#: Connections of all: a listener has no more than CONNECTIONS_MAX, which those of the plan need.
READERS_PLACES: Final = CONNECTIONS_MAX // 2
READERS: Final = "(readers)"
#: Connections of everybody else who is not in the plan: the command line.
GUESTS_MAX: Final = 64
GUESTS: Final = "(not in the plan)"


def subscriptions(plan: Plan, directory: Directory, producer: str, consumer: str) -> int:
    """Channels of one process that another one reads, counted once per replica that reads it."""
    if consumer in directory.nodes:
        hosted = directory.replicas_on(NodeId(consumer)) + directory.standbys_on(NodeId(consumer))
        channels = [c for replica in hosted for c in plan.unit[replica.unit].channels_in(replica.partition)]
        return sum(producer in directory.producer_addresses(plan, channel) for channel in channels)
    reads = next((c.reads for c in directory.clients.values() if f"client:{c.name}" == consumer), ())
    return sum(plan.partitions_of(stream) for stream in reads)


def checkpoints(directory: Directory, maker: str, consumer: str) -> int:
    """Partitions whose checkpoints one node may ask another for, all at the same moment."""
    return sum(maker in directory.hosts(id.of) for id in directory.standbys_on(NodeId(consumer)))


class Reception:
    """See the module.

    Attributes:
      sent_away: connections that had to make room, so far.
    """

    def __init__(self, plan: Plan, directory: Directory, me: Identity) -> None:
        self._plan = plan
        self._me = me
        #: By peer, in order of arrival.
        self._inside: dict[str, dict[trio.CancelScope, None]] = {}
        #: The same by reader and incarnation.
        self._readers: dict[str, dict[trio.CancelScope, None]] = {}
        self.sent_away = 0
        self.redirect(directory)

    def redirect(self, directory: Directory) -> None:
        """Another directory counts.  Who is inside stays, also who has no place of its own any more."""
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
        """A connection's stay; ends when it must make room.  None: there is no room for it."""
        places_of, who = self._inside, peer if peer in self._places else GUESTS
        places = self._places[who]
        if who == GUESTS and peer.startswith("client:"):  # several readers may have one name
            places_of, who, places = self._readers, f"{peer} #{incarnation}", READER_PLACES
        inside = places_of.get(who, {})
        turned_away = who in self._plan.writers and len(inside) >= places
        if places_of is self._readers:
            turned_away = (
                who not in places_of and len(places_of) >= READERS_MAX
            ) or self._of_readers() >= READERS_PLACES
        if turned_away:
            yield None
            return
        places_of[who] = inside
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
                if places_of is self._readers and not inside:
                    places_of.pop(who, None)

    def _of_readers(self) -> int:
        return sum(map(len, self._readers.values()))

    def connections(self) -> dict[str, int]:
        """By peer, where there are any; those of all readers together."""
        readers = self._of_readers()
        counts = {peer: len(inside) for peer, inside in self._inside.items() if inside}
        return counts | ({READERS: readers} if readers else {})
