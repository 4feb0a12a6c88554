"""The history of a run: its lines of JSON, and what the engine reports."""

from __future__ import annotations

import trio

from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from replicas.simulation.world.host import seeded_scheduling
from spe.stream.history import (
    Buffers,
    Closed,
    Delivered,
    FaultBegan,
    FaultEnded,
    History,
    Note,
    Opened,
    ProcessDown,
    ProcessUp,
    Promoted,
    Received,
    SchedulerRounds,
    Sent,
    StateChanged,
    host_of,
)
from spe.stream.ids import Channel
from spe.stream.names import NodeState, StreamId
from spe.stream.schema import Schema
from tests.simulation.test_cluster import make_plan
from tests.support.history_lines import write_lines
from tests.support.streams import parse

OUT = Channel(StreamId("out"), 0)
SCHEMA = Schema.of(n="int64!", name="string", ratio="float64", seen="bool", at="timestamp")


def everything() -> History:
    """One event of each kind, and an element of each kind."""
    elements = parse(
        "S7/12:5,null,0.1,true,9 S9/14^15:6,ü,null,false,null S(9,11] B20(11) T/23:1,b,2.5,true,1 b30 U(11)", SCHEMA
    )
    elements += parse("R+ R-")
    history = History(Received(i, "u/0@n1", OUT, "n2", 3, "main", e) for i, e in enumerate(elements))
    for event in (
        Delivered(20, "client:c", OUT, elements[0]),
        Opened(21, "client:c", OUT, "n1", 1, "main", 0, -(2**62), False, 5),
        Promoted(22, "u/0@n1", OUT, 1, "main"),
        Closed(23, "u/0@n1", OUT, 1, "no heartbeat"),
        StateChanged(24, "u/0@n1", NodeState.UP_FAILURE, True),
        Sent(25, Channel(StreamId("a"), 0), 7, 12, 20),
        ProcessUp(26, "source:a", 4),
        ProcessDown(27, "n1"),
        FaultBegan(28, 1, "cut", ("n1",), (("source:a", "n1"), ("n1", "source:a")), 0.5),
        FaultEnded(29, 1),
        Buffers(30, "u/0@n1", 0, False, 1, ((OUT, 11, 12345),)),
        SchedulerRounds(31, 400),
        Note(32, "n1", "subscribe", "mode=main"),
    ):
        history(event)
    return history


def test_each_event_is_a_distinct_line() -> None:
    """Also each element: histories with equal lines are equal."""
    lines = list(write_lines(everything(), {OUT.stream: SCHEMA}))
    assert len(set(lines)) == len(lines) == 1 + len(list(everything()))
    assert '"rows":[[5,null,0.1,true,9],[6,"ü",null,false,null]]' in lines[1]


def test_the_host_of_a_consumer_follows_from_its_name() -> None:
    assert host_of("unit/0@n1") == "n1"
    assert host_of("client:c@home") == "client:c@home"


def test_cluster_reports_all_that_consumers_receive() -> None:
    """Every input of every replica, and the client: subscriptions, elements, states, and what sources sent."""

    async def scenario() -> History:
        async with SimCluster(*make_plan(2), seed=1) as cluster:
            await cluster.start()
            await trio.sleep(2)
            return cluster.history

    with seeded_scheduling(1):
        history = trio.run(scenario, clock=JumpClock())
    received = [e for e in history if isinstance(e, Received)]
    opened = {(e.consumer, e.channel, e.generation): e for e in history if isinstance(e, Opened)}
    plan, directory = make_plan(2)
    expected = {
        (f"{of}@{node}", channel)
        for of, nodes in directory.placement.items()
        for node in nodes
        for channel in plan.unit[of.unit].channels_in(of.partition)
    } | {("client:c", Channel(plan.query.outputs[0], 0))}
    assert {(e.consumer, e.channel) for e in received} == expected
    assert all(opened[e.consumer, e.channel, e.generation].producer == e.producer for e in received)
    assert {str(e.mode) for e in received} == {"main"}
    delivered = [e for e in history if isinstance(e, Delivered)]
    assert [e.element for e in received if e.consumer == "client:c"] == [e.element for e in delivered]
    states = [e for e in history if isinstance(e, StateChanged)]
    assert {e.state for e in states} == {NodeState.RECOVERING, NodeState.STABLE}
    sent = [e for e in history if isinstance(e, Sent)]
    assert {str(e.channel) for e in sent} == {"a/0", "b/0", "c/0"}
    assert max(e.upto_id for e in sent) >= 150
    assert [e.at_us for e in history] == sorted(e.at_us for e in history)
