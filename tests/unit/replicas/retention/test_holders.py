"""What of a log is due to be deleted, and who holds it (E1, E2)."""

from __future__ import annotations

from replicas.retention.holders import PROOF, ClosedSegment, Holders, due, needed_from, segment_bytes
from spe.log.format import Segment
from spe.plan.plan import Retain
from spe.status import HolderStatus

#: Four segments of 100 bytes with ten records and ten ids each, a second of tuple time apart.
SEGMENTS = [ClosedSegment(Segment(10 * n + 1, 1), 100, 10 * n + 10, 10 * n + 10, (n + 1) * 1_000_000) for n in range(4)]
ALL = 450


def test_a_segment_is_due_when_all_of_it_is_old() -> None:
    assert due(SEGMENTS, ALL, 4_000_000, Retain(for_us=2_000_000)) == 1
    assert due(SEGMENTS, ALL, 4_000_001, Retain(for_us=2_000_000)) == 2


def test_the_oldest_are_due_until_the_log_is_small_enough() -> None:
    assert due(SEGMENTS, ALL, 0, Retain(size_bytes=450)) == 0
    assert due(SEGMENTS, ALL, 0, Retain(size_bytes=449)) == 1
    assert due(SEGMENTS, ALL, 0, Retain(size_bytes=1)) == 4


def test_age_or_size_is_enough() -> None:
    assert due(SEGMENTS, ALL, 4_000_001, Retain(for_us=2_000_000, size_bytes=200)) == 3
    assert due(SEGMENTS, ALL, 5_500_000, Retain(for_us=2_000_000, size_bytes=400)) == 3


def test_consumer_never_heard_holds_everything() -> None:
    holders = Holders(["u/0@n1", "u/0@n2"])
    holders.acknowledged("u/0@n1", 1, 40)
    free, held = holders.free(SEGMENTS, 7)
    assert (free, held) == (0, [HolderStatus(holder="u/0@n2", since_us=7, bytes=400)])


def test_least_acknowledgement_counts_and_top_holder_is_first() -> None:
    holders = Holders(["a", "b", "c"])
    for name, id in (("a", 19), ("b", 35), ("c", 40)):
        holders.acknowledged(name, 1, id)
    free, held = holders.free(SEGMENTS, 7)
    assert free == 1
    assert [(h.holder, h.bytes) for h in held] == [("a", 300), ("b", 100)]


def test_new_incarnation_counts_from_first_acknowledgement() -> None:
    holders = Holders(["a"])
    assert holders.acknowledged("a", 5, 30)
    assert not holders.acknowledged("a", 5, 20), "it grows"
    assert not holders.acknowledged("a", 4, 40), "it is dead"
    assert holders.acks() == {"a": 30}
    assert holders.acknowledged("a", 6, 10)
    assert holders.free(SEGMENTS, 0)[0] == 1


def test_new_consumer_holds_everything_and_removed_one_nothing() -> None:
    holders = Holders(["a", "b"])
    holders.acknowledged("a", 1, 40)
    holders.set_consumers(["a"])
    assert holders.free(SEGMENTS, 0) == (4, [])
    holders.set_consumers(["a", "c"])
    assert holders.free(SEGMENTS, 0)[0] == 0
    assert not holders.acknowledged("stranger", 1, 3), "who is not configured holds nothing"


def test_holders_are_reported_with_their_start() -> None:
    holders = Holders(["a"])
    assert holders.free(SEGMENTS[:1], 5)[1][0].since_us == 5
    assert holders.free(SEGMENTS[:2], 9)[1][0].since_us == 5
    holders.acknowledged("a", 1, 20)
    assert holders.free(SEGMENTS[:2], 11) == (2, [])
    assert holders.free(SEGMENTS, 12)[1][0].since_us == 12


def test_state_in_memory_and_proof_hold_like_consumers() -> None:
    holders = Holders()
    assert holders.free(SEGMENTS, 0, needs_all=["u/0, whose state is in memory only"])[0] == 0
    free, held = holders.free(SEGMENTS, 0, proved=20)
    assert (free, held[0].holder, held[0].bytes) == (1, PROOF, 300)
    assert holders.free(SEGMENTS, 0, proved=21)[0] == 2


def test_deletion_needs_proof_archive_or_permission() -> None:
    assert needed_from(Retain(for_us=1), None) == 1
    assert needed_from(Retain(for_us=1, archive="/a"), None) is None
    assert needed_from(Retain(for_us=1, unproved=True), None) is None


def test_started_proof_is_awaited_unless_overridden() -> None:
    assert needed_from(Retain(for_us=1), 7) == 7
    assert needed_from(Retain(for_us=1, archive="/a"), 7) == 7
    assert needed_from(Retain(for_us=1, unproved=True), 7) is None


def test_a_segment_is_an_eighth_of_the_size() -> None:
    assert segment_bytes(None, 1000) == segment_bytes(Retain(for_us=1), 1000) == 1000
    assert segment_bytes(Retain(size_bytes=80_000), 1 << 20) == 10_000
    assert segment_bytes(Retain(size_bytes=80_000), 1 << 20, logs=2) == 5_000
