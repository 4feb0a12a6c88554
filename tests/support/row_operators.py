"""The operators of docs/reference/operators.md, a row at a time, and sharing nothing with the engine.

A stream is a list of rows in its order, a row a time and a tuple of values.  What depends on expressions is passed as
functions of a row's values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

#: Time ends here: what would end later ends here as well.
END_OF_TIME = 2**62
Values = tuple[Any, ...]
Row = tuple[int, Values]
OfValues = Callable[[Values], Any]


def plain(value: Any) -> Any:
    """A value that equals itself: NaN, which equals nothing, as a word."""
    return "nan" if isinstance(value, float) and math.isnan(value) else value


# --- windows ---


class Windows(NamedTuple):
    """Time windows: [start, start + size) for start = offset + n · slide; by ``at``, or by tuple time."""

    size: int
    slide: int
    offset: int = 0
    at: OfValues | None = None

    def time(self, row: Row) -> int | None:
        return row[0] if self.at is None else self.at(row[1])  # type: ignore[no-any-return]

    def ends(self, at: int) -> list[int]:
        """Ends of the windows that a time lies in, as if time did not end."""
        first = (at - self.offset - self.size) // self.slide + 1
        last = (at - self.offset) // self.slide
        return [self.offset + n * self.slide + self.size for n in range(first, last + 1)]

    def bounds(self, end: int) -> tuple[int, int]:
        """window_start and window_end."""
        return end - self.size, min(end, END_OF_TIME)

    def open_ends(self, row: Row) -> list[int]:
        """Ends of the windows in which a row counts: those that have not ended by its tuple time."""
        at = self.time(row)
        return [] if at is None else [end for end in self.ends(at) if row[0] < end]

    def pane(self, row: Row) -> int:
        at = self.time(row)
        assert at is not None
        return (at - self.offset) // math.gcd(self.size, self.slide)


def late_counts(rows: Iterable[Row], windows: Windows) -> dict[str, int]:
    """The counters of late rows."""
    counts = {"late": 0, "dropped": 0, "without_time": 0}
    for row in rows:
        at = windows.time(row)
        if at is None:
            counts["without_time"] += 1
            continue
        every, still_open = windows.ends(at), windows.open_ends(row)
        counts["late"] += len(still_open) < len(every)
        counts["dropped"] += bool(every) and not still_open
    return counts


def members_of(rows: Iterable[Row], windows: Windows) -> Iterator[tuple[int, list[Row]]]:
    """The end of each window that is not empty, and its rows in order of arrival."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        for end in windows.open_ends(row):
            found.setdefault(end, []).append(row)
    yield from sorted(found.items())


# --- aggregate ---


class Call(NamedTuple):
    """``function`` of ``argument``; a function that is no name folds a list of lists of values, one for each pane."""

    function: str | Callable[[list[list[Any]]], Any]
    argument: OfValues | None = None


def _called(call: Call, panes: Sequence[Sequence[Values]]) -> Any:
    """``panes``: the rows of a group in order of arrival, divided by pane, the oldest pane first."""
    if call.argument is None:
        return sum(map(len, panes))
    values = [[v for row in pane if (v := call.argument(row)) is not None] for pane in panes]
    return folded(call.function, [pane for pane in values if pane])


def folded(function: str | Callable[[list[list[Any]]], Any], panes: list[list[Any]]) -> Any:
    """A function over values that are not null; ``first`` and ``last`` go by arrival (:func:`grouped`)."""
    if callable(function):
        return function(panes)
    values = [v for pane in panes for v in pane]
    if function in ("count", "count_distinct"):
        return len({plain(v) for v in values} if function == "count_distinct" else values)
    if not values:
        return None
    match function:
        case "sum" if isinstance(values[0], int):
            return wrapped(sum(values))
        case "sum" | "avg" if isinstance(values[0], float):
            total = _sum([_sum(pane) for pane in panes])
            return total if function == "sum" else total / len(values)
        case "avg":
            return float(sum(values)) / len(values)
        case "min":
            return min(values, key=_nan_above)
        case "max":
            return max(values, key=_nan_above)
    raise ValueError(f"no function {function!r}")


def wrapped(value: int) -> int:
    """As an int64, which wraps around."""
    return (value + 2**63) % 2**64 - 2**63


def _sum(values: Sequence[float]) -> float:
    total = 0.0  # sum() of Python 3.12 compensates errors
    for value in values:
        total += value
    return total


def _nan_above(value: Any) -> Any:
    return (value != value, 0 if value != value else value)


def grouped(members: Sequence[Row], group: OfValues, calls: Sequence[Call], pane: Callable[[Row], int]) -> list[Values]:
    """Key and results of each group, by first arrival."""
    groups: dict[Any, list[Row]] = {}
    keys: dict[Any, Values] = {}
    for row in members:
        key = group(row[1])
        name = tuple(map(plain, key))
        keys.setdefault(name, key)
        groups.setdefault(name, []).append(row)
    found = []
    for name, rows in groups.items():
        arrived = [[row[1] for row in rows]]
        by_pane = sorted(rows, key=pane)
        panes = [[row[1] for row in each] for _, each in groupby(by_pane, key=pane)]
        results = [_arrived(c, arrived[0]) if c.function in ("first", "last") else _called(c, panes) for c in calls]
        found.append((*keys[name], *results))
    return found


def _arrived(call: Call, rows: Sequence[Values]) -> Any:
    assert call.argument is not None
    values = [v for row in rows if (v := call.argument(row)) is not None]
    return None if not values else values[0 if call.function == "first" else -1]


def aggregated(rows: Iterable[Row], windows: Windows, group: OfValues, width: int, calls: Sequence[Call]) -> list[Row]:
    """Key (``width`` attributes), window_start, window_end, results."""
    return [
        (windows.bounds(end)[1] - 1, (*values[:width], *windows.bounds(end), *values[width:]))
        for end, members in members_of(rows, windows)
        for values in grouped(members, group, calls, windows.pane)
    ]


def counted(rows: Iterable[Row], count: int, group: OfValues, calls: Sequence[Call]) -> list[Row]:
    """Every ``count`` rows of a group give one, at the time of the last of them."""
    found: list[Row] = []
    held: dict[Any, list[Row]] = {}
    for row in rows:
        members = held.setdefault(tuple(map(plain, group(row[1]))), [])
        members.append(row)
        if len(members) == count:
            found.append((row[0], *grouped(members, group, calls, lambda _: 0)))
            members.clear()
    return found


# --- join ---


class Join(NamedTuple):
    """The condition of a join, and which sides come without a partner.

    Attributes:
      keys: the key of a row of each side.
      widths: attributes of each side.
      where: of the values of a pair.
    """

    keys: tuple[OfValues, OfValues]
    kept: tuple[bool, bool]
    widths: tuple[int, int]
    where: OfValues = lambda _: True

    def pair(self, port: int, new: Values, old: Values) -> Values | None:
        """The values of a pair; None: they do not match.  ``port``: of the new one."""
        left, right = (new, old) if port == 0 else (old, new)
        return left + right if self.where(left + right) is True else None

    def alone(self, port: int, values: Values) -> Values:
        nulls = (None,) * self.widths[1 - port]
        return values + nulls if port == 0 else nulls + values


def _merged(left: Iterable[Row], right: Iterable[Row]) -> list[tuple[int, int, Values]]:
    """(time, port, values) in the order (time, port, position)."""
    return sorted([(t, 0, v) for t, v in left] + [(t, 1, v) for t, v in right], key=lambda row: row[:2])


class _Side:
    """A row of a join, and whether (or in which windows) it has met a partner."""

    def __init__(self, port: int, time: int, at: int, values: Values, ends: Sequence[int] = ()) -> None:
        self.port, self.time, self.at, self.values, self.ends = port, time, at, values, ends
        self.met: set[int] = set()


def _key(join: Join, port: int, values: Values) -> Any:
    key = join.keys[port](values)
    return None if None in key else tuple(map(plain, key))


def _finished(found: list[tuple[int, int, Values]]) -> list[Row]:
    """``found``: time, 0 for pairs and 1 for rows alone, values."""
    return [(time, values) for time, _, values in sorted(found, key=lambda row: row[:2])]


def joined_within(
    join: Join, left: Iterable[Row], right: Iterable[Row], bounds: tuple[int, int], times: Sequence[OfValues | None]
) -> list[Row]:
    """Pairs whose times differ by ``bounds``; rows alone at the last time at which they could have met."""
    lower, upper = bounds
    every: list[_Side] = []
    by_key: dict[Any, list[_Side]] = {}
    found: list[tuple[int, int, Values]] = []

    def until(row: _Side) -> int:
        return row.at + (upper if row.port == 0 else -lower)

    for time, port, values in _merged(left, right):
        of = times[port]
        at = time if of is None else of(values)
        if at is None:
            continue
        new = _Side(port, time, at, values)
        every.append(new)
        if (key := _key(join, port, values)) is None:
            continue
        others = by_key[key] = [row for row in by_key.get(key, ()) if until(row) >= time]
        for old in others:
            gap = at - old.at if port == 1 else old.at - at
            if old.port == port or not lower <= gap <= upper:
                continue
            if (pair := join.pair(port, values, old.values)) is not None:
                old.met.add(0)
                new.met.add(0)
                found.append((time, 0, pair))
        others.append(new)
    found += [
        (min(max(row.time, until(row)), END_OF_TIME - 1), 1, join.alone(row.port, row.values))
        for row in every
        if join.kept[row.port] and not row.met
    ]
    return _finished(found)


def joined_in(join: Join, left: Iterable[Row], right: Iterable[Row], windows: Sequence[Windows]) -> list[Row]:
    """Pairs in the same window, once per window; rows alone in a window, as it ends.  ``windows``: by side."""
    every: list[_Side] = []
    by_key: dict[Any, list[_Side]] = {}
    found: list[tuple[int, int, Values]] = []
    for time, port, values in _merged(left, right):
        ends = windows[port].open_ends((time, values))
        new = _Side(port, time, time, values, ends)
        every.append(new)
        if not ends or (key := _key(join, port, values)) is None:
            continue
        others = by_key[key] = [row for row in by_key.get(key, ()) if row.ends[-1] > time]
        for old in others:
            common = [end for end in ends if end in old.ends]
            if old.port == port or not common or (pair := join.pair(port, values, old.values)) is None:
                continue
            old.met.update(common)
            new.met.update(common)
            found += [(time, 0, (*pair, *windows[0].bounds(end))) for end in common]
        others.append(new)
    found += [
        (windows[0].bounds(end)[1] - 1, 1, (*join.alone(row.port, row.values), *windows[0].bounds(end)))
        for row in every
        if join.kept[row.port]
        for end in row.ends
        if end not in row.met
    ]
    return _finished(found)


# --- top-k ---


class Ranking(NamedTuple):
    """``orders``: expression, descending."""

    k: int
    orders: Sequence[tuple[OfValues, bool]]
    partition: OfValues = lambda _: ()
    with_ties: bool = False

    def best(self, rows: Sequence[Values]) -> list[tuple[Values, int]]:
        """From rows in order of arrival, the first k of each group with their ranks; groups by the first of these."""
        groups: dict[Any, list[int]] = {}
        for i, row in enumerate(rows):
            groups.setdefault(tuple(map(plain, self.partition(row))), []).append(i)
        ranked = [self._ranked(rows, members) for members in groups.values()]
        ranked.sort(key=lambda group: min(i for i, _ in group))
        return [(rows[i], rank) for group in ranked for i, rank in group]

    def _ranked(self, rows: Sequence[Values], members: Sequence[int]) -> list[tuple[int, int]]:
        ordered = list(members)
        for of, descending in reversed(self.orders):
            ordered = _sorted(ordered, lambda i, of=of: _precedence(of(rows[i])), descending)  # type: ignore[misc]
        keys = [[plain(of(rows[i])) for of, _ in self.orders] for i in ordered]
        found, rank = [], 0
        for position, i in enumerate(ordered, 1):
            if not self.with_ties or position == 1 or keys[position - 1] != keys[position - 2]:
                rank = position
            found.append((i, rank))
        return [(i, rank) for i, rank in found if rank <= self.k]


def _sorted(items: list[int], key: Callable[[int], Any], descending: bool) -> list[int]:
    """Stable in both directions."""
    return sorted(items, key=key) if not descending else sorted(items[::-1], key=key)[::-1]


def _precedence(value: Any) -> Any:
    """Null is smaller than everything, NaN larger than every number."""
    return (0, 0) if value is None else (2, 0) if value != value else (1, value)


def ranked_at_once(ranking: Ranking, rows: Iterable[Row]) -> list[tuple[int, Values, int]]:
    """Rows of one time are ranked together: time, values, rank."""
    return [
        (time, values, rank)
        for time, each in groupby(rows, key=lambda row: row[0])
        for values, rank in ranking.best([values for _, values in each])
    ]


def ranked_in(ranking: Ranking, rows: Iterable[Row], windows: Windows) -> list[tuple[int, Values, int]]:
    """Rows of a window are ranked together: its end, values, rank."""
    return [
        (end, values, rank)
        for end, members in members_of(rows, windows)
        for values, rank in ranking.best([values for _, values in members])
    ]
