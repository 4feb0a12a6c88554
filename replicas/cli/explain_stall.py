"""``spe explain-stall``: why an output is tentative, late or silent now."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import trio

from consistency.explaining.explain import between_us, explain
from consistency.explaining.model import Condition, Explanation, Look
from replicas.local.polling import Poller
from replicas.local.run_dir import SUPERVISOR, Target, load_target, require_addresses
from replicas.local.run_over import refuse_over, while_it_runs
from spe.problems import check_known

#: What needs nobody.
_GOOD = (Condition.FINE, Condition.ENDED)


def explain_stall(path: Path, output: str, as_json: bool) -> int:
    """Prints why each output is as it is; 1 where one is not as it should be."""
    target = load_target(path)
    require_addresses(path, target)
    if output:
        check_known("output", output, target.plan.query.outputs)
    with while_it_runs(target):
        before, now = trio.run(_looks, target)
        refuse_over(target)
    found = explain(target.plan, target.directory, before, now, output)
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    else:
        print("\n\n".join("\n".join(one.lines()) for one in found))
    return 0 if all(good(one) for one in found) else 1


def good(one: Explanation) -> bool:
    """Does it need nobody?"""
    return one.condition in _GOOD


async def _looks(target: Target) -> tuple[Look, Look]:
    """Two, with enough time between them for everything to advance that works."""
    first = await _look(target)
    await trio.sleep(between_us(target.plan) / 1e6)
    return first, await _look(target)


async def _look(target: Target) -> Look:
    env = target.env()
    poller = Poller(env, target.plan, target.addresses, target.token)
    async with trio.open_nursery() as nursery:
        poller.joined = lambda name: nursery.start_soon(poller.ask_status, name)
        for name in target.addresses:
            if name != SUPERVISOR:
                nursery.start_soon(poller.ask_status, name)
    statuses = {name: seen.status for name, seen in poller.seen.items()}
    took_us = {name: seen.took_us for name, seen in poller.seen.items()}
    return Look(env.clock.wall_us(), statuses, dict(poller.errors), took_us)
