"""Which snapshots a standby asks for (H1), and what it acknowledges (H2)."""

from __future__ import annotations

from dataclasses import replace

from replicas.placement.standby import FULL, Standby
from spe.plan.nodes import Reconcile
from spe.stream.ids import Channel, ReplicaId
from spe.stream.names import NodeId, NodeState, StreamId
from spe.wire.messages import OutputStatus
from tests.support.plans import placed
from tests.unit.replicas.placement.test_install import PARTITION, plan

EVERY = 1
A, C = "n1a", "n1c"


def standby(every_us: int = EVERY, reconcile: Reconcile = Reconcile.CHECKPOINT) -> Standby:
    found, directory = plan()
    nodes = {id: replace(node, reconcile=reconcile) for id, node in directory.nodes.items()}
    standbys = {id: replace(one, every_us=every_us) for id, one in directory.standbys.items()}
    return Standby(
        found, replace(placed(directory, standbys=standbys), nodes=nodes), ReplicaId(*PARTITION, NodeId("n1b")), 0
    )


def output(last_id: int, *, state: NodeState = NodeState.STABLE, stream: str = "s1", fill: float = 0.0) -> OutputStatus:
    return OutputStatus(stream, 0, state, False, last_id, last_id, 0, 1, fill)


def hears(one: Standby, peer: str, *outputs: OutputStatus) -> None:
    one.heard(peer, {Channel(StreamId(o.stream), o.partition): o for o in outputs})


def snapshot(*positions: int) -> dict[str, list[int]]:
    return {"positions": list(positions)}


def positions(one: Standby) -> list[int]:
    return [upto for _, upto in one.acks()]


def test_standby_acknowledges_the_older_of_two_checkpoints() -> None:
    """The newer one may be damaged, and then upstream must have what follows the other."""
    one = standby()
    assert [(str(c), upto) for c, upto in one.acks()] == [("a/0", 0), ("b/0", 0), ("c/0", 0)]
    one.holds(snapshot(5, 6, 7))
    assert positions(one) == [0, 0, 0]
    one.holds(snapshot(8, 8, 9))
    assert positions(one) == [5, 6, 7]


def test_standby_asks_the_furthest_replica_once_per_interval() -> None:
    one = standby()
    assert one.wish(EVERY) is None, "nobody runs it"
    hears(one, A, output(10))
    hears(one, C, output(12))
    assert one.wish(EVERY - 1) is None
    assert one.wish(EVERY) == C
    assert one.wish(EVERY) is None
    assert one.wish(2 * EVERY) == C


def test_standby_keeps_its_log_source_until_interval_behind() -> None:
    """Heartbeats of two that are as far come in turns: another one's log would be fetched as a whole each time."""
    one = standby()
    hears(one, A, output(10))
    hears(one, C, output(12))
    assert one.wish(EVERY) == C
    one.follows([9, 9, 9], ["", "", ""], (12, 12), C)
    hears(one, A, output(17))
    hears(one, C, output(13))
    assert one.wish(2 * EVERY) == C, "it is where the furthest was an interval ago"
    one.follows([9, 9, 9], ["", "", ""], (13, 13), C)
    hears(one, C, output(16))
    assert one.wish(3 * EVERY) == A
    one.follows([9, 9, 9], ["", "", ""], (17, 17), A)
    hears(one, C, output(30))
    one.lost(A)
    assert one.wish(4 * EVERY) == C


def test_a_log_that_is_behind_its_replica_is_asked_for_again() -> None:
    """It is written beside the stream: what came lacks the end, and nothing more is made after that."""
    one = standby()
    hears(one, C, output(12))
    assert one.wish(EVERY) == C
    one.follows([8, 8, 8], ["", "", ""], (10, 10), C)
    assert one.wish(2 * EVERY) == C
    one.follows([9, 9, 9], ["", "", ""], (12, 12), C)
    assert one.wish(3 * EVERY) is None


def test_log_is_requested_while_producer_is_full() -> None:
    """What its replica writes anew moves what is replayed, and that is all that makes room."""
    one = standby()
    hears(one, C, output(12))
    assert one.wish(EVERY) == C
    one.follows([8, 8, 8], ["", "", ""], (12, 12), C)
    hears(one, "source:a", output(20, stream="a", fill=1.0)._replace(first=8))
    assert one.crowded
    assert one.wish(2 * EVERY) == C


def test_standby_asks_no_recovering_or_lost_replica() -> None:
    one = standby()
    hears(one, A, output(10, state=NodeState.RECOVERING))
    assert one.wish(EVERY) is None
    hears(one, A, output(10))
    one.lost(A)
    assert one.wish(EVERY) is None
    hears(one, A, output(10))
    hears(one, A)
    assert one.wish(EVERY) is None, "its node answers, and does not run it"


def test_standby_does_not_ask_for_a_state_that_it_has() -> None:
    one = standby()
    hears(one, A, output(10))
    assert one.wish(EVERY) == A
    one.holds(snapshot(1, 1, 1))
    assert one.wish(5 * EVERY) == A, "the older one holds less, so upstream keeps more than it need"
    one.holds(snapshot(1, 1, 1))
    assert positions(one) == [1, 1, 1]
    assert one.wish(9 * EVERY) is None
    hears(one, A, output(11))
    assert one.wish(9 * EVERY) == A


def test_second_checkpoint_is_requested_without_new_input() -> None:
    """A move of a standby waits until two are held (seed 7401274)."""
    one = standby()
    hears(one, A, output(0))
    assert one.wish(EVERY) == A
    one.holds(snapshot(0, 0, 0))
    assert one.wish(2 * EVERY) == A
    one.holds(snapshot(0, 0, 0))
    assert one.wish(3 * EVERY) is None


def test_a_full_producer_makes_it_ask_early() -> None:
    one = standby()
    hears(one, A, output(10))
    assert one.wish(EVERY) == A
    hears(one, "source:b", output(99, stream="b", fill=FULL))
    assert one.wish(EVERY) == A
    hears(one, "source:b", output(99, stream="b", fill=FULL / 2))
    assert one.wish(EVERY) is None


def test_a_checkpoint_that_is_older_in_any_input_is_not_taken() -> None:
    """Upstream may have truncated what it would need."""
    one = standby()
    one.holds(snapshot(5, 6, 7))
    assert one.useful(snapshot(5, 6, 7))
    assert one.useful(snapshot(9, 6, 7))
    assert not one.useful(snapshot(9, 5, 9))


def test_log_held_by_another_consumer_gives_no_early_request() -> None:
    one = standby(every_us=8)
    for at in (90, 95):
        one.holds(snapshot(9, at, 9))
    hears(one, A, output(10))
    hears(one, "source:b", output(99, stream="b", fill=FULL))
    assert one.wish(4) is None, "we acknowledge 90 of 99: others need more"
    assert one.wish(8) == A


def test_a_failed_request_is_repeated_sooner() -> None:
    one = standby(every_us=8)
    hears(one, A, output(10))
    assert one.wish(8) == A
    assert one.failed("n1", 0) == 1
    assert one.wish(9) is None
    assert one.wish(10) == A
    assert one.failed("n1", 0) == 2
    assert one.wish(12) == A
    one.came("n1")
    one.holds(snapshot(1, 1, 1))
    assert one.wish(14) is None
    assert one.failed("n1", 0) == 1


def test_with_undo_a_tainted_replica_is_asked_only_by_need() -> None:
    """It would have to rebuild a consistent state first."""
    one = standby(reconcile=Reconcile.UNDO)
    hears(one, A, output(10, state=NodeState.UP_FAILURE))
    assert one.wish(EVERY) is None
    hears(one, "source:b", output(99, stream="b", fill=FULL))
    assert one.wish(EVERY) == A
