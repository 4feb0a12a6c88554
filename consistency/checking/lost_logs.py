"""S6: a source that lost its log is not read by those who have read it, and says so; nothing is lost silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.checking.rows import Reference, row_digests
from spe.stream.batch import Batch
from spe.stream.history import Delivered, History, Note, Opened, ProcessDown, Received, host_of
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId


def check_lost_logs(
    history: History, reference: Reference, lost: Mapping[StreamId, int], counters: Counters
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
                    yield Finding("P4", "another log is said", history.end_us, consumer, what)
    yield from _wrong_rows(history, reference)


def _wrong_rows(history: History, reference: Reference) -> Iterator[Finding]:
    """What clients hold as stable is the beginning of what the lost logs give."""
    digests = {channel: row_digests(rows) for channel, (_, rows) in reference.items()}
    for event in history:
        if not isinstance(event, Delivered) or not isinstance(event.element, Batch):
            continue
        batch = event.element
        if batch.kind is not Kind.STABLE or not len(batch):
            continue
        ids, known = batch.row_ids(), digests[event.channel]
        inside = ids <= len(known)
        if not inside.all() or np.any(row_digests(batch.rows) != known[ids - 1]):
            what = f"{event.channel}: ids {ids[0]} to {ids[-1]} are not what the lost logs give"
            yield Finding("P4", "stable rows are those of the lost log", event.at_us, event.consumer, what)
