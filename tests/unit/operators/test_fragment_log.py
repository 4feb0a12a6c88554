"""Records that slices add to a checkpoint log, and a fragment restored from them; small cases by hand (G2 to G4).

Events are written ``time key value``.  ``a(1,5)`` is a footprint of key a with one tuple and the sum 5.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from operators import footprints
from operators.aggregate.group_cells import Cells
from operators.footprints import CellRecord
from operators.fragment import Fragment
from operators.fragment_log import FragmentLog, LoggedSlice, SliceLog
from operators.steps import finished
from replicas.checkpoint.extent import SLICE_RECORDS, Extent
from replicas.checkpoint.targets import ASSUMED, to_rewrite
from spe.errors import LogCorrupt
from spe.plan.log_targets import Continuous
from spe.query.declaration import OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.custom import CustomSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.windows import CountWindow, SlidingWindow, TumblingWindow, Window
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.state import encode_state
from tests.support.logged import LoggedRun, digest, given, live_of, unit_of
from tests.support.operators import Tuple, text, tuples

SCHEMA = Schema.of(key="string", value="int64!")
IN = StreamId("in")
CALLS = {"n": AggregateCall("count"), "sum": AggregateCall("sum", "value"), "first": AggregateCall("first", "value")}
COUNT_3 = CountWindow(3)
TRACE_11 = tuples(SCHEMA, "1 a 5\n4 b 2\n12 a 1\n15 c 4\n21 a 7\n26 b 3")


def sums(window: Window) -> dict[str, OperatorSpec]:
    return {"out": AggregateSpec(IN, window, {"key": "key"}, CALLS)}


class Written(LoggedRun):
    """Remembers what each slice added."""

    def __init__(self, specs: dict[str, OperatorSpec], rows: list[Tuple], *others: list[Tuple]) -> None:
        names = ["in", "other"][: 1 + len(others)]
        super().__init__(unit_of(specs, dict.fromkeys(names, SCHEMA)), [rows, *others], self._rewrites)
        self.below = BEFORE_TIME
        self.made: list[SliceLog] = []
        slice_log = self.log.slice_log

        def remembered(*args: Any) -> Any:
            made = yield from slice_log(*args)
            self.made.append(made)
            return made

        self.log.slice_log = remembered  # type: ignore[method-assign, assignment]

    def _rewrites(self, end: int, extent: Any) -> tuple[int, int]:
        return self.below, 100 if self.below > BEFORE_TIME else 0

    def added(self, at: int = -1) -> str:
        """Footprints of a slice, and its closings."""
        made = self.made[at]
        found = []
        for tree in made.footprints.get("out", ()):
            if "parts" not in tree:
                return "a state"
            count, total, _ = tree["parts"]
            found += [
                f"{key}({n},{s})"
                for key, n, s in zip(tree["keys"][0].to_list(), count["values"].tolist(), total["values"].tolist())
            ]
        closed = [f"-{key}" for tree in made.closings.get("out", ()) for key in tree["keys"][0].to_list()]
        return " ".join(closed + found)

    def held(self) -> tuple[int, int]:
        """T, and how many footprints are live."""
        return self.extent.replay_from(), len(live_of(self.log).times)


def run_to(specs: dict[str, OperatorSpec], rows: list[Tuple], *ends: int) -> tuple[Written, list[str]]:
    """The run, and what each slice added."""
    run, added = Written(specs, rows), []
    for end in ends:
        run.slice(end)
        added.append(run.added())
    return run, added


def goes_on(run: LoggedRun, fragment: Fragment, end: int) -> str:
    """What the fragment that was made again releases next."""
    return text(given(fragment, run.unit, run.ports, run.previous, end)[0])


def test_a_closed_window_is_written_as_a_closing() -> None:
    """A crash after the slice to 30; then c fills its window."""
    run, added = run_to(sums(COUNT_3), [*TRACE_11, *tuples(SCHEMA, "33 a 1\n35 b 4")], 10, 20, 30)
    assert added == ["a(1,5) b(1,2)", "c(1,4)", "-a"]
    assert run.held() == (10, 2)
    fragment, _ = run.remade()
    assert goes_on(run, fragment, 40) == "35 b 3 9 2"


def test_a_torn_slice_counts_for_nothing() -> None:
    """The log ends with the slice to 20; the slice to 30 gives the same result as before the crash."""
    run, _ = run_to(sums(COUNT_3), TRACE_11, 10, 20)
    assert run.held() == (10, 3)
    run.crash()
    assert text(run.slice(30)[0]) == "21 a 3 13 5"


def test_a_row_at_the_time_of_a_footprint_is_not_in_it() -> None:
    """Slices end before rows of their end: what has that time is replayed (G4)."""
    run, _ = run_to(sums(COUNT_3), tuples(SCHEMA, "1 a 5\n10 a 1\n20 a 7"), 10, 20)
    fragment, _ = run.remade()
    assert goes_on(run, fragment, 30) == "20 a 3 13 5"


def test_window_closed_and_opened_in_one_slice_needs_no_closing() -> None:
    """The window of a is closed and the next one opened by the same slice (G2)."""
    run, added = run_to(sums(CountWindow(2)), tuples(SCHEMA, "1 a 1\n2 a 2\n3 a 4"), 10)
    assert added == ["a(1,4)"]
    assert run.held() == (10, 1)


SLIDING = SlidingWindow(30, 10)


def test_cells_of_panes_that_have_passed_hold_no_replay() -> None:
    """Their footprints are final (G2)."""
    rows = tuples(SCHEMA, "3 a 1\n14 a 2\n25 a 4")
    run, added = run_to(sums(SLIDING), rows, 10, 20, 30)
    assert added == ["a(1,1)", "a(1,2)", "a(1,4)"]
    assert run.held() == (30, 2)
    run.remade()
    run, added = run_to(sums(SLIDING), rows, 7)
    assert (added, run.held()) == (["a(1,1)"], (7, 1))
    run.slice(17)
    assert run.added() == "a(1,1) a(1,2)"
    assert run.held() == (17, 2)


def test_a_footprint_before_the_end_of_its_pane_is_not_final() -> None:
    """What comes between is replayed, and counts."""
    run, _ = run_to(sums(SLIDING), tuples(SCHEMA, "3 a 1\n8 a 2"), 7, 9)
    assert run.held() == (7, 1)
    fragment, _ = run.remade()
    assert goes_on(run, fragment, 31) == "9 a -20 10 2 3 1\n19 a -10 20 2 3 1\n29 a 0 30 2 3 1"


def test_replay_makes_no_cell_and_counts_nothing_twice() -> None:
    """An open count window holds replay at 10; what comes again from there has been in panes that have passed."""
    tumbling = TumblingWindow(10)
    specs = {**sums(COUNT_3), "sliding": sums(SLIDING)["out"], "tumbling": sums(tumbling)["out"]}
    run, _ = run_to(specs, tuples(SCHEMA, "1 a 5\n2 b 1\n12 b 2\n14 c 2\n22 b 3\n23 c 1\n24 c 1"), 10, 20, 30)
    assert run.extent.replay_from() == 10
    run.remade([13])  # finds any difference


def test_rows_are_numbered_from_the_replayed_commit() -> None:
    """Which row is the first is told by numbers (G4)."""
    run, _ = run_to(sums(COUNT_3), tuples(SCHEMA, "1 a 5\n2 b 1\n12 a 2\n13 c 3\n22 c 4"), 10, 20, 30)
    fragment, log = run.remade()
    operator: Any = fragment.operators[StreamId("out")]
    assert operator.log_state()["sequence"] == 5
    assert live_of(log).times.tolist() == [10, 10, 20]


def test_rewritten_cells_hold_back_no_replay() -> None:
    run, _ = run_to(sums(COUNT_3), TRACE_11, 10, 20)
    run.below = 11
    run.slice(30)
    assert run.added() == "-a b(2,5)"
    assert run.held() == (20, 2)
    run.remade()


WIDE = SlidingWindow(100_000, 100)


@pytest.mark.parametrize("window", [COUNT_3, TumblingWindow(100_000), WIDE])
def test_oldest_of_too_many_groups_are_rewritten(window: Window) -> None:
    """A hundred groups stay open; each slice has time for seven.  So all have their turn, and the log does not grow."""
    settings = Continuous(None, records=1)
    rows = [(10 * at, (f"k{at}", at)) for at in range(100)]

    def rewrites(end: int, extent: Extent) -> tuple[int, int]:
        choices = extent.choices()
        return choices.within(to_rewrite(choices, settings, ASSUMED), 7)

    run = LoggedRun(unit_of(sums(window), {"in": SCHEMA}), [rows])
    run.slice(30)
    run.rewrites = rewrites
    for end in range(60, 4_000, 30):
        run.slice(end)
        choices = run.extent.choices()
        records = choices.records[0] - SLICE_RECORDS * choices.slices[0]
        assert records <= 2 * choices.cells[-1]
    assert (choices.cells[-1], records < 107) == (100, True)
    run.remade()


def test_all_operators_share_the_time_for_rewriting() -> None:
    """Of a and b, from 10, and c, from 20, in two operators and a state that is one record (G7)."""
    place = CustomSpec((IN,), "tests.support.operators_for_tests:Places", {})
    specs = {**sums(COUNT_3), "other": sums(WIDE)["out"], "places": place}
    run = Written(specs, tuples(SCHEMA, "1 a 5\n4 b 2\n15 c 4"))
    run.slice(10)
    run.slice(20)
    found = []
    for below, most in ((10, 3), (20, 0), (20, 1), (21, 0)):
        run.rewrites = lambda end, extent, budget=(below, most): budget  # type: ignore[misc]
        run.slice(run.previous + 1)
        found.append(run.made[-1].rewritten)
        run.remade()
    assert found == [3, 2, 1, 1]


def test_footprints_are_copies() -> None:
    """The log is encoded while the next slices are taken in."""
    for window in (COUNT_3, SLIDING):
        run, _ = run_to(sums(window), tuples(SCHEMA, "1 a 5\n2 b 7\n3 a 9\n4 a 9\n5 b 9"), 3)
        before = encode_state(run.made[-1].footprints)
        run.slice(6)
        assert encode_state(run.made[0].footprints) == before


def test_everything_is_rewritten_after_forget() -> None:
    """As after a slice that the disk refused: its closings are missing, and earlier records count no more."""
    run, _ = run_to(sums(COUNT_3), TRACE_11, 10, 20)
    run.log.forget()
    run.slice(30)
    assert run.added() == "b(2,5) c(1,4)"
    assert run.made[-1].whole
    assert (run.extent.needs(), *run.held()) == (30, 30, 2)
    run.remade()


def test_a_missing_footprint_is_refused() -> None:
    run, _ = run_to(sums(COUNT_3), TRACE_11, 10, 20)
    last = run.made[-1]
    fragment = Fragment(run.unit)
    log = FragmentLog(run.unit, fragment)
    with pytest.raises(LogCorrupt, match="footprints of 1 groups of count windows, expected 3"):
        finished(log.reconstruct(last.commit, last.commit, 20, [LoggedSlice(20, last.closings, last.footprints)]))


def test_other_input_than_before_is_refused() -> None:
    run, _ = run_to(sums(COUNT_3), TRACE_11, 10, 20)
    run.ports = [TRACE_11[:3]]
    with pytest.raises(LogCorrupt, match="replay ends with row 3, the checkpoint log with row 4"):
        run.remade()


def test_rows_from_before_the_log_are_in_it_while_needed() -> None:
    """A join whose rows came before the first slice that is logged; then replay begins at the oldest row it keeps."""
    spec = JoinSpec(IN, StreamId("other"), JoinKind.INNER, (("key", "key"),), None, -20, 20)
    run = Written({"out": spec}, tuples(SCHEMA, "1 a 5\n12 a 1\n32 a 2"), tuples(SCHEMA, "4 a 2\n30 a 3\n50 a 3"))
    run.slice(10)
    assert run.made[-1].written == 1
    assert run.extent.replay_from() == 10
    run.crash()
    assert len(run.slice(31)[0]) == 2
    run.crash()
    run.slice(40)
    assert run.log.oldest_row() is not None
    assert (live_of(run.log).times.tolist(), run.extent.replay_from()) == ([], 10)
    run.crash()
    assert len(run.slice(51)[0]) == 1


def test_no_row_is_stored_beyond_the_end_of_time() -> None:
    """Windows that close there give rows just before it, whose intervals reach beyond; upstream would keep them."""
    spec = JoinSpec(IN, StreamId("other"), JoinKind.INNER, (("key", "key"),), None, -20, 20)
    last = f"12 a 1\n{END_OF_TIME - 1} a 2"
    run = Written({"out": spec}, tuples(SCHEMA, last), tuples(SCHEMA, last))
    run.slice(5)
    run.slice(15)
    assert run.log.oldest_row() == 12
    assert len(run.slice(END_OF_TIME)[0]) == 1
    assert run.log.oldest_row() is None


def test_single_record_state_is_written_only_when_too_old() -> None:
    spec = CustomSpec((IN,), "tests.support.operators_for_tests:Places", {})
    run, _ = run_to({"out": spec}, TRACE_11, 10, 20)
    assert [made.written for made in run.made] == [1, 0]
    assert run.held() == (10, 1)
    run.crash()
    run.below = 11
    assert text(run.slice(30)[0]) == "21 a 402\n26 b 501"
    assert run.held() == (30, 1)


def test_the_newest_footprint_counts() -> None:
    """Also where it has another place among those of its slice."""
    run, _ = run_to(sums(COUNT_3), tuples(SCHEMA, "1 a 5\n2 b 1\n12 b 2\n13 a 3"), 10, 20)
    run.below = 11
    run.slice(21)
    assert run.added() == "a(2,8) b(2,3)"
    tree = run.made[-1].footprints["out"][0]
    operator: Any = Fragment(run.unit).operators[StreamId("out")]
    operator.begin_log()
    old = run.made[0].footprints["out"][0]
    state = run.made[-1].commit["operators"]["out"]["state"]
    finished(operator.reconstruct(state, state, [CellRecord(10, old), CellRecord(21, tree)]))
    assert [part.times.tolist() for part in finished(operator.live_footprints())] == [[21, 21]]


@pytest.mark.parametrize(
    ("window", "written", "mark"),
    [
        (COUNT_3, 10, 20),
        (TumblingWindow(10), 10, 20),
        (SlidingWindow(20, 10), 15, 25),  # of two panes that were written one is gone
    ],
)
def test_a_restored_state_is_behind_the_newest_log_slice(window: Window, written: int, mark: int) -> None:
    """Between them windows have closed, of which it knows nothing; a failure then adds what is taken back."""
    run = Written(sums(window), tuples(SCHEMA, "1 a 5\n4 b 2\n12 a 1\n15 c 4\n16 a 7\n26 b 3\n31 d 2"))
    run.slice(written)
    given(run.fragment, run.unit, run.ports, written, mark)  # a closes
    back = Fragment(run.unit)
    log = FragmentLog(run.unit, back)
    back.restore(run.fragment.snapshot())
    log.continues(run.log, mark)
    given(run.fragment, run.unit, run.ports, mark, 30)
    run.fragment, run.log, run.previous = back, log, mark
    run.slice(30)
    run.crash()
    run.slice(40)
    run.remade()


def test_state_restored_to_older_slice_is_rewritten() -> None:
    run = Written(sums(COUNT_3), TRACE_11)
    run.slice(10)
    before = run.fragment.snapshot()
    run.slice(20)
    back = Fragment(run.unit)
    log = FragmentLog(run.unit, back)
    back.restore(before)
    log.continues(run.log, 10)
    given(back, run.unit, run.ports, 10, 20)
    given(back, run.unit, run.ports, 20, 30)
    assert finished(log.slice_log(30)).complete


def test_a_state_brought_back_before_any_slice_is_written_whole() -> None:
    """G9: nothing in the log counts for it, whatever another state left there."""
    run = Written(sums(COUNT_3), TRACE_11)
    given(run.fragment, run.unit, run.ports, BEFORE_TIME, 10)
    back = Fragment(run.unit)
    log = FragmentLog(run.unit, back)
    back.restore(run.fragment.snapshot())
    log.continues(run.log, 10)
    given(back, run.unit, run.ports, 10, 20)
    assert finished(log.slice_log(20)).complete


@pytest.mark.parametrize("window", [COUNT_3, SLIDING])
def test_many_footprints_are_made_while_the_stream_goes_on(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is written anew after what was written is forgotten: rows come before a thread makes it of the state."""
    rows = [(at // 50, (f"k{at % 100}", at)) for at in range(500)]
    run = Written(sums(window), rows)
    monkeypatch.setattr(footprints, "LATER", 10)
    made_at_once: list[int] = []
    make = Cells.footprint

    def counted(cells: Cells, which: Any, keys: Any) -> Any:
        made_at_once.append(len(which))
        return (yield from make(cells, which, keys))

    for end in (3, 5):
        given(run.fragment, run.unit, run.ports, run.previous, end)
        run.previous = end
        run.log.forget()
        expected = state_log(run, end)
        monkeypatch.setattr(footprints, "LATER", 10)
        monkeypatch.setattr(Cells, "footprint", counted)
        run.log.forget()
        made = finished(run.log.slice_log(end))
        assert not made_at_once, "nothing waits for it"
        monkeypatch.setattr(Cells, "footprint", make)
        given(run.fragment, run.unit, run.ports, end, end + 1)
        run.previous = end + 1
        assert made.written == sum(len(tree["born"]) for tree in made.all_footprints()["out"])
        assert encode_state(made.all_footprints()) == expected


def state_log(run: Written, end: int) -> bytes:
    """All footprints, made at once."""
    with patch.object(footprints, "LATER", 1000):
        return encode_state(finished(run.log.slice_log(end)).footprints)


def logged_slices(run: Written) -> list[LoggedSlice]:
    """All slices of a run, as they would be read."""
    return [
        LoggedSlice(written.end, made.closings, made.all_footprints())
        for written, made in zip(run.written, run.made, strict=True)
    ]


def test_records_before_whole_ones_are_not_loaded() -> None:
    """G2: among them is one of a, whose closing was in the slice that was lost."""
    run, _ = run_to(sums(COUNT_3), TRACE_11, 10, 20)
    run.log.forget()
    run.slice(30)
    fragment, commit = Fragment(run.unit), run.made[-1].commit
    log = FragmentLog(run.unit, fragment)
    finished(log.reconstruct(commit, commit, 30, logged_slices(run)))
    log.replayed(commit, 30)
    assert digest(fragment) == digest(run.fragment)
    assert live_of(log).times.tolist() == [30, 30]


def test_the_oldest_row_is_that_of_all_operators() -> None:
    """G7: the near join has dropped what the far one keeps."""
    near, far = (
        JoinSpec(IN, StreamId("other"), JoinKind.INNER, (("key", "key"),), None, -reach, reach) for reach in (5, 50)
    )
    rows = tuples(SCHEMA, "12 a 5\n40 b 1")
    run = Written({"near": near, "far": far}, rows, rows)
    for end in (10, 20, 45):
        run.slice(end)
    assert run.fragment.operators[StreamId("near")].oldest_needed() == 40
    assert run.log.oldest_row() == 12


def test_rows_of_a_join_are_written_again_after_a_loss() -> None:
    """G2: the log that has them is another one, or lacks a slice."""
    spec = JoinSpec(IN, StreamId("other"), JoinKind.INNER, (("key", "key"),), None, -50, 50)
    run = Written({"out": spec}, tuples(SCHEMA, "12 a 5\n32 a 1"), tuples(SCHEMA, "33 a 1"))
    run.slice(10)
    run.slice(20)
    run.log.forget()
    run.slice(30)
    assert [made.written for made in run.made] == [0, 0, 1]
    run.crash()
    assert len(run.slice(40)[0]) == 2


def test_a_state_from_before_a_recovery_is_written_whole() -> None:
    """G4: the log that was recovered from has a slice of behind it."""
    run = Written(sums(COUNT_3), TRACE_11)
    run.slice(10)
    before = run.fragment.snapshot()
    run.slice(20)
    run.crash()
    back = Fragment(run.unit)
    log = FragmentLog(run.unit, back)
    back.restore(before)
    log.continues(run.log, 10)
    given(back, run.unit, run.ports, 10, 30)
    assert finished(log.slice_log(30)).complete


def test_counters_are_those_of_the_log_after_a_recovery() -> None:
    """U7: the late row came before what is replayed."""
    window = TumblingWindow(10, on="ts")
    schema = Schema.of(ts="timestamp", key="string", value="int64!")
    times = [(5, 5), (25, 3), (35, 35), (45, 45)]
    rows = [(time, (at, "a", 1)) for time, at in times]
    run = LoggedRun(unit_of({"out": AggregateSpec(IN, window, {"key": "key"}, CALLS)}, {"in": schema}), [rows])
    for end in (10, 30, 40, 50):
        run.slice(end)
    counters = run.fragment.counters()
    assert sum(counters.values()) > 0
    assert run.remade()[0].counters() == counters


PLACES = {"out": CustomSpec((IN,), "tests.support.operators_for_tests:Places", {})}


def partly_replayed() -> tuple[Written, Fragment, FragmentLog]:
    """The state as of 20 is one record; another operator would have rows from 10 on replayed."""
    run, _ = run_to(PLACES, TRACE_11, 10)
    run.below = 11
    run.slice(20)
    assert [made.written for made in run.made] == [1, 1]
    fragment = Fragment(run.unit)
    log = FragmentLog(run.unit, fragment)
    finished(log.reconstruct(run.made[1].commit, run.made[0].commit, 10, logged_slices(run)))
    return run, fragment, log


def test_rows_before_a_state_of_one_record_do_not_count_again() -> None:
    """G4: it has them."""
    run, fragment, log = partly_replayed()
    given(fragment, run.unit, run.ports, 10, 20)
    log.replayed(run.made[1].commit, 20)
    assert goes_on(run, fragment, 30) == "21 a 402\n26 b 501"


def test_a_replay_that_a_copy_continues_counts_no_row_again() -> None:
    """G4: a redo goes on with it, from a state that has the rows."""
    run, fragment, log = partly_replayed()
    copy = Fragment(run.unit)
    copy_log = FragmentLog(run.unit, copy)
    copy.restore(fragment.snapshot())
    copy_log.continues(log, 10)
    copy_log.replays_on()
    given(copy, run.unit, run.ports, 10, 20)
    copy_log.replayed(run.made[1].commit, 20)
    assert goes_on(run, copy, 30) == "21 a 402\n26 b 501"
