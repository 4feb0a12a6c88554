"""How far before a range of tuple time the input of each stream is needed for what it gives in the range.  Pure.

With the rows of a stream from ``a − margin`` on, an operator gives everything that it gives from ``a`` on:

    filter, map, union      0
    top-k of an instant     0
    window of time          its size; by an attribute: and how far that may lie ahead of tuple time
    join                    how far back a partner may lie, of a row that is emitted for want of one
    window of tuples        0, with the rows of the open windows, which are kept (``truth.aggregate``)

A stream that several read is needed by the farthest; along a path margins add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from graphlib import TopologicalSorter
from typing import Final

from consistency.proof.recorded.query_file import (
    AggregateEntry,
    CustomEntry,
    FilterEntry,
    JoinEntry,
    MapEntry,
    MergeEntry,
    OperatorEntry,
    Reading,
    TopKEntry,
    WindowEntry,
)
from spe.errors import SpeError
from spe.stream.names import StreamId

#: Aggregates that give one of their values.
_PICKING: Final = ("min", "max", "first", "last")
_BOUNDS: Final = ("window_start", "window_end")


def lookbacks(reading: Reading, outputs: Mapping[StreamId, tuple[str, ...]]) -> dict[StreamId, int]:
    """By stream: how many microseconds before a range it is needed, for all outputs in the range.

    Args:
      outputs: the attributes of each stream of the query.

    Raises:
      SpeError: no such time is known; names the operator.
    """
    ahead = _Ahead(reading, outputs)
    found = dict.fromkeys([StreamId(s) for s in (*reading.sources, *reading.operators)], 0)
    for name in reversed(_in_order(reading.operators)):
        entry = reading.operators[name]
        needed = found[StreamId(name)] + _margin(name, entry, ahead)
        for one in entry.inputs:
            found[StreamId(one)] = max(found[StreamId(one)], needed)
    return found


def _in_order(operators: Mapping[str, OperatorEntry]) -> list[str]:
    """Operators, each behind what it reads."""
    above = {name: [one for one in entry.inputs if one in operators] for name, entry in operators.items()}
    return list(TopologicalSorter(above).static_order())


def _margin(name: str, entry: OperatorEntry, ahead: _Ahead) -> int:
    match entry:
        case AggregateEntry():
            return 0 if entry.window.count else _of_window(name, entry.window, entry.window.on, entry.input, ahead)
        case TopKEntry(window=WindowEntry() as window):
            return _of_window(name, window, window.on, entry.input, ahead)
        case JoinEntry():
            return _of_join(name, entry, ahead)
        case CustomEntry():
            raise SpeError(
                f"operator {name!r} cannot be proved in ranges: what a class of your own ({entry.path}) still needs of "
                "earlier rows is not known; expected spe report without --follow, after the run"
            )
    return 0


def _of_window(name: str, window: WindowEntry, on: str | None, input_: str, ahead: _Ahead) -> int:
    return window.size_us + (0 if on is None else _known(name, input_, on, ahead))


def _of_join(name: str, entry: JoinEntry, ahead: _Ahead) -> int:
    """Of a pair, the earlier row; of a row without partner, also those that could have been one."""
    named = (entry.left_time, entry.right_time)
    if entry.window is not None:
        each = [one or entry.window.on for one in named]
        return max(_of_window(name, entry.window, on, input_, ahead) for on, input_ in zip(each, entry.inputs))
    assert entry.within_us is not None
    lower, upper = entry.within_us
    left, right = (0 if on is None else _known(name, input_, on, ahead) for on, input_ in zip(named, entry.inputs))
    return max(0, upper + left) + max(0, -lower + right)


def _known(name: str, input_: str, attribute: str, ahead: _Ahead) -> int:
    """How far an attribute may lie ahead of tuple time."""
    found = ahead.of(input_).get(attribute)
    if found is None:
        raise SpeError(
            f"operator {name!r} cannot be proved in ranges: it goes by the time in {attribute!r}, of which it is not "
            "known how far it lies ahead of tuple time; expected the time of a source, or spe report without --follow, "
            "after the run"
        )
    return max(0, found)


class _Ahead:
    """By stream and attribute: how many microseconds a time may lie ahead of the tuple's; not of those unknown.

    The time of a source's tuple is its event time or later (rule S1), and each operator gives a tuple the time of the
    latest that it was made of, or a later one (U5).
    """

    def __init__(self, reading: Reading, attributes: Mapping[StreamId, tuple[str, ...]]) -> None:
        self._reading = reading
        self._attributes = attributes
        self._found: dict[str, Mapping[str, int]] = {}

    def of(self, stream: str) -> Mapping[str, int]:
        if stream not in self._found:
            self._found[stream] = self._of(stream)
        return self._found[stream]

    def _of(self, stream: str) -> Mapping[str, int]:
        if stream in self._reading.sources:
            time = self._reading.sources[stream].time
            return {} if time is None else {time: 0}
        entry = self._reading.operators[stream]
        inputs = [self.of(one) for one in entry.inputs]
        match entry:
            case FilterEntry():
                return inputs[0]
            case TopKEntry():
                return {**inputs[0], **({} if entry.window is None else self._bounds(entry.input))}
            case MapEntry():
                kept = dict(inputs[0]) if entry.keep else {}
                return kept | _renamed(entry.columns, inputs[0])
            case MergeEntry():
                shared = reduce(lambda a, b: a & b, (set(one) for one in inputs))
                return {name: max(one[name] for one in inputs) for name in shared}
            case AggregateEntry():
                picked = {n: c.argument for n, c in entry.calls.items() if c.function in _PICKING and c.argument}
                bounds = {} if entry.window.count else dict.fromkeys(_BOUNDS, 1)
                return bounds | _renamed({**entry.group_by, **picked}, inputs[0])
            case JoinEntry():
                return self._joined(entry, inputs)
        return {}

    def _bounds(self, input_: str) -> dict[str, int]:
        """Of the window's attributes that are not the input's own: the tuple's time is the end, less 1 µs."""
        return {name: 1 for name in _BOUNDS if name not in self._attributes[StreamId(input_)]}

    def _joined(self, entry: JoinEntry, inputs: list[Mapping[str, int]]) -> dict[str, int]:
        return {prefix + name: far for prefix, above in zip(entry.prefix, inputs) for name, far in above.items()}


def _renamed(columns: Mapping[str, str], above: Mapping[str, int]) -> dict[str, int]:
    """Of columns that are an attribute as it is."""
    return {name: above[text.strip()] for name, text in columns.items() if text.strip() in above}
