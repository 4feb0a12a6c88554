"""Describes moves of partitions that are under way."""

from __future__ import annotations

from consistency.explaining.model import Look, short
from spe.plan.plan import Plan
from spe.status import MoveStatus
from spe.stream.ids import Channel


def moves_on_the_way(plan: Plan, now: Look, channel: Channel) -> tuple[str, ...]:
    """Returns moves of the partitions that make a channel, and of everything upstream."""
    moves = _open(now)
    if not moves:
        return ()
    on_the_way, left = set[str](), [channel]
    while left:
        channel_ = left.pop()
        if channel_.stream in plan.sources or str(maker := plan.maker_of(channel_)) in on_the_way:
            continue
        on_the_way.add(str(maker))
        left += plan.unit[maker.unit].channels_in(maker.partition)
    return tuple(_described(move, now) for move in moves if move.partition in on_the_way)


def arriving(now: Look) -> set[tuple[str, str]]:
    """Returns nodes with the partitions that move to them: their replicas recover as they should."""
    return {(move.target, move.partition) for move in _open(now)}


def _open(now: Look) -> list[MoveStatus]:
    coordinator = now.coordinator()
    return [] if coordinator is None else [move for move in coordinator.moves if not move.is_over]


def _described(move: MoveStatus, now: Look) -> str:
    why = f": {move.why}" if move.why else ""
    since = f", {short(max(0, move.took_us(now.at_us)))} after its order"
    expected = "" if move.predicted_us is None else f"; expected to take {short(move.predicted_us)}"
    what = "the standby " if move.role == "standby" else ""
    route = f"from {move.source} to {move.target}"
    return f"move {move.number} of {what}{move.partition} {route}, phase {move.phase}{since}{expected}{why}"
