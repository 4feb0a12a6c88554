"""Margins: earlier input of each stream that the output in a range of tuple time needs.  Pure.

With the rows of a stream from ``a − margin`` on, an operator computes all of its output from ``a`` on:

    filter, map, union      0
    top-k of an instant     0
    window of time          its size; by an attribute: plus how far that may lie ahead of tuple time
    join                    how far back the partner of a row may lie; also of a row emitted without partner
    window of tuples        0, with the rows of the open windows, which are kept (``truth.aggregate``)

The largest margin of a stream's readers counts; along a path margins add up.
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
    TimeEntry,
    TopKEntry,
)
from spe.errors import SpeError
from spe.query.aggregates import AGGREGATES
from spe.stream.names import StreamId

_BOUNDS: Final = ("window_start", "window_end")


def lookbacks(reading: Reading, outputs: Mapping[StreamId, tuple[str, ...]]) -> dict[StreamId, int]:
    """Returns, by stream, how many microseconds before a range it is needed for all outputs in the range.

    Args:
      outputs: the attributes of each stream of the query.

    Raises:
      SpeError: no such time is known; names the operator.
    """
    ahead = _Ahead(reading, outputs)
    needed_us = dict.fromkeys([StreamId(s) for s in (*reading.sources, *reading.operators)], 0)
    for name in reversed(_in_order(reading.operators)):
        entry = reading.operators[name]
        needed = needed_us[StreamId(name)] + _margin(name, entry, ahead)
        for input_ in entry.inputs:
            needed_us[StreamId(input_)] = max(needed_us[StreamId(input_)], needed)
    return needed_us


def _in_order(operators: Mapping[str, OperatorEntry]) -> list[str]:
    """Sorts operators behind their inputs."""
    above = {name: [input_ for input_ in entry.inputs if input_ in operators] for name, entry in operators.items()}
    return list(TopologicalSorter(above).static_order())


def _margin(name: str, entry: OperatorEntry, ahead: _Ahead) -> int:
    match entry:
        case AggregateEntry(window=TimeEntry() as window) | TopKEntry(window=TimeEntry() as window):
            return _of_window(name, window, window.on, entry.input, ahead)
        case JoinEntry():
            return _of_join(name, entry, ahead)
        case CustomEntry():
            raise SpeError(
                f"operator {name!r} cannot be proved in ranges: what a class of your own ({entry.path}) still needs of "
                "earlier rows is not known; expected spe report without --follow, after the run"
            )
    return 0


def _of_window(name: str, window: TimeEntry, on: str | None, input_: str, ahead: _Ahead) -> int:
    return window.size_us + (0 if on is None else _known(name, input_, on, ahead))


def _of_join(name: str, entry: JoinEntry, ahead: _Ahead) -> int:
    """Returns the margin of a join: the earlier row of a pair; for a row without partner, all possible partners."""
    named = (entry.left_time, entry.right_time)
    if entry.window is not None:
        each = [attribute or entry.window.on for attribute in named]
        return max(_of_window(name, entry.window, on, input_, ahead) for on, input_ in zip(each, entry.inputs))
    assert entry.within_us is not None
    lower, upper = entry.within_us
    left, right = (0 if on is None else _known(name, input_, on, ahead) for on, input_ in zip(named, entry.inputs))
    return max(0, upper + left) + max(0, -lower + right)


def _known(name: str, input_: str, attribute: str, ahead: _Ahead) -> int:
    """Returns how far an attribute may lie ahead of tuple time."""
    lead_us = ahead.of(input_).get(attribute)
    if lead_us is None:
        raise SpeError(
            f"operator {name!r} cannot be proved in ranges: it goes by the time in {attribute!r}, of which it is not "
            "known how far it lies ahead of tuple time; expected the time of a source, or spe report without --follow, "
            "after the run"
        )
    return max(0, lead_us)


class _Ahead:
    """By stream and attribute: how many microseconds a time may lie ahead of the tuple's; unknown ones are left out.

    S1: the time of a source's tuple is its event time or later.  U5: an operator gives a tuple the latest time of its
    inputs, or a later one.
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
        inputs = [self.of(input_) for input_ in entry.inputs]
        match entry:
            case FilterEntry():
                return inputs[0]
            case TopKEntry():
                return {**inputs[0], **({} if entry.window is None else self._bounds(entry.input))}
            case MapEntry():
                inherited = dict(inputs[0]) if entry.keep else {}
                return inherited | _renamed(entry.columns, inputs[0])
            case MergeEntry():
                shared = reduce(lambda a, b: a & b, (set(input_) for input_ in inputs))
                return {name: max(input_[name] for input_ in inputs) for name in shared}
            case AggregateEntry():
                picked = {n: c.argument for n, c in entry.calls.items() if c.argument and _picks(c.function)}
                bounds = dict.fromkeys(_BOUNDS, 1) if isinstance(entry.window, TimeEntry) else {}
                return bounds | _renamed({**entry.group_by, **picked}, inputs[0])
            case JoinEntry():
                return self._joined(entry, inputs)
        return {}

    def _bounds(self, input_: str) -> dict[str, int]:
        """Returns the bounds of attributes that the window adds: the tuple's time is the end, less 1 µs."""
        return {name: 1 for name in _BOUNDS if name not in self._attributes[StreamId(input_)]}

    def _joined(self, entry: JoinEntry, inputs: list[Mapping[str, int]]) -> dict[str, int]:
        return {prefix + name: far for prefix, above in zip(entry.prefix, inputs) for name, far in above.items()}


def _picks(function: str) -> bool:
    """Is the result one of the values?"""
    return function in AGGREGATES and AGGREGATES[function].picks


def _renamed(columns: Mapping[str, str], above: Mapping[str, int]) -> dict[str, int]:
    """Returns the columns that are an attribute unchanged, with its bound."""
    return {name: above[text.strip()] for name, text in columns.items() if text.strip() in above}
