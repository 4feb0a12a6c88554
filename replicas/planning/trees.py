"""Minimal complete trees: sets of tasks that can give final output as long as all of them live (PPA section III-B).

A tree has one task of a sink operator as its root; a task that correlates its inputs needs a branch in each of them,
any other needs a branch in one.  There can be very many, so they are counted without being built, and built lazily.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

from replicas.planning.topology import Topology


def count_trees(topology: Topology) -> int:
    """Returns their number, counted along the streams."""
    counts: list[list[int]] = []
    for operator in topology.operators:
        if not operator.inputs:
            counts.append([1 if rate > 0 else 0 for rate in operator.rate])
            continue
        counts_here = [1 if operator.correlated else 0] * operator.tasks
        for stream in operator.inputs:
            before, here = counts[stream.upstream], [0] * operator.tasks
            for source, target, rate in zip(
                stream.source.tolist(), stream.target.tolist(), stream.rate.tolist(), strict=True
            ):
                if rate > 0:
                    here[target] += before[source]
            counts_here = [f * h if operator.correlated else f + h for f, h in zip(counts_here, here, strict=True)]
        counts.append(counts_here)
    places = {o.name: at for at, o in enumerate(topology.operators)}
    return sum(sum(counts[places[sink.name]]) for sink in topology.sinks)


def trees(topology: Topology) -> Iterator[frozenset[int]]:
    """Yields all of them, without tasks that never fail; where branches meet, a set may come again."""
    feeds = feeds_of(topology)

    def rooted(task: int) -> Iterator[frozenset[int]]:
        own = frozenset((task,)) if topology.fails[task] else frozenset[int]()
        operator = topology.operators[int(topology.operator_of[task])]
        if not operator.inputs:
            if operator.rate[task - operator.first] > 0:
                yield own
        elif operator.correlated:
            for branches in product(*[list(_branches(stream)) for stream in feeds[task]]):
                yield own.union(*branches)
        else:
            for stream in feeds[task]:
                yield from (own | branch for branch in _branches(stream))

    def _branches(stream: tuple[int, ...]) -> Iterator[frozenset[int]]:
        for source in stream:
            yield from rooted(source)

    for sink in topology.sinks:
        for task in range(sink.first, sink.first + sink.tasks):
            yield from rooted(task)


def feeds_of(topology: Topology) -> list[tuple[tuple[int, ...], ...]]:
    """Returns, per task, the senders of each of its input streams."""
    feeds: list[tuple[tuple[int, ...], ...]] = []

    @cache
    def senders(operator: int, stream: int) -> list[tuple[int, ...]]:
        edge = topology.operators[operator].inputs[stream]
        first = topology.operators[edge.upstream].first
        lists: list[list[int]] = [[] for _ in range(topology.operators[operator].tasks)]
        for source, target, rate in zip(edge.source.tolist(), edge.target.tolist(), edge.rate.tolist(), strict=True):
            if rate > 0:
                lists[target].append(first + source)
        return [tuple(edge) for edge in lists]

    for at, operator in enumerate(topology.operators):
        for task in range(operator.tasks):
            feeds.append(tuple(senders(at, s)[task] for s in range(len(operator.inputs))))
    return feeds
