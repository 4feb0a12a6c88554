"""Limits of connections after the hello: each peer of the plan has its own, all others share a few."""

from __future__ import annotations

from contextlib import ExitStack

import trio
import trio.testing

from replicas.link.connection import Identity
from replicas.producer.connection_limits import (
    GUESTS,
    GUESTS_MAX,
    PLACES,
    PLACES_PER_SUBSCRIPTION,
    READER_PLACES,
    READERS,
    READERS_MAX,
    READERS_PLACES,
    WRITER_PLACES,
    Reception,
    checkpoints,
    subscriptions,
)
from spe.plan.directory import COORDINATOR, Role, Standbys
from spe.runtime.connection_limits import CONNECTIONS_MAX
from spe.stream.names import NodeId
from tests.simulation.test_cluster import make_plan
from tests.simulation.test_push import plan_with_writer
from tests.support.plans import placed

PLAN, DIRECTORY = make_plan()


def reception() -> Reception:
    return Reception(PLAN, DIRECTORY, Identity("node", "n1a", 1))


def test_subscriptions_are_counted_per_reader_and_channel() -> None:
    two = make_plan(depth=2)
    assert subscriptions(*two, "source:a", "n1a") == 1
    assert subscriptions(*two, "n1a", "n2a") == 1
    assert subscriptions(*two, "n2a", "n1a") == 0
    assert subscriptions(PLAN, DIRECTORY, "n1a", "client:c") == 1
    assert subscriptions(PLAN, DIRECTORY, "n1a", "client:unknown") == 0


async def test_a_standby_has_places_for_its_inputs_and_for_checkpoints() -> None:
    (partition,) = DIRECTORY.placement
    backed = placed(DIRECTORY, {partition: (NodeId("n1a"),)}, {partition: Standbys((NodeId("n1b"),), 1)})
    assert subscriptions(PLAN, backed, "source:a", "n1b") == 1
    assert checkpoints(backed, "n1a", "n1b") == 1
    assert checkpoints(backed, "n1b", "n1a") == 0
    desk = Reception(PLAN, backed, Identity("node", "n1a", 1))
    with desk.visit(COORDINATOR):
        assert desk.connections() == {COORDINATOR: 1}


async def test_beyond_its_places_a_peer_loses_its_oldest_connection() -> None:
    desk, places = reception(), PLACES + PLACES_PER_SUBSCRIPTION
    with ExitStack() as stack:
        other = stack.enter_context(desk.visit("n1b"))
        scopes = [stack.enter_context(desk.visit("client:c")) for _ in range(places)]
        assert not any(s.cancel_called for s in scopes)
        scopes.append(stack.enter_context(desk.visit("client:c")))
        assert [s.cancel_called for s in scopes] == [True] + [False] * places
        assert not other.cancel_called
        assert desk.connections() == {"n1b": 1, "client:c": places}
        assert desk.sent_away == 1
    assert desk.connections() == {}


async def test_excess_writer_is_refused_and_displaces_nobody() -> None:
    plan, directory = plan_with_writer()
    desk = Reception(plan, directory, Identity("source", "source:a", 1))
    with ExitStack() as stack:
        scopes = [stack.enter_context(desk.visit("writer:etl")) for _ in range(WRITER_PLACES)]
        with desk.visit("writer:etl") as refused:
            assert refused is None
        assert [s is not None and s.cancel_called for s in scopes] == [False] * WRITER_PLACES
    with desk.visit("writer:etl") as later:
        assert later is not None


async def test_strangers_take_no_places_of_peers() -> None:
    desk = reception()
    with ExitStack() as stack:
        peer = stack.enter_context(desk.visit("client:c"))
        guests = [stack.enter_context(desk.visit(f"control {at}")) for at in range(300)]
        assert sum(g is not None and g.cancel_called for g in guests) == 300 - GUESTS_MAX
        assert not peer.cancel_called
        assert desk.connections() == {"client:c": 1, GUESTS: GUESTS_MAX}
        assert desk.sent_away == 300 - GUESTS_MAX


async def test_readers_beyond_their_number_are_turned_away() -> None:
    """Each has places of its own, also where several have one name; one that leaves makes room."""
    desk, places = reception(), READER_PLACES
    with ExitStack() as stack:
        first = [stack.enter_context(desk.visit("client:reader", 0)) for _ in range(places + 1)]
        others = [stack.enter_context(desk.visit("client:reader", at)) for at in range(1, READERS_MAX)]
        with desk.visit("client:c"), ExitStack() as leaving:
            assert leaving.enter_context(desk.visit("client:reader", READERS_MAX)) is None
            assert leaving.enter_context(desk.visit("client:reader", 1)) is not None
        assert [s is not None and s.cancel_called for s in first] == [True] + [False] * places
        assert all(s is not None and not s.cancel_called for s in others)
        assert desk.connections() == {READERS: places + READERS_MAX - 1}
    with desk.visit("client:reader", READERS_MAX) as later:
        assert later is not None
    assert desk.connections() == {}


async def test_all_readers_together_leave_room_for_the_plan() -> None:
    """A listener takes no connection beyond its number, whoever comes."""
    desk = reception()
    with ExitStack() as stack:
        for at in range(READERS_MAX):
            for _ in range(READER_PLACES):
                stack.enter_context(desk.visit("client:reader", at))
        assert desk.connections() == {READERS: READERS_PLACES}
        assert READERS_PLACES + GUESTS_MAX < CONNECTIONS_MAX
        with desk.visit("client:c") as peer:
            assert peer is not None


async def test_a_connection_that_makes_room_is_closed() -> None:
    desk, ended = reception(), []

    async def stay(number: int) -> None:
        with desk.visit("n1b") as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught
        ended.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(PLACES + 2):
            nursery.start_soon(stay, number)
            await trio.testing.wait_all_tasks_blocked()
        assert ended == [0, 1]
        nursery.cancel_scope.cancel()


async def test_places_follow_the_directory_and_open_connections_stay() -> None:
    (partition,) = DIRECTORY.placement
    alone = placed(DIRECTORY, {partition: (NodeId("n1a"),)})
    desk = Reception(PLAN, alone, Identity("source", "source:a", 1))
    with desk.visit("n1b") as one, desk.visit(COORDINATOR):
        assert desk.connections() == {"n1b": 1, GUESTS: 1}
        desk.redirect(alone.with_role(partition, NodeId("n1b"), Role.STANDBY))
        with ExitStack() as inside:
            for _ in range(PLACES + PLACES_PER_SUBSCRIPTION - 1):
                inside.enter_context(desk.visit("n1b"))
            inside.enter_context(desk.visit(COORDINATOR))
            assert desk.connections() == {"n1b": PLACES + PLACES_PER_SUBSCRIPTION, GUESTS: 1, COORDINATOR: 1}
            assert desk.sent_away == 0
        assert not one.cancel_called
