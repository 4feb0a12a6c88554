"""Gives an order of a command to the coordinator of a running cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import trio

from replicas.local.polling import Poller
from replicas.local.run_dir import Target, load_coordinated
from replicas.local.run_over import while_it_runs
from spe.errors import SpeError
from spe.plan.directory import COORDINATOR
from spe.wire.messages.message import Message, expect

#: Time limit of an order, which is acknowledged when it is on the coordinator's disk.
ORDER_S: Final = 10.0
A = TypeVar("A", bound=Any)
#: Prints an answer, and returns the exit status; it may ask further questions.
Report = Callable[[Target, Poller, A], Awaitable[int]]


def give_order(path: Path, message: Message, kind: type[A], report: Report[A], *, purpose: str) -> int:
    """Gives an order, and returns the exit status.

    Args:
      kind: type of the answer, whose field ``error`` has the reason for a refusal.
      purpose: what the coordinator does on such orders, for the error if there is none.

    Raises:
      SpeError: the coordinator refuses, or does not answer.
    """
    target = load_coordinated(path, purpose)
    with while_it_runs(target):
        return trio.run(_give, target, message, kind, report)


async def _give(target: Target, message: Message, kind: type[A], report: Report[A]) -> int:
    poller = Poller.of(target)
    answer = expect(await poller.ask(COORDINATOR, message, wait_s=ORDER_S), kind)
    if answer.error:
        raise SpeError(answer.error)
    return await report(target, poller, answer)
