"""SOutput: kinds (U8), ids (U9), checkpoints (C1) and repetitions (R8); invariants 2 and 4."""

from __future__ import annotations

import pytest

from operators.digest import MARK_EVERY, MARKS_KEPT, RollingDigest
from operators.soutput import SOutput
from spe.errors import LocalProtocolError
from spe.stream.batch import Batch, Rows
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.stream.times import END_OF_TIME
from tests.support.streams import PAYLOAD, parse, show

NUMBERS = Schema.of(n="int64", s="string")


def rows(text: str) -> Rows:
    """``"12x 15y"``: tuples with time and payload."""
    element = parse(" ".join(f"S/{word}" for word in text.split()))[0]
    assert isinstance(element, Batch)
    return element.rows


def numbered(count: int, pool: StringPool | None = None) -> Rows:
    """``count`` tuples at times 0, 1, 2, … ."""
    return Rows.from_tuples(NUMBERS, range(count), [(i * 7 % 13, f"k{i % 5}") for i in range(count)], pool)


def after_ten() -> SOutput:
    out = SOutput("orders")
    assert show(out.stable(rows("3a 5b"), 10)) == "S1/3a S2/5b B10(2)"
    return out


def test_stable_ids_are_the_ordinals_of_the_stable_stream() -> None:
    out = after_ten()
    assert show(out.stable(rows("12x"), 20)) == "S3/12x B20(3)"
    assert show(out.stable(rows("20y 20z"), 30)) == "S4/20y S5/20z B30(5)"
    assert out.last_id == 5


def test_an_empty_slice_gives_only_its_boundary() -> None:
    out = after_ten()
    assert show(out.stable(None, 20)) == "B20(2)"
    assert show(out.stable(Rows.empty(PAYLOAD), 30)) == "B30(2)"
    assert show(out.stable(None, 30)) == ""
    assert show(out.stable(None, END_OF_TIME)) == "Binf(2)"


def test_tentative_ids_continue_the_stable_ones() -> None:
    out = after_ten()
    first = out.tentative(rows("15x 24y"), 30)
    second = out.tentative(rows("31z"), 40)
    assert show(first + second) == "T/15x T/24y b30 T/31z b40"
    ids = [e.row_ids().tolist() for e in first + second if isinstance(e, Batch)]
    assert ids == [[3, 4], [5]]
    assert out.last_id == 2


def test_an_empty_tentative_slice_gives_only_its_boundary() -> None:
    assert show(after_ten().tentative(None, 20)) == "b20"


def test_live_and_redo_make_separate_ids() -> None:
    """Live continues tentatively while the restored instance makes the stable ids (R5)."""
    live = after_ten()
    checkpoint = live.snapshot()
    assert show(live.tentative(rows("15x 24y"), 30)) == "T/15x T/24y b30"

    redo = SOutput("orders")
    redo.restore(checkpoint)
    assert show(redo.stable(rows("12u 15x"), 20)) == "S3/12u S4/15x B20(4)"
    assert show(live.tentative(rows("51w"), 60)) == "T/51w b60"
    assert show(redo.stable(rows("24y"), 50)) == "S5/24y B50(5)"


def test_stable_rows_follow_tentative_rows_only_after_restore() -> None:
    out = after_ten()
    checkpoint = out.snapshot()
    out.tentative(None, 20)
    with pytest.raises(LocalProtocolError, match="orders: a stable slice after a tentative one"):
        out.stable(None, 30)
    with pytest.raises(LocalProtocolError, match="a checkpoint while tainted"):
        out.snapshot()
    out.restore(checkpoint)
    assert show(out.stable(rows("12u"), 20)) == "S3/12u B20(3)"


@pytest.mark.parametrize(
    ("text", "boundary"),
    [("9x", 20), ("20x", 20), ("15x 12y", 20), ("12x", 9)],
    ids=["before the slice", "at its end", "out of order", "boundary goes back"],
)
def test_an_invalid_slice_is_refused(text: str, boundary: int) -> None:
    with pytest.raises(LocalProtocolError, match="orders"):
        after_ten().stable(rows(text), boundary)
    with pytest.raises(LocalProtocolError, match="orders"):
        after_ten().tentative(rows(text), boundary)


# --- a restore behind what was released (R8) ---


def released_to_thirty() -> tuple[SOutput, dict[str, object]]:
    """Ids 1 … 5 and boundary 30 are out; the snapshot is from boundary 10."""
    out = after_ten()
    checkpoint = out.snapshot()
    assert show(out.stable(rows("12u 15x 24y"), 30)) == "S3/12u S4/15x S5/24y B30(5)"
    return out, checkpoint


def test_repetitions_are_dropped_by_counting() -> None:
    out, checkpoint = released_to_thirty()
    out.restore(checkpoint)
    assert show(out.stable(rows("12u"), 15)) == ""
    assert show(out.stable(rows("15x"), 20)) == ""
    assert show(out.stable(rows("24y 33z"), 40)) == "S6/33z B40(6)"
    assert out.dropped == 3


def test_another_instance_can_drop_released_rows() -> None:
    out, checkpoint = released_to_thirty()
    redo = SOutput("orders")
    redo.restore(checkpoint, out.snapshot())
    assert show(redo.stable(rows("12u 15x 24y"), 30)) == ""
    assert show(redo.stable(None, 40)) == "B40(5)"


def test_a_second_restore_remembers_the_furthest_release() -> None:
    out, checkpoint = released_to_thirty()
    out.restore(checkpoint)
    assert show(out.stable(rows("12u"), 15)) == ""
    out.restore(checkpoint)
    assert show(out.stable(rows("12u 15x 24y"), 30)) == ""
    assert show(out.stable(rows("31a"), 40)) == "S6/31a B40(6)"


@pytest.mark.parametrize(
    ("text", "boundary"),
    [("12u 15x 24Z", 30), ("12u 15x 23y", 30), ("12x 15u 24y", 30)],
    ids=["other payload", "other time", "payloads exchanged"],
)
def test_repeated_results_must_be_equal(text: str, boundary: int) -> None:
    out, checkpoint = released_to_thirty()
    out.restore(checkpoint)
    with pytest.raises(LocalProtocolError, match="orders: the stable tuples up to id 5 were made again, and differ"):
        out.stable(rows(text), boundary)


@pytest.mark.parametrize("text", ["12u 15x", "12u 15x 24y 25z"], ids=["fewer", "more"])
def test_as_many_tuples_must_be_repeated_as_were_released(text: str) -> None:
    out, checkpoint = released_to_thirty()
    out.restore(checkpoint)
    with pytest.raises(LocalProtocolError, match="on the second time, but 5 were released"):
        out.stable(rows(text), 30)


# --- digests (invariant 4) ---


def test_digests_do_not_depend_on_cuts_and_string_codes() -> None:
    """A mark every 1,000 tuples; string codes differ between processes."""
    one, other = SOutput("s"), SOutput("s")
    pool = StringPool()
    pool.current().encode(["k4", "k3", "unrelated"])
    whole, recoded = numbered(2_500), numbered(2_500, pool)
    one.stable(whole, 2_500)
    for start in range(0, 2_500, 333):
        stop = min(start + 333, 2_500)
        other.stable(recoded.slice(start, stop), stop)
    assert list(one.marks()) == [MARK_EVERY, 2 * MARK_EVERY]
    assert one.marks() == other.marks()
    assert one.snapshot() == other.snapshot()


def test_a_digest_continues_from_a_snapshot() -> None:
    whole, first = SOutput("s"), SOutput("s")
    stream = numbered(1_700)
    whole.stable(stream, 1_700)
    first.stable(stream.slice(0, 900), 900)
    second = SOutput("s")
    second.restore(first.snapshot())
    second.stable(stream.slice(900, 1_700), 1_700)
    assert second.snapshot() == whole.snapshot()
    assert second.marks() == whole.marks()


def test_the_end_of_a_stream_has_a_mark() -> None:
    """So that results after the last 1,000 are compared as well."""
    whole, first, second = SOutput("s"), SOutput("s"), SOutput("s")
    stream = numbered(70)
    assert whole.stable(stream, 70)
    assert (whole.newest_mark, dict(whole.marks()), whole.ended) == ((0, 0), {}, False)
    assert whole.stable(None, END_OF_TIME)
    first.stable(stream.slice(0, 40), 40)
    second.restore(first.snapshot())
    second.stable(stream.slice(40, 70), END_OF_TIME)
    assert whole.newest_mark == second.newest_mark
    assert second.newest_mark[0] == 70
    assert dict(whole.marks()) == dict(second.marks()) == {70: whole.newest_mark[1]}


def test_marks_are_bounded_and_the_newest_remain() -> None:
    rolling = RollingDigest()
    piece = numbered(MARK_EVERY)
    for _ in range(MARKS_KEPT + 3):
        rolling.add(piece)
    assert list(rolling.marks()) == [MARK_EVERY * k for k in range(4, MARKS_KEPT + 4)]
