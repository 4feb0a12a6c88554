"""P2 at every consumer: each subscription continues exactly at the consumer's position, and keeps its order.

A consumer's *view* of a channel is the total of all its subscriptions; it restarts with the consumer, at the position
that the consumer then announces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding, show_row
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Boundary, RecDone, Undo
from spe.stream.history import (
    Closed,
    Event,
    FeedMode,
    History,
    Opened,
    ProcessDown,
    ProcessUp,
    Promoted,
    Received,
    StateChanged,
    host_of,
)
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState
from spe.stream.times import BEFORE_TIME


@dataclass(slots=True)
class _Feed:
    """One subscription as its consumer sees it."""

    producer: str
    mode: FeedMode
    position: int
    frontier: int
    t_star: int
    opened_us: int
    #: Whether tentative elements of this subscription have not been revoked.
    tentative: bool = False
    #: An undo came, and no rec_done after it.
    correcting: bool = False
    #: How many rec_dones may say STABLE: the number of times that the producer had become STABLE before, less one if it
    #: was STABLE when a consumer with tentative tuples opened this; and how many did.
    stable_before: int = 0
    stable_dones: int = 0
    #: No element has come since the undo, which must be followed by corrections.
    bare: bool = False
    #: Until the first undo, no tentative tuple may repeat one from before it was opened.
    first_run: bool = True


@dataclass(slots=True)
class _View:
    #: None: the consumer has just begun, and its first subscription will announce it.
    position: int | None = None
    generation: int = 0
    feeds: dict[int, _Feed] = field(default_factory=dict)


def check_feeds(history: History, plan: Plan, counters: Counters) -> Iterator[Finding]:
    """Yields findings of P2."""
    return _FeedCheck(plan, counters).run(history)


class _FeedCheck:
    def __init__(self, plan: Plan, counters: Counters) -> None:
        self._plan = plan
        self._counters = counters
        #: State of each replica, and since when.
        self._states: dict[str, tuple[NodeState, int]] = {}
        #: How often each replica has become STABLE.
        self._times_stable: Counter[str] = Counter()
        self._views: dict[tuple[str, Channel], _View] = {}
        self._down: set[str] = set()

    def run(self, history: History) -> Iterator[Finding]:
        for event in history:
            if isinstance(event, Received | Opened | Promoted | Closed) and host_of(event.consumer) in self._down:
                continue  # sent just before the process was killed
            match event:
                case Received():
                    yield from self._received(event)
                case Opened():
                    yield from self._opened(event)
                case Promoted():
                    yield from self._promoted(event)
                case Closed(_, consumer, channel, generation):
                    self._view(consumer, channel).feeds.pop(generation, None)
                case _:
                    self._begin(event)

    def _begin(self, event: Event) -> None:
        """Clears the view of a consumer that restarts."""
        match event:
            case StateChanged(at_us, replica, state):
                if state is NodeState.STABLE:
                    self._times_stable[replica] += 1
                self._states[replica] = (state, at_us)
                if state is NodeState.RECOVERING:
                    for key in [k for k in self._views if k[0] == replica]:
                        del self._views[key]
            case ProcessUp(_, host):
                self._down.discard(host)
                self._forget(host)
            case ProcessDown(_, host):
                self._down.add(host)
                self._forget(host)

    def _forget(self, host: str) -> None:
        for key in [k for k in self._views if host_of(k[0]) == host]:
            del self._views[key]

    def _view(self, consumer: str, channel: Channel) -> _View:
        return self._views.setdefault((consumer, channel), _View())

    # --- subscriptions ---

    def _opened(self, event: Opened) -> Iterator[Finding]:
        view = self._view(event.consumer, event.channel)
        self._counters.add("subscriptions")
        if view.generation:
            self._counters.add("switches")
        if view.position is None:
            view.position = event.position
        if event.position != view.position:
            what = f"asks {event.producer} for what follows id {event.position}, but holds id {view.position}"
            yield _finding(event, "a subscription goes on where the consumer stands", what)
        if event.generation <= view.generation:
            what = f"generation {event.generation} after {view.generation}"
            yield _finding(event, "generations grow", what)
        view.generation = max(view.generation, event.generation)
        producer = self._replica(event)
        corrected_at_once = event.held and self._states.get(producer, (None, 0))[0] is NodeState.STABLE
        feed = _Feed(
            event.producer,
            event.mode,
            event.position,
            event.frontier,
            event.t_star,
            event.at_us,
            stable_before=self._times_stable[producer] - corrected_at_once,
        )
        view.feeds[event.generation] = feed
        yield from self._one_of_each(view, event)

    def _promoted(self, event: Promoted) -> Iterator[Finding]:
        view = self._view(event.consumer, event.channel)
        feed = view.feeds.get(event.generation)
        if feed is not None:
            self._counters.add("promotions")
            feed.mode = event.mode
            yield from self._one_of_each(view, event)

    def _one_of_each(self, view: _View, event: Opened | Promoted) -> Iterator[Finding]:
        same = [f.producer for f in view.feeds.values() if f.mode == event.mode]
        if len(same) > 1:
            what = f"subscriptions to {', '.join(same)} are open together as {event.mode}"
            yield _finding(event, "one subscription of each mode", what)

    # --- elements ---

    def _received(self, event: Received) -> Iterator[Finding]:
        if not event.mode:
            self._counters.add("elements of closed subscriptions")
            return
        view = self._view(event.consumer, event.channel)
        feed = view.feeds.get(event.generation)
        if feed is None:
            what = f"takes what {event.producer} sends on subscription {event.generation}, which is not open"
            yield _finding(event, "elements of closed subscriptions are dropped", what)
            return
        producer = self._replica(event)
        state, since_us = self._states.get(producer, (None, 0))
        if state is NodeState.RECOVERING and since_us <= feed.opened_us:
            what = f"{event.producer} answers, though it is RECOVERING since {since_us / 1e6:.3f} s"
            yield _finding(event, "a recovering replica serves nobody", what)
        element = event.element
        if isinstance(element, Batch):
            if element.kind is Kind.STABLE:
                yield from self._stable_batch(event, element, view, feed)
            else:
                yield from self._tentative_batch(event, element, feed)
        elif isinstance(element, Boundary):
            if element.kind is Kind.STABLE:
                yield from self._stable_boundary(event, element, view, feed)
            else:
                yield from self._tentative(event, feed)
        elif isinstance(element, Undo):
            self._counters.add("undos")
            feed.tentative = feed.first_run = False
            feed.correcting = True
            feed.bare = True
            return
        elif isinstance(element, RecDone):
            yield from self._rec_done(event, element, feed)
        feed.bare = False

    def _rec_done(self, event: Received, element: RecDone, feed: _Feed) -> Iterator[Finding]:
        self._counters.add("rec_dones")
        producer = self._replica(event)
        # By count, not by time: elements that waited in a socket are read long after they were sent.
        feed.stable_dones += element.state is NodeState.STABLE
        known = producer in self._states
        if known and feed.stable_before + feed.stable_dones > self._times_stable[producer]:
            what = f"a rec_done of {event.producer} says STABLE; since the undo it has not been"
            yield _finding(event, "a rec_done comes when the correction is complete", what)
        if feed.bare:
            what = f"a rec_done of {event.producer} follows its undo at once, without a correction"
            yield _finding(event, "a rec_done comes when the correction is complete", what)
        feed.correcting = False

    def _replica(self, event: Received | Opened) -> str:
        unit = self._plan.producer.get(event.channel.stream)
        return "" if unit is None else f"{unit.id}/{event.channel.partition}@{event.producer}"

    def _stable_batch(self, event: Received, batch: Batch, view: _View, feed: _Feed) -> Iterator[Finding]:
        self._counters.add("stable tuples received", len(batch))
        yield from self._not_after_tentative(event, feed)
        if batch.from_id != feed.position:
            what = f"a batch of ids ({batch.from_id}, {batch.upto_id}] when the subscription stands at {feed.position}"
            yield _finding(event, "stable ids follow each other", what)
        if len(batch):
            ids = batch.row_ids()
            inside = batch.from_id < int(ids[0]) and int(ids[-1]) <= batch.upto_id
            if not inside or (batch.ids is not None and bool((ids[1:] <= ids[:-1]).any())):
                what = f"ids {ids[0]} … {ids[-1]} in a batch that covers ({batch.from_id}, {batch.upto_id}]"
                yield _finding(event, "a batch holds the ids that it covers", what)
            low = batch.rows.span()[1]
            if low < feed.frontier:
                at = int((batch.rows.time < feed.frontier).argmax())
                what = f"id {ids[at]}, {show_row(batch.rows, at)}, after the boundary {feed.frontier}"
                yield _finding(event, "no tuple behind its boundary", what)
        feed.position = batch.upto_id
        view.position = max(view.position or 0, batch.upto_id)

    def _stable_boundary(self, event: Received, boundary: Boundary, view: _View, feed: _Feed) -> Iterator[Finding]:
        yield from self._not_after_tentative(event, feed)
        if boundary.time < feed.frontier or boundary.upto_id < feed.position:
            what = (
                f"boundary {boundary.time} ({boundary.upto_id}) after boundary {feed.frontier} and id {feed.position}"
            )
            yield _finding(event, "boundaries do not go back", what)
        feed.frontier = max(feed.frontier, boundary.time)
        feed.position = max(feed.position, boundary.upto_id)
        view.position = max(view.position or 0, boundary.upto_id)

    def _not_after_tentative(self, event: Received, feed: _Feed) -> Iterator[Finding]:
        if feed.tentative:
            yield _finding(event, "an undo stands between tentative and stable", _first_of(event))
            feed.tentative = False  # reported once per run

    def _tentative_batch(self, event: Received, batch: Batch, feed: _Feed) -> Iterator[Finding]:
        self._counters.add("tentative tuples received", len(batch))
        yield from self._tentative(event, feed)
        rows = batch.rows
        if feed.first_run and feed.t_star > BEFORE_TIME and len(rows) and int(rows.t_max.min()) <= feed.t_star:
            at = int(rows.t_max.argmin())
            what = f"a tentative tuple that was seen up to T* {feed.t_star} comes again: {show_row(rows, at)}"
            yield _finding(event, "tentative tuples go on by t_max after a switch", what)

    def _tentative(self, event: Received, feed: _Feed) -> Iterator[Finding]:
        if feed.mode == "corrections":
            yield _finding(event, "corrections are stable", _first_of(event))
        if feed.correcting:
            yield _finding(event, "a rec_done stands between corrections and tentative", _first_of(event))
            feed.correcting = False
        feed.tentative = True


def _first_of(event: Received) -> str:
    element = event.element
    if isinstance(element, Batch) and len(element):
        return f"id {element.row_ids()[0]}, {show_row(element.rows, 0)}, from {event.producer}"
    return f"a boundary from {event.producer}"


def _finding(event: Received | Opened | Promoted, rule: str, what: str) -> Finding:
    return Finding("P2", rule, event.at_us, event.consumer, f"{event.channel}: {what}")
