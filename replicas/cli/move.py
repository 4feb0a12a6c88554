"""``spe move``, ``drain``, ``leave``, ``balance``, ``cancel``: change the placement of a running cluster."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Final

import trio

from replicas.cli.order import give_order
from replicas.local.polling import Poller, last_of
from replicas.local.run_dir import Target
from replicas.local.run_over import refuse_over
from spe.plan.directory import COORDINATOR
from spe.status import CoordinatorStatus, MoveStatus
from spe.stream.ids import PartitionId
from spe.stream.names import UnitId
from spe.wire.messages.commands import MoveAnswer, MoveOrder

#: After so long without an answer of the coordinator the command stops watching; the moves go on.
SILENCE_S: Final = 30.0
_LOOK_S: Final = 0.3


def move(path: Path, partition: str, source: str, target: str, *, wait: bool) -> int:
    """Moves a partition; returns 1 if the move was dropped."""
    return _order(path, MoveOrder("move", partition, source, target, 0), wait=wait)


def drain(path: Path, node: str, *, wait: bool) -> int:
    """Moves everything off a node; returns 1 if a move was dropped."""
    return _order(path, MoveOrder("drain", "", node, "", 0), wait=wait)


def balance(path: Path, *, dry_run: bool, wait: bool) -> int:
    """Relieves full nodes, or prints the moves that would do so; returns 1 if a move was dropped."""
    return _order(path, MoveOrder("propose" if dry_run else "balance", "", "", "", 0), wait=wait)


def cancel(path: Path, number: int) -> int:
    """Cancels a move."""
    return _order(path, MoveOrder("cancel", "", "", "", number), wait=True)


def leave(path: Path, node: str) -> int:
    """Removes a joined node from the cluster."""
    return _order(path, MoveOrder("leave", "", node, "", 0), wait=False)


def _order(path: Path, order: MoveOrder, *, wait: bool) -> int:
    return give_order(path, order, MoveAnswer, partial(_report, order, wait), purpose="moves partitions")


async def _report(order: MoveOrder, wait: bool, target: Target, poller: Poller, answer: MoveAnswer) -> int:
    for remark in answer.remarks:
        print(remark.text)
    if order.verb in ("balance", "propose"):
        for move in answer.proposed:
            what = f"{PartitionId(UnitId(move.unit), move.partition)} from {move.source} to {move.target}"
            print(f"{'would move' if order.verb == 'propose' else 'moves'} {what}, in about {move.took_us / 1e6:.1f} s")
        if order.verb == "propose" and answer.proposed:
            return 0
    numbers = range(answer.first, answer.last + 1)
    if order.verb == "leave":
        print(f"{order.source} is no node of this cluster any more")
        return 0
    if not numbers:
        print("there is nothing to move")
        return 0
    if not wait:
        print(f"ordered: {', '.join(map(str, numbers))}; spe status shows how far they are")
        return 0
    return await _watch(target, poller, numbers)


async def _watch(target: Target, poller: Poller, numbers: range) -> int:
    """Prints each phase of the moves until all are over."""
    printed: dict[int, str] = {}
    dropped: set[int] = set()
    silent_since: float | None = None
    while True:
        if await poller.ask_status(COORDINATOR):
            silent_since = None
            status = last_of(poller.seen, COORDINATOR, CoordinatorStatus)
            moves = [] if status is None else [m for m in status.moves if m.number in numbers]
            for status_of_move in moves:
                if printed.get(status_of_move.number) != (text := move_text(status_of_move)):
                    printed[status_of_move.number] = text
                    print(text, flush=True)
            dropped.update(m.number for m in moves if m.phase == "dropped")
            if all(m.is_over for m in moves):  # the coordinator reports all moves that are not over
                return int(bool(dropped))
        elif silent_since is None:
            refuse_over(target)
            silent_since = trio.current_time()
        elif trio.current_time() - silent_since > SILENCE_S:
            print(
                f"{COORDINATOR}: {poller.errors[COORDINATOR].why}; the next one goes on with the moves", file=sys.stderr
            )
            return 1
        await trio.sleep(_LOOK_S)


def move_text(move: MoveStatus) -> str:
    """Formats a move: ``move 3: u1/0 from n1 to n5 (n1 is drained): follow: n5 must be as far as the others were``.

    The reason of the move is in parentheses.
    """
    what = f"{move.partition} from {move.source} to {move.target} ({move.reason})"
    words = [f"move {move.number}", what, phase_text(move)]
    return ": ".join([*words, *([move.why] if move.why else [])])


def phase_text(move: MoveStatus) -> str:
    """Formats the phase of a move, with its duration if it is over, and the expected duration."""
    expected = "" if move.predicted_us is None else f"{move.predicted_us / 1e6:.1f} s expected"
    if not move.is_over or not move.began_us:
        return f"{move.phase} ({expected})" if expected else move.phase
    took = f"{move.phase} in {move.took_us(0) / 1e6:.1f} s"
    return f"{took} ({expected})" if expected else took
