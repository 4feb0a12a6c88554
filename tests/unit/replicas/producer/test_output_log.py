"""The producing side of a stream: what is sent (V1 to V6 and their table), acknowledgements (A1 to A3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count

import numpy as np
import pytest

import replicas.producer.log_entry
from replicas.producer.element_log import COALESCE_ROWS
from replicas.producer.log_entry import Entry
from replicas.producer.output_log import LogNotReady, LogTruncated, OutputLog
from replicas.producer.subscription import OutputSubscription, Overtaken
from spe.errors import LocalProtocolError
from spe.plan.plan import Limits
from spe.runtime.spill import SpillDamaged
from spe.stream.batch import Batch, Boundary, Column, Rows
from spe.stream.hashing import partition_of
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.fields import Mode, Start
from spe.wire.messages.feeds import StateChange
from spe.wire.state import decode_state, encode_state
from tests.support.producing import PLENTY, TextProducer, pull, pulled
from tests.support.spilling import Spilling, loading
from tests.support.streams import PAYLOAD, parse, show

STABLE, UP_FAILURE = NodeState.STABLE, NodeState.UP_FAILURE
STABILIZATION, RECOVERING = NodeState.STABILIZATION, NodeState.RECOVERING
MAIN: Mode = "main"
CORRECTIONS: Mode = "corrections"


def payload_of(index: int, count: int = 2) -> str:
    """A payload that hashes to partition ``index``."""
    letters = StringDictionary("abcdefgh")
    where = partition_of([Column(np.arange(8, dtype=np.int32), None, letters)], count)
    return letters.strings[int(np.flatnonzero(where == index)[0])]


# --- the table "What a producer sends first" ---

BEHIND, LEVEL = (6, 20), (9, 40)
AFTER_SIX = "S7/21c S8/31d S9/35e B40(9)"
REST = "S7/21c S8/31d S9/35e S10/45f B50(10)"


def producer_in(state: NodeState, *, fresh: bool = False) -> TextProducer:
    """Ids 4 … 9 and boundary 40; in a failure T/44 b50 T/55 b60 after them."""
    one = TextProducer()
    one.stable("S1/5 S2/7 S3/8 B10 S4/11 S5/15 S6/19b B20 S7/21c B30 S8/31d S9/35e B40")
    one.log.acknowledge("v/0@a", 1, 3)
    if state in (UP_FAILURE, STABILIZATION):
        one.fails("T/44x b50 T/55y b60")
    one.log.set_state(state, fresh)
    return one


def then_all_is_stable(one: TextProducer) -> None:
    """Any failure heals; id 10 and boundary 50 arrive."""
    if one.log.state is UP_FAILURE:
        one.stabilises()
    one.stable("S10/45f B50")
    one.done()


@pytest.mark.parametrize(
    ("state", "fresh", "place", "held", "first", "then"),
    [
        (STABLE, False, BEHIND, False, AFTER_SIX, "S10/45f B50(10)"),
        (STABLE, False, BEHIND, True, f"U(6) {AFTER_SIX} R+", "S10/45f B50(10)"),
        (STABLE, False, LEVEL, False, "", "S10/45f B50(10)"),
        (STABLE, False, LEVEL, True, "", "U(9) S10/45f B50(10) R+"),
        (UP_FAILURE, False, BEHIND, False, f"{AFTER_SIX} T/44x T/55y b60", "U(9) S10/45f B50(10) R+"),
        (UP_FAILURE, False, BEHIND, True, f"U(6) {AFTER_SIX} R- T/44x T/55y b60", "U(9) S10/45f B50(10) R+"),
        (UP_FAILURE, False, LEVEL, False, "T/44x T/55y b60", "U(9) S10/45f B50(10) R+"),
        (UP_FAILURE, False, LEVEL, True, "T/55y b60", "U(9) S10/45f B50(10) R+"),
        (STABILIZATION, False, BEHIND, False, AFTER_SIX, "S10/45f B50(10) R+"),
        (STABILIZATION, False, BEHIND, True, f"U(6) {AFTER_SIX}", "S10/45f B50(10) R+"),
        (STABILIZATION, False, LEVEL, False, "", "S10/45f B50(10) R+"),
        (STABILIZATION, False, LEVEL, True, "", "U(9) S10/45f B50(10) R+"),
        (STABILIZATION, True, BEHIND, False, "T/44x T/55y b60", f"U(6) {REST} R+"),
        (STABILIZATION, True, BEHIND, True, "T/55y b60", f"U(6) {REST} R+"),
        (STABILIZATION, True, LEVEL, False, "T/44x T/55y b60", "U(9) S10/45f B50(10) R+"),
        (STABILIZATION, True, LEVEL, True, "T/55y b60", "U(9) S10/45f B50(10) R+"),
    ],
)
def test_first_elements_of_a_subscription_follow_the_table(
    state: NodeState, fresh: bool, place: tuple[int, int], held: bool, first: str, then: str
) -> None:
    """A consumer with tentative tuples has seen them up to 49."""
    one = producer_in(state, fresh=fresh)
    subscription = one.subscribe(*place, 49 if held else None, held=held)
    assert pulled(subscription) == first
    assert pulled(subscription) == ""
    then_all_is_stable(one)
    assert pulled(subscription) == then
    assert pulled(subscription) == ""


@pytest.mark.parametrize(
    ("state", "fresh", "first", "then"),
    [
        (STABLE, False, f"U(6) {AFTER_SIX} R+", "S10/45f B50(10)"),
        (UP_FAILURE, False, f"U(6) {AFTER_SIX} R-", "S10/45f B50(10) R+"),
        (STABILIZATION, False, f"U(6) {AFTER_SIX}", "S10/45f B50(10) R+"),
        (STABILIZATION, True, f"U(6) {AFTER_SIX}", "S10/45f B50(10) R+"),
    ],
)
def test_a_corrections_feed_never_gets_tentative_elements(state: NodeState, fresh: bool, first: str, then: str) -> None:
    one = producer_in(state, fresh=fresh)
    subscription = one.subscribe(*BEHIND, 49, held=True, mode=CORRECTIONS)
    assert pulled(subscription) == first
    then_all_is_stable(one)
    assert pulled(subscription) == then


@pytest.mark.parametrize("state", [STABLE, UP_FAILURE, STABILIZATION])
@pytest.mark.parametrize("fresh", [False, True])
def test_consumer_whose_next_id_was_deleted_gets_first_id(state: NodeState, fresh: bool) -> None:
    log = producer_in(state, fresh=fresh).log
    assert log.subscribe(MAIN, 2, 10, False, 9) == LogTruncated(4)
    assert isinstance(log.subscribe(MAIN, 3, 10, False, 9), OutputSubscription)


@pytest.mark.parametrize("position", [2, 6, 9])
def test_a_recovering_producer_accepts_no_subscription(position: int) -> None:
    assert producer_in(RECOVERING).log.subscribe(MAIN, position, 20, True, 49) == LogNotReady()


def test_a_newer_boundary_counts_like_a_tuple() -> None:
    """p = q, but sb = 30 while the producer is at 40: the undo does not wait for a tuple."""
    one = producer_in(STABLE)
    assert pulled(one.subscribe(9, 30, 49, held=True)) == "U(9) B40(9) R+"
    assert pulled(one.subscribe(9, 30)) == "B40(9)"


def test_changes_of_state_travel_in_band() -> None:
    """F2: in order with the elements; each change is numbered, also one back to an earlier state."""
    one = producer_in(STABLE)
    subscription = one.subscribe(*LEVEL)
    assert subscription.pull(PLENTY) == []
    one.fails("b50")
    assert subscription.pull(PLENTY)[0] == StateChange(UP_FAILURE, False, 3)
    one.stabilises()
    one.stable("S10/41 B42")
    assert subscription.pull(PLENTY)[0] == StateChange(STABILIZATION, False, 4)
    one.stabilises(fresh=True)
    one.tentative("T/57 b60")
    news, *_, rec_done, batch, _boundary = subscription.pull(PLENTY)
    assert show([rec_done, batch]) == "R- T/57"  # type: ignore[list-item]
    assert news == StateChange(STABILIZATION, True, 5)
    one.done()
    assert subscription.pull(PLENTY)[0] == StateChange(STABLE, False, 6)
    one.fails("b70")
    one.stabilises()
    one.done()
    assert subscription.pull(PLENTY)[0] == StateChange(STABLE, False, 9)


def test_a_replaced_log_continues_the_sequence_of_states() -> None:
    changes = count(1)
    first, second = (OutputLog(Channel(StreamId("s"), 0), PAYLOAD, [], Limits(), changes=changes) for _ in range(2))
    first.set_state(STABLE)
    second.set_state(STABLE)
    second.set_state(STABLE)
    assert (first.sequence, second.sequence) == (3, 4)


# --- what each subscriber gets ---


def failed_after_six() -> TextProducer:
    """Last stable id 6, frontier 10; then T/15x T/24y b30."""
    one = TextProducer()
    one.stable("S1/1 S2/2 S3/3 S4/4 S5/5 S6/6 B10")
    one.fails("T/15x T/24y b30")
    return one


CORRECTIONS = "S7/12u S8/15x S9/18v S10/24y B50"


def test_each_subscriber_gets_its_own_correction() -> None:
    """P had received the tentative tuples; Q subscribed during STABILIZATION."""
    one = failed_after_six()
    p = one.subscribe(6, 10)
    assert pulled(p) == "T/15x T/24y b30"
    one.stabilises()
    q = one.subscribe(6, 10)
    assert pulled(q) == ""
    one.stable(CORRECTIONS)
    one.done()
    assert pulled(p) == "U(6) S7/12u S8/15x S9/18v S10/24y B50(10) R+"
    assert pulled(q) == "S7/12u S8/15x S9/18v S10/24y B50(10) R+"


def test_a_failure_during_redo_begins_after_the_rec_done() -> None:
    one = failed_after_six()
    p = one.subscribe(6, 10)
    pulled(p)
    one.stabilises()
    one.stable("S7/12u S8/15x B20")
    assert pulled(p) == "U(6) S7/12u S8/15x B20(8)"
    one.stable("S9/18v S10/24y B50")
    one.done(UP_FAILURE)
    one.tentative("T/55z b60")
    assert pulled(p) == "S9/18v S10/24y B50(10) R- T/55z b60"
    one.stabilises()
    one.stable("S11/55z B60")
    one.done()
    assert pulled(p) == "U(10) S11/55z B60(11) R+"


def test_a_switch_between_producers_in_up_failure() -> None:
    """The client has T/24 T/31 b40 of r1; r2 has its own tentative tuples, and more of them."""
    r2 = TextProducer()
    r2.stable("S1/1 S2/2 S3/3 S4/4 S5/5 S6/19 B20")
    r2.fails("T/24′ T/31′ b40 T/45′ b50")
    assert pulled(r2.subscribe(6, 20, 39, held=True)) == "T/45′ b50"


def test_a_switch_to_a_replica_that_never_failed() -> None:
    r2 = TextProducer()
    r2.stable("S1/1 S2/2 S3/3 S4/4 S5/5 S6/19 B20")
    behind = r2.subscribe(6, 20, 39, held=True)
    assert pulled(behind) == ""
    r2.stable("B30")
    assert pulled(behind) == "U(6) B30(6) R+"
    r2.stable("S7/31 S8/33 S9/38 B40")
    assert pulled(r2.subscribe(6, 20, 39, held=True)) == "U(6) S7/31 S8/33 S9/38 B40(9) R+"


def test_a_consumer_that_is_ahead() -> None:
    """p = 100, the producer is at 90: its undo goes to 100, and 91 … 100 are not sent again."""
    r2 = TextProducer()
    r2.stable(" ".join(f"S/{2 * i}" for i in range(1, 91)) + " B181")
    r2.fails(" ".join(f"T/{t}" for t in range(181, 231)) + " b231")
    subscription = r2.subscribe(100, 200)
    assert pulled(subscription) == " ".join(f"T/{t}" for t in range(200, 231)) + " b231"
    r2.stabilises()
    r2.stable(" ".join(f"S/{2 * i}" for i in range(91, 96)) + " B191")
    assert pulled(subscription) == ""
    r2.stable(" ".join(f"S/{2 * i}" for i in range(96, 121)) + " B250")
    r2.done()
    expected = " ".join(f"S{i}/{2 * i}" for i in range(101, 121))
    assert pulled(subscription) == f"U(100) {expected} B250(120) R+"


def test_a_substream_without_tuples_still_advances() -> None:
    """Ids 1 … 5 and 6 … 8 all hash to the other partition."""
    x = payload_of(0)
    one = TextProducer(consumers=["v/1@a"])
    j = one.subscribe(0, 0, share=(1, 2, (0,)))
    one.stable(f"S/1{x} S/2{x} S/3{x} S/4{x} S/5{x} B10")
    assert pulled(j) == "B10(5)"
    one.log.acknowledge("v/1@a", 1, 5)
    assert one.log.first == 6
    one.fails(f"T/12{x} b20")
    assert pulled(j) == "b20"
    one.stabilises()
    one.stable(f"S/11{x} S/12{x} S/13{x} B20")
    one.done()
    assert pulled(j) == "U(5) B20(8) R+"


def test_a_restarted_replica_serves_the_installed_log() -> None:
    """r2 is in UP_FAILURE with truncation line 4; r1 installs its log, then makes its own tentative results."""
    r2 = TextProducer()
    r2.stable("S1/1 S2/2 S3/3 S4/4 B10 S5/11 S6/12 S7/15 B30 S8/31 S9/32 S10/40 B50")
    r2.log.acknowledge("v/0@a", 1, 4)
    r2.fails("T/51 b60")
    r1 = TextProducer()
    r1.log.set_state(RECOVERING)
    assert r1.log.subscribe(MAIN, 4, 10, False, 9) == LogNotReady()
    r1.log.install(decode_state(encode_state(r2.log.export())))
    assert (r1.log.first, r1.log.last_id, r1.log.frontiers()) == (5, 10, (50, -(2**62)))
    r1.fails("T/52 b60")
    client = r1.subscribe(4, 10)
    assert pulled(client) == "S5/11 S6/12 S7/15 S8/31 S9/32 S10/40 B50(10) T/52 b60"


def test_the_boundary_of_an_acknowledged_log_is_installed() -> None:
    """A3: no tuple is left, and consumers have seen the boundary."""
    r2 = TextProducer()
    r2.stable("S1/1 S2/2 B10")
    r2.log.acknowledge("v/0@a", 1, 2)
    r1 = TextProducer()
    r1.log.install(decode_state(encode_state(r2.log.export())))
    assert (r1.log.first, r1.log.last_id, r1.log.frontiers()[0]) == (3, 2, 10)


# --- rules V1 to V6 in other situations ---


def test_live_resumed_during_corrections_sends_rec_done_first() -> None:
    """R5: the partner is lost; corrections up to 20 stay, and later results are tentative, after a rec_done (V1)."""
    one = failed_after_six()
    p = one.subscribe(6, 10)
    pulled(p)
    one.stabilises()
    one.stable("S7/12u S8/15x B20")
    assert pulled(p) == "U(6) S7/12u S8/15x B20(8)"
    one.stabilises(fresh=True)
    assert pulled(p) == "R- T/24y b30"
    one.tentative("T/33w b40")
    assert pulled(p) == "T/33w b40"
    one.stable("S9/18v S10/24y S11/33w B40")
    assert pulled(p) == ""
    one.done()
    assert pulled(p) == "U(8) S9/18v S10/24y S11/33w B40(11) R+"


def test_tentative_tuples_of_corrected_buckets_are_not_resent() -> None:
    """[10, 20) is corrected and has no tuples; the undo removed its tentative version."""
    one = TextProducer()
    one.stable("S1/1 B10")
    one.fails("T/15x T/24y b30")
    p = one.subscribe(1, 10)
    pulled(p)
    one.stabilises()
    one.stable("B20")
    assert pulled(p) == "U(1) B20(1)"
    one.stabilises(fresh=True)
    assert pulled(p) == "R- T/24y b30"


def test_a_new_run_continues_the_old_one_for_a_consumer_ahead() -> None:
    """It got nothing stable in between, so no undo: only V3 (t_max beyond T*) prevents duplicates."""
    one = TextProducer()
    one.stable("S1/1 B10")
    ahead = one.subscribe(5, 20)
    one.fails("T/15x T/24y b30 T/31z")
    assert pulled(ahead) == "T/24y T/31z b30"  # still true after 31
    one.stabilises()
    one.stable("S2/15 B20")
    one.done(UP_FAILURE)
    one.tentative("T/24v b30 T/31w T/33w b40")
    assert pulled(ahead) == "T/33w b40"
    one.tentative("b50")
    assert pulled(ahead) == "b50"
    one.stabilises()
    one.stable("S3/20 B30")
    one.done(UP_FAILURE)
    one.tentative("T/44w b50 T/55w b60")
    assert pulled(ahead) == "T/55w b60"


def test_undone_tuples_are_sent_again_in_the_next_failure() -> None:
    """V3: after an undo the consumer has seen nothing tentative, so what it had seen before does not count."""
    one = producer_in(UP_FAILURE)
    p = one.subscribe(*LEVEL, 99, held=True)
    assert pulled(p) == ""
    then_all_is_stable(one)
    assert pulled(p) == "U(9) S10/45f B50(10) R+"
    one.fails("T/75z b80")
    assert pulled(p) == "T/75z b80"


def test_live_during_redo_sends_no_rec_done_in_between() -> None:
    one = failed_after_six()
    p = one.subscribe(6, 10)
    one.stabilises(fresh=True)
    assert pulled(p) == "T/15x T/24y b30"
    one.stable("S7/12u S8/15x B20")
    one.tentative("b40")
    assert pulled(p) == "b40"


def test_every_tuple_of_a_run_is_sent_whatever_its_t_max() -> None:
    """A window's result has t_max = end − 1, so by V3 the boundary at its end adds nothing, and an unmatched
    outer row has an older t_max than earlier rows.  V3 applies only to consumers that enter late.
    """
    one = TextProducer()
    one.stable("S1/9 B10")
    p = one.subscribe(1, 10)
    one.fails("T/19a")
    assert pulled(p) == "T/19a"
    one.tentative("b20")
    assert pulled(p) == "b20"
    one.tentative("T/25^15b b30")
    assert pulled(p) == "T/25^15b b30"
    assert pulled(one.subscribe(1, 10, 19, held=True)) == "b30"


@pytest.mark.parametrize("position", [0, 9, 10, 12])
def test_tentative_tuples_of_another_instance_are_sent(position: int) -> None:
    """Seeds 7350174 and later hung: one that makes its state again from its log counts from further back (G4, U9)."""
    one = producer_in(UP_FAILURE)
    feed = one.subscribe(*LEVEL)
    assert pulled(feed) == "T/44x T/55y b60"
    one.log.append_tentative(parse("T/65z b70", PAYLOAD, position=position))
    assert pulled(feed) == "T/65z b70"
    one.log.append_tentative(parse("b80", PAYLOAD, position=position))
    assert pulled(feed) == "b80"
    one.log.suffix.validate()


def test_a_tentative_boundary_alone_is_undone_as_well() -> None:
    one = TextProducer()
    one.stable("S1/9 B10")
    p = one.subscribe(1, 10)
    one.fails("b20")
    assert pulled(p) == "b20"
    one.stabilises()
    one.stable("B20")
    one.done()
    assert pulled(p) == "U(1) B20(1) R+"


def test_empty_correction_at_stream_end_sends_rec_done() -> None:
    """Its consumer has everything stable from another replica, and waits here for the end of the correction."""
    one = TextProducer()
    one.stable("S1/9 B10")
    one.fails("b20")
    one.stabilises()
    p = one.subscribe(1, END_OF_TIME, 29, held=True, mode=CORRECTIONS)
    assert pulled(p) == ""
    one.stable("Binf")
    one.done()
    assert pulled(p) == "R+"


def test_a_corrections_feed_becomes_main() -> None:
    """F5: after R(STABLE) its consumer sets the mode, and gets the tentative results of the next failure."""
    one = failed_after_six()
    p = one.subscribe(6, 10, 29, held=True, mode=CORRECTIONS)
    one.stabilises()
    one.stable(CORRECTIONS)
    one.done()
    assert pulled(p) == "U(6) S7/12u S8/15x S9/18v S10/24y B50(10) R+"
    p.set_mode(MAIN)
    one.fails("T/55 b60")
    assert pulled(p) == "T/55 b60"


def test_a_suffix_beyond_its_cap_loses_its_oldest_part() -> None:
    """V6: the suffix is capped; readers continue with what is left."""
    one = TextProducer(limits=Limits(suffix_bytes=3_000))
    one.stable("B10")
    p = one.subscribe(0, 10)
    one.fails("T/11a b12")
    assert pulled(p) == "T/11a b12"
    for t in range(12, 42):
        one.tentative(f"T/{t}x b{t + 1}")
    assert one.log.suffix.nbytes <= 3_000
    dropped = one.log.suffix_dropped
    assert 1 < dropped < 31
    assert pulled(p) == " ".join(f"T/{t}x" for t in range(11 + dropped, 42)) + " b42"


def test_an_empty_range_is_sent_with_the_next_rows() -> None:
    """U10: ``from`` always equals the position of the feed."""
    x, y = payload_of(0), payload_of(1)
    one = TextProducer()
    j = one.subscribe(0, 0, share=(1, 2, (0,)))
    one.stable(f"S/1{x} S/2{x}")
    assert pulled(j) == ""
    one.stable(f"S/3{y} S/4{x} B10")
    batch, boundary = pull(j)
    assert isinstance(batch, Batch)
    assert (batch.from_id, batch.upto_id, batch.row_ids().tolist()) == (0, 4, [3])
    assert show([boundary]) == "B10(4)"


def test_rows_are_hashed_once_for_all_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counting(columns: list[Column], count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        hashed.append(count)
        return partition_of(columns, count)

    monkeypatch.setattr(replicas.producer.log_entry, "partition_of", counting)
    one = TextProducer()
    readers = [one.subscribe(0, 0, share=(i, 3, (0,))) for i in (0, 1, 2, 0, 1, 2)]
    one.stable("S/1a S/2b S/3c S/4d B10")
    got = [pull(r)[0] for r in readers]
    assert sum(len(b) for b in got if isinstance(b, Batch)) == 8
    assert hashed == [3]


# --- batches on the wire ---


def test_live_batches_are_sent_without_a_copy() -> None:
    one = TextProducer()
    p = one.subscribe(0, 0)
    slice_ = parse("S1/1a S2/2b B10(2)")
    one.log.append_stable(slice_)
    batch, boundary = pull(p)
    assert isinstance(batch, Batch)
    assert isinstance(slice_[0], Batch)
    assert batch.rows is slice_[0].rows
    assert show([boundary]) == "B10(2)"


def test_a_backlog_of_small_slices_is_sent_in_large_batches() -> None:
    """Many batches, then only the last boundary, which implies the others."""
    one = TextProducer()
    for t in range(1, 2 * COALESCE_ROWS + 1):
        one.stable(f"S/{t} B{t + 1}")
    got = pull(one.subscribe(0, 0))
    assert [len(e) for e in got if isinstance(e, Batch)] == [COALESCE_ROWS, COALESCE_ROWS]
    assert [e.time for e in got if isinstance(e, Boundary)] == [COALESCE_ROWS + 1, 2 * COALESCE_ROWS + 1]


def test_a_pull_stays_near_its_limit_and_the_rest_follows() -> None:
    """Also inside a stored batch; tentative elements and rec_done wait until the rest is sent."""
    one = TextProducer()
    one.stable(" ".join(f"S/{t}" for t in range(100)) + " B100")
    one.fails("T/100 b110")
    p = one.subscribe(0, 0, 50, held=True)
    row_bytes = one.log.export()["batches"][0]["rows"].nbytes // 100
    pieces = [show(e) for e in iter(lambda: pull(p, 30 * row_bytes), [])]
    assert len(pieces) == 4
    assert all(piece.count("S") <= 31 for piece in pieces)
    assert " ".join(pieces) == "U(0) " + " ".join(f"S{t + 1}/{t}" for t in range(100)) + " B100(100) R- T/100 b110"


@pytest.mark.parametrize("kind", ["stable", "tentative"])
def test_a_batch_is_not_cut_to_fill_a_pull(kind: str) -> None:
    """A frame of three rows costs as much as one of a thousand."""
    one = TextProducer()
    if kind == "tentative":
        one.fails()
    row = "S" if kind == "stable" else "T"
    for first in (0, 20, 40):
        text = " ".join(f"{row}/{t}" for t in range(first, first + 20)) + (f" B{first + 20}" if row == "S" else "")
        (one.stable if kind == "stable" else one.tentative)(text)
    p = one.subscribe(0, 0)
    log = one.log.stable if kind == "stable" else one.log.suffix
    row_bytes = log.entries_after(-1)[-1].batch.rows.nbytes // 20
    got = [pull(p, 33 * row_bytes) for _ in range(3)]
    assert [[len(e) for e in elements if isinstance(e, Batch)] for elements in got] == [[20], [20], [20]]


def test_a_row_larger_than_the_limit_is_still_sent() -> None:
    one = TextProducer()
    one.stable("S1/1 S2/2 B3")
    p = one.subscribe(0, 0)
    assert [pulled(p, 1) for _ in range(3)] == ["S1/1", "S2/2 B3(2)", ""]


# --- acknowledgements, truncation, caps (A2) ---

REPLICAS = ("v/0@a", "v/0@b", "v/1@a", "client:desk")


def truncating(*acks: int, standbys: Sequence[str] = ()) -> OutputLog:
    """Ten single tuples; one acknowledgement per consumer."""
    one = TextProducer(consumers=REPLICAS, standbys=standbys)
    one.stable(" ".join(f"S/{t} B{t + 1}" for t in range(1, 11)))
    for name, ack in zip(REPLICAS, acks, strict=False):
        one.log.acknowledge(name, 5, ack)
    return one.log


def test_log_is_kept_for_the_slowest_configured_consumer() -> None:
    log = truncating(9, 8, 7)
    assert (log.truncation_line, log.first) == (0, 1)  # the client was never heard and counts as 0
    log.acknowledge("client:desk", 1, 6)
    assert (log.truncation_line, log.first) == (6, 7)


def test_acknowledged_entries_stay_up_to_the_tail() -> None:
    """They are in no snapshot, and in nobody's way; without acknowledgements the tail drops nothing."""
    entry = TextProducer()
    entry.stable("S1/1 B2")
    one = TextProducer(consumers=("client:c",), tail_bytes=3 * entry.log.stable.nbytes)
    one.stable(" ".join(f"S/{t} B{t + 1}" for t in range(1, 11)))
    assert (one.log.first, one.log.acknowledged) == (1, 0)
    one.log.acknowledge("client:c", 1, 5)
    assert (one.log.first, one.log.acknowledged) == (6, 5)
    one.log.acknowledge("client:c", 1, 9)
    assert (one.log.first, one.log.acknowledged) == (8, 9)
    assert one.log.export()["base_id"] == 9
    one.stable("S/11 B12")
    assert one.log.first == 9
    assert one.log.fill == one.log.stable.nbytes / Limits().output_bytes
    one.log.acknowledge("client:c", 1, 11)
    assert one.log.fill == 0, "a tail alone fills nothing: a run does not wait until it is read"


@pytest.mark.parametrize(
    ("start", "consumer", "position"),
    [("now", "v", 10), ("stored", "v", 4), ("left", "client:c", 6), ("left", "v", 4), ("stored", "client:c", 4)],
)
def test_a_consumer_that_holds_nothing_begins_where_it_asks(start: Start, consumer: str, position: int) -> None:
    """Also where the log was truncated beyond what it says (F8)."""
    one = TextProducer(consumers=("client:c", "client:d"))
    one.stable(" ".join(f"S/{t} B{t + 1}" for t in range(1, 11)))
    one.log.acknowledge("client:c", 1, 6)
    one.log.acknowledge("client:d", 1, 4)
    got = one.log.subscribe(MAIN, 0, BEFORE_TIME, False, BEFORE_TIME, None, start, consumer)
    assert isinstance(got, OutputSubscription)
    assert got.position == position
    elements = pulled(got)
    assert elements.startswith(f"S{position + 1}/" if position < 10 else "B11(10)")
    assert elements.endswith("B11(10)")


def test_acknowledgements_of_unknown_consumers_are_only_counted() -> None:
    log = truncating(9, 8, 7, 6)
    log.acknowledge("v/7@z", 1, 0)
    assert (log.truncation_line, log.first) == (6, 7)
    log.acknowledge("v/7@z", 1, 9)
    assert (log.truncation_line, log.first) == (6, 7)
    log.acknowledge("client:desk", 5, 7)
    assert (log.truncation_line, log.first) == (7, 8)
    assert log.unknown_acks == 2


def test_acknowledgements_fall_only_with_a_new_incarnation() -> None:
    log = truncating(9, 9, 9, 6)
    log.acknowledge("client:desk", 5, 4)
    assert log.truncation_line == 6
    log.acknowledge("client:desk", 6, 4)
    assert log.truncation_line == 4
    log.acknowledge("client:desk", 5, 9)
    assert (log.truncation_line, log.first) == (4, 7)


def test_a_lagging_replica_does_not_keep_acknowledged_tuples() -> None:
    log = truncating(20, 20, 20, 20)
    assert (log.first, log.stable.nbytes) == (11, 0)
    log.append_stable(parse("S11/11 S12/12 B13(12)", position=10))
    assert (log.first, log.last_id, log.stable.nbytes) == (13, 12, 0)


def test_consumer_ahead_is_served_though_its_tuples_are_dropped() -> None:
    one = TextProducer()
    one.log.acknowledge("v/0@a", 1, 2)
    ahead = one.subscribe(2, 5)
    one.stable("S1/1 S2/2 B6")
    assert pulled(ahead) == "B6(2)"
    one.stable("S3/7 B8")
    assert pulled(ahead) == "S3/7 B8(3)"


def test_a_full_log_says_so_and_drops_no_stable_tuples() -> None:
    one = TextProducer(limits=Limits(output_bytes=2_000))
    t = 0
    while not one.log.full:
        assert one.log.fill < 1
        t += 1
        one.stable(f"S/{t} B{t + 1}")
    one.stable(f"S/{t + 1} B{t + 2}")
    assert one.log.first == 1
    one.log.acknowledge("v/0@a", 1, t + 1)
    assert one.log.fill == 0


def test_only_dead_consumers_behind_live_sibling_can_be_evicted() -> None:
    log = truncating(2, 9, 1, 3)
    assert log.evictable({"v/0@a"}) == ["v/0@a"]
    assert log.evictable({"v/0@a", "v/0@b"}) == []  # no live sibling
    assert log.evictable({"v/0@b"}) == []  # its sibling is behind it
    assert log.evictable({"v/1@a", "client:desk"}) == []  # no sibling at all
    log.evict("v/0@a")
    assert log.evictable({"v/0@a"}) == []
    assert log.truncation_line == 1


def evicted(log: OutputLog) -> int:
    """How many consumers have lost their places."""
    return sum(acknowledged.evicted for acknowledged in log._acks.values())


def test_an_evicted_consumer_must_install_before_it_counts_again() -> None:
    log = truncating(2, 9, 8, 8)
    log.evict("v/0@a")
    assert log.first == 9
    assert log.subscribe(MAIN, 2, 3, False, 2) == LogTruncated(9)
    log.acknowledge("v/0@a", 6, 2)
    assert (log.truncation_line, evicted(log)) == (8, 1)
    log.acknowledge("v/0@a", 6, 8)
    log.acknowledge("v/0@b", 5, 10)
    assert (log.truncation_line, evicted(log)) == (8, 0)


def test_a_live_standby_that_alone_keeps_the_log_can_be_evicted() -> None:
    """H2: a standby that stores nothing, or old checkpoints only, must not block those that run."""
    assert truncating(2, 9, 3, 3, standbys=["v/0@a"]).evictable(set()) == ["v/0@a"]
    assert truncating(2, 9, 1, 3, standbys=["v/0@a"]).evictable(set()) == [], "another one needs more"
    assert truncating(9, 2, 3, 3, standbys=["v/0@a"]).evictable(set()) == [], "it is the replica that needs most"
    assert truncating(2, 9, 3, 3, standbys=["v/0@a"]).evictable({"v/0@b"}) == [], "nobody else has it"


def test_a_dead_replica_can_be_evicted_for_a_standby_further_on() -> None:
    """The standby has the state; the log is not kept for a replica that may never return."""
    assert truncating(2, 9, 3, 3, standbys=["v/0@b"]).evictable({"v/0@a"}) == ["v/0@a"]
    log = truncating(3, 1, 8, 8, standbys=["v/0@b"])
    log.evict("v/0@b")
    log.acknowledge("v/0@b", 5, 1)
    assert (log.first, log.truncation_line) == (4, 3)
    assert log.evictable({"v/0@a"}) == [], "what it was given back it does not hold yet"
    log.acknowledge("v/0@b", 5, 5)
    assert log.evictable({"v/0@a"}) == ["v/0@a"]


def test_returned_position_is_not_a_state_of_a_standby() -> None:
    """H2: a replica that begins again further back may die; the standby does not hold what follows that."""
    log = truncating(8, 2, 8, 8, standbys=["v/0@b"])
    assert log.evictable(set()) == ["v/0@b"]
    log.evict("v/0@b")
    log.acknowledge("v/0@b", 5, 4)
    assert log.first == 9
    log.acknowledge("v/0@a", 6, 5)
    assert log.evictable({"v/0@a"}) == [], "the checkpoint of the standby is at 4"
    log.acknowledge("v/0@b", 5, 9)
    assert log.evictable({"v/0@a"}) == ["v/0@a"]


def test_an_evicted_standby_returns_where_the_log_begins() -> None:
    """Its checkpoints are always behind the replica, so it would never count again otherwise."""
    log = truncating(2, 9, 8, 8, standbys=["v/0@a"])
    log.evict("v/0@a")
    assert log.first == 9
    log.acknowledge("v/0@a", 5, 2)
    for name in ("v/0@b", "v/1@a", "client:desk"):
        log.acknowledge(name, 5, 10)
    assert (log.truncation_line, log.first, evicted(log)) == (8, 9, 0)
    log.acknowledge("v/0@a", 5, 9)
    assert log.first == 10


def test_a_new_consumer_holds_the_log_before_it_is_heard() -> None:
    """D3: a consumer is added to the set before its install begins."""
    log = truncating(5, 5, 5, 5)
    log.set_consumers([*REPLICAS, "v/1@c"])
    log.acknowledge("client:desk", 5, 10)
    assert (log.truncation_line, log.first) == (0, 6)
    log.set_consumers(["client:desk"])
    assert (log.truncation_line, log.first) == (10, 11)


def test_newest_half_is_kept_without_configured_consumers() -> None:
    one = TextProducer(consumers=(), limits=Limits(output_bytes=4_000))
    p = one.subscribe(0, 0)
    for t in range(1, 30):
        one.stable(f"S/{t} B{t + 1}")
        assert pulled(p) == f"S{t}/{t} B{t + 1}({t})"
    assert 1 < one.log.first < 29
    assert not one.log.full


def test_a_subscription_ends_when_its_next_id_is_gone() -> None:
    """A consumer restarted behind its old acknowledgement, and the log was truncated meanwhile (A3)."""
    one = TextProducer()
    one.stable("S/1 B2 S/3 B4")
    p = one.subscribe(0, 0)
    one.log.acknowledge("v/0@a", 1, 1)
    with pytest.raises(Overtaken, match="1 comes next"):
        p.pull(PLENTY)
    assert one.log.subscribe(MAIN, 0, 0, False, -1) == LogTruncated(2)


def test_corrections_are_acknowledged_during_fresh_results() -> None:
    """V4, A1: the consumer of an only replica processes corrections while it reads fresh results."""
    one = failed_after_six()
    main, corrections = one.subscribe(6, 10), one.subscribe(6, 10, mode=CORRECTIONS)
    one.stabilises(fresh=True)
    assert pulled(main) == "T/15x T/24y b30"
    one.stable("S7/12u S8/15x B20")
    assert pulled(corrections) == "S7/12u S8/15x B20(8)"
    one.log.acknowledge("v/0@a", 1, 8)
    assert one.log.first > 7
    one.tentative("T/33z b40")
    assert pulled(main) == "T/33z b40"
    one.done()
    assert pulled(corrections) == "R+"
    with pytest.raises(Overtaken, match="7 comes next"):
        main.pull(PLENTY)


def test_a_subscription_ends_when_the_log_is_replaced() -> None:
    one = TextProducer()
    one.stable("S/1 B2")
    p = one.subscribe(0, 0)
    one.log.install(one.log.export())
    with pytest.raises(Overtaken, match="replaced by a snapshot"):
        p.pull(PLENTY)


# --- the unit's side ---


@pytest.mark.parametrize(
    "text",
    ["S3/11 B20(3)", "B20(7)", "B9(1)", "T/11 b20", "U(1)", "R+"],
    ids=["gap", "boundary ahead of its ids", "boundary goes back", "tentative", "undo", "rec_done"],
)
def test_the_stable_log_accepts_only_consecutive_ids(text: str) -> None:
    one = TextProducer()
    one.stable("S1/5 B10")
    with pytest.raises(LocalProtocolError, match="orders/0"):
        one.log.append_stable(parse(text))


def test_tentative_elements_are_accepted_only_in_a_failure() -> None:
    one = TextProducer()
    with pytest.raises(LocalProtocolError, match="tentative element in state STABLE"):
        one.tentative("T/1 b2")
    one.fails("T/1 b2")
    with pytest.raises(LocalProtocolError, match="STABLE with a tentative suffix"):
        one.log.set_state(STABLE)
    with pytest.raises(LocalProtocolError, match="stable element while the tentative suffix grows"):
        one.stable("S/1 B2")


def test_bytes_are_counted() -> None:
    log = OutputLog(Channel(StreamId("s"), 0), Schema.of(n="int64"), ["c"], Limits())
    log.set_state(STABLE)
    big = Rows.from_tuples(log.schema, range(1_000), [(i,) for i in range(1_000)])
    log.append_stable([Batch(Kind.STABLE, 0, 1_000, None, big), Boundary(Kind.STABLE, 1_000, 1_000)])
    assert 16_000 < log.stable.nbytes < 17_000
    log.acknowledge("c", 1, 999)
    assert log.first == 1  # batches are dropped as a whole
    log.acknowledge("c", 1, 1_000)
    assert log.stable.nbytes == 0


def test_a_boundary_survives_truncation_of_earlier_tuples() -> None:
    """A consumer with the last id but not the boundary after it is still served."""
    one = TextProducer()
    one.stable("S1/5 B10 B20")
    one.log.acknowledge("v/0@a", 1, 1)
    assert one.log.stable.end == one.log.stable.start
    assert pulled(one.subscribe(1, 10)) == "B20(1)"


class TestSpilled:
    """The oldest part of the stable log is in files; readers see no difference."""

    LIMITS = Limits(output_bytes=40_000)

    def make(self, count: int = 150) -> tuple[OutputLog, Spilling]:
        spilling = Spilling()
        schema = Schema.of(n="int64")
        channel = Channel(StreamId("s"), 0)
        log = OutputLog(channel, schema, ["c", "d"], self.LIMITS, spilling.shelf(schema))
        log.set_state(NodeState.STABLE)
        for at in range(count):
            rows = Rows.from_tuples(schema, [10 * at, 10 * at + 1], [(2 * at,), (2 * at + 1,)])
            batch = Batch(Kind.STABLE, 2 * at, 2 * at + 2, None, rows)
            log.append_stable([batch, Boundary(Kind.STABLE, 10 * at + 5, 2 * at + 2)])
        spilling.settle()
        return log, spilling

    def read(self, log: OutputLog, position: int, max_bytes: int = 100) -> list[int]:
        """What a consumer at ``position`` gets, checked for gaps and wrong boundaries."""
        one = log.subscribe("main", position, BEFORE_TIME, False, BEFORE_TIME)
        assert isinstance(one, OutputSubscription)
        got: list[int] = []
        frontier = BEFORE_TIME
        while elements := loading(lambda: one.pull(max_bytes)):
            for element in elements:
                if isinstance(element, Batch):
                    assert element.from_id == position + len(got)
                    assert int(element.rows.time[0]) >= frontier
                    got += [n for (n,) in element.rows.to_tuples()]
                elif isinstance(element, Boundary):
                    assert element.upto_id == position + len(got)
                    frontier = element.time
        assert frontier == log.frontiers()[0]
        return got

    def test_memory_stays_below_the_cap_and_nothing_is_lost(self) -> None:
        log, spilling = self.make()
        assert spilling.folder.used > 0
        assert not log.full
        assert log.fill < 0.9
        assert log.first == 1
        for position in (0, 1, 7, 40, 90, 299):
            assert self.read(log, position) == list(range(position, 300))
            assert self.read(log, position, 10_000) == list(range(position, 300))

    def test_the_last_entry_is_not_spilled(self) -> None:
        """A9: its boundary still advances, and a file is written once."""
        log, _ = self.make()
        log.stable.spill(0, 1 << 20)
        assert log.stable.memory_bytes > 0
        log.append_stable([Boundary(Kind.STABLE, 9_000, 300)])
        assert log.entries_after(299)[0].boundary == 9_000

    def test_acknowledgements_free_the_files(self) -> None:
        log, spilling = self.make()
        log.acknowledge("c", 1, 300)
        log.acknowledge("d", 1, 51)
        assert 1 < log.first <= 52
        assert self.read(log, 51) == list(range(51, 300))
        log.acknowledge("d", 1, 300)
        assert log.first == 301
        spilling.settle()
        assert (spilling.folder.used, spilling.files(), log.stable.nbytes) == (0, [], 0)

    def test_a_snapshot_contains_spilled_pieces(self) -> None:
        log, _ = self.make()
        other, spilling = self.make(3)
        other.install(loading(log.export))
        assert other.first == 1
        assert spilling.folder.used > 0
        assert not other.full
        assert self.read(other, 0) == list(range(300))

    def test_a_snapshot_frees_the_files_of_the_log_before(self) -> None:
        log, spilling = self.make()
        other, _ = self.make(3)
        assert spilling.folder.used > 0
        log.install(loading(other.export))
        spilling.settle()
        assert (spilling.folder.used, spilling.files()) == (0, [])
        assert self.read(log, 0) == list(range(6))

    def test_spilled_pieces_can_be_read_ahead(self) -> None:
        """Pieces forgotten meanwhile are not in the snapshot."""
        log, _ = self.make()
        ahead: list[Entry] = []
        pieces = 0
        while piece := loading(partial(log.spilled_after, ahead[-1].batch.upto_id if ahead else 0)):
            ahead += piece
            pieces += 1
        assert pieces > 1
        assert ahead[0].batch.from_id == 0
        assert len(ahead) < 300, "the rest is in memory"
        for name in "cd":
            log.acknowledge(name, 1, 60)
        other, _ = self.make(3)
        other.install(log.export(ahead))
        assert 1 < other.first == log.first
        assert self.read(other, 60) == list(range(60, 300))

    def test_a_damaged_piece_is_never_served(self) -> None:
        log, spilling = self.make()
        spilling.contents()[40] ^= 1
        with pytest.raises(SpillDamaged):
            self.read(log, 0)
        assert spilling.folder.damaged == 1
        first = log.first
        assert 1 < first < 60
        assert log.subscribe("main", 0, BEFORE_TIME, False, BEFORE_TIME) == LogTruncated(first)
        assert self.read(log, first - 1) == list(range(first - 1, 300))

    @pytest.mark.parametrize("acknowledged", [None, 4, 300])
    def test_who_left_is_told_of_damage(self, acknowledged: int | None) -> None:
        """One that has acknowledged all that is lost misses nothing (F8)."""
        log, spilling = self.make()
        spilling.contents()[40] ^= 1
        with pytest.raises(SpillDamaged):
            self.read(log, 0)
        if acknowledged is not None:
            log.acknowledge("c", 1, acknowledged)

        def begins(start: Start, consumer: str) -> object:
            got = log.subscribe("main", 0, BEFORE_TIME, False, BEFORE_TIME, None, start, consumer)
            return got.position if isinstance(got, OutputSubscription) else got

        gone = log.first - 1
        assert gone > 4
        assert begins("left", "c") == (300 if acknowledged == 300 else LogTruncated(gone + 1))
        assert (begins("stored", "c"), begins("left", "guest")) == (gone, gone)
        log.acknowledge("c", 1, 300)
        log.acknowledge("d", 1, 100)
        assert log.first > gone + 1, "the rest of it went because it was acknowledged"
        log.evict("d")
        assert begins("left", "d") == log.first - 1

    def test_a_snapshot_begins_after_a_damaged_piece(self) -> None:
        log, spilling = self.make()
        spilling.contents()[40] ^= 1
        exported = loading(log.export)
        assert exported["base_id"] == log.first - 1 > 0

    def test_without_disk_space_the_log_is_full_at_its_cap(self) -> None:
        log, spilling = self.make(3)
        spilling.storage.space_left = 0
        at = 3
        while not log.full:
            rows = Rows.from_tuples(log.schema, [10 * at], [(at,)])
            log.append_stable([Batch(Kind.STABLE, log.last_id, log.last_id + 1, None, rows)])
            spilling.settle()
            at += 1
        assert spilling.folder.refused > 0
        assert self.read(log, 6) == list(range(3, at))


def test_a_standby_that_became_a_replica_keeps_its_place() -> None:
    """H2, A6: only a standby can be given up while it lives."""
    one = TextProducer(consumers=["v/0@a", "v/0@b"])
    one.stable("S1/1 S2/2 S3/3 B10")
    one.log.set_consumers(["v/0@a", "v/0@b"], standbys=["v/0@b"])
    one.log.acknowledge("v/0@a", 1, 3)
    one.log.acknowledge("v/0@b", 1, 1)
    assert one.log.evictable(()) == ["v/0@b"]
    one.log.set_consumers(["v/0@a", "v/0@b"])
    assert one.log.evictable(()) == []


def test_no_more_is_acknowledged_than_was_made() -> None:
    """A2: consumers have the rest from another replica."""
    one = TextProducer()
    one.stable("S1/1 S2/2 S3/3 B10")
    one.log.acknowledge("v/0@a", 1, 50)
    assert (one.log.acknowledged, one.log.fill) == (3, 0.0)


def test_a_tentative_boundary_is_not_sent_again() -> None:
    """V3: the consumer has it from another replica."""
    one = failed_after_six()
    subscription = one.subscribe(6, 10, 29, held=True)
    assert pulled(subscription) == ""
    one.tentative("b40")
    assert pulled(subscription) == "b40"
