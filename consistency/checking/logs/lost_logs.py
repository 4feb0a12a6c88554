"""S6: consumers of a lost source log do not read its replacement, and report it; nothing is lost silently.

A consumer that has read nothing of the lost log, such as a process that starts while no other can be reached, may read
the replacement, and so may consumers of that process that have read nothing: they get other tuples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.checking.rows import Reference, row_digests
from spe.plan.plan import Plan
from spe.stream.batch import Batch
from spe.stream.history import Delivered, Event, History, Note, Opened, ProcessDown, Received, StateChanged, host_of
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId


class OtherLogs:
    """Replicas and clients that have read, also through others, the replacement of a lost log.

    Args:
      lost: when each source lost its log, microseconds.
    """

    def __init__(self, plan: Plan, lost: Mapping[StreamId, int]) -> None:
        self._plan = plan
        self._lost = lost
        self._readers: set[str] = set()

    def __contains__(self, who: str) -> bool:
        """Has ``who``, a replica or a client, read a replacement, by the history seen so far (``see``)?"""
        return who in self._readers

    def see(self, event: Event) -> None:
        if not self._lost:
            return
        match event:
            case ProcessDown(_, host):  # its replicas restart without state; a client's output is on its disk
                self._readers = {r for r in self._readers if r.startswith("client:") or host_of(r) != host}
            case StateChanged(_, replica, runs=False):
                self._readers.discard(replica)
            case Received(at_us, consumer, channel, producer):
                if self._is_other(channel, producer, at_us):
                    self._readers.add(consumer)

    def _is_other(self, channel: Channel, producer: str, at_us: int) -> bool:
        if channel.stream in self._plan.sources:
            return at_us > self._lost.get(channel.stream, at_us)
        return f"{self._plan.maker_of(channel)}@{producer}" in self._readers


def check_lost_logs(
    history: History, plan: Plan, reference: Reference, lost: Mapping[StreamId, int], counters: Counters
) -> Iterator[Finding]:
    """Yields findings of P4.

    Args:
      reference: by the logs as they were when they were lost.
      lost: when each source lost its log, microseconds.
    """
    notes = {(e.host, e.name) for e in history if isinstance(e, Note)}
    for stream, lost_us in lost.items():
        channel, readers, asked = Channel(stream, 0), set[str](), set[str]()
        begun: set[tuple[str, int]] = set()
        for event in history:
            match event:
                case ProcessDown(_, host):
                    readers = {r for r in readers if host_of(r) != host}
                case StateChanged(_, replica, runs=False):  # it has dropped its state
                    readers.discard(replica)
                case Received(at_us, consumer, of, _, generation) if of == channel:
                    if at_us <= lost_us:
                        readers.add(consumer)
                    elif consumer in readers and (consumer, generation) in begun:
                        what = f"{channel}: an element of the log that took the lost one's place"
                        yield Finding("P4", "another log is not read", at_us, consumer, what)
                case Opened(at_us, consumer, of, _, generation) if of == channel and at_us > lost_us:
                    asked.add(consumer)
                    begun.add((consumer, generation))
        for consumer in sorted(readers & asked):
            counters.add("readers of a lost log")
            for host, name in ((host_of(consumer), "other_log"), (f"source:{stream}", "reader_of_other_log")):
                if (host, name) not in notes:
                    what = f"{channel}: {host} says nothing of the log that was lost at {lost_us / 1e6:.3f} s"
                    yield Finding("P4", "a replaced log is reported", history.end_us, consumer, what)
    yield from _wrong_rows(history, reference, OtherLogs(plan, lost), counters)


def _wrong_rows(history: History, reference: Reference, others: OtherLogs, counters: Counters) -> Iterator[Finding]:
    """Compares stable rows of clients with the result of the lost logs; readers of a replacement are excepted."""
    digests = {channel: row_digests(rows) for channel, (_, rows) in reference.items()}
    has, renewed = set[tuple[str, Channel]](), set[tuple[str, Channel]]()
    for event in history:
        others.see(event)
        if not isinstance(event, Delivered) or not isinstance(event.element, Batch):
            continue
        batch = event.element
        if batch.kind is not Kind.STABLE or not len(batch):
            continue
        key = (event.consumer, event.channel)
        if key not in has:
            has.add(key)
            if event.consumer in others:
                counters.add("outputs that begin with the log in place of a lost one")
                renewed.add(key)
        if key in renewed:
            continue
        ids, known = batch.row_ids(), digests[event.channel]
        inside = ids <= len(known)
        if not inside.all() or np.any(row_digests(batch.rows) != known[ids - 1]):
            what = f"{event.channel}: ids {ids[0]} to {ids[-1]} are not what the lost logs give"
            yield Finding("P4", "stable rows are those of the lost log", event.at_us, event.consumer, what)
