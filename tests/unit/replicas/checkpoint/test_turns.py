"""Which partner is asked for a snapshot, and when again (A3: restart of a replica)."""

from __future__ import annotations

from replicas.checkpoint.turns import SnapshotTurns

BOTH = ["n2", "n3"]


def turns() -> SnapshotTurns:
    return SnapshotTurns(pause_us=10, longest_us=40)


def test_after_a_failure_the_other_partner_is_asked() -> None:
    one = turns()
    assert one.next(BOTH, 0) == "n2"
    one.failed("n2", 0)
    assert one.next(BOTH, 0) == "n3"
    one.failed("n3", 1)
    assert one.next(BOTH, 9) is None


def test_the_pause_of_one_partner_doubles_up_to_the_longest() -> None:
    one, now, pauses = turns(), 0, []
    for _ in range(5):
        one.failed("n2", now)
        before = now
        while one.next(["n2"], now) is None:
            now += 1
        pauses.append(now - before)
    assert pauses == [10, 20, 40, 40, 40]


def test_a_partner_that_gave_a_snapshot_counts_as_new() -> None:
    one = turns()
    one.failed("n2", 0)
    one.came("n2")
    assert one.next(BOTH, 0) == "n2"


def test_time_counts_from_the_first_request() -> None:
    one = turns()
    assert one.asking_for(100) == 0
    assert one.next([], 100) is None
    assert one.asking_for(150) == 0, "nobody could be asked"
    one.next(BOTH, 200)
    assert one.asking_for(230) == 30


def test_after_its_pause_a_failing_partner_comes_last() -> None:
    """A3: partners are asked in turn."""
    turns = SnapshotTurns(pause_us=10, longest_us=100)
    turns.failed("a", 0)
    assert turns.next(["a", "b"], 50) == "b"
    turns.failed("b", 50)
    turns.failed("b", 50)
    assert turns.next(["b", "a"], 500) == "a"
