"""Which consumers count as dead when an output is full (A2: truncation, A2a: dead consumers)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicas.node.output_side import OutputSide
from spe.plan.deploy import Deployed
from spe.plan.directory import Role
from spe.plan.plan import Limits, Timing
from spe.stream.batch import Batch, Rows
from spe.stream.ids import PartitionId
from spe.stream.names import Kind, NodeId, StreamId, UnitId
from spe.wire.messages.feeds import Ack
from tests.support.effects import NoEffects
from tests.support.plans import SEQUENCE, chain, pass_on, source

SECOND = 1_000_000
NEAR, FAR = "u2/0@n2a", "u2/0@n2b"
SECOND_UNIT = PartitionId(UnitId("u2"), 0)


def two_units(limits: Limits) -> Deployed:
    stages = [("s", pass_on("a"), SEQUENCE), ("t", pass_on("s"), SEQUENCE)]
    return chain([source("a", reader={})], stages, limits=limits)


def full() -> OutputSide:
    """A replica whose output is full; ids 1 and 2 are read by n2a and n2b."""
    plan, directory = two_units(limits=Limits(output_bytes=1))
    id = next(i for i in directory.replicas_on(NodeId("n1a")) if i.of == PartitionId(UnitId("u1"), 0))
    made = OutputSide(plan, directory, id, 0, NoEffects(), None, None)
    rows = Rows.from_tuples(SEQUENCE, [5, 6], [(1, 1.0), (2, 2.0)])
    made.logs[0].append_stable([Batch(Kind.STABLE, 0, 2, None, rows)])
    return made


def heard(outputs: OutputSide, consumer: str, id: int, now: int, period_us: int = Timing().heartbeat_us) -> None:
    said(outputs, consumer, id, 1, now, period_us)


def said(
    outputs: OutputSide, consumer: str, id: int, incarnation: int, now: int, period_us: int = Timing().heartbeat_us
) -> bool:
    """A process acknowledges: does it count?"""
    counts = outputs.speaks(consumer, incarnation, now)
    if counts:
        outputs.acknowledged(Ack("s", 0, consumer, id), period_us, now)
    return counts


@pytest.mark.parametrize("period_us", [100_000, SECOND, 5 * SECOND])
def test_a_consumer_is_dead_after_three_misses_and_a_connection(period_us: int) -> None:
    outputs = full()
    heard(outputs, FAR, 0, 0, period_us)
    alive_until = 4 * period_us + Timing().connect_us
    heard(outputs, NEAR, 1, alive_until)
    assert outputs.make_room(alive_until) == []
    heard(outputs, NEAR, 1, alive_until + 1)
    assert outputs.make_room(alive_until + 1) == [FAR]


def test_an_unheard_consumer_is_judged_by_the_local_timing() -> None:
    outputs = full()
    gone_us = Timing().gone_us()
    heard(outputs, NEAR, 1, gone_us)
    assert outputs.make_room(gone_us) == []
    assert outputs.make_room(gone_us + 1) == [FAR]


def test_after_a_freeze_of_the_node_no_consumer_is_dead() -> None:
    """Otherwise, of two consumers with unread heartbeats, the one read second would lose its place."""
    outputs = full()
    heard(outputs, NEAR, 1, SECOND)
    heard(outputs, FAR, 0, SECOND)
    outputs.shift(9 * SECOND, 10 * SECOND)
    heard(outputs, NEAR, 1, 10 * SECOND)
    assert outputs.make_room(10 * SECOND) == []


def test_a_full_output_takes_ids_that_consumers_already_have() -> None:
    """All replicas have restarted, and the consumers hold more than the replicas have made since."""
    outputs = full()
    for consumer in (NEAR, FAR):
        heard(outputs, consumer, 5, SECOND)
    (log,) = outputs.logs
    assert (log.first, log.full) == (3, False)
    heard(outputs, NEAR, 4, 2 * SECOND)
    assert log.truncation_line == 2, "there is room, so it is not counted"


def test_a_new_consumer_holds_the_log_and_does_not_count_as_dead() -> None:
    outputs = full()
    _, directory = two_units(limits=Limits(output_bytes=1))
    third = NodeId("n1b")
    outputs.redirect(directory.with_role(SECOND_UNIT, third, Role.STANDBY), 100 * SECOND)
    (log,) = outputs.logs
    for consumer in (NEAR, FAR):
        heard(outputs, consumer, 1, 100 * SECOND)
    assert log.truncation_line == 0, "it was never heard, so it needs everything"
    assert outputs.make_room(100 * SECOND + Timing().gone_us()) == ["u2/0@n1b"], "a standby alone holds up nobody"
    outputs.redirect(directory, 101 * SECOND)
    assert log.truncation_line == 1, "it has left"
    outputs.redirect(directory.with_role(SECOND_UNIT, third, Role.ACTIVE), 102 * SECOND)
    assert log.truncation_line == 0
    for consumer in (NEAR, FAR):
        heard(outputs, consumer, 1, 102 * SECOND)
    assert outputs.make_room(102 * SECOND + Timing().gone_us()) == []


def test_a_removed_consumer_does_not_hold_the_log() -> None:
    outputs = full()
    _, directory = two_units(limits=Limits(output_bytes=1))
    heard(outputs, NEAR, 2, SECOND)
    outputs.redirect(directory.with_role(SECOND_UNIT, NodeId("n2b"), None), SECOND)
    (log,) = outputs.logs
    assert (log.truncation_line, log.full) == (2, False)
    heard(outputs, FAR, 1, SECOND)
    assert log.unknown_acks == 1


def test_single_process_speaks_for_a_client_until_dead() -> None:
    outputs, gone_us = full(), Timing().gone_us()
    assert said(outputs, "client:c", 0, 5, 0)
    for other in (4, 6):
        assert not outputs.speaks("client:c", other, gone_us)
    assert outputs.speaks("client:c", 5, gone_us)
    assert said(outputs, "client:c", 0, 4, gone_us + 1)  # its clock was set back
    assert not outputs.speaks("client:c", 5, gone_us + 2)


def test_unconfigured_client_is_forgotten_once_dead() -> None:
    """Such clients may have another name each time."""
    outputs, gone_us = full(), Timing().gone_us()
    said(outputs, NEAR, 1, 1, 0)
    for turn in range(100):
        now = turn * gone_us
        assert said(outputs, f"client:{turn}", 0, 1, now)
        assert not outputs.speaks(f"client:{turn}", 2, now), "one process speaks for it"
    assert set(outputs._speakers) == set(outputs._heard) == {NEAR, "client:98", "client:99"}


def test_later_node_process_counts_at_once_and_lower_after_death() -> None:
    outputs, gone_us = full(), Timing().gone_us()
    (log,) = outputs.logs
    said(outputs, FAR, 2, 1, 0)
    assert said(outputs, NEAR, 2, 5, 0)
    assert log.truncation_line == 2
    assert said(outputs, NEAR, 1, 6, 1)
    assert log.truncation_line == 1
    assert not said(outputs, NEAR, 2, 5, 2), "what an older process has sent comes late"
    assert not said(outputs, NEAR, 2, 5, 1 + gone_us), "who does not count is not heard"
    assert log.truncation_line == 1
    assert said(outputs, NEAR, 2, 5, 2 + gone_us), "its disk was lost, and its clock is behind"
    assert log.truncation_line == 2


def test_next_client_process_counts_even_with_lower_position() -> None:
    plan, directory = two_units(limits=Limits())
    client = next(iter(directory.clients.values()))
    directory = replace(directory, clients={"c": replace(client, name="c", reads=(StreamId("s"),))})
    id = next(i for i in directory.replicas_on(NodeId("n1a")) if i.of == PartitionId(UnitId("u1"), 0))
    outputs = OutputSide(plan, directory, id, 0, NoEffects(), None, None)
    rows = Rows.from_tuples(SEQUENCE, [5, 6], [(1, 1.0), (2, 2.0)])
    outputs.logs[0].append_stable([Batch(Kind.STABLE, 0, 2, None, rows)])
    gone_us = Timing().gone_us()
    for consumer in (NEAR, FAR):
        heard(outputs, consumer, 2, 0)
    assert said(outputs, "client:c", 1, 9, 0)
    assert outputs.logs[0].truncation_line == 1
    assert said(outputs, "client:c", 0, 8, gone_us + 1)
    assert outputs.logs[0].truncation_line == 0
