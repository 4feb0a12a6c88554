"""``spe move``, ``drain``, ``leave``, ``balance``, ``cancel``: who runs what is changed while a cluster runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import trio

from replicas.local.polling import Poller, last_of
from replicas.local.run_dir import Target, load_target, require_addresses
from replicas.local.run_over import refuse_over, while_it_runs
from spe.errors import SpeError
from spe.plan.directory import COORDINATOR
from spe.status import CoordinatorStatus, MoveStatus
from spe.stream.ids import PartitionId
from spe.stream.names import UnitId
from spe.wire.messages import MoveAnswer, MoveOrder, expect

#: An order waits until it is on the coordinator's disk.
ORDER_S: Final = 10.0
#: Silence of the coordinator after which we stop to watch; the moves go on without us.
SILENCE_S: Final = 30.0
_LOOK_S: Final = 0.3
#: Phases after which nothing happens any more.
OVER: Final = ("done", "dropped")


def move(path: Path, partition: str, source: str, target: str, *, wait: bool) -> int:
    """Moves a partition; 1 where the move was dropped."""
    return _order(path, MoveOrder("move", partition, source, target, 0), wait=wait)


def drain(path: Path, node: str, *, wait: bool) -> int:
    """Moves everything off a node; 1 where a move was dropped."""
    return _order(path, MoveOrder("drain", "", node, "", 0), wait=wait)


def balance(path: Path, *, dry_run: bool, wait: bool) -> int:
    """Relieves full nodes, or says how that would be done; 1 where a move was dropped."""
    return _order(path, MoveOrder("propose" if dry_run else "balance", "", "", "", 0), wait=wait)


def cancel(path: Path, number: int) -> int:
    """Takes a move back."""
    return _order(path, MoveOrder("cancel", "", "", "", number), wait=True)


def leave(path: Path, node: str) -> int:
    """Takes a node that has joined out of the cluster."""
    return _order(path, MoveOrder("leave", "", node, "", 0), wait=False)


def _order(path: Path, order: MoveOrder, *, wait: bool) -> int:
    """Raises SpeError where the order is refused, or the coordinator does not answer."""
    target = load_target(path)
    if not target.directory.coordinated:
        raise SpeError(
            f"{path} has no coordinator, which moves partitions; add a section `coordinator`, a spare node or a standby"
        )
    require_addresses(path, target, [COORDINATOR])
    with while_it_runs(target):
        return trio.run(_give, target, order, wait)


async def _give(target: Target, order: MoveOrder, wait: bool) -> int:
    poller = Poller(target.env(), target.plan, target.addresses, target.token)
    answer = expect(await poller.ask(COORDINATOR, order, wait_s=ORDER_S), MoveAnswer)
    if answer.error:
        raise SpeError(answer.error)
    for remark in answer.remarks:
        print(remark.text)
    if order.verb in ("balance", "propose"):
        for one in answer.proposed:
            what = f"{PartitionId(UnitId(one.unit), one.partition)} from {one.source} to {one.target}"
            print(f"{'would move' if order.verb == 'propose' else 'moves'} {what}, in about {one.took_us / 1e6:.1f} s")
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
    """Prints each phase of some moves until all are over."""
    told: dict[int, str] = {}
    dropped: set[int] = set()
    silent_since: float | None = None
    while True:
        if await poller.ask_status(COORDINATOR):
            silent_since = None
            status = last_of(poller.seen, COORDINATOR, CoordinatorStatus)
            found = [] if status is None else [m for m in status.moves if m.number in numbers]
            for one in found:
                if told.get(one.number) != (text := move_text(one)):
                    told[one.number] = text
                    print(text, flush=True)
            dropped.update(m.number for m in found if m.phase == "dropped")
            if all(m.phase in OVER for m in found):  # the coordinator tells all that are not over
                return int(bool(dropped))
        elif silent_since is None:
            refuse_over(target)
            silent_since = trio.current_time()
        elif trio.current_time() - silent_since > SILENCE_S:
            print(f"{COORDINATOR}: {poller.errors[COORDINATOR]}; the next one goes on with the moves", file=sys.stderr)
            return 1
        await trio.sleep(_LOOK_S)


def move_text(move: MoveStatus) -> str:
    """A move in one line: ``move 3: u1/0 from n1 to n5 (n1 is drained): follow: n5 must be as far as the others were``.

    In brackets is who wanted it.
    """
    what = f"{move.partition} from {move.source} to {move.target} ({move.reason})"
    words = [f"move {move.number}", what, phase_text(move)]
    return ": ".join([*words, *([move.why] if move.why else [])])


def phase_text(move: MoveStatus) -> str:
    """The phase; of one that is over with how long it took, and of each with how long was expected."""
    expected = "" if move.predicted_us is None else f"{move.predicted_us / 1e6:.1f} s expected"
    if move.phase not in OVER or not move.began_us:
        return f"{move.phase} ({expected})" if expected else move.phase
    times = move.began_us.values()
    took = f"{move.phase} in {(max(times) - min(times)) / 1e6:.1f} s"
    return f"{took} ({expected})" if expected else took
