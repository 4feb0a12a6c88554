"""A repeatable story of a client's changes: results, failures, corrections (rules V1, V3 and V4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final, NamedTuple

from replicas.testing.blame import PromiseBroken
from spe.stream.batch import Batch, Boundary, Element, RecDone, Rows, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState, StreamId
from spe.stream.schema import Schema
from spe.stream.times import SECOND, parse_timestamp

#: Schema of the results: ``result`` differs for each, but is the same for a tentative result and its correction.
SCHEMA: Final = Schema.of(result="int64!", name="string", amount="float64", sure="bool", seen="timestamp")
STREAM: Final = StreamId("results")
CHANNELS: Final = (Channel(STREAM, 0), Channel(STREAM, 1))

_BEGIN_US: Final = parse_timestamp("2026-01-01T12:00:00")
_NAMES: Final = ("tea", "", None, "crème brûlée", "a b\n\"c\"\t,d;'e'\\", "0", "null")
_AMOUNTS: Final = (1.5, None, -0.0, 1e300, float("nan"), float("inf"), float("-inf"), 0.1)


class _Row(NamedTuple):
    time: int
    values: tuple[Any, ...]


class _Producer:
    """One channel of the nodes that the client reads.

    Attributes:
      stable: rows; row n has the id n + 1.
      suffix: tentative rows after them.
    """

    def __init__(self) -> None:
        self.stable: list[_Row] = []
        self.suffix: list[_Row] = []


class ResultStory:
    """Plays the story to one client after the other: each continues at its own position.

    Attributes:
      over: the whole story was played.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._results = 0
        self._producers = {channel: _Producer() for channel in CHANNELS}
        #: Ids up to which the nodes have forgotten the rows, because the client acknowledged them.
        self._forgotten = dict.fromkeys(CHANNELS, 0)
        self._story = list(self._told())
        self._held = dict.fromkeys(CHANNELS, False)
        self._positions = dict.fromkeys(CHANNELS, 0)
        self._step = 0
        self.over = False

    def expected(self) -> dict[Channel, list[tuple[int, tuple[Any, ...]]]]:
        """Returns (time, values) of each stable row, by channel."""
        return {c: [(row.time, row.values) for row in producer.stable] for c, producer in self._producers.items()}

    def safe(self, channel: Channel, position: int) -> None:
        """Acknowledges stable rows up to this id, which are not needed any more."""
        self._forgotten[channel] = max(self._forgotten[channel], position)

    def begin(self, positions: Mapping[Channel, int]) -> Iterator[Change]:
        """Yields the first changes for a client that has all stable rows up to these ids, and nothing tentative.

        Raises:
          PromiseBroken: it has acknowledged more than it has, or has rows that never existed.
        """
        for channel, position in positions.items():
            producer, forgotten = self._producers[channel], self._forgotten[channel]
            if position < forgotten:
                raise PromiseBroken(f"it said that {channel} is safe up to id {forgotten}, and then has {position}")
            if position > len(producer.stable):
                raise PromiseBroken(f"it begins at id {position} of {channel}, which ends at {len(producer.stable)}")
            self._positions[channel], self._held[channel] = position, False
            yield from self._stable(channel)
            if producer.suffix:
                yield self._tentative(channel, producer.suffix)

    def more(self) -> list[Change] | None:
        """Returns the next part of the story; None at its end."""
        if self._step == len(self._story):
            self.over = True
            return None
        channel, what, rows = self._story[self._step]
        self._step += 1
        producer = self._producers[channel]
        if what == "tentative":
            producer.suffix += rows
            return [self._tentative(channel, rows)]
        producer.suffix = []
        producer.stable += rows
        changes = list(self._stable(channel))
        if what == "corrected":
            changes.append(Change(channel, RecDone(NodeState.STABLE), 0))
        return changes

    def _stable(self, channel: Channel) -> Iterator[Change]:
        position, stable = self._positions[channel], self._producers[channel].stable
        if self._held[channel]:
            self._held[channel] = False
            yield Change(channel, Undo(position), 0)
        if position < len(stable):
            self._positions[channel] = len(stable)
            yield Change(channel, _batch(Kind.STABLE, position, stable[position:]), 0)
        if stable:
            yield Change(channel, Boundary(Kind.STABLE, stable[-1].time + 1, len(stable)), 0)

    def _tentative(self, channel: Channel, rows: list[_Row]) -> Change:
        self._held[channel] = True
        return Change(channel, _batch(Kind.TENTATIVE, self._positions[channel], rows), 0)

    def _told(self) -> Iterator[tuple[Channel, str, list[_Row]]]:
        """Yields the parts of each channel, at random: stable rows, then failures with their corrections between
        others.
        """
        random = self._random
        open_: dict[Channel, list[int]] = {c: [] for c in CHANNELS}
        for _ in range(16):
            channel = random.choice(CHANNELS)
            if open_[channel] and random.random() < 0.5:
                results, open_[channel] = open_[channel], []
                # Tentative results are right or wrong, or should not exist at all; others are missing.
                right = results[random.randint(0, len(results)) :] + self._new(random.randint(0, 1))
                yield channel, "corrected", [self._row(r, random.random() < 0.5) for r in right]
            elif random.random() < 0.5:
                results = self._new(random.randint(1, 4))
                open_[channel] += results
                yield channel, "tentative", [self._row(r, True) for r in results]
            elif not open_[channel]:
                yield channel, "stable", [self._row(r, False) for r in self._new(random.choice([1, 2, 9]))]
        for channel, results in open_.items():
            yield channel, "corrected", [self._row(r, False) for r in results + self._new(1)]

    def _new(self, count: int) -> list[int]:
        self._results += count
        return list(range(self._results - count, self._results))

    def _row(self, result: int, guessed: bool) -> _Row:
        random = Random(f"{result}/{guessed}")
        time = _BEGIN_US + result * SECOND
        seen_us = None if result % 5 == 4 else time - 1 - result
        sure = None if result % 7 == 6 else not guessed
        return _Row(time, (result, random.choice(_NAMES), random.choice(_AMOUNTS), sure, seen_us))


def _batch(kind: Kind, after: int, rows: list[_Row]) -> Element:
    made = Rows.from_tuples(SCHEMA, [row.time for row in rows], [row.values for row in rows])
    return Batch(kind, after, after + len(rows), None, made)
