"""SUnion: the order of tuples (U2), buckets and their clocks (B), waiting (T)."""

from __future__ import annotations

from itertools import permutations

import pytest

from operators.sunion.cursors import Cursors
from operators.sunion.slice import Slice
from operators.sunion.sunion import SUnion
from spe.stream.batch import Batch, Boundary, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME, END_OF_TIME

SCHEMA = Schema.of(x="string")
D = 10
WAIT, HARD = 30, 35


def make(count: int = 2, *, sources: bool = False) -> SUnion:
    return SUnion(inputs=[(0, not sources)] * count, streams=1, bucket_us=D)


def batch(kind: Kind, first: int, *rows: tuple[int, str]) -> Batch:
    stamped = Rows.from_tuples(SCHEMA, [t for t, _ in rows], [(x,) for _, x in rows])
    return Batch(kind, first - 1, first - 1 + len(rows), None, stamped)


def S(sunion: SUnion, at: int, now: int, first: int, *rows: tuple[int, str]) -> None:
    sunion.inputs[at].add_stable(batch(Kind.STABLE, first, *rows), now)


def T(sunion: SUnion, at: int, now: int, *rows: tuple[int, str]) -> None:
    sunion.inputs[at].add_tentative(batch(Kind.TENTATIVE, 1000, *rows), now)


def B(sunion: SUnion, at: int, now: int, time: int, upto: int = 0) -> None:
    sunion.inputs[at].add_boundary(Boundary(Kind.STABLE, time, upto), now)


def b(sunion: SUnion, at: int, now: int, time: int) -> None:
    sunion.inputs[at].add_boundary(Boundary(Kind.TENTATIVE, time, 0), now)


def show(piece: Slice | None) -> str:
    """``12u 15x | 20``: times and payloads, then the slice's end."""
    if piece is None:
        return ""
    (rows,) = piece.merged()
    items = [] if rows is None else [f"{t}{x}" for t, (x,) in zip(rows.time.tolist(), rows.to_tuples())]
    return " ".join([*items, "|", str(piece.end)])


def due(sunion: SUnion, now: int, *fresh: bool, wait: int = WAIT) -> int | None:
    return sunion.due(now, wait_us=wait, hard_us=HARD, fresh=fresh)


class TestOrder:
    def test_arrival_order_does_not_matter(self) -> None:
        """Any interleaving and cutting of the two inputs gives the same sequence (U2)."""
        events = {
            "a": lambda s: S(s, 0, 0, 1, (5, "a")),
            "A": lambda s: B(s, 0, 0, 10, 1),
            "c": lambda s: S(s, 1, 0, 1, (3, "c")),
            "b": lambda s: S(s, 1, 0, 2, (5, "b")),
            "B": lambda s: B(s, 1, 0, 10, 2),
        }
        seen = set()
        for order in permutations("aAcbB"):
            text = "".join(order)
            if text.index("a") < text.index("A") and text.index("c") < text.index("b") < text.index("B"):
                sunion = make()
                for name in order:
                    events[name](sunion)
                seen.add(show(sunion.release_stable(100)))
        assert seen == {"3c 5a 5b | 10"}

    def test_ties_go_by_input_then_id(self) -> None:
        sunion = make()
        S(sunion, 1, 0, 1, (5, "b1"), (5, "b2"))
        S(sunion, 0, 0, 1, (5, "a1"))
        S(sunion, 0, 0, 2, (5, "a2"))
        B(sunion, 0, 0, 10, 2)
        B(sunion, 1, 0, 10, 2)
        assert show(sunion.release_stable(100)) == "5a1 5a2 5b1 5b2 | 10"

    def test_an_unsorted_source_is_sorted_within_and_across_batches(self) -> None:
        sunion = make(1, sources=True)
        S(sunion, 0, 0, 1, (17, "late"), (4, "a"), (12, "x"))
        S(sunion, 0, 0, 4, (3, "b"), (25, "far"))
        B(sunion, 0, 0, 13, 5)
        assert show(sunion.release_stable(100)) == "3b 4a | 10"
        B(sunion, 0, 0, 31, 5)
        assert show(sunion.release_stable(100)) == "12x 17late 25far | 30"

    def test_a_bucket_stays_until_every_input_has_passed_its_end(self) -> None:
        sunion = make()
        S(sunion, 0, 0, 1, (4, "a"))
        B(sunion, 0, 0, 10, 1)
        B(sunion, 1, 0, 9, 0)
        assert show(sunion.release_stable(100)) == "| 0"
        assert sunion.release_stable(100) is None
        B(sunion, 1, 0, 10, 0)
        assert show(sunion.release_stable(100)) == "4a | 10"

    def test_an_idle_hour_is_one_release(self) -> None:
        sunion = make(1)
        B(sunion, 0, 0, 10)
        assert show(sunion.release_stable(100)) == "| 10"
        B(sunion, 0, 0, 3_600_000_000)
        assert show(sunion.release_stable(100)) == "| 3600000000"

    def test_the_end_of_all_inputs_releases_everything(self) -> None:
        sunion = make()
        S(sunion, 0, 0, 1, (4, "a"), (999, "z"))
        B(sunion, 0, 0, END_OF_TIME, 2)
        B(sunion, 1, 0, END_OF_TIME, 0)
        assert show(sunion.release_stable(100)) == f"4a 999z | {END_OF_TIME}"
        assert sunion.release_stable(100) is None

    def test_large_backlog_comes_in_bounded_slices(self) -> None:
        sunion = make(1)
        for first in range(1, 100, 3):
            S(sunion, 0, 0, first, (first * 4, "a"), (first * 4 + 1, "b"), (first * 4 + 2, "c"))
        B(sunion, 0, 0, 1000, 99)
        pieces = []
        while (piece := sunion.release_stable(10)) is not None:
            assert len(piece) <= 10
            pieces.append(piece)
        times = [t for p in pieces for rows in p.merged() if rows is not None for t in rows.time.tolist()]
        assert len(times) == 99
        assert times == sorted(times)
        assert sunion.stable_bytes == 0

    @pytest.mark.parametrize("in_order", [True, False])
    def test_large_batch_comes_in_full_slices(self, in_order: bool) -> None:
        """A source sends one large batch after a failure; a slice per bucket would take too long."""
        sunion = SUnion(inputs=[(0, in_order)], streams=1, bucket_us=D)
        times = [4 * n for n in range(1000)] if in_order else [4 * (n ^ 3) for n in range(1000)]
        S(sunion, 0, 0, 1, *((t, "a") for t in times))
        B(sunion, 0, 0, 8000, 1000)
        pieces = []
        while (piece := sunion.release_stable(100)) is not None:
            pieces.append(piece)
        released = [t for p in pieces for rows in p.merged() if rows is not None for t in rows.time.tolist()]
        assert released == sorted(times)
        assert max(map(len, pieces)) <= 100
        assert len(pieces) <= 12

    def test_streams_of_a_unit_stay_separate(self) -> None:
        sunion = SUnion(inputs=[(0, True), (1, True)], streams=2, bucket_us=D)
        S(sunion, 0, 0, 1, (4, "a"))
        S(sunion, 1, 0, 1, (3, "b"))
        B(sunion, 0, 0, 10, 1)
        B(sunion, 1, 0, 10, 1)
        piece = sunion.release_stable(100)
        assert piece is not None
        assert [rows.to_tuples() for rows in piece.merged() if rows is not None] == [[("a",)], [("b",)]]

    def test_rows_delivered_by_two_feeds_count_once(self) -> None:
        """U10: rows with an id at or below the position are dropped."""
        sunion = make(1)
        S(sunion, 0, 0, 1, (1, "a"), (2, "b"))
        S(sunion, 0, 0, 1, (1, "a"), (2, "b"), (3, "c"))
        B(sunion, 0, 0, 10, 3)
        assert show(sunion.release_stable(100)) == "1a 2b 3c | 10"


class TestWaiting:
    def start(self) -> SUnion:
        """Both inputs are complete up to 10, then in1 falls silent; it is 120."""
        sunion = make()
        B(sunion, 0, 100, 10)
        B(sunion, 1, 100, 10)
        assert show(sunion.release_stable(100)) == "| 10"
        S(sunion, 0, 105, 4, (15, "x"))
        B(sunion, 0, 110, 20, 4)
        S(sunion, 0, 114, 5, (24, "y"))
        B(sunion, 0, 120, 30, 5)
        return sunion

    def test_nothing_is_due_before_alpha_x(self) -> None:
        sunion = self.start()
        assert due(sunion, 129, True, False) is None

    def test_delay_lets_each_bucket_wait_for_itself(self) -> None:
        sunion = self.start()
        assert due(sunion, 130, True, False) == 20
        sunion.taint()
        assert show(sunion.release_tentative(20, 100)) == "15x | 20"
        assert due(sunion, 139, True, False) is None
        assert due(sunion, 140, True, False) == 30
        assert show(sunion.release_tentative(30, 100)) == "24y | 30"

    def test_process_releases_all_that_live_inputs_have_delivered(self) -> None:
        sunion = self.start()
        sunion.taint()
        assert due(sunion, 130, True, False, wait=0) == 30
        assert show(sunion.release_tentative(30, 100)) == "15x 24y | 30"

    def test_a_live_input_is_waited_for_up_to_the_hard_limit(self) -> None:
        """T3: in1 is alive, so nothing is released at αX, but everything as old as (1+α)/2·X is."""
        sunion = self.start()
        assert due(sunion, 134, True, True) is None
        assert due(sunion, 135, True, True) == 20

    def test_masked_when_the_missing_input_comes_in_time(self) -> None:
        """in1 is complete before αX is over (B1)."""
        sunion = self.start()
        S(sunion, 1, 125, 3, (12, "u"))
        B(sunion, 1, 125, 30, 3)
        assert show(sunion.release_stable(100)) == "12u 15x 24y | 30"
        assert due(sunion, 149, True, True) is None  # the clock of [30, 40) runs from B30 at τ120

    def test_clock_starts_at_boundary_at_bucket_start(self) -> None:
        """The clock of [10, 20) starts at boundary 10, so a node is due with its upstream, not αX later (B3)."""
        sunion = make(1)
        B(sunion, 0, 101, 10)
        sunion.release_stable(100)
        b(sunion, 0, 130, 20)
        assert due(sunion, 130, True) is None
        assert due(sunion, 131, True) == 20

    def test_silent_input_does_not_hold_first_bucket_forever(self) -> None:
        sunion = make()
        S(sunion, 0, 5, 1, (12, "a"))
        B(sunion, 0, 6, 20, 1)
        assert due(sunion, 34, True, False) is None
        assert due(sunion, 36, True, False) == 20
        sunion.taint()
        assert sunion.cursors.restart == BEFORE_TIME
        assert show(sunion.release_tentative(20, 100)) == "12a | 20"

    def test_the_end_of_an_input_starts_no_clocks_of_later_buckets(self) -> None:
        """Otherwise all later buckets would be as old as the end, and a healthy unit would be tentative αX later."""
        sunion = make()
        B(sunion, 0, 100, 10)
        B(sunion, 1, 100, END_OF_TIME)
        sunion.release_stable(100)
        B(sunion, 0, 1000, 20)
        sunion.release_stable(100)
        assert due(sunion, 1029, True, True) is None
        assert due(sunion, 1030, False, True) == 30

    def test_time_in_a_freeze_does_not_count(self) -> None:
        """Clocks move by the length of the freeze; the boundary in the socket makes the bucket stable (T1)."""
        sunion = make()
        B(sunion, 0, 100, 10)
        B(sunion, 1, 100, 10)
        sunion.release_stable(100)
        sunion.clocks.shift(290, 400)
        assert sunion.clocks.waited(400) == 10
        assert due(sunion, 400, True, True) is None
        B(sunion, 0, 400, 20)
        B(sunion, 1, 400, 20)
        assert show(sunion.release_stable(100)) == "| 20"

    def test_input_after_a_freeze_is_not_held_for_its_length(self) -> None:
        """The socket may be drained before the tick notices the freeze; clocks of this input start now."""
        sunion = make(1)
        B(sunion, 0, 100, 10)
        sunion.release_stable(100)
        S(sunion, 0, 400, 1, (22, "a"))
        sunion.clocks.shift(290, 400)
        assert sunion.clocks.waited(400) == 10
        assert due(sunion, 429, False) == 20
        assert due(sunion, 436, False) == 30


class TestCorrecting:
    def tentative(self) -> SUnion:
        sunion = TestWaiting().start()
        sunion.taint()
        assert show(sunion.release_tentative(30, 100)) == "15x 24y | 30"
        return sunion

    def test_redo_releases_stable_buckets_from_the_checkpoint_on(self) -> None:
        """Redo releases [10, 50) with in1's tuples in their places (R6)."""
        sunion = self.tentative()
        B(sunion, 0, 150, 50, 5)
        S(sunion, 1, 150, 3, (12, "u"), (18, "v"))
        B(sunion, 1, 150, 50, 4)
        assert sunion.oldest_unstable_is_young(150, WAIT)
        sunion.begin_redo()
        assert show(sunion.release_redo(100)) == "12u 15x 18v 24y | 50"
        assert sunion.release_redo(100) is None
        sunion.finish_redo()
        assert (sunion.next, sunion.tainted) == (50, False)

    def test_the_newest_bucket_need_not_be_stable(self) -> None:
        """[50, 60) went out tentatively, but is younger than αX: redo may begin (R1)."""
        sunion = self.tentative()
        B(sunion, 0, 140, 60, 5)
        sunion.release_tentative(60, 100)
        B(sunion, 1, 150, 50, 4)
        assert sunion.stable_end == 50
        assert sunion.oldest_unstable_is_young(150, WAIT)
        assert not sunion.oldest_unstable_is_young(170, WAIT)

    def test_during_a_failure_the_oldest_bucket_is_old(self) -> None:
        """A is back at 60, B is at 30.  [30, 40) is old, so a redo would gain nothing (R1)."""
        sunion = make()
        for at in (0, 1):
            B(sunion, at, 100, 10)
        sunion.release_stable(100)
        B(sunion, 0, 110, 60)
        B(sunion, 1, 111, 30)
        assert sunion.stable_end == 30
        assert not sunion.oldest_unstable_is_young(160, WAIT)

    def test_a_bucket_released_tentatively_keeps_its_age(self) -> None:
        """R1, R7: a bucket released tentatively keeps its clock while unstable, so it is due at once after a redo."""
        sunion = self.tentative()
        for time in (40, 50):
            B(sunion, 0, 100 + time, time)
            sunion.release_tentative(time, 100)
        B(sunion, 1, 151, 30)
        assert sunion.clocks.start(30) == 120
        assert not sunion.oldest_unstable_is_young(151, WAIT)
        sunion.begin_redo()
        sunion.release_redo(100)
        sunion.finish_redo()
        assert due(sunion, 151, True, False) == 40

    def test_two_feeds_of_an_input_give_no_duplicates(self) -> None:
        """Rows of one time come from MAIN and from CORRECTIONS (B4)."""
        sunion = make(1)
        one = sunion.inputs[0]
        one.position, one.frontier = 6, 20
        sunion.cursors = Cursors(live=40, restart=20)
        T(sunion, 0, 0, (41, "a"), (44, "b"), (47, "c"))
        b(sunion, 0, 0, 50)
        S(sunion, 0, 0, 7, (22, "o"))
        S(sunion, 0, 0, 8, (41, "a"))
        assert [c.rows.time.tolist() for c in one.tentative] == [[44, 47]]
        B(sunion, 0, 0, 42, 8)
        T(sunion, 0, 0, (41, "a"))
        assert [c.rows.time.tolist() for c in one.tentative] == [[44, 47]]
        assert one.t_star() == 49
        assert show(sunion.release_tentative(50, 100)) == "41a 44b 47c | 50"

    def test_an_undo_from_main_drops_everything_tentative(self) -> None:
        sunion = make(1)
        T(sunion, 0, 0, (4, "a"))
        b(sunion, 0, 0, 10)
        one = sunion.inputs[0]
        assert one.held
        one.undo()
        assert not one.held
        assert one.tentative_frontier == one.frontier
        sunion.taint()
        assert show(sunion.release_tentative(10, 100)) == "| 10"

    def test_late_tentative_tuples_of_a_released_bucket_are_dropped(self) -> None:
        sunion = make(1)
        sunion.taint()
        sunion.release_tentative(10, 100)
        T(sunion, 0, 0, (4, "a"), (12, "b"))
        assert sunion.tentative_dropped == 1
        assert show(sunion.release_tentative(20, 100)) == "12b | 20"

    def test_tentative_tuples_are_released_after_forced_rec_done(self) -> None:
        sunion = make(2)
        B(sunion, 0, 0, 10)
        B(sunion, 1, 0, 10)
        sunion.release_stable(9)
        sunion.taint()
        T(sunion, 0, 0, (14, "t"), (24, "u"))
        b(sunion, 0, 0, 30)
        assert show(sunion.release_tentative(30, 100)) == "14t 24u | 30"
        sunion.begin_redo()
        B(sunion, 1, 0, 40)
        B(sunion, 0, 0, 20)
        assert show(sunion.release_redo(9)) == "| 20"
        sunion.finish_redo()
        sunion.taint()
        assert show(sunion.release_tentative(30, 100)) == "24u | 30"


class TestAcknowledging:
    def test_processed_tuples_are_acknowledged_not_received_ones(self) -> None:
        sunion = make(1)
        S(sunion, 0, 0, 1, (4, "a"), (12, "b"))
        assert sunion.acknowledged() == [0]
        B(sunion, 0, 0, 10, 2)
        sunion.release_stable(100)
        assert sunion.acknowledged() == [1]
        B(sunion, 0, 0, 20, 2)
        sunion.release_stable(100)
        assert sunion.acknowledged() == [2]

    def test_for_an_unsorted_source_the_smallest_needed_id_counts(self) -> None:
        sunion = make(1, sources=True)
        S(sunion, 0, 0, 1, (4, "a"), (12, "b"), (5, "c"), (14, "d"))
        B(sunion, 0, 0, 10, 4)
        sunion.release_stable(100)
        assert sunion.acknowledged() == [1]

    def test_tainted_union_needs_everything_since_checkpoint(self) -> None:
        sunion = TestWaiting().start()
        sunion.taint()
        sunion.release_tentative(30, 100)
        assert sunion.acknowledged() == [3, 0]

    def test_tuples_below_installed_restart_point_are_skipped(self) -> None:
        """B7, A3: upstream resends from the acknowledged id; tuples below the restart point are skipped."""
        sunion = make(1, sources=True)
        sunion.install(10, [1])
        S(sunion, 0, 0, 2, (12, "b"), (5, "c"), (14, "d"))
        B(sunion, 0, 0, 20, 4)
        assert show(sunion.release_stable(100)) == "12b 14d | 20"


def test_a_stable_release_while_tainted_is_an_error() -> None:
    sunion = make(1)
    sunion.taint()
    B(sunion, 0, 0, 10)
    with pytest.raises(AssertionError, match="tainted"):
        sunion.release_stable(1)


class TestBackPressure:
    def test_a_full_sunion_reads_only_the_input_others_wait_for(self) -> None:
        sunion = make()
        B(sunion, 0, 0, 35)
        B(sunion, 1, 0, 12)
        sunion.release_stable(100)
        assert [sunion.needs(0), sunion.needs(1)] == [False, True]
        B(sunion, 1, 0, 31)
        assert [sunion.needs(0), sunion.needs(1)] == [False, False]  # something can be released first
        sunion.release_stable(100)
        assert [sunion.needs(0), sunion.needs(1)] == [True, True]  # [30, 40) needs both

    def test_while_tainted_the_others_wait_at_the_checkpoint(self) -> None:
        sunion = TestCorrecting().tentative()
        assert [sunion.needs(0), sunion.needs(1)] == [False, True]
        B(sunion, 1, 0, 20)
        assert [sunion.needs(0), sunion.needs(1)] == [False, False]  # redo makes room

    def test_unreleased_tentative_tuples_are_bounded(self) -> None:
        """Under suspend they wait for their stable versions; the oldest are dropped and counted."""
        sunion = SUnion(inputs=[(0, True)], streams=1, bucket_us=10, tentative_bytes=100)
        for time in range(1, 40):
            T(sunion, 0, 0, (time, "x"))
        one = sunion.inputs[0]
        assert one.tentative_bytes == sum(c.rows.nbytes for c in one.tentative) <= 100
        assert sunion.tentative_dropped == 39 - len(one.tentative)
        assert one.tentative[-1].max == 39
        one.undo()
        assert one.tentative_bytes == 0


class TestAhead:
    """B3: an operator that ends releases its last windows, however far beyond its boundary they reach."""

    def make(self, count: int = 2) -> SUnion:
        """All inputs are at 10 at time 100."""
        sunion = SUnion(inputs=[(0, True)] * count, streams=1, bucket_us=D, ahead_us=D)
        for at in range(count):
            B(sunion, at, 100, 10)
        assert show(sunion.release_stable(100)) == "| 10"
        return sunion

    def ended(self, count: int = 2) -> SUnion:
        """One of them ends with a window to 96, at time 101."""
        sunion = self.make(count)
        S(sunion, 0, 101, 1, (95, "w"))
        B(sunion, 0, 101, END_OF_TIME, 1)
        return sunion

    def test_the_other_input_may_take_its_time(self) -> None:
        sunion, seen = self.ended(), []
        for time in range(20, 101, 10):
            now = 90 + time + HARD - WAIT  # later than the boundary of the first one by all that αX has room for
            assert due(sunion, now - 1, True, True) is None
            assert sunion.oldest_unstable_is_young(now - 1, WAIT)
            B(sunion, 1, now, time)
            seen.append(show(sunion.release_stable(100)))
        assert seen[:2] == ["| 20", "| 30"]
        assert seen[-1] == "95w | 100"

    def test_once_no_other_input_was_fresh_for_long_it_goes(self) -> None:
        sunion = self.ended()
        assert due(sunion, 101, True, False) is None
        assert due(sunion, 101 + HARD - 1, True, False) == 30, "others start clocks as ever"
        assert due(sunion, 101 + HARD, True, False) == 100
        sunion.taint()
        assert show(sunion.release_tentative(100, 100)) == "95w | 100"
        assert due(sunion, 101 + 10 * WAIT, True, False) is None

    def test_end_is_not_delayed_by_our_own_standstill(self) -> None:
        sunion = self.ended()
        assert due(sunion, 101, True, False) is None
        sunion.waits.shift(50, 151)
        assert due(sunion, 151 + HARD - 1, True, False) == 30
        assert due(sunion, 151 + HARD, True, False) == 100

    def test_a_short_failure_of_the_other_input_lets_nothing_go(self) -> None:
        sunion = self.ended()
        for time in range(20, 81, 10):
            B(sunion, 1, 90 + time, time)
            sunion.release_stable(100)
            assert due(sunion, 90 + time, True, False) is None, "a moment between two producers"
            assert due(sunion, 91 + time, True, True) is None

    def test_input_with_tentative_end_does_not_count_as_another(self) -> None:
        sunion = self.make()
        T(sunion, 0, 101, (95, "w"))
        b(sunion, 0, 101, END_OF_TIME)
        assert due(sunion, 101, True, False) is None
        assert due(sunion, 101 + HARD, True, False) == 100

    def test_ended_input_waits_while_another_one_is_fresh(self) -> None:
        sunion = self.ended(3)
        for time in range(20, 81, 10):
            B(sunion, 1, 90 + time, time)  # input 2 has failed
            end = due(sunion, 90 + time, True, True, False)
            assert end is None or end <= time + D

    def test_ended_input_is_ahead_of_installed_point(self) -> None:
        """Which has heard no boundary yet."""
        sunion = SUnion(inputs=[(0, True)] * 2, streams=1, bucket_us=D, ahead_us=D)
        sunion.install(10, [0, 0])
        S(sunion, 0, 101, 1, (95, "w"))
        B(sunion, 0, 101, END_OF_TIME, 1)
        B(sunion, 1, 101, 10)
        assert due(sunion, 101 + HARD - 1, True, True) is None
        assert due(sunion, 101 + HARD, True, True) in (20, 30)


def test_old_buckets_share_a_clock_without_effect() -> None:
    """B3: a failure may last for days; buckets older than 2X need no clock of their own."""

    def make(old_us: int) -> SUnion:
        return SUnion(inputs=[(0, False), (0, False)], streams=1, bucket_us=D, old_us=old_us)

    exact, few = make(10**12), make(50)
    for step in range(400):
        for sunion in (exact, few):
            B(sunion, 0, 7 * step, step * D)
        now = 7 * step + 3
        for age in (1, 20, 49, 50):
            assert few.clocks.end_by_age(age, now) == exact.clocks.end_by_age(age, now)
            assert few.oldest_unstable_is_young(now, age) == exact.oldest_unstable_is_young(now, age)
            assert (few.clocks.waited(now) >= age) == (exact.clocks.waited(now) >= age)
    assert len(exact.clocks) > 300
    assert len(few.clocks) < 12
    assert due(few, now, True, True) == due(exact, now, True, True)
