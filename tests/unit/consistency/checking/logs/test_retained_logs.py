"""The checker of E2 finds what a source deletes too early."""

from __future__ import annotations

from consistency.checking.counters import Counters
from consistency.checking.logs.retained_logs import check_retained
from spe.plan.directory import CONFIGURED
from spe.stream.history import Event, History, LogAcknowledged, LogBehind, LogReleased, ProcessUp
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from tests.simulation.test_cluster import make_plan

A = Channel(StreamId("a"), 0)
ONE, TWO = "u1/0@n1a", "u1/0@n1b"


def ack(consumer: str, id: int, incarnation: int = 1) -> Event:
    return LogAcknowledged(0, A, consumer, incarnation, id)


def found(*events: Event) -> list[str]:
    plan, directory = make_plan(1)
    return [f.what for f in check_retained(History(events), plan, {CONFIGURED: directory}, Counters())]


def test_rows_acknowledged_by_all_may_be_deleted() -> None:
    assert found(ack(ONE, 7), ack(TWO, 9), LogReleased(1, A, 7)) == []


def test_rows_unacknowledged_by_a_reader_may_not_be_deleted() -> None:
    (what,) = found(ack(ONE, 6), ack(TWO, 9), LogReleased(1, A, 7))
    assert what == "ids up to 7 are deleted, u1/0@n1a has acknowledged 6"
    assert len(found(ack(TWO, 9), LogReleased(1, A, 7))) == 1, "nor what one has not been heard of"


def test_acknowledgement_before_source_restart_does_not_count() -> None:
    assert len(found(ack(ONE, 7), ack(TWO, 9), ProcessUp(1, "source:a", 1), LogReleased(2, A, 7))) == 2


def test_a_new_incarnation_counts_for_itself() -> None:
    assert len(found(ack(ONE, 7), ack(TWO, 9), ack(ONE, 5, 2), LogReleased(1, A, 7))) == 1


def test_reader_of_deleted_unacknowledged_rows_is_named() -> None:
    events = (ack(ONE, 5), ack(TWO, 9))
    assert found(*events, LogBehind(1, A, ONE, 3, 7)) == [], "its disk was lost"
    assert len(found(*events, LogBehind(1, A, ONE, 5, 7))) == 1
    assert found(*events, LogBehind(1, A, "stranger", 0, 7)) == []
