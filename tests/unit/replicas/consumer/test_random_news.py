"""Random news of producers beside a model of the rules: which of them an input reads, and why (F1, F3 to F5, T2).

The model keeps what each producer said, and when; it says who may be read and how good each is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.consumer.feed import CORRECTIONS, MAIN, RETRY_US, Action, Close, Feed, Open, SwitchMode
from replicas.consumer.input import RETRY_LONGEST_US
from spe.stream.batch import Boundary, RecDone, Undo
from spe.stream.names import Kind, NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from tests.unit.replicas.consumer.test_input import (
    FAILING,
    RECOVERING,
    STABILIZING,
    STABLE,
    STALL,
    USELESS,
    Case,
    X,
)

Event = tuple[Any, ...]
NAMES: Final = ("r1", "r2", "r3")


@dataclass
class Said:
    """A producer as the model knows it."""

    name: str
    alive: bool = False
    incarnation: int = 1
    state: NodeState = RECOVERING
    fresh: bool = False
    stands_in: bool = True
    stable: int = 0
    tentative: int = 0
    first: int = 1
    fill: float = 0.0
    stable_at: int = 0
    tentative_at: int = 0
    stable_reach: int = BEFORE_TIME
    tentative_reach: int = BEFORE_TIME
    retry_at: int = 0
    retry_us: int = RETRY_US
    known: int = -1  # incarnation heard last

    @property
    def ids(self) -> int:
        return self.stable // 10 if self.stable < END_OF_TIME else 1_000


class Watched:
    """An input, its producers, and the model."""

    def __init__(self, *, client: bool) -> None:
        self.case = Case(corrections=not client)
        self.client = client
        self.input, self.port = self.case.input, self.case.port
        self.input.set_producers(NAMES)
        self.producers = {name: Said(name) for name in NAMES}
        self.now = 0
        self.open: dict[int, tuple[str, str]] = {}  # generation -> producer, mode
        self.ahead: dict[int, int] = {}
        self.behind: int | None = None
        self.in_vain = 0
        self.tentative: set[int] = set()  # feeds that brought tentative data since the last undo

    # --- what the rules say ---

    def is_main(self, producer: Said) -> bool:
        return self.input.main is not None and self.input.main.producer == producer.name

    def usable(self, producer: Said) -> bool:
        serves = producer.alive and producer.state is not RECOVERING and producer.first <= self.port.position + 1
        return serves and (producer.retry_at <= self.now or self.is_main(producer))

    def useful(self, producer: Said) -> bool:
        """F4: its promised frontier advances, its stream has ended, it is full, or we do not read it."""
        main = self.input.main
        live = producer.state is FAILING or producer.fresh
        if producer.stable >= END_OF_TIME or (live and producer.tentative >= END_OF_TIME):
            return True
        if main is not None and main.paused and self.is_main(producer):
            return True
        if producer.fill >= 1.0:
            return producer.ids > self.port.position or self.is_main(producer)
        if producer.state is FAILING:
            advanced = max(producer.stable_at, producer.tentative_at)
        else:
            advanced = producer.tentative_at if producer.fresh else producer.stable_at
        return self.now - advanced <= USELESS

    def level(self, producer: Said, *, stalled: bool = False) -> int:
        """F4: the order of states; ``stalled``: it is the MAIN that was read, and nothing stable came."""
        if producer.state is STABLE:
            return -1 if stalled else 5
        if self.client and self.waits_for_us(producer):
            return 4
        if producer.state is FAILING:
            return 3 if producer.stands_in else 1
        return 2 if producer.fresh else 0

    def waits_for_us(self, producer: Said) -> bool:
        main = self.input.main
        if main is not None and main.relieves and self.producers[main.producer].state is STABILIZING:
            return self.is_main(producer)
        return producer.state is STABILIZING and producer.fill >= 1.0 and producer.ids > self.port.position

    def has_more(self, feed: Feed) -> bool:
        """F4: do heartbeats say that its producer has more than the feed has brought?"""
        producer, port = self.producers[feed.producer], self.port
        live = producer.state is FAILING or (producer.state is STABILIZING and producer.fresh)
        if feed is self.input.main and live:
            arrived = max(port.frontier, port.t_star() + 1 if port.held else BEFORE_TIME)
            if producer.tentative > arrived:
                return True
            if producer.state is STABILIZING:
                return False
        return producer.stable > port.frontier and producer.ids >= port.position

    def another_is_ahead(self) -> bool:
        main = self.input.main
        assert main is not None
        full = self.producers[main.producer].fill >= 1.0
        return any(
            other.name != main.producer
            and self.usable(other)
            and other.state is STABLE
            and other.stable > self.port.frontier
            and not (full and other.fill >= 1.0)
            for other in self.producers.values()
        )

    # --- choices ---

    def choose(self) -> None:
        """The input decides; the model judges it."""
        input = self.input
        hopeless = {feed.generation for feed in (input.main, input.corr) if feed is not None and self.is_hopeless(feed)}
        before, corrector = input.main, input.corr
        if before is not None and before.generation in hopeless:
            before = None
        stalled = before is not None and self.is_stalled(before)
        actions = self.case.choose(self.now)
        closed = {action.generation for action in actions if isinstance(action, Close)}
        assert hopeless <= closed, "F3, F4: lost and half-open feeds close"
        for action in actions:
            self.follow(action)
        expected = {f.generation: (f.producer, f.mode) for f in (input.main, input.corr) if f is not None}
        assert self.open == expected, "F1, invariant 6: each feed is opened and closed once"
        input.validate()
        awaited = corrector is not None and input.corr is corrector and self.awaits_end(corrector)
        if not (awaited and input.main is not None):
            self.judge_main(before, corrector, stalled=stalled)
            if not any(isinstance(action, SwitchMode) for action in actions):  # else with the next news
                self.judge_corrections()
        self.judge_questions()

    def is_hopeless(self, feed: Feed) -> bool:
        if not self.producers[feed.producer].alive:
            return True
        if not feed.opened or feed.paused or not self.has_more(feed):
            self.ahead.pop(feed.generation, None)
            return False
        return self.now - self.ahead.setdefault(feed.generation, self.now) > STALL

    def awaits_end(self, feed: Feed) -> bool:
        return self.producers[feed.producer].state is STABLE and feed.opened and feed.owes

    def follow(self, action: Action) -> None:
        match action:
            case Open(generation, producer, mode, position, frontier, held, t_star):
                port = self.port
                assert (position, frontier, held, t_star) == (port.position, port.frontier, port.held, port.t_star())
                assert generation not in self.open, "F1: each has a generation"
                self.open[generation] = producer, mode
                assert self.producers[producer].retry_at <= self.now, "a refused connection waits"
                if mode == MAIN:
                    self.in_vain += 1
                    self.behind = None
            case Close(generation):
                assert self.open.pop(generation, None), "F1: what is open is closed"
            case SwitchMode(generation, mode):
                assert self.open[generation][1] == CORRECTIONS, "F5"
                self.open[generation] = (self.open[generation][0], mode)
                self.behind = None

    def judge_main(self, before: Feed | None, corrector: Feed | None, *, stalled: bool) -> None:
        main = self.input.main
        usable = [p for p in self.producers.values() if self.usable(p)]
        if main is None:
            assert not usable, "F4: who can be read is read"
            return
        mine = self.producers[main.producer]
        if not self.usable(mine):
            assert not usable, "F4: MAIN is neither recovering nor behind a gap, if there is another"
            return
        old = None if before is None else self.producers[before.producer]
        ranks = {p.name: (self.useful(p), self.level(p, stalled=stalled and p is old)) for p in usable}
        if main is before:
            assert ranks[mine.name] == max(ranks.values()) or self.is_full_redo(mine), "F4: the best one is read"
        elif main is not corrector and old is None:
            assert ranks[mine.name] == max(ranks.values()), "F4: the best one is read"
        elif main is not corrector and old is not None:
            better = ranks[mine.name] > (self.useful(old), self.level(old, stalled=stalled))
            assert better or not self.usable(old) or old.state is STABILIZING, "F4: MAIN is kept"

    def is_full_redo(self, producer: Said) -> bool:
        return self.client and producer.state is STABILIZING

    def is_stalled(self, main: Feed) -> bool:
        """F4: nothing stable comes while another STABLE producer is ahead; patience doubles when all were in vain."""
        if main.paused:
            return False
        if not self.another_is_ahead():
            self.behind = None
            return False
        if self.behind is None:
            self.behind = self.now
        doubled = min(max(0, self.in_vain - len(NAMES)), 2)
        return self.now - self.behind > STALL << doubled

    def judge_corrections(self) -> None:
        """F4: CORRECTIONS is opened to a replica that corrects, while MAIN fails or corrects beside live results."""
        main, corr = self.input.main, self.input.corr
        if main is None or self.client:
            assert corr is None, "F7"
            return
        mine = self.producers[main.producer]
        if mine.state is FAILING:
            correcting = [p for p in self.producers.values() if self.usable(p) and p.state is STABILIZING]
            correcting = [p for p in correcting if p.retry_at <= self.now]
            assert corr is not None or not correcting, "F4: who corrects is read too"
            if corr is not None:
                state = self.producers[corr.producer].state
                assert state is STABILIZING or corr.owes or not corr.opened, "F5: it will still send a correction"
        elif mine.state is STABILIZING and mine.fresh:
            assert corr is None or corr.producer == main.producer, "F4: its own corrections"
            assert corr is not None or mine.retry_at > self.now, "F4: its own corrections"
        else:
            assert corr is None, "F5: nothing to be corrected elsewhere"

    def judge_questions(self) -> None:
        main, now, feeds = self.input.main, self.now, (self.input.main, self.input.corr)
        if self.port.frontier >= END_OF_TIME:
            assert self.input.fresh(now)
            assert self.input.arriving(now)
            assert self.input.caught_up()
            return
        arriving = any(f and f.opened and (f.paused or now - f.last_arrival <= STALL) for f in feeds)
        assert self.input.arriving(now) == arriving, "R1"
        if main is None or not main.opened:
            assert not self.input.fresh(now), "T2: MAIN is connected"
            assert not self.input.caught_up(), "A3"
            return
        mine = self.producers[main.producer]
        promising = mine.state in (STABLE, FAILING) or (mine.state is STABILIZING and mine.fresh)
        recent = mine.fill >= 1.0 or now - main.last_arrival <= X
        assert self.input.fresh(now) == (promising and recent), "T2"
        assert self.input.live(now) == (mine.state is STABLE and arriving), "S5"
        assert self.input.caught_up() == (self.port.frontier >= mine.stable), "A3"

    # --- events ---

    def answers(self, name: str, news: Sequence[Any]) -> None:
        """A heartbeat answer with a newer state."""
        heard = self.producers[name]
        state, fresh, stands_in, more_stable, more_tentative, fill = news
        heard.state, heard.fresh = state, fresh and state is STABILIZING
        heard.stands_in, heard.fill = stands_in, fill
        heard.stable = min(heard.stable + more_stable, END_OF_TIME)
        heard.tentative = max(heard.tentative, heard.stable) + more_tentative if state in (FAILING, STABILIZING) else 0
        self.hear(heard)

    def hear(self, heard: Said) -> None:
        self.beats(heard)
        heard.alive = True
        self.case.hear(
            heard.name,
            heard.state,
            self.now,
            frontier=heard.stable,
            tentative_frontier=heard.tentative,
            incarnation=heard.incarnation,
            last_id=heard.ids,
            fresh=heard.fresh,
            stands_in=heard.stands_in,
            first=heard.first,
            fill=heard.fill,
        )

    def beats(self, heard: Said) -> None:
        if heard.known != heard.incarnation:
            heard.known = heard.incarnation
            heard.stable_at = heard.tentative_at = self.now
            heard.stable_reach = heard.tentative_reach = BEFORE_TIME
            heard.retry_at, heard.retry_us = 0, RETRY_US
            self.in_vain = 0
        self.reached(heard, heard.stable, heard.tentative)

    def reached(self, heard: Said, stable: int, tentative: int) -> None:
        if stable > heard.stable_reach:
            heard.stable_reach, heard.stable_at = stable, self.now
        if tentative > heard.tentative_reach:
            heard.tentative_reach, heard.tentative_at = tentative, self.now

    def passes(self, duration: int) -> None:
        """Time passes, and each producer that answers repeats its state."""
        self.now += duration
        self.input.selector.note_news(self.now)
        for heard in self.producers.values():
            if heard.alive:
                self.hear(heard)

    def feed(self, mode: str) -> Feed | None:
        return self.input.main if mode == MAIN else self.input.corr

    def connects(self, mode: str, succeeds: bool) -> None:
        feed = self.feed(mode)
        if feed is None:
            return
        heard = self.producers[feed.producer]
        if succeeds:
            self.input.opened(feed.generation, self.now)
            heard.retry_us = RETRY_US
            return
        self.input.closed(feed.generation, self.now)
        assert self.feed(mode) is not feed, "F1"
        del self.open[feed.generation]
        heard.retry_at = self.now + heard.retry_us
        heard.retry_us = min(2 * heard.retry_us, RETRY_LONGEST_US)

    def brings(self, mode: str, kind: Kind, amount: int) -> None:
        """A feed brings a boundary, as far as its producer is."""
        feed = self.feed(mode)
        if feed is None or not feed.opened or feed.paused:
            return
        heard = self.producers[feed.producer]
        if kind is Kind.TENTATIVE:
            upto = min(heard.tentative, max(self.port.frontier, feed.frontier, 0) + amount)
            if upto > max(feed.frontier, 0) and heard.state in (FAILING, STABILIZING):
                self.take(feed, Boundary(Kind.TENTATIVE, upto, feed.position))
                self.tentative.add(feed.generation)
            return
        upto = min(heard.stable, max(feed.frontier, 0) + amount)
        if upto // 10 < feed.position or upto < feed.frontier:
            return
        if feed.generation in self.tentative:
            self.tentative.discard(feed.generation)
            self.take(feed, Undo(feed.position))
        before = self.port.frontier
        self.take(feed, Boundary(Kind.STABLE, upto, max(feed.position, upto // 10 if upto < END_OF_TIME else 1_000)))
        assert self.port.frontier == max(before, upto), "B1: stable boundaries of both feeds count"

    def take(self, feed: Feed, element: Any) -> None:
        self.ahead.pop(feed.generation, None)
        self.in_vain = 0
        heard = self.producers[feed.producer]
        if isinstance(element, Boundary):
            stable = element.kind is Kind.STABLE
            self.reached(heard, element.time if stable else BEFORE_TIME, BEFORE_TIME if stable else element.time)
            if stable and feed is self.input.main:
                self.behind = None
        for action in self.input.element(feed.generation, element, self.now):
            self.follow(action)

    def corrected(self, state: NodeState) -> None:
        """R on CORRECTIONS (F5)."""
        corr, main = self.input.corr, self.input.main
        if corr is None or not corr.opened:
            return
        self.take(corr, RecDone(state))
        if state is STABLE:
            assert self.input.main is corr, "F5: it becomes MAIN"
            assert main is None or main.generation not in self.open, "F5"
        else:
            assert self.input.corr is None, "F5: it closes"
            assert self.input.main is main, "F5"


def apply(world: Watched, event: Event) -> None:
    match event:
        case ("answers", name, news):
            world.answers(name, news)
        case ("ends", name):
            heard = world.producers[name]
            heard.stable = heard.tentative = END_OF_TIME
            world.hear(heard)
        case ("lost", name):
            world.producers[name].alive = False
            world.input.selector.lost(name)
        case ("restarts", name):
            heard = world.producers[name]
            heard.incarnation += 1
            world.hear(heard)
        case ("truncates", name):
            heard = world.producers[name]
            heard.first = max(heard.first, min(heard.ids, world.port.position + 2))
            world.hear(heard)
        case ("passes", duration):
            world.passes(duration)
        case ("connects", mode, succeeds):
            world.connects(mode, succeeds)
        case ("brings", mode, kind, amount):
            world.brings(mode, kind, amount)
        case ("corrected", state):
            world.corrected(state)
        case ("pauses", mode, paused):
            if (feed := world.feed(mode)) is not None:
                world.input.paused(feed.generation, paused)
                world.ahead.pop(feed.generation, None)
                if mode == MAIN:
                    world.behind = None
    world.choose()


names = st.sampled_from(NAMES)
modes = st.sampled_from([MAIN, MAIN, CORRECTIONS])
STATES: Final = st.sampled_from([STABLE, *[FAILING] * 3, *[STABILIZING] * 4, RECOVERING])
NEWS: Final = st.tuples(
    STATES,
    st.booleans(),
    st.sampled_from([True, True, False]),
    st.sampled_from([0, 10, 30]),
    st.sampled_from([0, 10, 30]),
    st.sampled_from([0.0, 0.0, 0.0, 1.0]),
)
ANSWERS: Final = st.tuples(st.just("answers"), names, NEWS)
CONNECTS: Final = st.tuples(st.just("connects"), modes, st.sampled_from([True, True, True, True, False]))
EVENTS: Final = st.one_of(
    ANSWERS,
    ANSWERS,
    ANSWERS,
    CONNECTS,
    CONNECTS,
    st.tuples(st.just("brings"), modes, st.sampled_from(Kind), st.sampled_from([0, 10, 100])),
    st.tuples(st.just("brings"), modes, st.sampled_from(Kind), st.sampled_from([0, 10, 100])),
    st.tuples(st.just("passes"), st.sampled_from([10, 100, 150])),
    st.tuples(st.just("passes"), st.sampled_from([100, 150, 199])),
    st.tuples(st.just("ends"), names),
    st.tuples(st.just("lost"), names),
    st.tuples(st.just("restarts"), names),
    st.tuples(st.just("truncates"), names),
    st.tuples(st.just("corrected"), st.sampled_from([STABLE, FAILING])),
    st.tuples(st.just("pauses"), modes, st.booleans()),
)


@pytest.mark.parametrize("client", [False, True])
@settings(max_examples=80)
@given(events=st.lists(EVENTS, min_size=20, max_size=60))
def test_random_news_lead_to_the_producer_of_the_rules(client: bool, events: Sequence[Event]) -> None:
    world = Watched(client=client)
    begin = [("answers", name, (FAILING, False, True, 10, 10, 0.0)) for name in NAMES]
    for event in [*begin, ("connects", MAIN, True), *events]:
        apply(world, event)
