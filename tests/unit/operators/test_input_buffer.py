"""Input buffers of undo/redo (R9): kept input rebuilds the state of operators, and is bounded."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product

import numpy as np
import pytest

from operators import steps
from operators.input_buffer import InputBuffer, InputSlice, Marker
from operators.operator import Operator
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.windows import TumblingWindow
from spe.stream.batch import Column, Rows
from spe.stream.names import StreamId
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import END_OF_TIME
from tests.support.catalogue import CATALOGUE, REACH, SCHEMA, UNBOUNDED, stream
from tests.support.long_forms import long_but
from tests.support.operators import Run, make, remade, step_sizes

UNTIL = 300
STEP = 3


def _make(name: str) -> tuple[Operator, int]:
    spec = CATALOGUE[name]
    ports = len(spec.inputs)
    return make(spec, *[SCHEMA] * ports), ports


@pytest.mark.parametrize(
    ("name", "seed"),
    long_but([(name, at % 2) for at, name in enumerate(CATALOGUE)], product(CATALOGUE, range(2))),
)
def test_a_rebuilt_state_continues_like_the_original(name: str, seed: int) -> None:
    """At every twentieth cut: rebuilt in an operator that has seen another stream; equal to the last bit."""
    with step_sizes(8, 6, 4, 8) if seed else nullcontext():
        _made_again(name, seed)


def _made_again(name: str, seed: int) -> None:
    operator, ports = _make(name)
    data = [stream(seed * 10 + at, UNTIL) for at in range(ports)]
    schemas = [SCHEMA] * ports
    feed = Run(operator, schemas)
    buffer = feed.buffer = InputBuffer(operator)
    cuts = [*range(STEP, UNTIL, STEP), END_OF_TIME]
    markers: list[tuple[int, int, Marker]] = []
    pieces = []
    for at, cut in enumerate(cuts):
        if at % 20 == 0:
            markers.append((at, feed.previous, buffer.mark()))
        pieces.append(feed.slice(data, cut))
    counters = operator.counters()
    for (at, previous, marker), max_rows in zip(markers, itertools.cycle((1, 20, 1000))):
        other, _ = _make(name)
        Run(other, schemas).slice([stream(99, UNTIL)] * ports, END_OF_TIME)
        again = Run(remade(marker, other, ports, max_rows), schemas, previous)
        assert [again.slice(data, cut) for cut in cuts[at:]] == pieces[at:]
        assert other.counters() == counters


class _Watched(Operator):
    """Says what it is given: the rows of each slice, and its end."""

    def __init__(self) -> None:
        self.given: list[tuple[list[str], int]] = []

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        assert ports[0] is not None
        self.given.append((ports[0].columns[0].to_list(), boundary))
        return None


def test_stored_input_is_replayed_in_few_slices() -> None:
    """As many as rows allow; strings of another dictionary begin a new one, for they would have to be looked up."""

    def one(texts: str, at: int, dictionary: StringDictionary) -> InputSlice:
        time = np.full(len(texts), at)
        column = Column.from_list(list(texts), AttributeType.STRING, dictionary)
        return InputSlice([Rows(time, time, (column,))], at, at + 1)

    first, second = StringDictionary(), StringDictionary()
    slices = ("abc", first), ("de", first), ("f", first), ("ghijkl", first), ("m", second), ("n", second)
    given = [one(texts, at, dictionary) for at, (texts, dictionary) in enumerate(slices)]
    operator = _Watched()
    portions = 1
    again = Marker(0, 6, None, tuple(given), {}).again(operator, 1, 5)
    for _ in again:
        portions += 1
    assert operator.given == [(list("abcde"), 2), (list("f"), 3), (list("ghijkl"), 4), (list("mn"), 6)]
    assert portions == 4


@pytest.mark.parametrize(
    "name",
    long_but(["tumbling", "sliding by attribute", "count windows", "top-k", "full join", "join in windows"], CATALOGUE),
)
def test_stored_input_is_bounded_by_the_window(name: str) -> None:
    operator, ports = _make(name)
    data = [stream(at, 10 * UNTIL) for at in range(ports)]
    times = [[time for time, _ in port] for port in data]
    feed = Run(operator, [SCHEMA] * ports)
    buffer = feed.buffer = InputBuffer(operator)
    for cut in range(STEP, 10 * UNTIL, STEP):
        feed.slice(data, cut)
        reachable = sum(bisect_left(port, cut) - bisect_left(port, cut - REACH) for port in times)
        assert len(buffer) <= reachable, f"{len(buffer)} rows at {cut}"
        if operator.oldest_needed() is None or name in UNBOUNDED:
            assert len(buffer) == 0


@pytest.mark.parametrize("name", UNBOUNDED)
def test_unbounded_state_is_stored_in_the_marker(name: str) -> None:
    operator, _ = _make(name)
    marker = InputBuffer(operator).mark()
    assert marker.base is not None
    assert marker.slices == ()


def test_an_installed_state_is_kept_until_it_has_expired() -> None:
    """The input behind a partner's snapshot is not available."""
    operator, _ = _make("sliding")
    feed = Run(operator, [SCHEMA])
    data = [stream(1, 200)]
    feed.slice(data, 52)
    restored, _ = _make("sliding")
    restored.restore(operator.snapshot())
    feed = Run(restored, [SCHEMA], 52)
    buffer = feed.buffer = InputBuffer(restored, 52)
    assert buffer.mark().base is not None
    feed.slice(data, 55)
    assert buffer.mark().base is not None
    for cut in range(58, 100, STEP):
        feed.slice(data, cut)
    assert buffer.mark().base is None


@pytest.mark.parametrize("name", ["tumbling", "sliding", "top-k", "inner join", "full join", "join in windows"])
def test_an_operator_that_only_saw_time_pass_is_reset(name: str) -> None:
    """Without rows and results its state is unchanged, or it reports the change."""
    kept = changed = 0
    for seed in range(4):
        for pause, idle in itertools.product((0, 12, 25), (2, 8, 15)):
            operator, ports = _make(name)
            schemas = [SCHEMA] * ports
            data = [[t for t in stream(seed * 2 + at, 120) if not 58 - pause <= t[0] < 58] for at in range(ports)]
            feed = Run(operator, schemas)
            for cut in (30, 58):  # it has forgotten rows before
                feed.slice(data, cut)
            before = operator.snapshot()
            expected = Run(operator, schemas, 58).slice(data, END_OF_TIME)
            operator.restore(before)
            if Run(operator, schemas, 58).slice([[]] * ports, 58 + idle):
                continue
            copy, _ = _make(name)
            copy.restore(operator.snapshot())
            if copy.rewind(58):
                kept += 1
                assert Run(copy, schemas, 58).slice(data, END_OF_TIME) == expected
            else:
                changed += 1
    assert kept > 0
    assert changed > 0 or name != "inner join"  # an outer one releases what it forgets


def test_expired_input_is_freed_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that ends needs none of its rows; freeing them with their strings takes long (B8: steps are bounded)."""
    monkeypatch.setattr(steps, "INDEXED", 8)
    window = TumblingWindow(1000)
    operator = make(AggregateSpec(StreamId("in"), window, {}, {"n": AggregateCall("count")}), Schema.of(n="int64"))
    buffer = InputBuffer(operator)
    for at in range(10):
        time = np.full(4, at)
        rows = Rows(time, time, (Column(time),))
        operator.step([rows], at + 1)
        buffer.took([rows], at + 1)
    assert len(buffer) == 40
    left = []
    for end in range(2000, 2007):
        operator.step([None], end)
        buffer.took([None], end)
        left.append(sum(map(len, buffer._spent)))
        assert len(buffer) == 0
    assert left == [40, 32, 24, 16, 8, 0, 0]
