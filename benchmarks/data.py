"""The rows of the measurements: five columns, 29 bytes a tuple, 1,000 keys; any process makes the same from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spe.stream.batch import Batch, Boundary, Column, Element, Int64Array, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import SECOND

SCHEMA = Schema.of(key="int64!", value="float64!", flag="bool!", name="string!")
#: Time, key, value, flag, name.
ROW_BYTES = 8 + 8 + 8 + 1 + 4
KEYS = 1_000
STREAMS = ("a", "b", "c")
#: Names of a stream that uses few of them; all processes make the same dictionary.
NAMES = tuple(f"name-{i}" for i in range(200))
DICTIONARY = StringDictionary(NAMES)


@dataclass(frozen=True)
class Shape:
    """How the tuples of a stream are cut.

    Attributes:
      batch: tuples per batch, and per stream and bucket.
      batches: per segment, which is sent at one go.
      rate: tuples per second of tuple time, per stream.
    """

    batch: int
    batches: int
    rate: int = 100_000

    @property
    def bucket_us(self) -> int:
        return self.batch * SECOND // self.rate

    @property
    def tuples(self) -> int:
        """Per stream and segment."""
        return self.batch * self.batches

    def times(self, segment: int) -> Int64Array:
        """Tuple times of a segment, equally spaced: every bucket holds ``batch`` tuples of each stream."""
        first = SECOND + segment * self.batches * self.bucket_us
        offsets = np.arange(self.tuples, dtype=np.int64) * (SECOND // self.rate)
        return first + offsets

    def end_us(self, segment: int) -> int:
        return SECOND + (segment + 1) * self.batches * self.bucket_us


class Plain(NamedTuple):
    """Rows of one stream as plain arrays, to compute without the engine."""

    time: Int64Array
    key: Int64Array
    value: np.ndarray[tuple[int], np.dtype[np.float64]]
    flag: np.ndarray[tuple[int], np.dtype[np.bool_]]
    name: np.ndarray[tuple[int], np.dtype[np.int32]]

    def cut(self, size: int) -> list[Plain]:
        """Pieces of ``size`` tuples."""
        return [Plain(*(c[low : low + size] for c in self)) for low in range(0, len(self.time), size)]


def plain(shape: Shape, segment: int, stream: int) -> Plain:
    random = np.random.default_rng((segment, stream))
    n = shape.tuples
    return Plain(
        shape.times(segment),
        random.integers(0, KEYS, n),
        random.normal(100.0, 25.0, n),
        random.random(n) < 0.5,
        random.integers(0, len(NAMES), n, dtype=np.int32),
    )


def mixed(numbers: Int64Array) -> Int64Array:
    """Splitmix64: as good as random, and not negative."""
    x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def buckets(shape: Shape, segment: int) -> list[tuple[Plain, ...]]:
    """A segment of all streams, bucket by bucket."""
    return list(zip(*(plain(shape, segment, s).cut(shape.batch) for s in range(len(STREAMS))), strict=True))


def merged(parts: Sequence[Plain]) -> Plain:
    """Streams in one order of time, as NumPy does it: concatenate, stable argsort, take."""
    columns = [np.concatenate(c) for c in zip(*parts, strict=True)]
    order = columns[0].argsort(kind="stable")
    return Plain(*(c.take(order) for c in columns))


def as_rows(data: Plain) -> Rows:
    columns = (Column(data.key), Column(data.value), Column(data.flag), Column(data.name, None, DICTIONARY))
    return Rows(data.time, data.time, columns)


def elements(shape: Shape, segment: int, stream: int) -> list[Element]:
    """Per bucket a batch and the boundary at its end."""
    rows = as_rows(plain(shape, segment, stream))
    first_id, start = segment * shape.tuples, shape.end_us(segment - 1)
    out: list[Element] = []
    for at in range(shape.batches):
        low, high = at * shape.batch, (at + 1) * shape.batch
        out.append(Batch(Kind.STABLE, first_id + low, first_id + high, None, rows.slice(low, high)))
        out.append(Boundary(Kind.STABLE, start + (at + 1) * shape.bucket_us, first_id + high))
    return out
