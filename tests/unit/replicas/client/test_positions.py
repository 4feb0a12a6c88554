"""Which replicas get acknowledgements of whoever reads an output elsewhere (S6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from replicas.client.positions import OutputPositions
from spe.stream.ids import Channel
from spe.stream.names import NodeState, StreamId
from spe.wire.messages.feeds import HeartbeatAnswer, OutputStatus, Subscribed
from tests.simulation.test_cluster import make_plan
from tests.support.source_env import source_env

ORIGIN = "0123456789abcdef"
STABLE, RECOVERING = NodeState.STABLE, NodeState.RECOVERING


class World:
    """A reader that holds ids up to 7, and the node n1a.

    Attributes:
      meanwhile: happens while the node answers what it is asked.
    """

    def __init__(self) -> None:
        plan, directory = make_plan()
        self.meanwhile: Callable[[], None] = lambda: None
        self.positions = OutputPositions(source_env(), plan, directory, "c", StreamId("s1"))
        self.positions._greeter.ask = self._greeting  # type: ignore[method-assign]
        self.answers(STABLE, 7)
        self.positions.acknowledge({0: 7}, {0: ORIGIN})

    async def _greeting(self, *_: Any) -> Subscribed:
        await trio.lowlevel.checkpoint()
        self.meanwhile()
        return Subscribed(
            state=STABLE,
            fresh=False,
            last_id=7,
            frontier=0,
            tentative_frontier=0,
            first=1,
            sequence=1,
            origin=ORIGIN,
        )

    def answers(self, state: NodeState, last_id: int) -> None:
        output = OutputStatus("s1", 0, state, False, last_id, 0, 0, 1, 0.0)
        self.positions._answered("n1a", HeartbeatAnswer(1, 1, [output]))

    async def compares(self) -> None:
        await self.positions._compare("n1a", "n1a:1", Channel(StreamId("s1"), 0), ORIGIN)

    def acknowledged(self) -> int:
        """What the node is told; 0: only that we speak for the client."""
        (ack,) = self.positions._acks_for("n1a")
        return ack.id


async def test_replica_is_acknowledged_once_it_continues_our_rows() -> None:
    world = World()
    assert world.acknowledged() == 0
    await world.compares()
    assert world.acknowledged() == 7
    world.answers(STABLE, 9)
    assert world.acknowledged() == 7


async def test_a_replica_that_recovered_is_asked_again() -> None:
    """It may have begun anew from other logs, and be further by now."""
    world = World()
    await world.compares()
    world.answers(RECOVERING, 7)
    world.answers(STABLE, 9)
    assert world.acknowledged() == 0
    await world.compares()
    assert world.acknowledged() == 7


async def test_the_answer_of_a_process_that_died_counts_for_no_other() -> None:
    world = World()

    def dies() -> None:
        world.positions._gone("n1a")
        world.answers(STABLE, 7)  # its successor

    world.meanwhile = dies
    await world.compares()
    assert world.acknowledged() == 0
    world.meanwhile = lambda: None
    await world.compares()
    assert world.acknowledged() == 7
