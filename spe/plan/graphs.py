"""Order in directed graphs that are small enough to be written by hand."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def stable_order(graph: Mapping[K, Collection[K]]) -> tuple[list[K], list[list[K]]]:
    """Returns a topological order that changes the given order as little as possible, and the circles, which have none.

    Args:
      graph: node -> the nodes before it; nodes that are not in the graph do not count.

    Returns:
      order: without the members of circles; nodes behind a circle are included, as if the circle were done.
      circles: each with its first node again at the end, in the direction of the arrows "is before".
    """
    left = dict(graph)
    order: list[K] = []
    circles: list[list[K]] = []
    while left:
        ready = next((n for n, before in left.items() if not any(b in left for b in before)), None)
        if ready is not None:
            order.append(ready)
            del left[ready]
            continue
        circle = _circle(left)
        circles.append(circle)
        for node in circle[1:]:
            del left[node]
    return order, circles


def _circle(graph: Mapping[K, Collection[K]]) -> list[K]:
    """A circle of a graph in which every node has one before it."""
    way = [next(iter(graph))]
    while True:
        before = next(b for b in graph[way[-1]] if b in graph)
        if before in way:
            return [before, *reversed(way[way.index(before) :])]
        way.append(before)
