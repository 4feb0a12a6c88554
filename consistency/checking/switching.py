"""P2 at the client: its stable tuples are a prefix of the reference, and it never holds the same result twice.

A client that begins anew goes on at the position that its first subscription announces.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding, show_row
from consistency.checking.rows import Reference, joined, lineage_columns, only_adds, row_digests
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Int64Array, Rows, Undo
from spe.stream.history import Delivered, History, Opened, ProcessUp
from spe.stream.ids import Channel
from spe.stream.names import Kind


@dataclass(slots=True)
class _Received:
    """What a client was given of one channel; a mark is the position at which it began anew."""

    events: list[Delivered | int] = field(default_factory=list)
    begun: bool = True


def check_switching(history: History, plan: Plan, reference: Reference, counters: Counters) -> Iterator[Finding]:
    """See the module.  Yields findings of P2."""
    for (client, channel), received in _by_client(history).items():
        batches = [
            e.element
            for e in received.events
            if isinstance(e, Delivered) and isinstance(e.element, Batch) and len(e.element)
        ]
        counters.add("tuples delivered", sum(map(len, batches)))
        yield from _follow(client, received.events, _Lives(plan, channel, reference, batches))
        yield from _prefix(client, channel, received.events, reference)


def _by_client(history: History) -> dict[tuple[str, Channel], _Received]:
    found: dict[tuple[str, Channel], _Received] = defaultdict(_Received)
    for event in history:
        if isinstance(event, Delivered):
            found[event.consumer, event.channel].events.append(event)
        elif isinstance(event, ProcessUp):
            for (client, _), received in found.items():
                if client == event.host:
                    received.begun = False
        elif isinstance(event, Opened) and event.consumer.startswith("client:"):
            received = found[event.consumer, event.channel]
            if not received.begun or not received.events:
                received.events.append(event.position)
                received.begun = True
    return dict(found)


def _follow(client: str, events: list[Delivered | int], lives: _Lives) -> Iterator[Finding]:
    """Checks the order of ids, that an undo precedes corrections, and that nothing comes twice."""
    position = 0
    for event in events:
        if not isinstance(event, Delivered):
            position = event
            lives.undo()
            continue
        element = event.element
        if isinstance(element, Undo):
            lives.undo()
        elif isinstance(element, Batch) and len(element):
            ids = element.row_ids()
            if element.kind is Kind.TENTATIVE:
                for at, why in lives.tentative(len(element), position):
                    what = f"{event.channel}: id {ids[at]}, {show_row(element.rows, at)}: {why}"
                    yield Finding("P2", "no result lives twice", event.at_us, client, what)
                continue
            if lives.any:
                what = f"{event.channel}: id {ids[0]}, {show_row(element.rows, 0)}, while tentative tuples live"
                yield Finding("P2", "an undo comes before corrections", event.at_us, client, what)
                lives.undo()
            if int(ids[0]) != position + 1 or int(ids[-1]) != position + len(ids) or bool((np.diff(ids) != 1).any()):
                what = f"{event.channel}: ids {ids[0]} … {ids[-1]} ({len(ids)}) after id {position}"
                yield Finding("P2", "stable ids are consecutive", event.at_us, client, what)
            position = int(ids[-1])


class _Lives:
    """The results that one client holds of one channel: those that were not taken back.

    Where more input only adds results, a tentative result that is right (equal to one of the reference) may live as
    often as there; of an aggregate there may be one result per group and window, right or wrong.
    """

    def __init__(self, plan: Plan, channel: Channel, reference: Reference, batches: list[Batch]) -> None:
        self.any = False
        tentative = [b for b in batches if b.kind is Kind.TENTATIVE]
        self._next = 0
        self._digests: list[list[int]] = []
        self._expected: list[dict[int, list[int]]] = []
        self._live: list[Counter[int]] = []
        self._unknown: list[int | None] = []  # how often what the reference has not may live; None: no claim
        self._why: list[str] = []
        if not tentative or channel not in reference:
            return
        ids, rows = reference[channel]
        _, ours = joined(tentative)
        if only_adds(plan, channel.stream):
            self._rules(ids, rows, ours, None, "it lives already, as often as a run without failures gives it")
        columns = lineage_columns(plan, channel)
        if columns is not None:
            self._rules(ids, rows, ours, columns, "another result of its group and window lives")

    def _rules(self, ids: Int64Array, rows: Rows, ours: Rows, columns: tuple[int, ...] | None, why: str) -> None:
        digests, theirs = row_digests(ours, columns), row_digests(rows, columns)
        met = np.isin(theirs, digests)
        expected: dict[int, list[int]] = defaultdict(list)
        for digest, id in zip(theirs[met].tolist(), ids[met].tolist(), strict=True):
            expected[digest].append(id)
        self._expected.append(expected)
        self._digests.append(digests.tolist())
        self._live.append(Counter())
        self._unknown.append(None if columns is None else 1)
        self._why.append(why)

    def undo(self) -> None:
        self.any = False
        for live in self._live:
            live.clear()

    def tentative(self, count: int, position: int) -> Iterator[tuple[int, str]]:
        """The next ``count`` tentative tuples come; yields (place, why) of those that live already."""
        self.any = True
        first, self._next = self._next, self._next + count
        rules = zip(self._expected, self._digests, self._live, self._unknown, self._why, strict=True)
        for expected, digests, live, unknown, why in rules:
            for at, digest in enumerate(digests[first : self._next]):
                live[digest] += 1
                right = expected.get(digest)
                allowed = unknown if right is None else len(right)
                stable = 0 if right is None else bisect_right(right, position)
                if allowed is not None and stable + live[digest] > allowed:
                    yield at, why
                    return


def _prefix(client: str, channel: Channel, events: list[Delivered | int], reference: Reference) -> Iterator[Finding]:
    """Each stable tuple is the one that a run without failures gives at the same id."""
    stable = [
        e
        for e in events
        if isinstance(e, Delivered)
        and isinstance(e.element, Batch)
        and e.element.kind is Kind.STABLE
        and len(e.element)
    ]
    if not stable or channel not in reference:
        return
    ids, rows = joined([e.element for e in stable if isinstance(e.element, Batch)])
    expected_ids, expected = reference[channel]
    at = np.searchsorted(expected_ids, ids)
    known = (at < len(expected_ids)) & (expected_ids.take(at, mode="clip") == ids) if len(expected_ids) else ids < 0
    wrong = ~known
    wrong[known] = row_digests(rows)[known] != row_digests(expected)[at[known]]
    if wrong.any():
        first = int(wrong.argmax())
        ends = np.cumsum([len(e.element) for e in stable if isinstance(e.element, Batch)])
        event = stable[int(np.searchsorted(ends, first, side="right"))]
        there = show_row(expected, int(at[first])) if known[first] else "nothing of this id"
        what = f"{channel}: id {ids[first]} is {show_row(rows, first)}, in a run without failures {there}"
        yield Finding("P2", "stable tuples are a prefix of the reference", event.at_us, client, what)
