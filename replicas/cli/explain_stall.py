"""``spe explain-stall``: explains why an output is tentative, late or silent now."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import trio

from consistency.explaining.explain import between_us, explain
from consistency.explaining.model import Condition, Explanation, Look
from replicas.local.polling import Poller
from replicas.local.run_dir import Target, load_target, require_addresses
from replicas.local.run_over import refuse_over, while_it_runs
from spe.problems import check_known

#: Conditions that need no action.
_GOOD = (Condition.FINE, Condition.ENDED)


def explain_stall(path: Path, output: str, as_json: bool) -> int:
    """Prints the condition of each output and its causes; returns 1 if one needs action."""
    target = load_target(path)
    require_addresses(path, target)
    if output:
        check_known("output", output, target.plan.query.outputs)
    with while_it_runs(target):
        before, now = trio.run(_looks, target)
        refuse_over(target)
    explanations = explain(target.plan, target.directory, before, now, output)
    if as_json:
        print(json.dumps([asdict(explanation) for explanation in explanations], indent=1))
    else:
        print("\n\n".join("\n".join(explanation.lines()) for explanation in explanations))
    return 0 if all(good(explanation) for explanation in explanations) else 1


def good(explanation: Explanation) -> bool:
    """Returns whether an output needs no action."""
    return explanation.condition in _GOOD


async def _looks(target: Target) -> tuple[Look, Look]:
    """Takes two looks, far enough apart for everything that works to advance."""
    first = await _look(target)
    await trio.sleep(between_us(target.plan) / 1e6)
    return first, await _look(target)


async def _look(target: Target) -> Look:
    poller = Poller.of(target)
    await poller.ask_all()
    statuses = {name: answer.status for name, answer in poller.seen.items()}
    took_us = {name: answer.took_us for name, answer in poller.seen.items()}
    return Look(poller.now_us(), statuses, dict(poller.errors), took_us)
