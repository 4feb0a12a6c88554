"""Which snapshots a standby asks for (H1), and what it acknowledges (H2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from replicas.placement.standby import COPIES_HELD, FULL, Standby
from spe.errors import OtherOrigin
from spe.plan.directory import Standbys
from spe.plan.log_targets import Continuous
from spe.plan.nodes import Reconcile
from spe.stream.ids import Channel, ReplicaId
from spe.stream.names import NodeId, NodeState, StreamId
from spe.wire.messages.feeds import OutputStatus
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


def made_from(positions: Sequence[int], *origins: str) -> dict[str, list[int] | list[str]]:
    return {"positions": list(positions), "origins": list(origins)}


def test_an_unknown_origin_contradicts_no_other() -> None:
    """S6: an input of which nothing was read has none yet."""
    waiting = standby()
    waiting.holds(made_from((5, 6, 7), "x", "", "z"))
    assert waiting.useful(made_from((5, 6, 7), "x", "y", ""))
    with pytest.raises(OtherOrigin, match="holds results of the source logs"):
        waiting.useful(made_from((5, 6, 7), "x", "y", "other"))


def test_checkpoint_on_disk_behind_the_log_is_not_taken() -> None:
    """A8: upstream may have forgotten what follows it, as the log was acknowledged."""
    waiting = standby()
    waiting.follows([9, 9, 9], ["", "", ""], (12, 12))
    waiting.holds_if_newer(snapshot(9, 8, 9))
    waiting.holds(snapshot(10, 10, 10))
    assert positions(waiting) == [9, 9, 9]


def test_log_on_disk_is_one_checkpoint_and_of_a_maker_two() -> None:
    """S6, H2: on the disk it may be of other source logs, and a move of a standby relies on two."""
    waiting = standby()
    waiting.follows([9, 9, 9], ["", "", ""], (12, 12))
    assert waiting.status().checkpoints == 1
    waiting.follows([9, 9, 9], ["", "", ""], (12, 12), C)
    assert waiting.status().checkpoints == COPIES_HELD


def test_a_node_without_a_role_is_not_asked() -> None:
    """D3: it is further than the others, and has left."""
    waiting = standby()
    hears(waiting, A, output(10))
    hears(waiting, C, output(12))
    waiting.redirect(placed(waiting._directory, standbys={PARTITION: Standbys((NodeId("n1b"),), EVERY)}), 0)
    assert waiting.wish(EVERY) == A


def test_a_lost_producer_is_no_reason_to_ask_early() -> None:
    """H1: it cannot wait for us."""
    waiting = standby(every_us=8)
    hears(waiting, A, output(10))
    hears(waiting, "source:b", output(99, stream="b", fill=FULL))
    waiting.lost("source:b")
    assert not waiting.crowded
    assert [waiting.wish(now) for now in (2, 8)] == [None, A]


def test_oldest_share_of_a_log_begins_where_it_is_cut_off() -> None:
    """H1: of 81 to 100 we have acknowledged 84, so we hold it up."""
    waiting = standby(every_us=8)
    for _ in range(2):
        waiting.holds(snapshot(9, 84, 9))
    hears(waiting, A, output(10))
    hears(waiting, "source:b", output(100, stream="b", fill=FULL)._replace(first=81))
    assert waiting.wish(2) == A


def test_after_a_maker_that_is_behind_another_is_asked() -> None:
    """H1: what it gives is older than what is held."""
    waiting = standby(every_us=8)
    hears(waiting, A, output(10))
    hears(waiting, C, output(12))
    assert waiting.wish(8) == C
    waiting.is_behind(C, 8)
    assert waiting.wish(16) == A


def test_a_log_is_taken_from_a_tainted_replica_with_undo() -> None:
    """G9: its records are there, and no state has to be made."""
    waiting = standby(reconcile=Reconcile.UNDO)
    waiting.redirect(replace(waiting._directory, logs={PARTITION: Continuous(recovery_us=1_000_000)}), 0)
    hears(waiting, A, output(10, state=NodeState.UP_FAILURE))
    assert waiting.wish(EVERY) == A
