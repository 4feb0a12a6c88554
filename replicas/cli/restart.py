"""``spe restart --rolling`` and ``spe wait``: stop a node only while other nodes serve its partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import trio

from replicas.cli.control import INJECT_S
from replicas.local.polling import PERIOD_S, Poller, last_of
from replicas.local.rolling import hindrances, moved_away, nodes_to_restart, not_back, partitions_of, without_partner
from replicas.local.run_dir import SUPERVISOR, Target, load_target, require_addresses
from replicas.local.run_over import refuse_over, while_it_runs
from replicas.local.supervisor import ROLL
from spe.errors import SpeError
from spe.plan.directory import COORDINATOR
from spe.problems import check_known
from spe.runtime.env import Env
from spe.status import CoordinatorStatus, NodeStatus
from spe.stream.ids import PartitionId

#: An order may wait for another one, and a process that does not end by itself is killed after a while.
_ORDER_S: Final = 2 * INJECT_S


def restart(path: Path, names: Sequence[str], within_us: int) -> int:
    """Restarts nodes of a run, one after the other; returns 1 if one was not ready in time.

    Args:
      names: nodes; empty: all nodes.

    Raises:
      SpeError: not a run, or it is over, or a partition runs on one node only.
    """
    target = load_target(path)
    if target.folder is None:
        raise SpeError(
            f"{path} is a configuration; expected the directory of a run.  Elsewhere restart a node with what started "
            "it, after spe wait CONFIG NODE --partners, and go on after spe wait CONFIG NODE"
        )
    for name in names:
        check_known("node", name, target.directory.nodes)
    nodes = [str(n) for n in nodes_to_restart(target.directory, names)]
    with while_it_runs(target):
        return trio.run(Rolling(target.env(), target, within_us).restart, nodes)


def wait(path: Path, node: str, *, partners: bool, within_us: int) -> int:
    """Waits until a node, or another node for each of its partitions, is STABLE; returns 1 if that took too long.

    Raises:
      SpeError: no other node runs one of its partitions.
    """
    target = load_target(path)
    require_addresses(path, target)
    rolling = Rolling(target.env(), target, within_us)
    with while_it_runs(target):
        return trio.run(rolling.wait_for_partners if partners else rolling.wait_for, node)


class Rolling:
    """Restarts nodes, or waits for them, for one command.

    Args:
      within_us: how long each wait may take.
    """

    def __init__(self, env: Env, target: Target, within_us: int) -> None:
        self._target = target
        self._directory = target.directory
        self._within_us = within_us
        self._poller = Poller(env, target.plan, target.addresses, target.token)

    async def restart(self, nodes: Sequence[str]) -> int:
        """Restarts nodes in this order."""
        answered = await self._poller.nodes()
        if alone := [text for node in nodes for text in without_partner(self._directory, answered, node)]:
            raise SpeError(f"{'; '.join(alone)}: name the nodes that are to restart, or use spe inject")
        for number, node in enumerate(nodes):
            if not await self._restart(node):
                left = ", ".join(nodes[number:])
                print(f"stopped here; not restarted, or not ready: {left}", flush=True)
                return 1
        return 0

    async def _restart(self, node: str) -> bool:
        """Restarts a node; returns False if it took too long, and prints the reason."""
        why, done = ["no node answers"], False
        began = trio.current_time()
        ran: Sequence[PartitionId] = ()
        incarnation = 0
        with trio.move_on_after(self._within_us / 1e6):
            while True:
                answered = await self._poller.nodes()
                ran = partitions_of(self._directory, answered, node)
                incarnation = answered[node].incarnation if node in answered else 0
                if not (why := hindrances(self._directory, answered, node)):
                    with trio.CancelScope(shield=True):  # an order that was given is carried out
                        refused = await self._poller.inject(SUPERVISOR, {"kind": ROLL, "target": node}, wait_s=_ORDER_S)
                    if not refused:
                        done = True
                        break
                    why = [refused]
                refuse_over(self._target)
                await trio.sleep(PERIOD_S)
        if not done:
            print(f"{node} was not restarted within {self._within_us / 1e6:g} s: {'; '.join(why)}", flush=True)
            return False
        print(f"{node}: stopped and started again", flush=True)
        why = await self._until(node, lambda status: not_back(status, incarnation, ran, self._moved_away(node)))
        took = f"{trio.current_time() - began:.1f} s"
        print(
            f"{node}: not ready after {took}: {'; '.join(why)}" if why else f"{node}: STABLE after {took}", flush=True
        )
        return not why

    async def wait_for(self, node: str) -> int:
        """Waits until a node answers, and all that it runs is STABLE."""
        await self._known(node)
        why = await self._until(node, lambda status: not_back(status, -1, ()))
        print(f"{node}: {'; '.join(why) or 'STABLE'}", flush=True)
        return 1 if why else 0

    async def wait_for_partners(self, node: str) -> int:
        """Waits until each partition of a node has another replica that is STABLE."""
        await self._known(node)
        why = ["no node answers"]
        with trio.move_on_after(self._within_us / 1e6):
            while True:
                answered = await self._poller.nodes()
                refuse_over(self._target)
                if alone := without_partner(self._directory, answered, node):
                    raise SpeError("; ".join(alone))
                if not (why := hindrances(self._directory, answered, node)):
                    break
                await trio.sleep(PERIOD_S)
        print(f"{node} may not stop: {'; '.join(why)}" if why else f"{node} may stop", flush=True)
        return 1 if why else 0

    async def _until(self, node: str, lacking: Callable[[NodeStatus | None], list[str]]) -> list[str]:
        """Returns what a node still lacks when the time is up; empty as soon as it lacks nothing."""
        why = ["it does not answer yet"]
        with trio.move_on_after(self._within_us / 1e6):
            while True:
                refuse_over(self._target)
                answers = await self._poller.ask_status(node)
                if COORDINATOR in self._poller.addresses:
                    await self._poller.ask_status(COORDINATOR)
                if not (why := lacking(last_of(self._poller.seen, node, NodeStatus) if answers else None)):
                    break
                await trio.sleep(PERIOD_S)
        return why

    def _moved_away(self, node: str) -> set[str]:
        return moved_away(last_of(self._poller.seen, COORDINATOR, CoordinatorStatus), node)

    async def _known(self, node: str) -> None:
        """Raises SpeError: neither the file nor the coordinator knows a node of this name."""
        if node not in self._directory.nodes:
            await self._poller.nodes()
        others = ("source:", "client:")
        known = [n for n in self._poller.addresses if not n.startswith(others) and n not in (COORDINATOR, SUPERVISOR)]
        check_known("node", node, known)
