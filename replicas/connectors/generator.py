"""Generated rows: a pure function of seed, start and row number.

Random numbers come from a hash of (seed, attribute, row number), not from a sequential generator: so any row can be
made without the rows before it, a restart continues anywhere, and the division into chunks does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replicas.connectors.generator_options import duration_of, positive, timestamp_of
from replicas.connectors.reader import CHUNK_ROWS, Replay, RowChunk
from spe.errors import SpeError
from spe.plan.generators import GENERATORS
from spe.stream.batch import AnyArray, BoolArray, Column, Int64Array, canonical
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import BEFORE_TIME, END_OF_TIME

Float64Array = npt.NDArray[np.float64]

#: Number of distinct clients of ``pages``.
_CLIENTS: Final = 251
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class Draw:
    """Random numbers by row number.  Each attribute uses its own ``lane``."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def bits(self, lane: int, index: Int64Array) -> npt.NDArray[np.uint64]:
        """Returns 64 random bits per row (splitmix64 of a counter)."""
        key = np.uint64((self._seed * 0xD1342543DE82EF95 + lane * 0xDA942042E4DD58B5 + 1) % 2**64)
        x = (index.astype(np.uint64) + np.uint64(1)) * _GOLDEN ^ key
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return x

    def uniform(self, lane: int, index: Int64Array) -> Float64Array:
        """Returns floats in [0, 1)."""
        return (self.bits(lane, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, lane: int, index: Int64Array, n: int) -> Int64Array:
        """Returns integers in [0, n)."""
        return (self.bits(lane, index) % np.uint64(n)).astype(np.int64)


class SkewedKeys:
    """Numbers 0 … count − 1, the r-th most frequent one in proportion to (r + 1) ** −skew.

    The r-th most frequent number is r.  With ``drift_rows`` that holds for the first so many rows only: for each
    further block of rows all numbers are shifted by a part of ``count`` that is no simple fraction of it.
    """

    def __init__(self, count: int, skew: float, drift_rows: int | None = None) -> None:
        weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
        self._cumulative: Float64Array = np.cumsum(weights) / weights.sum()
        self._drift_rows = drift_rows
        self._shift = max(1, round(count * (5**0.5 - 1) / 2))

    def pick(self, uniform: Float64Array, index: Int64Array) -> Int64Array:
        """Returns a number for each row, from a random number in [0, 1) and the row's own number."""
        positions = self._cumulative.searchsorted(uniform, side="right")
        ranks = np.minimum(positions, len(self._cumulative) - 1).astype(np.int64)
        if self._drift_rows is None:
            return ranks
        return (ranks + index // self._drift_rows * self._shift) % len(self._cumulative)


class GeneratorReplay(Replay):
    """Row i has event time start + i / rate, squeezed into its burst, less its own part of the disorder.

    Options: ``spe.connectors.generator.GeneratorKeys``; without ``duration`` or ``count`` it never ends.

    Args:
      schema: schema of the stream; ``rows`` fills any schema, the other generators have their own.
      time: attribute of the event time.

    Raises:
      SpeError: the value of an option is invalid.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        name = str(reader.get("generator"))
        if name not in GENERATORS:
            raise SpeError(f"no generator {name!r}; there are: {', '.join(GENERATORS)}")
        kind = GENERATORS[name]
        self._rate = positive(reader, "rate", 1000.0)
        keys = round(positive(reader, "keys", max(kind.keys, 1)))
        drift = reader.get("drift")
        drift_rows = None if drift is None else max(1, round(duration_of(drift) * self._rate / 1e6))
        picker = SkewedKeys(keys, float(reader.get("skew", kind.skew)), drift_rows)
        self._disorder_us = duration_of(reader.get("disorder", 0))
        self._burst_us = duration_of(reader.get("burst", 0))
        self._count = _count(reader, self._rate)
        start = reader.get("start")
        self.origin_us = None if start is None else timestamp_of(start)
        self._draw = Draw(int(reader.get("seed", 0)))
        #: Index of the event time attribute; None: no attribute has it.
        self._time_at: int | None = 0
        if kind.schema is None:
            self._time_at = None if time is None else schema.index(time)
            others = [a for at, a in enumerate(schema) if at != self._time_at]
            self._make = _rows(self._draw, keys, picker, others, float(reader.get("extremes", 0.0)))
        else:
            self._make = _MAKERS[name](self._draw, keys, picker, self._rate)

    def begin(self, start_us: int | None) -> None:
        """Takes the event time of row 0, if ``start`` is not given: the moment of the first start, from the log."""
        self.origin_us = start_us if self.origin_us is None else self.origin_us

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        if self.origin_us is None:
            raise SpeError("a generator without a `start` begins when it is started: give one, or read its log")
        # A chunk spans at most a second of event time, so that a slow generator is not made far ahead.
        rows = max(1, min(CHUNK_ROWS, int(self._rate)))
        at = skip
        while self._count is None or at < self._count:
            stop = at + rows if self._count is None else min(at + rows, self._count)
            index = np.arange(at, stop, dtype=np.int64)
            events = self._events(index, self.origin_us)
            columns = list(self._make(index))
            if self._time_at is not None:
                columns.insert(self._time_at, Column(events))
            yield RowChunk(at, stop - at, events, tuple(columns), [])
            at = stop

    def _events(self, index: Int64Array, start_us: int) -> Int64Array:
        if self._rate.is_integer():
            events = start_us + index * 1_000_000 // int(self._rate)
        else:
            events = start_us + np.floor(index * (1e6 / self._rate)).astype(np.int64)
        if self._burst_us:
            events -= (events - start_us) % self._burst_us * 3 // 4
        if self._disorder_us:
            events -= self._draw.below(0, index, self._disorder_us)
        return events


def _sequence(draw: Draw, _keys: int, _picker: SkewedKeys, _rate: float) -> Callable[[Int64Array], tuple[Column, ...]]:
    return lambda index: (Column(index), Column(draw.uniform(1, index)))


def _orders(draw: Draw, keys: int, picker: SkewedKeys, _rate: float) -> Callable[[Int64Array], tuple[Column, ...]]:
    def make(index: Int64Array) -> tuple[Column, ...]:
        cents = 100 + draw.below(2, index, 19_900)
        return (
            Column(picker.pick(draw.uniform(1, index), index)),
            Column(cents / 100.0),
            Column(1 + draw.below(3, index, 10)),
        )

    return make


def _readings(draw: Draw, keys: int, picker: SkewedKeys, _rate: float) -> Callable[[Int64Array], tuple[Column, ...]]:
    def make(index: Int64Array) -> tuple[Column, ...]:
        sensor = picker.pick(draw.uniform(1, index), index)
        level = 10.0 + 10.0 * draw.uniform(2, sensor)
        noise = draw.uniform(3, index) + draw.uniform(4, index) - 1.0
        valid = draw.below(5, index, 100) > 0
        values = np.where(valid, level + noise, 0.0)
        return Column(sensor), Column(values, None if valid.all() else valid)

    return make


def _pages(draw: Draw, keys: int, picker: SkewedKeys, _rate: float) -> Callable[[Int64Array], tuple[Column, ...]]:
    urls = StringDictionary(f"/page/{i}" for i in range(keys))
    clients = StringDictionary(f"10.0.0.{i}" for i in range(_CLIENTS))

    def make(index: Int64Array) -> tuple[Column, ...]:
        url = picker.pick(draw.uniform(1, index), index).astype(np.int32)
        client = draw.below(2, index, _CLIENTS).astype(np.int32)
        return Column(url, None, urls), Column(client, None, clients)

    return make


class _Incidents:
    """Times and segments of traffic jams: the same for all seeds, so that streams of locations and of reports agree.

    Each segment has a jam with probability ``SHARE`` in each stretch of ``LASTS_S`` seconds of event time.
    """

    LASTS_S: Final = 10
    SHARE: Final = 0.05

    def __init__(self, segments: int) -> None:
        self._segments = segments
        self._draw = Draw(0)

    def at(self, segment: Int64Array, stretch: Int64Array) -> npt.NDArray[np.bool_]:
        return self._draw.uniform(1, stretch * self._segments + segment) < self.SHARE

    def one_of(self, uniform: Float64Array, stretch: Int64Array) -> Int64Array:
        """Returns a segment with a jam for each row; -1: there is none."""
        segments = np.full(len(stretch), -1, np.int64)
        for moment in np.unique(stretch):
            rows = stretch == moment
            where = np.flatnonzero(self.at(np.arange(self._segments), np.full(self._segments, moment)))
            if len(where):
                segments[rows] = where[(uniform[rows] * len(where)).astype(np.int64)]
        return segments


def _stretch(index: Int64Array, rate: float) -> Int64Array:
    return np.floor(index / (rate * _Incidents.LASTS_S)).astype(np.int64)


def _locations(draw: Draw, keys: int, picker: SkewedKeys, rate: float) -> Callable[[Int64Array], tuple[Column, ...]]:
    incidents = _Incidents(keys)

    def make(index: Int64Array) -> tuple[Column, ...]:
        segment = picker.pick(draw.uniform(1, index), index)
        stuck = incidents.at(segment, _stretch(index, rate))
        free = 60 + draw.below(2, segment, 60) + draw.below(3, index, 21) - 10
        speed = np.where(stuck, draw.below(4, index, 15), free).astype(np.float64)
        return Column(draw.below(5, index, 100_000)), Column(segment), Column(speed)

    return make


def _reports(draw: Draw, keys: int, _picker: SkewedKeys, rate: float) -> Callable[[Int64Array], tuple[Column, ...]]:
    incidents = _Incidents(keys)

    def make(index: Int64Array) -> tuple[Column, ...]:
        true = incidents.one_of(draw.uniform(1, index), _stretch(index, rate))
        false = (draw.below(2, index, 10) == 0) | (true < 0)
        segment = np.where(false, draw.below(3, index, keys), true)
        return Column(segment), Column(draw.below(4, index, 100_000))

    return make


#: Values at the ends of each type, for ``extremes``.
EXTREMES: Final[Mapping[AttributeType, tuple[Any, ...]]] = {
    AttributeType.INT64: (-(2**63), 2**63 - 1, 2**53 + 1, -1, 0),
    AttributeType.FLOAT64: (np.inf, -np.inf, np.nan, -0.0, 5e-324, -5e-324, 1.7976931348623157e308, -1e308),
    AttributeType.STRING: ("", " ", "null", "\x00", "\u00e9\U0001d11e", '"', "long " * 400),
    AttributeType.TIMESTAMP: (BEFORE_TIME + 1, END_OF_TIME - 1, -62_135_596_800_000_000, 253_402_300_799_999_999, -1),
    AttributeType.BOOL: (True, False),
}
#: Lanes of random numbers for the places and values of extremes.
_EXTREME_LANE: Final = 1_000


def _rows(
    draw: Draw, keys: int, picker: SkewedKeys, attributes: Sequence[Attribute], extremes: float
) -> Callable[[Int64Array], tuple[Column, ...]]:
    """Makes rows of any schema: ``keys`` different values per attribute; one in a hundred is null if allowed."""
    texts = StringDictionary([*(f"value {i}" for i in range(keys)), *EXTREMES[AttributeType.STRING]])

    def column(lane: int, attribute: Attribute, index: Int64Array) -> Column:
        drawn = picker.pick(draw.uniform(2 * lane, index), index)
        valid = draw.below(2 * lane + 1, index, 100) > 0 if attribute.nullable else None
        values: AnyArray
        match attribute.type:
            case AttributeType.STRING:
                values = drawn.astype(np.int32)
            case AttributeType.FLOAT64:
                values = drawn / 4.0
            case AttributeType.BOOL:
                values = drawn % 2 == 0
            case _:
                values = drawn
        if extremes:
            valid = with_extremes(attribute, lane, index, values, valid)
        if valid is not None and valid.all():
            valid = None
        return Column(canonical(values), valid, texts if attribute.type is AttributeType.STRING else None)

    def with_extremes(
        attribute: Attribute, lane: int, index: Int64Array, values: AnyArray, valid: BoolArray | None
    ) -> BoolArray | None:
        """Puts extreme values in some places; returns the mask of non-null values."""
        there = draw.uniform(_EXTREME_LANE + 2 * lane, index) < extremes
        known = EXTREMES[attribute.type]
        which = draw.below(_EXTREME_LANE + 2 * lane + 1, index, len(known) + attribute.nullable)
        for at, value in enumerate(known):
            values[there & (which == at)] = keys + at if attribute.type is AttributeType.STRING else value
        return valid if valid is None else valid & ~(there & (which == len(known)))

    return lambda index: tuple(column(lane, a, index) for lane, a in enumerate(attributes, 1))


_MAKERS: Final[Mapping[str, Callable[[Draw, int, SkewedKeys, float], Callable[[Int64Array], tuple[Column, ...]]]]] = {
    "sequence": _sequence,
    "orders": _orders,
    "readings": _readings,
    "pages": _pages,
    "locations": _locations,
    "incidents": _reports,
}


def _count(reader: Mapping[str, Any], rate: float) -> int | None:
    if reader.get("count") is not None:
        return int(reader["count"])
    if reader.get("duration") is not None:
        return round(duration_of(reader["duration"]) * rate / 1e6)
    return None
