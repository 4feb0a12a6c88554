"""Which producer an input reads (F1-F7), and checks of what arrives: ranges of ids (U10), faults of a producer (B7)."""

from __future__ import annotations

from typing import Any

import pytest

from operators.sunion.sunion import SUnion
from replicas.consumer.feed import CORRECTIONS, FOREIGN_RETRY_US, MAIN, RETRY_US, Action, Close, Feed, Open, SwitchMode
from replicas.consumer.input import Input
from spe.errors import RemoteProtocolError
from spe.stream.batch import Batch, Boundary, RecDone, Rows, Undo
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState, StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.messages.feeds import OutputStatus

SCHEMA = Schema.of(x="int64")
STABLE, FAILING, STABILIZING, RECOVERING = (
    NodeState.STABLE,
    NodeState.UP_FAILURE,
    NodeState.STABILIZATION,
    NodeState.RECOVERING,
)
STALL, USELESS, X = 200, 300, 1_000


class Case:
    """One input with two producers, r1 and r2, and the decisions so far."""

    def __init__(self, *, corrections: bool = True) -> None:
        self.sunion = SUnion(inputs=[(0, True)], streams=1, bucket_us=10)
        self.port = self.sunion.inputs[0]
        self.changes = 0
        self.input = Input(
            Channel(StreamId("s"), 0),
            ["r1", "r2"],
            self.port,
            consumer="me",
            stall_us=STALL,
            useless_us=USELESS,
            x_us=X,
            corrections=corrections,
        )

    def hear(self, name: str, state: NodeState, now: int = 0, *, frontier: int = BEFORE_TIME, **more: Any) -> None:
        """Handles a heartbeat; without a sequence number its state is the newest."""
        self.changes += 1
        facts: dict[str, Any] = {"sequence": self.changes, "tentative_frontier": frontier, "fill": 0.0} | more
        facts.setdefault("stands_in", True)
        incarnation = facts.pop("incarnation", 1)
        status = OutputStatus("s", 0, state, False, 0, frontier, frontier, 1, 0.0)._replace(**facts)
        self.input.selector.heard(name, incarnation, status, now)

    def in_band(self, generation: int, state: NodeState, *, fresh: bool = False, **more: int) -> None:
        """Handles a StateChange; without a sequence number it is the newest."""
        self.changes += 1
        self.input.state_changed(generation, state, fresh, **{"incarnation": 1, "sequence": self.changes} | more)

    def choose(self, now: int = 0) -> list[Action]:
        return self.input.choose(now)

    def reading(self, name: str, state: NodeState = STABLE, now: int = 0, **more: Any) -> int:
        """Makes ``name`` the open MAIN; returns its generation."""
        self.hear(name, state, now, **more)
        (opened,) = [a for a in self.choose(now) if isinstance(a, Open)]
        assert (opened.producer, opened.mode) == (name, MAIN)
        self.input.opened(opened.generation, now)
        return opened.generation

    def shows(self, name: str, state: NodeState, now: int, stable: int = 0, tentative: int = 0, **more: Any) -> None:
        """Handles a heartbeat with a frontier; the boundaries of MAIN have arrived before."""
        main = self.input.main
        if main is not None and main.producer == name:
            if stable > self.port.frontier and not more.get("fresh"):  # otherwise corrections come over another feed
                self.input.element(main.generation, Boundary(Kind.STABLE, stable, 0), now)
            if tentative > self.port.t_star() + 1:
                self.input.element(main.generation, Boundary(Kind.TENTATIVE, tentative, 0), now)
        self.hear(name, state, now, frontier=stable, tentative_frontier=tentative, **more)


def batch(kind: Kind, first: int, *times: int) -> Batch:
    return Batch(kind, first - 1, first - 1 + len(times), None, Rows.from_tuples(SCHEMA, times, [(t,) for t in times]))


def opens(actions: list[Action]) -> list[tuple[str, str]]:
    return [(a.producer, a.mode) for a in actions if isinstance(a, Open)]


class TestChoice:
    def test_no_producer_is_read_before_a_heartbeat_answer(self) -> None:
        assert Case().choose() == []

    def test_the_only_stable_producer_is_read(self) -> None:
        case = Case()
        case.hear("r1", FAILING)
        case.hear("r2", STABLE)
        assert opens(case.choose()) == [("r2", MAIN)]

    def test_stable_main_is_kept_although_another_is_ahead(self) -> None:
        case = Case()
        case.reading("r1")
        case.hear("r2", STABLE, frontier=1_000)
        assert case.choose() == []

    def test_a_consumer_moves_from_a_failing_to_a_stable_producer(self) -> None:
        case = Case()
        generation = case.reading("r1", FAILING)
        case.hear("r2", STABLE)
        actions = case.choose()
        assert opens(actions) == [("r2", MAIN)]
        assert [a.generation for a in actions if isinstance(a, Close)] == [generation]

    def test_up_failure_is_preferred_to_stabilization(self) -> None:
        case = Case()
        case.reading("r1", STABILIZING)
        case.hear("r2", FAILING)
        assert ("r2", MAIN) in opens(case.choose())

    def test_live_results_are_preferred_to_suspended_ones(self) -> None:
        """Heartbeats say that it has nothing new (K6)."""
        case = Case(corrections=False)
        case.reading("r1", STABILIZING, fresh=True)
        case.hear("r2", FAILING, stands_in=False)
        assert ("r2", MAIN) not in opens(case.choose())
        case.hear("r2", FAILING, stands_in=True)
        assert ("r2", MAIN) in opens(case.choose())

    def test_recovering_and_truncated_producers_are_never_read(self) -> None:
        case = Case()
        case.hear("r1", RECOVERING)
        case.hear("r2", STABLE, first=5)
        assert case.choose() == []
        assert case.input.selector.truncated()

    def test_a_producer_that_lost_our_start_is_not_read(self) -> None:
        """A client that holds nothing begins where it left; until it restarts a producer has no more (F8)."""
        case = Case()
        case.input.start = "left"
        case.hear("r1", STABLE, first=5)
        case.hear("r2", STABLE, first=5)
        case.input.selector.refused("r1", 1, 9)
        assert not case.input.selector.truncated()
        assert opens(case.choose()) == [("r2", MAIN)]
        case.input.selector.refused("r2", 1, 9)
        assert case.input.selector.truncated()
        case = Case()
        case.input.start = "left"
        case.hear("r1", STABLE, first=5)
        case.input.selector.refused("r1", 1, 9)
        assert opens(case.choose()) == []
        case.hear("r1", STABLE, first=5, incarnation=2)
        assert opens(case.choose()) == [("r1", MAIN)]

    def test_after_a_lost_producer_the_other_is_read(self) -> None:
        case = Case()
        generation = case.reading("r1")
        case.hear("r2", STABLE)
        case.input.selector.lost("r1")
        actions = case.choose()
        assert Close(generation, "no heartbeat") in actions
        assert opens(actions) == [("r2", MAIN)]

    def test_a_stable_producer_without_inputs_is_left(self) -> None:
        case = Case()
        case.reading("r1", now=0)
        case.hear("r1", STABLE, frontier=10)
        case.hear("r2", STABLE, frontier=50)
        assert case.choose(10) == []
        assert case.choose(10 + STALL) == []
        assert opens(case.choose(11 + STALL)) == [("r2", MAIN)]

    def test_a_heartbeat_that_overtakes_data_is_no_reason_to_switch(self) -> None:
        """A producer is silent for αX before its first tentative result, and the heartbeat may overtake that result."""
        case = Case()
        generation = case.reading("r1", now=0)
        case.hear("r1", FAILING, tentative_frontier=50)
        assert case.choose(5 * STALL) == []
        case.input.element(generation, Boundary(Kind.TENTATIVE, 50, 0), 5 * STALL + 1)
        assert case.choose(5 * STALL + 2) == []

    def test_a_half_open_data_connection_is_replaced(self) -> None:
        case = Case()
        generation = case.reading("r1", now=0)
        case.hear("r1", STABLE, frontier=50)
        assert case.choose(10) == []
        assert case.choose(10 + STALL) == []
        actions = case.choose(11 + STALL)
        assert Close(generation, "half open") in actions
        assert opens(actions) == [("r1", MAIN)]

    def test_slow_partial_arrival_is_not_half_open(self) -> None:
        """A frame of a megabyte takes seconds over a slow link; begun anew after each stall it would never come."""
        case = Case()
        generation = case.reading("r1", now=0)
        case.hear("r1", STABLE, frontier=50)
        for now in range(10, 10 * STALL, STALL // 2):
            case.input.part_came(generation)
            assert case.choose(now) == []

    def test_producer_with_more_bits_wins_after_vain_attempts(self) -> None:
        case = Case()
        case.reading("r1", now=0)
        switched = []
        for now in range(10, 30 * STALL, STALL // 4):
            for name in ("r1", "r2"):
                case.hear(name, STABLE, frontier=50, now=now)
            assert case.input.main is not None
            case.input.opened(case.input.main.generation, now)
            case.input.part_came(case.input.main.generation)
            switched += [now] if opens(case.choose(now)) else []
        assert 4 <= len(switched) <= 6
        assert switched[0] < 3 * STALL
        assert switched[-1] < 20 * STALL

    def test_a_new_feed_without_newer_data_is_not_half_open(self) -> None:
        """After a switch between two replicas in UP_FAILURE the new one sends nothing up to T*."""
        case = Case()
        generation = case.reading("r1", FAILING, now=0)
        case.input.element(generation, Boundary(Kind.TENTATIVE, 40, 0), 0)
        case.input.selector.lost("r1")
        case.reading("r2", FAILING, now=10)
        case.hear("r2", FAILING, tentative_frontier=40)
        assert case.choose(10 + STALL + 1) == []
        case.hear("r2", FAILING, tentative_frontier=50)
        assert case.choose(20 + STALL) == []
        assert opens(case.choose(21 + 2 * STALL)) == [("r2", MAIN)]

    def test_half_open_feed_is_detected_despite_tentative_data(self) -> None:
        """Tentative data beyond the stable frontier say nothing about missing stable tuples."""
        case = Case()
        generation = case.reading("r1", FAILING, now=0)
        case.input.element(generation, Boundary(Kind.TENTATIVE, END_OF_TIME, 0), 0)
        case.hear("r1", STABLE, frontier=END_OF_TIME)
        assert case.choose(10) == []
        assert opens(case.choose(11 + STALL)) == [("r1", MAIN)]

    def test_feed_paused_for_lack_of_room_is_not_half_open(self) -> None:
        case = Case()
        generation = case.reading("r1", now=0)
        case.hear("r1", STABLE, frontier=50)
        case.hear("r2", STABLE, frontier=50)
        case.input.paused(generation, True)
        assert [case.choose(now) for now in (10, 20 + STALL)] == [[], []]
        assert case.input.arriving(20 + STALL)
        case.input.paused(generation, False)
        assert case.choose(30 + STALL) == []
        assert opens(case.choose(31 + 2 * STALL)) == [("r2", MAIN)]

    def test_producers_that_are_slow_to_answer_get_the_time(self) -> None:
        """On a machine that is overloaded a subscription takes seconds: who always leaves too early gets nothing."""
        case, taken = Case(), []
        for now in range(0, 100 * STALL, STALL // 4):
            for name in ("r1", "r2"):
                case.hear(name, STABLE, now, frontier=now + 10)
            taken += [(now, a) for a in case.choose(now) if isinstance(a, Open)]
            for at, one in taken:
                if at + 3 * STALL == now:
                    case.input.opened(one.generation, now)
                if at + 3 * STALL <= now:
                    case.input.element(one.generation, Boundary(Kind.STABLE, now, 0), now)
        assert case.port.frontier > 90 * STALL
        assert len(taken) <= 5
        assert case.input.selector._in_vain == 0

    def test_an_ended_stream_is_never_stalled(self) -> None:
        case = Case()
        generation = case.reading("r1", now=0)
        case.input.element(generation, Boundary(Kind.STABLE, END_OF_TIME, 0), 1)
        case.hear("r1", STABLE, frontier=END_OF_TIME)
        assert case.choose(10_000_000) == []
        assert case.input.fresh(10_000_000)
        assert case.input.arriving(10_000_000)

    def test_a_refused_connection_is_tried_again_after_a_while(self) -> None:
        case = Case()
        case.hear("r1", STABLE)
        (opened,) = case.choose(0)
        assert isinstance(opened, Open)
        case.input.closed(opened.generation, 0)
        assert case.choose(10) == []
        assert opens(case.choose(60_000)) == [("r1", MAIN)]


class TestNewestState:
    """F4: the newest state by (incarnation, sequence) counts, whether it came in band or by heartbeat."""

    def known(self, case: Case, name: str = "r1") -> NodeState:
        return case.input.producers[name].state

    def test_an_old_heartbeat_does_not_replace_a_newer_state_in_band(self) -> None:
        case = Case()
        case.hear("r1", FAILING, sequence=4)
        (opened,) = case.choose()
        case.input.opened(opened.generation, 0)
        case.in_band(opened.generation, STABLE, sequence=6)
        case.hear("r1", STABILIZING, sequence=5, frontier=90, fresh=True)
        assert self.known(case) is STABLE
        assert not case.input.producers["r1"].fresh
        assert case.input.producers["r1"].frontier == BEFORE_TIME

    def test_an_old_state_in_band_does_not_replace_a_newer_heartbeat(self) -> None:
        case = Case()
        generation = case.reading("r1")
        case.hear("r1", FAILING, sequence=9)
        case.in_band(generation, STABLE, sequence=8)
        assert self.known(case) is FAILING

    def test_an_old_heartbeat_does_not_replace_the_first_frame(self) -> None:
        case = Case()
        case.hear("r1", FAILING, sequence=7)
        case.hear("r1", STABLE, sequence=2)
        assert self.known(case) is FAILING

    def test_a_late_rec_done_changes_no_state(self) -> None:
        case = Case()
        generation = case.reading("r1", FAILING)
        case.hear("r1", FAILING, sequence=9)
        case.input.element(generation, Undo(0), 0)
        case.input.element(generation, RecDone(STABLE), 0)
        assert self.known(case) is FAILING

    def test_a_feed_opened_during_a_correction_awaits_its_rec_done(self) -> None:
        """A heartbeat with STABLE overtook the first frame."""
        case = Case()
        case.reading("r2", FAILING)
        case.hear("r1", STABILIZING, sequence=5)
        (corrections,) = case.choose()
        case.hear("r1", STABLE, sequence=6)
        case.input.opened(corrections.generation, 0)
        case.in_band(corrections.generation, STABILIZING, sequence=5)
        assert case.choose() == []
        actions = case.input.element(corrections.generation, RecDone(STABLE), 0)
        assert [type(a) for a in actions] == [Close, SwitchMode]

    def test_an_older_incarnation_changes_nothing(self) -> None:
        case = Case()
        generation = case.reading("r1", incarnation=1)
        case.hear("r1", FAILING, incarnation=2, sequence=1)
        case.hear("r1", STABLE, incarnation=1, sequence=9, fill=1.0)
        case.in_band(generation, STABLE, incarnation=1, sequence=10)
        assert self.known(case) is FAILING
        assert not case.input.producers["r1"].full

    def test_after_a_loss_an_older_incarnation_counts(self) -> None:
        """A source takes its incarnation from the wall clock, which may step back while it is away."""
        case = Case()
        case.hear("r1", FAILING, incarnation=7, sequence=3, frontier=50)
        case.input.selector.lost("r1")
        case.hear("r1", STABLE, incarnation=6, sequence=0, frontier=10)
        assert self.known(case) is STABLE
        assert case.input.producers["r1"].frontier == 10

    def test_within_one_state_frontiers_do_not_shrink(self) -> None:
        case = Case()
        case.hear("r1", FAILING, sequence=4, frontier=50, tentative_frontier=80, last_id=7, first=3)
        case.hear("r1", FAILING, sequence=4, frontier=40, tentative_frontier=70, last_id=6, first=2)
        known = case.input.producers["r1"]
        assert (known.frontier, known.tentative_frontier, known.last_id, known.first) == (50, 80, 7, 3)

    def test_a_new_state_may_withdraw_tentative_results(self) -> None:
        case = Case()
        case.hear("r1", FAILING, sequence=4, tentative_frontier=80)
        case.hear("r1", STABLE, sequence=5, tentative_frontier=BEFORE_TIME)
        assert case.input.producers["r1"].tentative_frontier == BEFORE_TIME

    def test_an_old_heartbeat_still_says_how_full_it_is(self) -> None:
        case = Case()
        generation = case.reading("r1")
        case.in_band(generation, STABILIZING, sequence=9)
        case.hear("r1", STABLE, sequence=8, fill=1.0)
        assert case.input.producers["r1"].full


class TestUsefulness:
    """F4: a producer that shows no new results ranks below those that do."""

    def test_a_main_without_results_is_left_for_one_with_results(self) -> None:
        case = Case()
        case.reading("r1", FAILING)
        for now in range(0, USELESS + 1, 50):
            case.shows("r1", FAILING, now, 0, 100)
            case.shows("r2", FAILING, now, 0, 100 + now)
            assert case.choose(now) == []
        assert opens(case.choose(USELESS + 50)) == [("r2", MAIN)]

    def test_producer_is_kept_if_none_has_results(self) -> None:
        case = Case()
        case.reading("r1", FAILING)
        for now in range(0, 5 * USELESS, 50):
            for name in ("r1", "r2"):
                case.shows(name, FAILING, now, 0, 100)
            assert case.choose(now) == []

    def test_silent_stable_main_is_left_for_up_failure_with_results(self) -> None:
        case = Case()
        case.reading("r1", STABLE)
        for now in range(0, USELESS + 1, 50):
            case.shows("r1", STABLE, now, 10)
            case.shows("r2", FAILING, now, 0, 100 + now)
            assert case.choose(now) == []
        assert opens(case.choose(USELESS + 50)) == [("r2", MAIN)]
        case.shows("r1", STABLE, USELESS + 60, 20)
        assert opens(case.choose(USELESS + 60)) == [("r1", MAIN)], "it has results again"

    def test_live_results_during_redo_are_preferred_to_none(self) -> None:
        case = Case()
        case.reading("r1", FAILING)
        for now in range(0, USELESS + 101, 50):
            case.shows("r1", FAILING, now, 0, 100)
            case.shows("r2", STABILIZING, now, 0, 100 + now, fresh=True)
            case.choose(now)
        assert case.input.main is not None
        assert case.input.main.producer == "r2"

    def test_progress_of_a_redo_is_no_new_live_result(self) -> None:
        """It corrects beside live results, but live has lost its inputs; another producer with results is read."""
        case = Case()
        case.reading("r1", STABILIZING)
        for now in range(0, USELESS + 101, 50):
            case.shows("r1", STABILIZING, now, now, 1_000, fresh=True)
            case.shows("r2", STABILIZING, now, 0, 1_000 + now, fresh=True)
            case.choose(now)
        assert case.input.main is not None
        assert case.input.main.producer == "r2"

    def test_results_made_again_after_an_undo_are_not_new(self) -> None:
        case = Case()
        case.reading("r1", FAILING)
        for now in range(0, USELESS + 101, 50):
            case.shows("r1", FAILING, now, 0, 50 if now % 100 else 100)
            case.shows("r2", FAILING, now, 0, 100 + now)
            case.choose(now)
        assert case.input.main is not None
        assert case.input.main.producer == "r2"

    def test_a_freeze_of_the_consumer_is_no_silence_of_a_producer(self) -> None:
        case = Case()
        case.reading("r1", FAILING)
        for now in (0, 50, 100, 5_000):
            case.shows("r2", FAILING, now, 0, 100 + now)
            assert case.choose(now) == []
            case.shows("r1", FAILING, now, 0, 100 + now)

    def test_a_main_that_is_not_read_is_not_useless(self) -> None:
        case = Case()
        generation = case.reading("r1", STABLE)
        case.input.paused(generation, True)
        for now in range(0, 5 * USELESS, 50):
            case.shows("r1", STABLE, now, 10)
            case.shows("r2", FAILING, now, 0, 100 + now)
            assert case.choose(now) == []

    def test_a_producer_of_an_ended_stream_is_not_useless(self) -> None:
        case = Case()
        case.reading("r1", FAILING)
        for now in range(0, 5 * USELESS, 50):
            case.shows("r1", FAILING, now, 0, END_OF_TIME)
            case.shows("r2", FAILING, now, 0, 100 + now)
            assert case.choose(now) == []

    def test_caught_up_means_as_far_as_main(self) -> None:
        """A3: recovery may end although another producer is ahead of MAIN."""
        case = Case()
        case.reading("r1", STABLE)
        case.hear("r2", STABLE, frontier=500)
        assert case.input.caught_up()
        case.hear("r1", STABLE, frontier=10)
        assert not case.input.caught_up()

    def test_caught_up_is_not_judged_by_the_slowest_producer(self) -> None:
        """A3: a replica that is as far as a lagging producer may still lack what MAIN has."""
        case = Case()
        case.reading("r1", STABLE)
        case.hear("r2", FAILING)
        case.hear("r1", STABLE, frontier=10)
        assert not case.input.caught_up()

    def test_input_read_to_its_end_is_caught_up(self) -> None:
        case = Case()
        assert not case.input.caught_up()
        case.input.port.add_boundary(Boundary(Kind.STABLE, END_OF_TIME, 0), 0)
        assert case.input.caught_up()


class TestCorrections:
    def test_a_refused_second_connection_is_retried_later(self) -> None:
        """The first connection works, so its producer can be read meanwhile."""
        case = Case()
        main = case.reading("r1", FAILING)
        case.in_band(main, STABILIZING, fresh=True)
        (opened,) = [a for a in case.choose(10) if isinstance(a, Open)]
        assert (opened.producer, opened.mode) == ("r1", CORRECTIONS)
        case.input.closed(opened.generation, 10)
        assert case.choose(10) == []
        assert case.choose(10 + RETRY_US - 1) == []
        assert opens(case.choose(10 + RETRY_US)) == [("r1", CORRECTIONS)]

    def two_feeds(self) -> tuple[Case, int, int]:
        """r2 gives fresh tentative data, r1 corrects."""
        case = Case()
        case.hear("r1", STABILIZING)
        case.hear("r2", FAILING)
        actions = case.choose()
        assert opens(actions) == [("r2", MAIN), ("r1", CORRECTIONS)]
        main, corr = [a.generation for a in actions if isinstance(a, Open)]
        for generation in (main, corr):
            case.input.opened(generation, 0)
        return case, main, corr

    def test_one_feed_corrects_while_the_other_continues(self) -> None:
        case, main, corr = self.two_feeds()
        case.input.element(main, batch(Kind.TENTATIVE, 1, 41, 44), 0)
        case.input.element(corr, batch(Kind.STABLE, 1, 22, 41), 0)
        assert [c.rows.time.tolist() for c in case.port.tentative] == [[44]]
        assert case.port.position == 2

    def test_tentative_tuples_on_corrections_are_dropped(self) -> None:
        case, _, corr = self.two_feeds()
        case.input.element(corr, batch(Kind.TENTATIVE, 1, 41), 0)
        assert case.port.tentative == []

    def test_rec_done_stable_makes_corrections_the_main_feed(self) -> None:
        case, main, corr = self.two_feeds()
        case.in_band(corr, STABLE)
        actions = case.input.element(corr, RecDone(STABLE), 0)
        assert [type(a) for a in actions] == [Close, SwitchMode]
        assert (actions[0].generation, actions[1].generation) == (main, corr)
        assert case.input.main is not None
        assert case.input.main.producer == "r1"
        assert case.choose() == []

    def test_tuples_of_the_old_main_do_not_count_twice(self) -> None:
        """F1, F5: the promoted feed fails again and sends tentative tuples of the same time."""
        case, main, corr = self.two_feeds()
        case.input.element(main, batch(Kind.TENTATIVE, 1, 41, 44), 0)
        case.input.element(corr, batch(Kind.STABLE, 1, 22), 0)
        case.in_band(corr, STABLE)
        case.input.element(corr, RecDone(STABLE), 0)
        case.in_band(corr, FAILING)
        case.input.element(corr, batch(Kind.TENTATIVE, 2, 41, 44, 45), 0)
        assert [c.rows.time.tolist() for c in case.port.tentative] in ([[41, 44], [45]], [[41, 44, 45]])

    def test_an_undo_on_corrections_removes_nothing(self) -> None:
        """B4: it concerns only what that feed brought."""
        case, main, corr = self.two_feeds()
        case.input.element(main, batch(Kind.TENTATIVE, 1, 41, 44), 0)
        case.input.element(corr, Undo(0), 0)
        assert [c.rows.time.tolist() for c in case.port.tentative] == [[41, 44]]
        assert case.port.held

    def test_rec_done_up_failure_closes_corrections(self) -> None:
        case, main, corr = self.two_feeds()
        actions = case.input.element(corr, RecDone(FAILING), 0)
        assert [a.generation for a in actions if isinstance(a, Close)] == [corr]
        assert case.input.main is not None
        assert case.input.main.generation == main

    def test_a_stable_heartbeat_waits_for_the_rec_done(self) -> None:
        case, _, _ = self.two_feeds()
        case.hear("r1", STABLE)
        assert case.choose() == []

    def test_producer_stable_before_subscription_owes_no_rec_done(self) -> None:
        """The heartbeat said STABILIZATION, the first frame of its answer says STABLE (F2)."""
        case = Case()
        main = case.reading("r2", FAILING)
        case.hear("r1", STABILIZING)
        (corrections,) = case.choose()
        assert isinstance(corrections, Open)
        case.hear("r1", STABLE)
        case.input.opened(corrections.generation, 0)
        assert [type(a) for a in case.choose()] == [Close, SwitchMode]
        assert case.input.feed(main) is None

    def test_producer_that_failed_again_loses_corrections_feed(self) -> None:
        case = Case()
        case.reading("r2", FAILING)
        case.hear("r1", STABILIZING)
        (corrections,) = case.choose()
        assert isinstance(corrections, Open)
        case.hear("r1", FAILING)
        case.input.opened(corrections.generation, 0)
        assert case.choose() == [Close(corrections.generation, "no more corrections to be had")]

    def test_a_half_open_corrections_feed_is_replaced(self) -> None:
        case, main, corr = self.two_feeds()
        case.hear("r1", STABILIZING, frontier=50)
        assert case.choose(10) == []
        actions = case.choose(11 + STALL)
        assert Close(corr, "half open") in actions
        assert opens(actions) == [("r1", CORRECTIONS)]
        assert case.input.feed(main) is not None

    def test_when_main_dies_the_correcting_feed_takes_over(self) -> None:
        case, _, corr = self.two_feeds()
        case.input.selector.lost("r2")
        assert SwitchMode(corr, MAIN) in case.choose()

    @pytest.mark.parametrize("fill", [0.0, 1.0], ids=["room", "full of what it has read"])
    def test_a_client_has_only_a_main_feed(self, fill: float) -> None:
        case = Case(corrections=False)
        case.hear("r1", STABILIZING, fill=fill)
        case.hear("r2", FAILING)
        assert opens(case.choose()) == [("r2", MAIN)]

    def test_a_client_reads_a_correcting_producer_without_room(self) -> None:
        """It stays until the correction ends, although the producer has room again and another has fresh results."""
        case = Case(corrections=False)
        case.hear("r1", STABILIZING, last_id=7, fill=0.9)
        case.hear("r2", FAILING)
        assert opens(case.choose()) == [("r2", MAIN)]
        case.hear("r1", STABILIZING, last_id=9, fill=1.0)
        actions = case.choose()
        assert opens(actions) == [("r1", MAIN)]
        case.input.opened(next(a.generation for a in actions if isinstance(a, Open)), 0)
        case.hear("r1", STABILIZING, last_id=12, fill=0.2)
        assert case.choose() == []
        case.hear("r1", FAILING, last_id=12, fill=0.2)
        case.hear("r2", STABLE)
        assert opens(case.choose()) == [("r2", MAIN)]

    def test_only_producer_with_live_results_gets_two_feeds(self) -> None:
        case = Case()
        case.hear("r1", STABILIZING, fresh=True)
        assert opens(case.choose()) == [("r1", MAIN), ("r1", CORRECTIONS)]


class TestLiveResultsBesideACorrection:
    """A producer corrects beside live results: MAIN has these, CORRECTIONS the stable elements (V4, F4)."""

    def reading(self) -> Case:
        case = Case()
        case.hear("r1", STABILIZING, fresh=True, frontier=50, tentative_frontier=60)
        assert sorted(opens(case.choose())) == [("r1", CORRECTIONS), ("r1", MAIN)]
        for feed in (case.input.main, case.input.corr):
            assert feed is not None
            case.input.opened(feed.generation, 0)
        return case

    def test_its_input_is_fresh(self) -> None:
        """T2: new data are to be expected."""
        case = self.reading()
        assert case.input.fresh(0)
        case.hear("r1", STABILIZING, fresh=False)
        assert not case.input.fresh(0)

    def test_tentative_boundaries_of_corrections_do_not_count(self) -> None:
        case = self.reading()
        assert case.input.corr is not None
        case.input.element(case.input.corr.generation, Boundary(Kind.TENTATIVE, 60, 0), 0)
        assert case.port.tentative_frontier == BEFORE_TIME

    def test_main_is_not_half_open_for_want_of_corrections(self) -> None:
        case = self.reading()
        main, corr = case.input.main, case.input.corr
        assert main is not None
        assert corr is not None
        case.input.element(main.generation, Boundary(Kind.TENTATIVE, 60, 0), 0)
        for now in (1, STALL + 2):
            case.hear("r1", STABILIZING, now, fresh=True, frontier=50, tentative_frontier=60)
            case.input.element(corr.generation, Boundary(Kind.STABLE, 10 + now // STALL, 0), now)
            case.choose(now)
        assert case.input.main is main
        assert case.input.corr is corr


class TestRules:
    def test_elements_of_a_closed_generation_are_dropped(self) -> None:
        """The old connection still holds data; the position does not move (F1)."""
        case = Case()
        old = case.reading("r1")
        case.input.selector.lost("r1")
        case.hear("r2", STABLE)
        case.choose()
        case.input.element(old, batch(Kind.STABLE, 1, 5), 0)
        assert case.port.position == 0

    @pytest.mark.parametrize(
        ("elements", "why"),
        [
            ([batch(Kind.STABLE, 3, 5)], "from 2"),
            ([Undo(7)], "undo to 7"),
            ([Boundary(Kind.STABLE, 20, 0), batch(Kind.STABLE, 1, 15)], "below the boundary"),
            ([Boundary(Kind.STABLE, 20, 0), Boundary(Kind.STABLE, 10, 0)], "goes back"),
            ([batch(Kind.TENTATIVE, 1, 5), batch(Kind.STABLE, 1, 5)], "without an undo"),
        ],
    )
    def test_a_producer_that_breaks_the_protocol_is_closed(self, elements: list[Any], why: str) -> None:
        case = Case()
        generation = case.reading("r1")
        for element in elements[:-1]:
            case.input.element(generation, element, 0)
        with pytest.raises(RemoteProtocolError, match=why):
            case.input.element(generation, elements[-1], 0)

    def test_incarnation_that_broke_protocol_is_not_read_again(self) -> None:
        case = Case()
        generation = case.reading("r1")
        assert case.input.quarantine(generation, 1, 0)
        assert not case.input.quarantine(generation, 1, 0), "it is closed"
        assert case.choose(10_000_000) == []
        case.hear("r1", STABLE, incarnation=2)
        assert opens(case.choose(10_000_000)) == [("r1", MAIN)]

    def test_next_incarnation_is_not_blamed_for_earlier_one(self) -> None:
        """Heartbeats may tell of the next one before the last bytes of the earlier one are read."""
        case = Case()
        generation = case.reading("r1")
        case.hear("r1", STABLE, incarnation=2)
        assert case.input.quarantine(generation, 1, 0)
        assert opens(case.choose(10_000_000)) == [("r1", MAIN)]

    def test_an_undo_must_name_the_position_of_the_feed(self) -> None:
        case = Case()
        generation = case.reading("r1", FAILING)
        case.input.element(generation, batch(Kind.STABLE, 1, 5, 6), 0)
        case.input.element(generation, batch(Kind.TENTATIVE, 3, 15), 0)
        case.input.element(generation, Undo(2), 0)
        assert case.port.tentative == []
        case.input.element(generation, batch(Kind.STABLE, 3, 12, 15), 0)
        assert case.port.position == 4

    def test_a_switch_sends_position_held_and_t_star(self) -> None:
        """The subscription names the position, that tentative tuples follow it, and up to when they reach (F1)."""
        case = Case()
        generation = case.reading("r1", FAILING)
        case.input.element(generation, batch(Kind.STABLE, 1, 19), 0)
        case.input.element(generation, batch(Kind.TENTATIVE, 2, 24, 31), 0)
        case.input.element(generation, Boundary(Kind.TENTATIVE, 40, 0), 0)
        case.input.selector.lost("r1")
        case.hear("r2", FAILING)
        (opened,) = [a for a in case.choose() if isinstance(a, Open)]
        assert (opened.position, opened.held, opened.t_star) == (1, True, 39)


class TestOtherProducers:
    """A new version of the directory names other producers of the stream (D2, D3)."""

    def test_removed_producer_is_closed_and_new_one_read_once_heard(self) -> None:
        case = Case()
        generation = case.reading("r1")
        assert case.input.set_producers(["r2", "r3"]) == [Close(generation, "r1 has left")]
        assert case.choose() == [], "nobody of them was heard"
        case.hear("r3", STABLE)
        (opened,) = case.choose()
        assert isinstance(opened, Open)
        assert opened.producer == "r3"
        case.input.validate()

    def test_a_producer_that_stays_is_read_on(self) -> None:
        case = Case()
        case.reading("r1")
        before = case.input.producers["r1"]
        assert case.input.set_producers(["r3", "r1"]) == []
        assert case.input.producers["r1"] is before
        assert case.choose() == []

    def test_the_correcting_feed_of_a_removed_producer_is_closed(self) -> None:
        case = Case()
        case.reading("r1", FAILING)
        case.hear("r2", STABILIZING)
        (opened,) = case.choose()
        assert isinstance(opened, Open)
        assert opened.mode == CORRECTIONS
        assert case.input.set_producers(["r1"]) == [Close(opened.generation, "r2 has left")]
        assert case.input.corr is None


class TestSilence:
    """F4, T1: when the silence of a producer is its own fault."""

    def test_producer_that_has_just_started_is_not_useless(self) -> None:
        """It is STABLE, and nothing came of it in this life."""
        case = Case()
        case.reading("r1", FAILING)
        case.hear("r2", FAILING)
        case.input.selector.lost("r2")
        for now in range(0, 3 * USELESS, 50):
            case.shows("r1", FAILING, now, 0, 100 + now)
            assert case.choose(now) == []
        case.hear("r2", STABLE, 3 * USELESS, incarnation=2)
        assert opens(case.choose(3 * USELESS)) == [("r2", MAIN)]

    def test_own_freeze_is_no_silence_of_the_feed(self) -> None:
        case = Case()
        case.reading("r1")
        case.hear("r1", STABLE, frontier=50)
        assert case.choose(10) == []
        case.input.shift(5 * STALL, 10 + 5 * STALL)
        assert case.choose(11 + 5 * STALL) == []
        assert case.choose(11 + 6 * STALL) == [], "it has had no more than the patience since"
        assert opens(case.choose(12 + 6 * STALL)) == [("r1", MAIN)]

    def test_time_in_which_we_did_not_read_does_not_count(self) -> None:
        """A7: reading pauses and resumes between two choices."""
        case = Case()
        generation = case.reading("r1")
        case.hear("r1", STABLE, frontier=50)
        assert case.choose(10) == []
        case.input.paused(generation, True)
        case.input.paused(generation, False)
        assert case.choose(11 + STALL) == []
        assert case.choose(11 + 2 * STALL) == []
        assert opens(case.choose(12 + 2 * STALL)) == [("r1", MAIN)]

    def test_a_main_that_brings_stable_tuples_is_not_stalled(self) -> None:
        """It is slower than the other replica, without a boundary for long."""
        case = Case()
        generation = case.reading("r1")
        case.hear("r2", STABLE, frontier=50)
        for at in range(1, 9):
            assert case.choose(at * STALL) == []
            case.input.element(generation, batch(Kind.STABLE, at, 5), at * STALL)

    def test_a_full_main_is_not_left_for_another_full_one(self) -> None:
        """A7: both wait for their consumers, so the other would bring no more."""
        case = Case()
        case.reading("r1", fill=1.0)
        for now in range(0, 5 * STALL, 50):
            case.hear("r1", STABLE, now, fill=1.0)
            case.hear("r2", STABLE, now, frontier=50 + now, fill=1.0)
            assert case.choose(now) == []
        for now in (5 * STALL, 1 + 6 * STALL):
            case.hear("r2", STABLE, now, frontier=50 + now)
            actions = case.choose(now)
        assert opens(actions) == [("r2", MAIN)]

    def test_a_full_main_is_useful_without_more_for_us(self) -> None:
        """Other consumers hold it up, and it cannot show results before they acknowledge."""
        case = Case()
        case.reading("r1", FAILING, fill=1.0)
        for now in range(0, 3 * USELESS, 50):
            case.hear("r1", FAILING, now, fill=1.0)
            case.shows("r2", FAILING, now, 0, 100 + now)
            assert case.choose(now) == []

    def test_an_input_is_fresh_while_its_producer_is_full(self) -> None:
        """T2, A7: its silence does not make results tentative."""
        case = Case()
        case.reading("r1", fill=1.0)
        assert case.input.fresh(5 * X)
        case.hear("r1", STABLE)
        assert not case.input.fresh(5 * X)

    def test_a_boundary_of_fewer_tuples_is_nothing_more(self) -> None:
        """V1: a producer that is behind us sends nothing stable until it has made our next tuple."""
        case = Case()
        generation = case.reading("r1")
        case.input.element(generation, batch(Kind.STABLE, 1, 5, 6, 7), 0)
        case.hear("r1", STABLE, frontier=50, last_id=2)
        assert [case.choose(now) for now in (10, 5 * STALL)] == [[], []]
        case.hear("r1", STABLE, frontier=50, last_id=3)
        case.choose(5 * STALL)
        assert opens(case.choose(1 + 6 * STALL)) == [("r1", MAIN)]

    def test_a_subscription_that_succeeds_ends_the_backoff(self) -> None:
        case = Case()
        case.hear("r1", STABLE)
        now = 0
        for _ in range(4):
            (opened,) = case.choose(now)
            assert isinstance(opened, Open)
            case.input.closed(opened.generation, now)
            now = case.input.producers["r1"].retry_at
        (opened,) = case.choose(now)
        case.input.opened(opened.generation, now)
        case.input.closed(opened.generation, now)
        assert case.choose(now + RETRY_US - 1) == []
        assert opens(case.choose(now + RETRY_US)) == [("r1", MAIN)]


class TestCorrectingProducer:
    def test_of_stable_producers_the_correcting_one_is_next(self) -> None:
        """F4: its feed is being opened; another one is further."""
        case = Case()
        case.input.set_producers(["r1", "r2", "r3"])
        case.reading("r2", FAILING)
        case.hear("r1", STABILIZING)
        (corrections,) = case.choose()
        case.hear("r3", STABLE, frontier=90)
        case.hear("r1", STABLE, frontier=10)
        assert SwitchMode(corrections.generation, MAIN) in case.choose()

    def test_a_correcting_feed_is_not_closed_as_it_opens(self) -> None:
        """F5: a heartbeat says that it failed again; its first frame decides."""
        case = Case()
        case.reading("r2", FAILING)
        case.hear("r1", STABILIZING)
        (corrections,) = case.choose()
        case.hear("r1", FAILING)
        assert case.choose() == []
        case.hear("r1", STABILIZING)
        case.input.opened(corrections.generation, 0)
        assert case.choose() == []

    def test_after_an_undo_a_rec_done_is_awaited(self) -> None:
        """V2: also where the producer was not correcting as the feed began."""
        feed = Feed(1, "r1", MAIN, 0)
        feed.take(Boundary(Kind.TENTATIVE, 10, 0))
        feed.take(Undo(0))
        assert (feed.tentative, feed.owes) == (False, True)
        feed.take(RecDone(STABLE))
        assert not feed.owes


def test_where_nobody_answers_nothing_is_truncated() -> None:
    """F8: a client that begins waits for a producer."""
    case = Case()
    case.input.start = "stored"
    assert not case.input.selector.truncated()
    case.hear("r1", STABLE)
    assert not case.input.selector.truncated()
    case.input.selector.refused("r1", 1, 9)
    assert case.input.selector.truncated()


def test_a_producer_of_another_log_is_the_last_choice() -> None:
    """S6: it is tried again after a long time, and only where there is no other."""
    case = Case()
    generation = case.reading("r1")
    case.input.foreign(generation, 1, "another log", 0)
    assert case.choose(FOREIGN_RETRY_US - 1) == []
    case.hear("r2", FAILING, FOREIGN_RETRY_US)
    case.hear("r1", STABLE, FOREIGN_RETRY_US)
    assert opens(case.choose(FOREIGN_RETRY_US)) == [("r2", MAIN)]
    case.input.selector.lost("r2")
    assert opens(case.choose(FOREIGN_RETRY_US)) == [("r1", MAIN)]


def test_other_producers_were_not_tried_in_vain() -> None:
    """F4: none of them was tried yet."""
    case = Case()
    for _ in range(9):
        case.input.selector.turned()
    assert case.input.selector.all_in_vain
    case.input.set_producers(["r1", "r3"])
    assert not case.input.selector.all_in_vain
