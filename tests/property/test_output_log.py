"""Two diverging producers of one stream, consumers that switch, any interleaving: the invariants.

Both producers make the same stable stream, each at its own pace and with its own failures and its own tentative
versions.  Every consumer receives the stable stream, once and in order, and holds nothing tentative in
the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.producer.log_entry import Substream
from replicas.producer.output_log import OutputLog
from replicas.producer.subscription import OutputSubscription, Overtaken
from spe.plan.plan import Limits
from spe.stream.batch import Batch, Boundary, RecDone, Rows, Undo
from spe.stream.hashing import partition_of
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState, StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.messages.feeds import StateChange
from tests.support.distribution import Situations

SCHEMA = Schema.of(k="string!", n="int64!")
BUCKET = 10
STABLE, UP_FAILURE, STABILIZATION = NodeState.STABLE, NodeState.UP_FAILURE, NodeState.STABILIZATION
SHARES: tuple[Substream | None, ...] = (None, None, (0, 2, (0,)), (1, 3, (0,)))
NAMES = tuple(f"v/{i}@a" for i in range(len(SHARES)))


def stable_stream(times: list[int], keys: list[int]) -> Rows:
    """The stream of a run without failures; ``n`` is the id."""
    return Rows.from_tuples(SCHEMA, times, [("abcdef"[k], i + 1) for i, k in enumerate(keys)])


class Replica:
    """A producer as its unit drives it: only legal sequences of events."""

    def __init__(self, name: int, truth: Rows) -> None:
        self.name = name
        self.truth = truth
        self.log = OutputLog(Channel(StreamId("s"), 0), SCHEMA, NAMES, Limits())
        self.log.set_state(STABLE)
        self.live_end = 0
        self.corrected = False

    @property
    def stable_end(self) -> int:
        return max(0, self.log.frontiers()[0])

    def release(self, buckets: int) -> None:
        """Stable results, while nothing is tentative or by a redo."""
        if self.log.state is UP_FAILURE:
            return
        end = min(END_OF_TIME, self.stable_end + BUCKET * buckets)
        last = int(self.truth.time.searchsorted(end))
        rows = self.truth.slice(self.log.last_id, last)
        batch = [Batch(Kind.STABLE, self.log.last_id, last, None, rows)] if len(rows) else []
        self.log.append_stable([*batch, Boundary(Kind.STABLE, end, last)])
        self.corrected = True

    def go_on(self, buckets: int, some: int) -> None:
        """Tentative results of some of the input."""
        if self.log.state is UP_FAILURE or (self.log.state is STABILIZATION and self.log.fresh):
            start, self.live_end = self.live_end, self.live_end + BUCKET * buckets
            low, high = self.truth.time.searchsorted([start, self.live_end])
            rows = self.truth.slice(int(low), int(high))
            rows = rows.select((rows.columns[1].values * (2 * self.name + 3) + self.name) % 8 != some)
            last = self.log.suffix.last_id
            batch = [Batch(Kind.TENTATIVE, last, last + len(rows), None, rows)] if len(rows) else []
            self.log.append_tentative([*batch, Boundary(Kind.TENTATIVE, self.live_end, last + len(rows))])

    def fail(self, some: int) -> None:
        if self.log.state is STABLE:
            self._fail(some)

    def _fail(self, some: int) -> None:
        self.log.set_state(UP_FAILURE)
        self.live_end = self.stable_end
        self.go_on(1 + some % 2, some)

    def stabilise(self, fresh: bool) -> None:
        if self.log.state is UP_FAILURE:
            self.corrected = False
        if self.log.state in (UP_FAILURE, STABILIZATION):
            self.log.set_state(STABILIZATION, fresh or self.log.fresh)

    def finish(self, fails_again: bool) -> None:
        if self.log.state is STABILIZATION and self.corrected:
            self.log.clear_suffix()
            if fails_again:
                self._fail(1)
            else:
                self.log.set_state(STABLE)

    def restart(self, partner: Replica) -> None:
        """A new process, with the partner's log (A3)."""
        state = partner.log.export()
        self.log = OutputLog(Channel(StreamId("s"), 0), SCHEMA, NAMES, Limits())
        self.log.install(state)
        self.log.set_state(STABLE)

    def heal(self) -> None:
        self.stabilise(False)
        self.release(END_OF_TIME)
        self.finish(False)


@dataclass
class Feed:
    """One subscription, checked element by element: invariants 1, 5 and 7."""

    replica: Replica
    subscription: OutputSubscription
    position: int
    frontier: int = BEFORE_TIME
    tentative: bool = False
    undone: bool = False

    def check(self, element: object) -> None:
        if isinstance(element, Undo):
            assert element.upto_id == self.position
            self.tentative, self.undone = False, True
        elif isinstance(element, RecDone):
            self.undone = False
        elif isinstance(element, Batch | Boundary) and element.kind is Kind.TENTATIVE:
            assert not self.undone, "tentative after an undo, without a rec_done"
            self.tentative = True
        elif isinstance(element, Batch):
            assert not self.tentative, "stable after tentative, without an undo"
            assert element.from_id == self.position
            assert element.upto_id > element.from_id
            assert int(element.rows.time[0]) >= self.frontier
            self.position = element.upto_id
        elif isinstance(element, Boundary):
            assert not self.tentative, "stable boundary after tentative, without an undo"
            assert element.upto_id >= self.position
            assert element.time > self.frontier
            self.position, self.frontier = element.upto_id, element.time


UNDONE, BESIDE = "tentative tuples are undone", "corrections beside fresh results"
SWITCHED, OVERTAKEN = "a switch by who holds tentative tuples", "what comes next is gone"
MET = (UNDONE, BESIDE, SWITCHED, OVERTAKEN)


@dataclass
class Consumer:
    """A consumer that is a unit (with a correcting feed) or F7 (a client, MAIN only)."""

    name: str
    share: Substream | None
    client: bool
    position: int = 0
    frontier: int = BEFORE_TIME
    held: bool = False
    t_cut: int = BEFORE_TIME
    t_seen: int = BEFORE_TIME
    ids: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)
    main: Feed | None = None
    corr: Feed | None = None
    #: Events of this consumer that MET counts.
    met: set[str] = field(default_factory=set)

    def t_star(self) -> int:
        last = self.times[-1] if self.times else BEFORE_TIME
        return max(self.t_seen, self.t_cut, last, self.frontier - 1)

    def low(self) -> int:
        """φ: where tentative data may begin."""
        return max(self.frontier, self.times[-1] + 1 if self.times else BEFORE_TIME)

    def open(self, replica: Replica, mode: str) -> Feed:
        got = replica.log.subscribe(mode, self.position, self.frontier, self.held, self.t_star(), self.share)  # type: ignore[arg-type]
        assert isinstance(got, OutputSubscription)
        # The consumer holds tentative tuples after its position on this feed too, so an undo must come first.
        return Feed(replica, got, self.position, tentative=self.held and self.client)

    def switch(self, replica: Replica) -> None:
        self.met |= {SWITCHED} if self.held else set()
        self.t_cut = self.t_star()
        self.main = self.open(replica, "main")

    def correct(self, replica: Replica) -> None:
        if not self.client and self.main is not None and self.corr is None:
            self.corr = self.open(replica, "corrections")

    def pull(self, feed: Feed | None, max_bytes: int) -> bool:
        """Takes what one pull brings; False when nothing came."""
        if feed is None:
            return False
        try:
            elements = feed.subscription.pull(max_bytes)
        except Overtaken:
            self.met.add(OVERTAKEN)
            assert feed.replica.log.first > feed.position + 1
            assert self.position >= feed.replica.log.first - 1
            if feed is self.main:
                self.switch(feed.replica)
            else:
                self.corr = None
            return True
        for element in elements:
            if not isinstance(element, StateChange):
                feed.check(element)
                self._take(feed, element)
        return bool(elements)

    def _take(self, feed: Feed, element: object) -> None:
        if isinstance(element, Undo):
            if feed is self.main:
                self.met |= {UNDONE} if self.held else set()
                self.held, self.t_cut, self.t_seen = False, BEFORE_TIME, BEFORE_TIME
                self.live.clear()
        elif isinstance(element, RecDone):
            if feed is self.corr:
                self._corrected(element.state)
        elif isinstance(element, Batch | Boundary) and element.kind is Kind.TENTATIVE:
            self._take_tentative(element)
        elif isinstance(element, Batch):
            assert not (self.client and self.live), "stable at a client while tentative tuples live"
            for id_, row, time in zip(
                element.row_ids().tolist(), element.rows.columns[1].values.tolist(), element.rows.time.tolist()
            ):
                assert id_ == row
                if id_ > self.position:
                    self.ids.append(id_)
                    self.times.append(time)
            self._advance(element.upto_id)
        elif isinstance(element, Boundary):
            self.frontier = max(self.frontier, element.time)
            self._advance(element.upto_id)

    def _advance(self, upto_id: int) -> None:
        self.position = max(self.position, upto_id)
        self.live = {n: t for n, t in self.live.items() if t >= self.low()}

    def _take_tentative(self, element: Batch | Boundary) -> None:
        self.held = True
        self.met |= {BESIDE} if self.corr is not None else set()
        if isinstance(element, Boundary):
            self.t_seen = max(self.t_seen, element.time - 1)
            return
        for n, time in zip(element.rows.columns[1].values.tolist(), element.rows.time.tolist()):
            if time >= self.low() and (self.client or time > self.t_cut):
                assert n not in self.live, "two live versions of one result"
                self.live[n] = time
                self.t_seen = max(self.t_seen, time)
            else:
                assert not self.client, "a client never gets what it must not keep"

    def _corrected(self, state: NodeState) -> None:
        """A rec_done on CORRECTIONS: it becomes MAIN if the producer is STABLE, and is closed in any case (F5)."""
        self.t_cut = self.t_star()
        if state is STABLE:
            assert self.corr is not None
            self.main = self.corr
            self.main.subscription.set_mode("main")
        self.corr = None


def run(truth: Rows, kinds: list[int], steps: list[tuple[str, int, int]]) -> tuple[list[Replica], list[Consumer]]:
    """Two producers, and consumers of the given kinds; each step names an event and its target."""
    replicas = [Replica(0, truth), Replica(1, truth)]
    consumers = [Consumer(NAMES[k], SHARES[k], client=k % 2 == 0) for k in kinds]
    for what, a, b in steps:
        replica, consumer = replicas[a % 2], consumers[a // 2 % len(consumers)]
        if what == "release":
            replica.release(1 + b % 2)
        elif what == "fail":
            replica.fail(b)
        elif what == "go_on":
            replica.go_on(1 + b % 2, b)
        elif what == "stabilise":
            replica.stabilise(b % 2 == 1)
        elif what == "finish":
            replica.finish(b % 3 == 0)
        elif what == "switch":
            consumer.switch(replica)
        elif what == "correct":
            consumer.correct(replica)
        elif what == "pull":
            for reader in consumers if b % 2 else [consumer]:
                reader.pull(reader.main, (50, 1_000)[b // 2 % 2])
                reader.pull(reader.corr, (50, 1_000)[b // 4 % 2])
        elif what == "ack":
            for one in replicas:
                for name in NAMES:
                    one.log.acknowledge(name, 1, min(reader.position for reader in consumers))
        elif what == "restart":
            replica.restart(replicas[1 - a % 2])
            for reader in consumers:
                reader.main = None if reader.main and reader.main.replica is replica else reader.main
                reader.corr = None if reader.corr and reader.corr.replica is replica else reader.corr
    return replicas, consumers


WHAT = ["pull"] * 8 + ["release"] * 4 + ["go_on", "switch", "stabilise", "fail"] * 2 + ["finish", "correct", "ack"] * 2
STEPS = st.lists(
    st.tuples(st.sampled_from([*WHAT, "restart"]), st.integers(0, 7), st.integers(0, 11)), min_size=30, max_size=90
)
TUPLES = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 5)), min_size=10, max_size=60)
KINDS = st.tuples(st.permutations(range(len(SHARES))), st.sampled_from([1, 2])).map(lambda drawn: drawn[0][: drawn[1]])


MEETS = Situations(
    {
        "tentative tuples are undone": 0.08,
        "corrections beside fresh results": 0.03,
        "a switch by who holds tentative tuples": 0.1,
        "a restart from a partner's log": 0.2,
        "what comes next is gone": 0.0,  # too rare to be demanded of so few; tests of the log alone show it
        "a substream": 0.25,
    }
)


@MEETS.required
@settings(max_examples=400, deadline=None)
@given(TUPLES, KINDS, STEPS, st.integers(0, 1))
def test_every_consumer_ends_with_exactly_the_stable_stream(
    tuples: list[tuple[int, int]], kinds: list[int], steps: list[tuple[str, int, int]], last: int
) -> None:
    """Invariants hold at every element; after healing, each consumer has everything and nothing tentative."""
    tuples.sort()
    truth = stable_stream([t for t, _ in tuples], [k for _, k in tuples])
    replicas, consumers = run(truth, kinds, steps)
    met = set().union(*(consumer.met for consumer in consumers))
    MEETS.example(
        {name: name in met for name in MET}
        | {
            "a restart from a partner's log": any(what == "restart" for what, _, _ in steps),
            "a substream": any(consumer.share is not None for consumer in consumers),
        }
    )
    for replica in replicas:
        replica.heal()
    for consumer in consumers:
        if consumer.main is None:
            consumer.switch(replicas[last])
        while consumer.pull(consumer.corr, 1_000) or consumer.pull(consumer.main, 1_000):
            pass
        expected = np.arange(1, len(truth) + 1)
        if consumer.share is not None:
            index, count, _ = consumer.share
            expected = expected[partition_of([truth.columns[0]], count) == index]
        assert consumer.ids == expected.tolist()
        assert (consumer.position, consumer.frontier) == (len(truth), END_OF_TIME)
        assert consumer.live == {}
    for replica in replicas:
        for name in NAMES:
            replica.log.acknowledge(name, 1, len(truth))
        assert replica.log.first == len(truth) + 1
        assert replica.log.stable.nbytes == replica.log.suffix.nbytes == 0
