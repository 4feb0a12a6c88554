"""P4: a stable tuple is never revoked and never changes.

No undo reaches below the last stable id of its subscription (or of the client), and an id of a channel has one content
only, over all connections, replicas and restarts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding, show_row
from consistency.checking.logs.lost_logs import OtherLogs
from consistency.checking.rows import joined, row_digests
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Undo
from spe.stream.history import Buffers, Delivered, Event, History, Opened, ProcessUp, Received
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId

#: Key of a sequence of elements: of a subscription, or of a client's output.
_Sequence = tuple[str, Channel, int]


def check_permanence(
    history: History, plan: Plan, counters: Counters, lost: Mapping[StreamId, int] | None = None
) -> Iterator[Finding]:
    """Yields findings of P4.

    Args:
      lost: when sources lost their logs, microseconds: the tuples of the next log are others.
    """
    yield from _undos(history, counters)
    yield from _contents(history, counters, OtherLogs(plan, lost or {}))
    yield from _digests(history, counters, OtherLogs(plan, lost or {}))


def _undos(history: History, counters: Counters) -> Iterator[Finding]:
    last: dict[_Sequence, int] = {}
    for event in history:
        match event:
            case Opened(_, consumer, channel, _, generation, _, position):
                last[consumer, channel, generation] = position
            case ProcessUp(_, host):
                for key in [k for k in last if k[0] == host]:
                    del last[key]  # a client that restarts without state may receive everything once more
            case Received(_, consumer, channel, _, generation):
                yield from _undo(event, (consumer, channel, generation), last, counters)
            case Delivered(_, consumer, channel):
                yield from _undo(event, (consumer, channel, 0), last, counters)


def _undo(
    event: Received | Delivered, key: _Sequence, last: dict[_Sequence, int], counters: Counters
) -> Iterator[Finding]:
    element = event.element
    if isinstance(element, Batch):
        if element.kind is Kind.STABLE and len(element):
            last[key] = int(element.row_ids()[-1])
    elif isinstance(element, Undo):
        counters.add("undos checked")
        if element.upto_id < last.get(key, 0):
            what = f"{event.channel}: an undo to id {element.upto_id}, but id {last[key]} was stable"
            yield Finding("P4", "an undo takes nothing stable", event.at_us, event.consumer, what)


def _contents(history: History, counters: Counters, others: OtherLogs) -> Iterator[Finding]:
    """Checks that stable tuples of one id of a channel are equal, whichever process received them."""
    arrivals: dict[Channel, list[Received | Delivered]] = defaultdict(list)
    for event in history:
        others.see(event)
        if isinstance(event, Received | Delivered) and event.consumer not in others:
            element = event.element
            if isinstance(element, Batch) and element.kind is Kind.STABLE and len(element):
                arrivals[event.channel].append(event)
    for channel, events in sorted(arrivals.items()):
        batches = [e.element for e in events if isinstance(e.element, Batch)]
        ids, rows = joined(batches)
        digests = row_digests(rows)
        counters.add("stable tuples compared", len(ids))
        order = np.argsort(ids, kind="stable")
        same_id = ids[order][1:] == ids[order][:-1]
        differ = np.flatnonzero(same_id & (digests[order][1:] != digests[order][:-1]))
        if len(differ):
            first_at, second_at = int(order[differ[0]]), int(order[differ[0] + 1])
            ends = np.cumsum([len(b) for b in batches])
            first, second = (events[int(np.searchsorted(ends, at, side="right"))] for at in (first_at, second_at))
            what = (
                f"{channel}: id {ids[first_at]} is {show_row(rows, second_at)} here, but was "
                f"{show_row(rows, first_at)} at {first.consumer} ({first.at_us / 1e6:.3f} s)"
            )
            yield Finding("P4", "a stable id has one content", second.at_us, second.consumer, what)


def _digests(history: History, counters: Counters, others: OtherLogs) -> Iterator[Finding]:
    """Checks that replicas that made as many tuples of a channel made the same ones."""
    known: dict[tuple[Channel, int], tuple[int, Event, str]] = {}
    for event in history:
        others.see(event)
        if isinstance(event, Buffers) and event.replica not in others:
            for channel, count, digest in event.digests:
                before = known.setdefault((channel, count), (digest, event, event.replica))
                counters.add("digests compared", before[2] != event.replica)
                if before[0] != digest:
                    what = f"{channel}: its first {count} tuples are not those of {before[2]}"
                    yield Finding("P4", "replicas make the same tuples", event.at_us, event.replica, what)
