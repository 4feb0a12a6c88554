"""Moves of partitions that are under way, as an explanation names them."""

from __future__ import annotations

from typing import Final

from consistency.explaining.model import Look, short
from spe.plan.plan import Plan
from spe.status import MoveStatus
from spe.stream.ids import Channel

#: Phases of a move that is over.
_OVER: Final = ("done", "dropped")


def moves_on_the_way(plan: Plan, now: Look, channel: Channel) -> tuple[str, ...]:
    """Moves of what makes a channel, and of everything upstream of it."""
    moves = _open(now)
    if not moves:
        return ()
    on_the_way, left = set[str](), [channel]
    while left:
        one = left.pop()
        if one.stream in plan.sources or str(maker := plan.maker_of(one)) in on_the_way:
            continue
        on_the_way.add(str(maker))
        left += plan.unit[maker.unit].channels_in(maker.partition)
    return tuple(_told(move, now) for move in moves if move.partition in on_the_way)


def arriving(now: Look) -> set[tuple[str, str]]:
    """Nodes with the partitions that move to them: their replicas recover as they should."""
    return {(move.target, move.partition) for move in _open(now)}


def _open(now: Look) -> list[MoveStatus]:
    coordinator = now.coordinator()
    return [] if coordinator is None else [move for move in coordinator.moves if move.phase not in _OVER]


def _told(move: MoveStatus, now: Look) -> str:
    why = f": {move.why}" if move.why else ""
    began_us = min(move.began_us.values(), default=now.at_us)
    since = f", {short(max(0, now.at_us - began_us))} after its order"
    expected = "" if move.predicted_us is None else f"; expected to take {short(move.predicted_us)}"
    what = "the standby " if move.role == "standby" else ""
    route = f"from {move.source} to {move.target}"
    return f"move {move.number} of {what}{move.partition} {route}, phase {move.phase}{since}{expected}{why}"
