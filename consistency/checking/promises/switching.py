"""P2 at the client: its stable tuples are a prefix of the reference, and it never holds the same result twice.

A client that restarts continues at the position that its first subscription announces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding, show_row
from consistency.checking.rows import Digests, Reference, among, joined, lineage_columns, only_adds, row_digests
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Int64Array, Undo
from spe.stream.history import Delivered, History, Opened, ProcessUp
from spe.stream.ids import Channel
from spe.stream.names import Kind


@dataclass(slots=True)
class _Received:
    """Deliveries of one channel to a client; a number is the position at which it restarted."""

    events: list[Delivered | int] = field(default_factory=list)
    begun: bool = True


def check_switching(history: History, plan: Plan, reference: Reference, counters: Counters) -> Iterator[Finding]:
    """Yields findings of P2."""
    for (client, channel), received in _by_client(history).items():
        delivered = sum(
            len(e.element) for e in received.events if isinstance(e, Delivered) and isinstance(e.element, Batch)
        )
        counters.add("tuples delivered", delivered)
        findings, tentative = _follow(client, received.events)
        yield from findings
        yield from _lives_twice(client, channel, plan, reference, tentative)
        yield from _prefix(client, channel, received.events, reference)


def _by_client(history: History) -> dict[tuple[str, Channel], _Received]:
    by_client: dict[tuple[str, Channel], _Received] = defaultdict(_Received)
    for event in history:
        if isinstance(event, Delivered):
            by_client[event.consumer, event.channel].events.append(event)
        elif isinstance(event, ProcessUp):
            for (client, _), received in by_client.items():
                if client == event.host:
                    received.begun = False
        elif isinstance(event, Opened) and event.consumer.startswith("client:"):
            received = by_client[event.consumer, event.channel]
            if not received.begun or not received.events:
                received.events.append(event.position)
                received.begun = True
    return dict(by_client)


@dataclass(frozen=True, slots=True)
class _Tentative:
    """A batch of tentative tuples.

    Attributes:
      position: the stable id that the client had reached.
      undone: how often it had revoked tentative tuples before.
    """

    event: Delivered
    batch: Batch
    position: int
    undone: int


class _Rule(NamedTuple):
    """Limit of equal results that live at a time.

    Attributes:
      columns: the columns in which they are equal; None: all.
      unknown: allowed number of results that the reference lacks.
      why: the reason in a finding.
    """

    columns: tuple[int, ...] | None
    unknown: float
    why: str


def _follow(client: str, events: list[Delivered | int]) -> tuple[list[Finding], list[_Tentative]]:
    """Checks the order of ids, and that an undo precedes corrections; returns the tentative tuples."""
    findings: list[Finding] = []
    tentative: list[_Tentative] = []
    position = undone = 0
    lives = False
    for event in events:
        if not isinstance(event, Delivered):
            position, lives, undone = event, False, undone + 1
            continue
        element = event.element
        if isinstance(element, Undo):
            lives, undone = False, undone + 1
        elif isinstance(element, Batch) and len(element):
            if element.kind is Kind.TENTATIVE:
                tentative.append(_Tentative(event, element, position, undone))
                lives = True
                continue
            ids = element.row_ids()
            if lives:
                what = f"{event.channel}: id {ids[0]}, {show_row(element.rows, 0)}, while tentative tuples live"
                findings.append(Finding("P2", "an undo comes before corrections", event.at_us, client, what))
                lives, undone = False, undone + 1
            if int(ids[0]) != position + 1 or int(ids[-1]) != position + len(ids) or bool((np.diff(ids) != 1).any()):
                what = f"{event.channel}: ids {ids[0]} … {ids[-1]} ({len(ids)}) after id {position}"
                findings.append(Finding("P2", "stable ids are consecutive", event.at_us, client, what))
            position = int(ids[-1])
    return findings, tentative


def _lives_twice(
    client: str, channel: Channel, plan: Plan, reference: Reference, tentative: list[_Tentative]
) -> Iterator[Finding]:
    """Checks that no result lives twice, among those that were not revoked.

    One finding per batch, for its first such tuple; later ones live as well, and count for what follows.
    If more input only adds results, a tentative result that is right (equal to one of the reference) may live as
    often as there; of an aggregate there may be one result per group and window, right or wrong.
    """
    if not tentative or channel not in reference:
        return
    rules: list[_Rule] = []
    if only_adds(plan, channel.stream):
        rules.append(_Rule(None, np.inf, "it lives already, as often as a run without failures gives it"))
    if (columns := lineage_columns(plan, channel)) is not None:
        rules.append(_Rule(columns, 1, "another result of its group and window lives"))
    ids, ours = joined([batch_.batch for batch_ in tentative])
    sizes = [len(batch_.batch) for batch_ in tentative]
    ends = np.cumsum(sizes)
    undone = np.repeat([batch_.undone for batch_ in tentative], sizes)
    expected_ids, expected = reference[channel]
    come = np.repeat(np.searchsorted(expected_ids, [batch_.position for batch_ in tentative], side="right"), sizes)
    first_of_batch: dict[int, tuple[int, str]] = {}
    for columns, unknown, why in rules:
        digests, theirs = row_digests(ours, columns), row_digests(expected, columns)
        order = np.argsort(digests, kind="stable")  # sorted keys are searched faster
        allowed = _allowed(digests[order], theirs, come[order], unknown)
        places = np.sort(order[_occurrence(digests[order], undone[order]) > allowed])
        batches, first = np.unique(np.searchsorted(ends, places, side="right"), return_index=True)
        for batch, place in zip(batches.tolist(), places[first].tolist()):
            first_of_batch.setdefault(batch, (place, why))
    for at, (place, why) in sorted(first_of_batch.items()):
        what = f"{channel}: id {ids[place]}, {show_row(ours, place)}: {why}"
        yield Finding("P2", "no result lives twice", tentative[at].event.at_us, client, what)


def _allowed(digests: Digests, theirs: Digests, come: Int64Array, unknown: float) -> npt.NDArray[np.float64]:
    """Returns how many equal tentative results may live: as many as the reference has, less the stable ones.

    Args:
      digests: in ascending order.
      theirs: of the reference, in its order.
      come: per tuple, number of stable tuples of the reference.
      unknown: for results that the reference lacks.
    """
    places = np.flatnonzero(among(theirs, digests))
    places = places[np.argsort(theirs[places], kind="stable")]  # by digest, each in the order of the reference
    theirs = theirs[places]
    first, last = (np.searchsorted(theirs, digests, side=side) for side in ("left", "right"))
    # A place in the group of a digest, as one number to search by: below 2**63 for some 10**9 tuples.
    groups = np.cumsum(np.diff(theirs, prepend=theirs[:1]) != 0)
    group = groups.take(first, mode="clip") if len(groups) else first
    beyond = int(come.max()) + int(places.max(initial=0)) + 1
    stable = np.searchsorted(groups * beyond + places, group * beyond + come) - first
    return np.where(last > first, last - first - stable, unknown)


def _occurrence(digests: Digests, undone: Int64Array) -> Int64Array:
    """Counts equal tuples since the last undo: 1 for the first of its digest, 2 for the next, and so on.

    Args:
      digests: in ascending order, equal ones as they came.
    """
    begins = np.flatnonzero(np.append(True, (np.diff(digests) != 0) | (np.diff(undone) != 0)))
    return np.arange(1, len(digests) + 1) - np.repeat(begins, np.diff(begins, append=len(digests)))


def _prefix(client: str, channel: Channel, events: list[Delivered | int], reference: Reference) -> Iterator[Finding]:
    """Checks that each stable tuple equals that of a run without failures at the same id."""
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
