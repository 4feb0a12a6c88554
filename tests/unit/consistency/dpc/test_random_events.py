"""Random events beside a model of the rules: what a replica releases, announces and asks for (B1, T3, R1 to R8, K).

The model knows the complete input, and when each part of it came.  It follows the actions of the replica, and judges
each by the rules; it does not compute them.  X = 40, αX = 30, hard 35, buckets of 10; a request is repeated after 50.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from consistency.dpc.events import PartnerGrants
from spe.plan.nodes import Checkpoints, Policy, Reconcile
from spe.stream.names import NodeState
from spe.stream.times import BEFORE_TIME
from tests.unit.consistency.dpc.test_manager import COUNTING, UNIT, World

D, ALPHA_X, HARD, X, REQUEST = 10, 30, 35, 40, 50
#: Tuple time is this far behind the clock.
DELAY: Final = 90
#: Microseconds of tuple time between two rows of each input.
APART: Final = (3, 7)
SERVING: Final = (NodeState.STABLE, NodeState.UP_FAILURE)
SERVING_NAMES: Final = tuple(state.name for state in SERVING)

Event = tuple[Any, ...]


def rows_between(at: int, after: int, upto: int) -> list[tuple[int, str]]:
    """All rows of an input with after <= time < upto."""
    first = -(-max(after, 0) // APART[at]) * APART[at]
    return [(time, "ab"[at]) for time in range(first, upto, APART[at])]


def complete_output(counts: bool, upto: int) -> list[str]:
    """The stable output with times below ``upto``, in order, as a run without failures gives it."""
    rows = sorted((time, at, x) for at in (0, 1) for time, x in rows_between(at, 0, upto))
    if not counts:
        return [f"{time}{x}" for time, _, x in rows]
    ends = range(100, upto + 1, 100)
    return [f"{end - 1}{sum(end - 100 <= time < end for time, *_ in rows)}" for end in ends]


class Judged(World):
    """A replica with its inputs, partners and consumers; follows what it does, and judges it."""

    def __init__(self, *, counts: bool, **options: Any) -> None:
        super().__init__(unit=COUNTING if counts else UNIT, **options)
        self.replica.partners._request_us = REQUEST
        self.counts = counts
        self.now = 100
        self.reached: list[tuple[int, int]] = []  # (largest time or boundary so far, when)
        self.brought = [0, 0]
        self.arrived: set[tuple[int, str]] = set()
        self.state = "RECOVERING"
        self.live_results = False
        self.sent = 0  # stable rows
        self.boundary = BEFORE_TIME  # stable
        self.tainted_at: int | None = None  # n*
        self.suffix: list[str] = []
        self.expected: set[tuple[int, str]] = set()  # rows that came before their bucket was released
        self.useless_since: int | None = None
        self.asked_at: int | None = None
        self.open: dict[int, str] = {}
        self.stand_in: str | None = None
        self.granted: str | None = None
        self.forced_at: int | None = None
        self.held = False
        self.acknowledged_before = [0, 0]
        self.may_start = False
        self.shown_until = BEFORE_TIME  # of any kind
        self.serves_since = self.now
        self.logs_seen = 0
        self.unsure = False  # it may have looked for a partner already

    # --- what the rules speak of ---

    @property
    def node(self) -> Any:
        return self.replica._run.node

    @property
    def stable_end(self) -> int:
        return min(self.brought) // D * D

    def age(self, bucket: int) -> int | None:
        """How long ago data first reached a bucket (B3); None: they have not."""
        start = next((when for value, when in self.reached if value >= bucket), None)
        return None if start is None else self.now - start

    def is_due(self, bucket: int, wait: int) -> bool:
        """T3: has the bucket waited for so long, and is it complete, or has it waited for *hard*?"""
        age = self.age(bucket)
        if age is None:
            return False
        return age >= HARD or (age >= wait and self.is_complete(bucket))

    def is_complete(self, bucket: int) -> bool:
        """T2: has every fresh input a boundary at its end?"""
        ends = [self.brought[at] for at in (0, 1) if self.live[at]]
        return bool(ends) and min(ends) >= bucket + D

    def request_due(self) -> bool:
        """R1, or the part of R2 that corrects something."""
        if self.tainted_at is None or self.stable_end <= self.tainted_at:
            return False
        age = self.age(self.stable_end)
        return self.upstream_is_full or (all(self.live) and (age is None or age < ALPHA_X))

    def only_makes_room(self) -> bool:
        """R2: a full upstream may wait for a redo without input; when that is due is not modelled."""
        return self.upstream_is_full and self.tainted_at is not None and self.stable_end <= self.tainted_at

    def useful(self) -> list[str]:
        partners = self.replica.partners
        return [name for name, state in self.partner.items() if state in SERVING and name in partners._stand_ins]

    # --- what the replica does ---

    def announce(self, state: NodeState, fresh: bool) -> None:
        self.out.append(f"={state.name}{'+fresh' if fresh else ''}")
        self.states.append(self.out[-1][1:])

    def step(self) -> bool:
        """One step, judged."""
        before = self.state
        if before == "RECOVERING" or self.stand_in is not None:
            self.serves_since = self.now
        if self.stand_in not in self.useful():
            self.stand_in = None  # R5: live resumes
        if before == "UP_FAILURE":
            self._look_for_partners()
        more, ask = self.advance(self.now)
        self.judge()
        self._judge_log()
        if ask is not None:
            assert before == self.state == "UP_FAILURE", "K1: only who failed asks"
            assert self.request_due() or self.only_makes_room(), "R1: nobody asks without a reason"
            assert ask.partner in self.useful(), "K1, R4: a partner that serves is asked"
            assert self.asked_at is None or self.now - self.asked_at >= REQUEST or not self.open, "K1: each interval"
            self.asked_at = self.now
            self.open[ask.number] = ask.partner
            self.asks.append(ask)
        self.replica.validate()
        self.replica.validate_rows()
        return more

    def _look_for_partners(self) -> None:
        """R4: a redo may begin without leave if no partner exists, or none was useful for an interval."""
        if not self.request_due():
            self.open.clear()  # R3
            self.useless_since = None
            if not self.only_makes_room():
                self.asked_at = None
            self.unsure = self.only_makes_room()
            return
        if self.useful() or NodeState.STABILIZATION in self.partner.values():
            self.useless_since = None
        elif self.useless_since is None:
            self.useless_since = self.now
        self.may_start = not self.partner or (
            self.useless_since is not None and self.now - self.useless_since >= REQUEST
        )

    def judge(self) -> None:
        """Follows the actions since the last call."""
        items, self.out = self.out, []
        before = self.state
        for number, item in enumerate(items):
            kind, rest = item[0], item[1:]
            if kind == "=":
                self._judge_state(*rest.partition("+")[::2], cleared=number > 0 and items[number - 1] == "clear")
            elif item == "clear":
                assert self.state == "STABILIZATION", "R7: a correction ends"
                self.suffix.clear()
                self.tainted_at = None
                self.expected = {row for row in self.arrived if row[0] >= self.boundary}
            elif kind == "S":
                self._judge_stable(rest)
            elif kind == "B":
                self._judge_boundary(int(rest.partition("(")[0]))
            else:
                self._judge_tentative(kind, rest)
        if before == "STABILIZATION" and self.state == "UP_FAILURE":
            assert "=STABLE" not in items, "R7: a failure is announced in the same step"

    def _judge_state(self, state: str, fresh: str, *, cleared: bool) -> None:
        before, self.state, live = self.state, state, self.live_results
        self.live_results = bool(fresh)
        assert not fresh or state == "STABILIZATION", "R5: live runs beside a redo"
        if state == "UP_FAILURE":
            assert before != "STABILIZATION" or cleared, "R7: the suffix goes first"
            assert self.stable_end <= self.boundary or before == "STABILIZATION", "B1: what is stable goes first"
            assert self.is_due(max(self.boundary, 0), ALPHA_X) or self.held, "T3: a bucket waits for αX"
            if before == "STABILIZATION":
                apart = self.forced_at is None or self.now - self.forced_at >= X
                assert apart or self.blocked or not (live or self.stand_in), "R2: at most one per X, while others serve"
                self.forced_at = self.now
            if self.node.during_failure is not Policy.SUSPEND:
                self.tainted_at = self.boundary
        elif state == "STABILIZATION" and before != state:
            assert before == "UP_FAILURE", "R4"
            assert self.tainted_at is not None, "R1: only what is tainted is corrected"
            assert self.request_due() or self.only_makes_room(), "R1: a redo has a reason"
            may_start = self.granted is not None or self.may_start or self.unsure
            assert may_start, "R4: a grant, or no useful partner for an interval"
            self.stand_in, self.granted = self.granted, None
            suspends = self.node.during_stabilization is Policy.SUSPEND
            assert self.live_results == (self.stand_in is None and not suspends), "R5: live pauses if a partner serves"
            self.open.clear()
            self.useless_since = self.asked_at = None
        elif state == "STABLE":
            assert before != "STABILIZATION" or cleared, "R7: the suffix goes first"
            assert not self.suffix, "invariant 3: STABLE has no tentative suffix"
            assert self.tainted_at is None, "U8: all is corrected"
        if state != "STABILIZATION":
            all_released = self.boundary >= self.stable_end or not self.partner
            assert before != "STABILIZATION" or all_released or self.blocked, "R7: redo releases all that is stable"
            self.stand_in = None

    def _judge_stable(self, text: str) -> None:
        id, _, row = text.partition("/")
        assert int(id) == self.sent + 1, "invariant 4: stable ids are consecutive"
        assert row == complete_output(self.counts, self.stable_end)[self.sent], "P2: it is the stable stream"
        assert self.tainted_at is None or self.state == "STABILIZATION", "U8: a tainted replica makes nothing stable"
        self.sent += 1

    def _judge_boundary(self, time: int) -> None:
        assert time >= self.boundary, "invariant 5"
        assert self.sent == len(complete_output(self.counts, time)), "B1: a boundary follows all before it"
        self.boundary = time
        self.shown_until = max(self.shown_until, time)

    def _judge_tentative(self, kind: str, text: str) -> None:
        assert self.state == "UP_FAILURE" or self.live_results, "V3, V4: live results of who has them"
        assert self.node.during_failure is not Policy.SUSPEND or self.state == "STABILIZATION", "T3: suspend"
        if self.tainted_at is None:  # X3: another policy, and what waited is due
            assert self.state == "UP_FAILURE", "C1: the checkpoint comes first"
            self.tainted_at = self.boundary
        if kind == "b":
            self.shown_until = max(self.shown_until, int(text))
        elif not self.counts:
            assert text[1:] not in self.suffix, "V3: live shows a row once"
            self.suffix.append(text[1:])

    # --- events ---

    def passes(self, duration: int) -> None:
        self.now += duration
        for at in (0, 1):
            if self.live[at]:
                self.bring(at, self.now - DELAY)
        self.settle()

    def bring(self, at: int, upto: int) -> None:
        """An input brings its rows and boundary up to a tuple time."""
        upto = min(upto, self.now - DELAY)
        if upto <= self.brought[at]:
            return
        rows = rows_between(at, self.brought[at], upto)
        self.S(at, self.now, *rows)
        self.B(at, self.now, upto)
        self.brought[at] = upto
        if not self.reached or upto > self.reached[-1][0]:
            self.reached.append((upto, self.now))
        self.arrived |= set(rows)
        self.expected |= {row for row in rows if row[0] >= self.sunion.next}

    def settle(self) -> None:
        """All steps that can be done now, and what holds then."""
        for _ in range(1000):
            if not self.step():
                break
        else:
            raise AssertionError("B8: work ends")
        self.may_start = False
        self._judge_end()

    def _judge_end(self) -> None:
        full, node = self.blocked, self.node
        self._judge_shown()
        if self.state == "STABLE":
            assert full or self.boundary >= self.stable_end, "B1: everything below Fd goes out"
            assert full or self.held or not self.is_due(max(self.boundary, 0), ALPHA_X), "T3: αX is over"
        elif self.state == "UP_FAILURE" and self.tainted_at is None:
            assert full or self.boundary >= self.stable_end, "T3: who suspends makes what is stable"
            assert full or node.during_failure is Policy.SUSPEND, "X3: results continue under another policy"
        elif self.state == "UP_FAILURE":
            self._judge_failure()
        elif self.state == "STABILIZATION":
            serves = self.stand_in is not None and self.stand_in in self.useful()
            assert self.live_results or full or serves, "R5, R2: no redo without results, and nothing to do"
            assert not (self.live_results and full and self.boundary < self.stable_end), "A2: live pauses to make room"
        acknowledged = self.sunion.acknowledged()
        assert all(a >= b for a, b in zip(acknowledged, self.acknowledged_before, strict=True)), "invariant 5"
        self.acknowledged_before = acknowledged
        stable = self.boundary if self.tainted_at is None or self.state == "STABILIZATION" else self.tainted_at
        for at, id in enumerate(acknowledged):
            assert id <= len(rows_between(at, 0, max(stable, 0))), "A1: before n* while tainted"

    def _judge_shown(self) -> None:
        """Live releases all that came in time; waits are measured; the log gets stable states only."""
        if not self.counts:
            shown = {*self.suffix, *complete_output(False, self.stable_end)[: self.sent]}
            lost = {row for row in self.expected if row[0] < self.sunion.next and f"{row[0]}{row[1]}" not in shown}
            assert not lost, "T3: a tentative release has all that came"
        if self.state in SERVING_NAMES and not self.held:
            start = next((when for value, when in self.reached if value >= self.shown_until), self.now)
            waits = self.replica.waits.waiting_us(self.now)
            assert waits == self.now - max(start, self.serves_since), "T8: the wait of the next bucket"

    def _judge_log(self) -> None:
        for end in self.logged[self.logs_seen :]:
            assert end == self.boundary, "G6: the log gets the last stable state"
            assert self.tainted_at is None or self.state == "STABILIZATION", "G6: nothing tentative"
        self.logs_seen = len(self.logged)

    def _judge_failure(self) -> None:
        next, policy = self.sunion.next, self.node.during_failure
        due = self.request_due()
        if policy is not Policy.SUSPEND and not self.held:
            wait = ALPHA_X if policy is Policy.DELAY else HARD if due else 0
            assert not self.is_due(next, wait), "T3, T9: what is due goes out"
        if not due:
            return
        if self.useful():
            assert self.asked_at is not None, "K1: a partner that serves is asked"
            assert self.now - self.asked_at < REQUEST, "K1: and asked again each interval"
        else:
            assert not self.may_start, "R4: it starts alone"

    def grants(self, back: int) -> None:
        """A partner grants one of the latest requests."""
        if len(self.asks) <= back:
            return
        number = self.asks[-1 - back].number
        counts = self.state == "UP_FAILURE" and number in self.open
        counts = counts and self.request_due()
        self.granted = self.asks[-1 - back].partner if counts or self.only_makes_room() else None
        self.handle(PartnerGrants(number), self.now)
        self.judge()
        if counts:
            assert self.state == "STABILIZATION", "R4: a grant for an open request counts"
        self.granted = None
        self.settle()

    def is_asked(self, asker: str) -> None:
        """A partner asks: K2 and K6 say whether it is granted."""
        fresh = all(self.live) if self.state == "STABLE" else any(self.live)
        stands_in = self.state in ("STABLE", "UP_FAILURE") and fresh
        if self.state == "UP_FAILURE":
            stands_in = stands_in and self.node.during_failure is not Policy.SUSPEND
        wants = self.replica.partners.pending
        granted = self.partner_asks(asker, self.now)
        assert granted == (stands_in and not (wants and asker < "n1")), "K2, K6"
        if granted:
            self.open.clear()  # K1: who grants ignores grants to its earlier requests

    def hears(self, state: NodeState | None, stands_in: bool) -> None:
        for name in self.partner:
            if state is None:
                self.replica.partners.lost(name)
            else:
                self.replica.partners.heard(name, state, stands_in=stands_in)

    def ends(self) -> None:
        """The failure heals, and no partner answers: all is corrected in the end."""
        self.live, self.blocked, self.upstream_is_full = [True, True], False, False
        self.hears(None, False)
        for _ in range(12):
            self.passes(15)
        assert self.state == "STABLE", "P3: what is tentative is corrected"
        assert self.sent == len(complete_output(self.counts, self.stable_end)), "P3"
        assert not self.logged or self.logged[-1] == self.boundary, "G6: the log gets what it asks for"

    def restores(self) -> None:
        """A3: another replica continues from a snapshot of this one, and makes the rest of the same output."""
        if self.is_working or self.state == "RECOVERING":
            return
        while self.replica.prepare_snapshot():
            if self.is_working:
                return
        taken = self.replica.snapshot()
        assert taken is not None
        checkpoint, positions = taken
        other = type(self)(counts=self.counts, partners=())
        other.install(checkpoint, positions)
        upto = self.now - DELAY
        for at in (0, 1):
            other.S(at, self.now, *rows_between(at, 0, upto)[positions[at] :])
            other.B(at, self.now, upto)
        made = [item.partition("/")[2] for item in other.run(self.now).split() if item[0] == "S"]
        expected = complete_output(self.counts, upto // D * D)
        last = checkpoint.outputs[0]["last_id"]
        assert len(made) in (len(expected) - self.sent, len(expected) - last), "A3: it makes what is missing"
        assert made == expected[len(expected) - len(made) :], "A3, P2"


def apply(world: Judged, event: Event) -> None:
    match event:
        case ("passes", duration):
            world.passes(duration)
        case ("cut", at):
            world.live[at] = False
        case ("heals", at):
            world.live[at] = True
        case ("brings", at, amount):
            world.bring(at, world.brought[at] + amount)
            world.settle()
        case ("steps", duration, count):
            world.now += duration
            for at in (0, 1):
                if world.live[at]:
                    world.bring(at, world.now - DELAY)
            for _ in range(count):
                world.step()
        case ("hears", state, stands_in):
            world.hears(state, stands_in)
        case ("grants", back):
            world.grants(back)
        case ("asked", asker):
            world.is_asked(asker)
        case ("full", full):
            world.blocked = full
            world.held |= full
        case ("upstream", full):
            world.upstream_is_full = full
        case ("policies", failure, stabilization):
            world.change(world.now, during_failure=failure, during_stabilization=stabilization)
        case ("restores",):
            world.restores()


sides = st.sampled_from([0, 1])
policies = st.sampled_from(Policy)
PASSING: Final = st.tuples(st.just("passes"), st.sampled_from([1, 5, 10, 15]))
ANY: Final = st.one_of(
    PASSING,
    PASSING,
    st.tuples(st.just("steps"), st.sampled_from([0, 5, 12]), st.integers(1, 3)),
    st.tuples(st.just("brings"), sides, st.sampled_from([5, 10, 30])),
    st.tuples(st.just("brings"), sides, st.sampled_from([5, 10, 30])),
    st.tuples(st.just("hears"), st.sampled_from([*SERVING, NodeState.STABILIZATION, None]), st.booleans()),
    st.tuples(st.just("grants"), st.sampled_from([0, 0, 1])),
    st.tuples(st.just("asked"), st.sampled_from(["n0", "n2"])),
    st.tuples(st.just("upstream"), st.booleans()),
    st.tuples(st.just("full"), st.booleans()),
    st.tuples(st.just("policies"), policies, policies),
    st.tuples(st.just("restores")),
    st.tuples(st.just("cut"), sides),
    st.tuples(st.just("heals"), sides),
)


@st.composite
def failures(draw: st.DrawFn) -> list[Event]:
    """One or both inputs are cut off until results are tentative; they heal, and a partner may grant a correction."""
    events: list[Event] = [("cut", at) for at in draw(st.sampled_from([(0,), (1,), (1,), (0, 1)]))]
    events += [("passes", draw(st.sampled_from([10, 36]))), ("passes", draw(st.sampled_from([10, 26])))]
    events += draw(st.lists(ANY, max_size=4))
    if draw(st.integers(0, 3)):
        events += [("heals", 0), ("heals", 1)]
    events += [draw(st.sampled_from([("passes", 2), ("steps", 2, 1), ("steps", 2, 2)]))]
    if draw(st.booleans()):
        events += [("grants", 0)]
    return events + draw(st.lists(ANY, max_size=5))


@st.composite
def lags(draw: st.DrawFn) -> list[Event]:
    """One input lags, and upstream is full: redos make room during the failure (R2)."""
    at = draw(sides)
    events: list[Event] = [("cut", at), ("passes", 36), ("passes", 10), ("upstream", True)]
    for _ in range(draw(st.integers(2, 5))):
        events += [("brings", at, 10), draw(st.sampled_from([("passes", 1), ("passes", 10), ("steps", 3, 2)]))]
        events += [("grants", 0)] * draw(st.integers(0, 1))
        events += draw(st.lists(ANY, max_size=1))
    return [*events, ("upstream", False)]


OPTIONS = st.fixed_dictionaries(
    {
        "counts": st.booleans(),
        "partners": st.sampled_from([("n2",), ("n2",), ()]),
        "failure": st.sampled_from([Policy.PROCESS, Policy.PROCESS, Policy.DELAY, Policy.SUSPEND]),
        "stabilization": st.sampled_from([Policy.PROCESS, Policy.PROCESS, Policy.DELAY, Policy.SUSPEND]),
        "logs": st.booleans(),
        "checkpoints": st.sampled_from([Checkpoints(), Checkpoints(every_us=60)]),
    }
)


def begun(reconcile: Reconcile, slice_rows: int, options: dict[str, Any]) -> Judged:
    kind = type("Case", (Judged,), {"reconcile": reconcile, "slice_rows": slice_rows})
    world: Judged = kind(**options)
    if options["logs"]:
        world.ask_log()
    world.passes(10)
    assert world.state == "STABLE"
    return world


EPISODES: Final = st.lists(failures() | failures() | lags(), min_size=1, max_size=4)


@settings(max_examples=120)
@given(st.sampled_from(Reconcile), st.sampled_from([1, 3, 1000]), OPTIONS, EPISODES)
def test_random_events_break_no_rule(
    reconcile: Reconcile, slice_rows: int, options: dict[str, Any], episodes: Sequence[Sequence[Event]]
) -> None:
    world = begun(reconcile, slice_rows, options)
    for event in chain.from_iterable(episodes):
        apply(world, event)
    world.ends()
