"""Settings of nodes changed while a simulated cluster runs, each derived from a number and the current directory.

Most changes leave each share of X twice as long as a healthy system needs, even if all units run on one node; some are
those that ``spe check`` refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

import trio

from replicas.simulation.world.clock import sleep_until_us
from replicas.simulation.world.cluster import SimCluster
from spe.plan.directory import COORDINATOR
from spe.plan.nodes import Policy
from spe.plan.timing import depth, needed_wait_us
from spe.stream.times import SECOND, format_duration
from spe.wire.messages.commands import SetOrder, Setting

#: Number of orders of a run with orders.
COUNTS: Final = (1, 2, 3, 5)
_ALPHAS: Final = (0.6, 0.9)
#: X, as a multiple of the least that is certainly healthy.
_TIMES: Final = (1.0, 1.5, 3.0, 6.0)
#: Share of the orders that must be refused.
_REFUSED: Final = 0.15
#: An order with a later answer is not waited for: the coordinator, or its disk, is stopped.
_ANSWER_S: Final = 2.0


def with_coordinator(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with a coordinator."""
    return {"coordinator": {}, **config}


def random_settings(random: Random, until_us: int) -> list[dict[str, Any]]:
    """Returns the times of orders, each with a number from which the order follows."""
    times = sorted(random.randrange(SECOND // 2, until_us) for _ in range(random.choice(COUNTS)))
    return [{"at_us": at_us, "draw": random.randrange(1 << 30)} for at_us in times]


async def order_settings(cluster: SimCluster, orders: Sequence[Mapping[str, Any]]) -> None:
    """Gives each order at its time, if there is a coordinator then.

    A hand-written order has ``node`` and ``changes``, pairs of name and value, in place of ``draw``.
    """
    for order in orders:
        await sleep_until_us(order["at_us"])
        if cluster.runs(COORDINATOR):
            await _give(cluster, _written(order) if "node" in order else drawn(cluster, Random(order["draw"])))


async def _give(cluster: SimCluster, order: SetOrder) -> None:
    assert cluster.coordinator is not None
    result = "no answer"
    with trio.move_on_after(_ANSWER_S):
        answer = await cluster.coordinator.set(order)
        result = answer.error or f"version {answer.number}"
    cluster.note(f"set {order.node} {' '.join('='.join(change) for change in order.changes)}: {result}")


def _written(order: Mapping[str, Any]) -> SetOrder:
    return SetOrder(order["node"], [Setting(*change) for change in order["changes"]])


def drawn(cluster: SimCluster, random: Random) -> SetOrder:
    """Returns an order that fits the directory; it may still be refused."""
    directory, plan = cluster.current, cluster.plan
    hosts = sorted({node for roles in directory.roles.values() for node in roles})
    node = random.choice(hosts)
    if random.random() < _REFUSED:
        return SetOrder(node, [Setting("x", "1ms")])
    alpha = random.choice(_ALPHAS)
    least_us = 2 * max(needed_wait_us(plan, unit)[0] for unit in plan.units) / alpha
    x_us = round(least_us * max(depth(plan, unit) for unit in plan.units) * random.choice(_TIMES))
    # X and α change together: another α with the earlier X may be too little.
    changes = [Setting("x", format_duration(x_us)), Setting("alpha", str(alpha))]
    for name in ("failure", "stabilization"):
        if random.random() < 0.4:
            changes.append(Setting(name, random.choice(list(Policy)).value))
    if random.random() < 0.2:
        changes = [Setting(name, "file") for name in ("x", "alpha", "policy")]
    return SetOrder(node, changes)
