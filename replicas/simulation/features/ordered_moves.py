"""Moves ordered while a simulated cluster runs, each derived from a number and the current directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

import trio

from replicas.simulation.scenarios.scenario import named_nodes
from replicas.simulation.world.clock import sleep_until_us
from replicas.simulation.world.cluster import SimCluster
from spe.plan.directory import COORDINATOR
from spe.stream.times import SECOND
from spe.wire.fields import MoveVerb
from spe.wire.messages.commands import MoveOrder

#: Numbers of orders of a run with orders, and the largest number of spare nodes.
COUNTS: Final = (1, 2, 3, 5, 8)
_SPARES: Final = 2
_VERBS: Final[Sequence[MoveVerb]] = ("move", "move", "move", "drain", "cancel")
#: An order with a later answer is not waited for: the coordinator, or its disk, is stopped.
_ANSWER_S: Final = 2.0


def with_spares(random: Random, config: Mapping[str, Any], name: str = "spare") -> dict[str, Any]:
    """The configuration with a coordinator and, perhaps, spare nodes, whose names begin with ``name``."""
    spares = {f"{name}{i + 1}": {"spare": True} for i in range(random.randint(0, _SPARES))}
    return {"coordinator": {}, **config, "nodes": named_nodes(config) | spares}


def random_moves(random: Random, until_us: int) -> list[dict[str, int]]:
    """Returns the times of orders, each with a number from which the order follows."""
    times = sorted(random.randrange(SECOND // 2, until_us) for _ in range(random.choice(COUNTS)))
    return [{"at_us": at_us, "draw": random.randrange(1 << 30)} for at_us in times]


async def order_moves(cluster: SimCluster, orders: Sequence[Mapping[str, Any]]) -> None:
    """Gives each order at its time, if there is a coordinator then.

    A hand-written order has ``partition``, ``source`` and ``target`` in place of ``draw``.
    """
    for order in orders:
        await sleep_until_us(order["at_us"])
        if cluster.runs(COORDINATOR):
            await give_order(cluster, _written(order) if "target" in order else drawn(cluster, Random(order["draw"])))


async def give_order(cluster: SimCluster, order: MoveOrder) -> bool:
    """Gives an order to the coordinator, and notes the answer; returns whether it was accepted."""
    assert cluster.coordinator is not None
    result, taken = "no answer", False
    with trio.move_on_after(_ANSWER_S):
        answer = await cluster.coordinator.move(order)
        result, taken = answer.error or f"{answer.first} to {answer.last}", not answer.error
    cluster.note(f"{order.verb} {order.partition} {order.source} {order.target} {order.number}: {result}")
    return taken


def _written(order: Mapping[str, Any]) -> MoveOrder:
    return MoveOrder("move", order["partition"], order["source"], order["target"], 0)


def drawn(cluster: SimCluster, random: Random) -> MoveOrder:
    """Returns an order that fits the directory; it may still be refused."""
    directory = cluster.current
    verb = random.choice(_VERBS)
    partition = random.choice(sorted(directory.roles))
    source = random.choice(sorted(directory.roles[partition]))
    others = sorted(set(directory.nodes) - {source})
    match verb:
        case "move":
            return MoveOrder(verb, str(partition), source, random.choice(others) if others else source, 0)
        case "drain":
            return MoveOrder(verb, "", source, "", 0)
        case _:
            assert cluster.coordinator is not None
            open_moves = cluster.coordinator.mover.orders.open()
            return MoveOrder(verb, "", "", "", open_moves[0].number if open_moves else 1)
