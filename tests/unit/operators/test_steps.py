"""One step copies, fills or releases a bounded number of entries, however large the state is (B8)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from operators import steps, texts
from operators.columns import Columns, chosen, inverse, sorted_order
from operators.filter import Filter
from operators.fragment import Fragment, _of_good_size
from operators.ids import IntegerIds
from operators.keys import KeyIndex
from operators.operator import Operator, StepwiseOperator
from operators.steps import finished
from operators.sunion.slice import Slice
from operators.texts import TextIds
from spe.plan.plan import InputStream, Unit
from spe.query.declaration import OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.topk import TopKSpec
from spe.query.windows import CountWindow, SlidingWindow, TumblingWindow, Window
from spe.stream.batch import Column, Rows
from spe.stream.frozen import Frozen
from spe.stream.names import Kind, StreamId, UnitId
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringDictionary
from spe.wire.state import decode_state, encode_state
from tests.support.operators import make

IN, OTHER = StreamId("in"), StreamId("other")
SCHEMA = Schema.of(key="int64!", value="float64!")
#: Many times as many groups as a step may process.
GROUPS = 2_000
ROWS = 16


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("COPIED", 64), ("INDEXED", 32), ("RELEASED", 24), ("PAIRED", 48)):
        monkeypatch.setattr(steps, name, size)


class Counter:
    """Counts the entries that are saved for snapshots before they are overwritten."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.saved = 0
        save = Frozen.save

        def counted(frozen: Frozen, at: Any) -> int:
            found = save(frozen, at)
            self.saved += found
            return found

        monkeypatch.setattr(Frozen, "save", counted)


def rows(keys: npt.NDArray[np.int64], time: int) -> Rows:
    stamps = np.full(len(keys), time, np.int64)
    return Rows(stamps, stamps, (Column(keys), Column(keys * 0.5)))


def aggregate(window: Window) -> Operator:
    calls = {
        "n": AggregateCall("count"),
        **{f: AggregateCall(f, "value") for f in ("sum", "min", "first", "count_distinct")},
        "own": AggregateCall("tests.unit.operators.test_custom:Span", "value"),
    }
    return make(AggregateSpec(IN, window, {"key": "key"}, calls), SCHEMA)


TUMBLING = TumblingWindow(1000)
FULL = JoinSpec(IN, OTHER, JoinKind.FULL, (("key", "key"),), lower_us=-50, upper_us=50)
COUNTED = CountWindow(1_000_000)
SLIDING = SlidingWindow(1000, 500)


def filled(window: Window) -> Operator:
    operator = aggregate(window)
    keys = np.random.default_rng(1).permutation(np.arange(GROUPS) << 40)
    for at in range(0, GROUPS, ROWS):
        operator.step([rows(keys[at : at + ROWS], 1)], 2)
    return operator


def pauses(work: Iterator[Any]) -> int:
    return sum(one is None for one in work)


@pytest.mark.parametrize("window", [TUMBLING, SLIDING, COUNTED])
def test_write_after_snapshot_saves_overwritten_cells(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are spread over the state; only their cells are saved, each once."""
    operator, counter = filled(window), Counter(monkeypatch)
    snapshot = operator.snapshot()
    some = np.random.default_rng(2).choice(GROUPS, ROWS, replace=False) << 40
    operator.step([rows(some, 3)], 4)
    assert counter.saved == ROWS
    operator.step([rows(some, 4)], 5)
    assert counter.saved == ROWS
    del snapshot
    operator.step([rows((np.arange(ROWS) << 40), 6)], 7)
    assert counter.saved == ROWS  # no snapshot needs them


@pytest.mark.parametrize("window", [TUMBLING, SLIDING, COUNTED])
def test_a_restore_is_divided_into_steps(window: Window) -> None:
    operator = filled(window)
    restored = aggregate(window)
    restored.restore(operator.snapshot())
    portions = 1
    while restored.load():
        portions += 1
    # at least: the keys, their table, and the arrays of the cells
    assert portions > GROUPS // steps.INDEXED + 4 * GROUPS // steps.COPIED
    last = [rows(np.arange(ROWS) << 40, 3)]
    assert pauses(restored.work(last, 4)) <= 2 * (2 * GROUPS // steps.INDEXED + GROUPS // steps.COPIED) + 1
    for one in (operator, restored):
        one.step(last, 4)
    assert pauses(restored.work(last, 4)) == 0


def test_a_window_with_many_groups_leaves_in_bounded_pieces() -> None:
    operator = filled(TUMBLING)
    released = [one for one in operator.work([None], 1000) if one is not None]
    assert sum(map(len, released)) == GROUPS
    assert max(map(len, released)) <= steps.RELEASED
    again = filled(TUMBLING).step([None], 1000)
    assert again is not None
    assert [r for rows in released for r in rows.to_tuples()] == again.to_tuples()


def test_a_match_after_a_snapshot_saves_the_flags_that_it_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    join, counter = make(FULL, SCHEMA, SCHEMA), Counter(monkeypatch)
    keys = np.arange(GROUPS) << 40
    join.step([rows(keys, 1), None], 2)
    snapshot = join.snapshot()
    met = join.step([None, rows(keys[::100], 3)], 4)
    assert met is not None
    assert counter.saved == len(met) == GROUPS // 100
    assert snapshot is not None
    rest = join.step([None, None], 1000)
    assert rest is not None
    assert len(rest) == GROUPS - len(met)


@pytest.mark.parametrize("kind", [JoinKind.INNER, JoinKind.FULL])
def test_a_join_merges_restores_and_releases_in_steps(kind: JoinKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows on one side, few on the other: what one step makes or searches is bounded."""
    spec = dataclasses.replace(FULL, kind=kind)
    join = make(spec, SCHEMA, SCHEMA)
    random = np.random.default_rng(3)
    for at in range(40):
        join.step([rows(random.integers(0, GROUPS, 50) << 40, at), None], at + 1)
    restored = make(spec, SCHEMA, SCHEMA)
    restored.restore(decode_state(encode_state(join.snapshot())))
    portions = 1
    while restored.load():
        portions += 1
    assert portions > GROUPS // steps.INDEXED
    work = list(restored.work([None, rows(np.arange(60) << 40, 41)], 42))
    expected = join.step([None, rows(np.arange(60) << 40, 41)], 42)
    assert expected is not None
    assert [r for one in work if one is not None for r in one.to_tuples()] == expected.to_tuples()
    rest = list(restored.work([None, None], 1000))
    if kind is JoinKind.FULL:
        assert max(len(one) for one in rest if one is not None) <= 2 * steps.RELEASED
        assert pauses(iter(rest)) > GROUPS // 2 // steps.RELEASED


@pytest.mark.parametrize("window", [None, TUMBLING])
def test_a_top_k_of_many_groups_is_ranked_in_steps(window: Window | None) -> None:
    spec = TopKSpec(IN, 1, (("value", True),), ("key",), window)
    operator = make(spec, SCHEMA)
    many = rows(np.random.default_rng(1).permutation(np.arange(GROUPS)) << 40, 1)
    work = list(operator.work([many], 1000))
    released = [one for one in work if one is not None]
    assert sum(map(len, released)) == GROUPS
    assert max(map(len, released)) <= steps.RELEASED
    assert pauses(iter(work)) > GROUPS // steps.INDEXED


def test_keys_of_two_attributes_use_wide_pairs_while_few() -> None:
    """New values of the second attribute never cause a new table of all pairs."""
    index = KeyIndex([AttributeType.INT64, AttributeType.INT64])
    first = np.arange(GROUPS)
    finished(index.reserve(GROUPS))
    found = [index.slots([Column(first[:40]), Column(first[:40] % 3)], 40)]
    for at in range(40, GROUPS, 20):
        some = first[at : at + 20]
        finished(index.reserve(20))
        found.append(index.slots([Column(some), Column(some)], 20))
        if at >= 60:
            assert index._pairs[0]._bits == 32
    assert sorted(np.concatenate(found).tolist()) == list(range(GROUPS))


@pytest.mark.parametrize(
    "values",
    [
        np.arange(5_000) % 7,
        np.zeros(300, np.int64),
        np.array([2**62, -5, 2**62, 0] * 50),
        np.arange(5_000) * 7919 % 5_000,
        np.random.default_rng(1).zipf(1.3, 5_000),
    ],
)
def test_sorting_in_steps_is_a_stable_sort(values: npt.NDArray[np.int64]) -> None:
    assert (finished(sorted_order(values)) == values.argsort(kind="stable")).all()


def test_sorting_in_steps_clears_its_memory_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel clears a page at its first write, so no step may write to new pages all over an array."""
    made: list[npt.NDArray[Any]] = []
    real, page = np.empty, 8

    def empty(shape: Any, dtype: Any = float) -> npt.NDArray[Any]:
        array = real(shape, dtype)
        if np.ndim(shape) == 0 and shape == GROUPS:
            array[:] = -7
            made.append(array)
        return array

    monkeypatch.setattr(np, "empty", empty)
    work = sorted_order(np.random.default_rng(1).permutation(GROUPS))
    before = 0
    for _ in work:
        written = sum(int((array.reshape(-1, page) != -7).any(axis=1).sum()) for array in made)
        assert written - before <= (steps.COPIED + steps.INDEXED) // page
        before = written
    assert len(made) == 2


def test_frequent_equal_values_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal values cannot be divided further, and are in order already."""
    longest = 0

    class Watched(np.ndarray[Any, np.dtype[Any]]):
        def argsort(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal longest
            longest = max(longest, len(self))
            return super().argsort(*args, **kwargs)

    values = np.where(np.arange(GROUPS) % 2 == 0, 5, np.arange(GROUPS)).view(Watched)
    assert (finished(sorted_order(values)) == np.asarray(values).argsort(kind="stable")).all()
    assert 0 < longest <= 4 * steps.INDEXED


def test_chosen_entries_and_numbers_are_computed_in_steps() -> None:
    mask = np.random.default_rng(1).random(GROUPS) < 0.3
    which = finished(chosen(mask))
    assert which.tolist() == mask.nonzero()[0].tolist()
    assert pauses(chosen(mask)) >= GROUPS // steps.COPIED
    numbers = finished(inverse(which, np.arange(len(which)), GROUPS))
    assert (numbers[which] == np.arange(len(which))).all()
    assert (numbers[~mask] == -1).all()
    assert finished(chosen(np.empty(0, np.bool_))).tolist() == []


def test_wide_integers_are_put_into_a_new_table_in_steps() -> None:
    ids, values = IntegerIds(), np.random.default_rng(1).integers(-(2**63), 2**63 - 1, GROUPS)
    most = 0
    for at in range(0, GROUPS, ROWS):
        most = max(most, sum(1 for _ in ids.reserve(ROWS)))
        table = ids._hashed
        assert ids.ids(values[at : at + ROWS]).tolist() == list(range(at, at + ROWS))
        if at > steps.INDEXED:
            assert ids._hashed is table  # there was room
    assert most > GROUPS // 2 // steps.INDEXED
    assert (ids.ids(values) == np.arange(GROUPS)).all()


def test_many_strings_are_stored_and_released_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: the index grows in portions, and no dictionary of Python strings is large."""
    monkeypatch.setattr(texts, "DICTIONARY_LIMIT", 100)
    schema = Schema.of(key="string", value="float64!")
    operator = make(AggregateSpec(IN, TUMBLING, {"key": "key"}, {"n": AggregateCall("count")}), schema)
    most = 0
    for at in range(0, GROUPS, ROWS):
        keys = Column.from_list([f"group {n}" for n in range(at, at + ROWS)], AttributeType.STRING)
        stamps = np.full(ROWS, 1, np.int64)
        piece = Rows(stamps, stamps, (keys, Column(np.zeros(ROWS))))
        most = max(most, pauses(operator.work([piece], 2)))
    assert most > GROUPS // 2 // steps.INDEXED
    for state in (operator.snapshot(), decode_state(encode_state(operator.snapshot()))):
        restored = make(AggregateSpec(IN, TUMBLING, {"key": "key"}, {"n": AggregateCall("count")}), schema)
        restored.restore(state)
        loads = 1
        while restored.load():
            loads += 1
        assert loads > GROUPS // steps.INDEXED
        released = [one for one in restored.work([None], 1000) if one is not None]
        assert [key for one in released for key in one.columns[0].to_list()] == [f"group {n}" for n in range(GROUPS)]
        dictionaries = {id(d): len(d) for one in released if (d := one.columns[0].dictionary) is not None}
        assert max(dictionaries.values()) <= 100 + steps.RELEASED
        assert len(dictionaries) > GROUPS // 200


class Texts:
    """How many texts are looked up, made, or put into a dictionary between two pauses, and the largest dictionary."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.largest = self._now = 0
        self._is_on = False
        for name in ("ids_of", "texts"):
            monkeypatch.setattr(TextIds, name, self._counted(getattr(TextIds, name)))
        for name in ("encode", "extend"):
            monkeypatch.setattr(StringDictionary, name, self._counted(getattr(StringDictionary, name)))

    def _counted(self, real: Any) -> Any:
        def counted(owner: Any, texts: Any) -> Any:
            found = real(owner, texts)
            if self._is_on:
                self._now += len(texts)
                self.most = max(self.most, self._now)
                if isinstance(owner, StringDictionary):
                    self.largest = max(self.largest, len(owner))
            return found

        return counted

    def steps(self, work: Iterator[Any]) -> list[Rows]:
        """What leaves."""
        self._now, self._is_on, released = 0, True, []
        for one in work:
            if one is None:
                self._now = 0
            else:
                released.append(one)
        self._is_on = False
        return released


KEPT = Schema.of(key="int64!", text="string", other="string")
CALLS = {
    "first": AggregateCall("first", "text"),
    "last": AggregateCall("last", "other"),
    "most": AggregateCall("max", "text"),
}


def text_rows(keys: npt.NDArray[np.int64], time: int) -> Rows:
    """Each key has a text of its own, and another one at each time; every seventh is null, and one is empty."""
    stamps = np.full(len(keys), time, np.int64)
    texts = [None if n % 7 == 0 else "" if n == 1 else f"text {n}" for n in keys.tolist()]
    columns = [Column.from_list(texts, AttributeType.STRING)]
    columns += [Column.from_list([f"text {n} at {time}" for n in keys.tolist()], AttributeType.STRING)]
    return Rows(stamps, stamps, (Column(keys << 40), *columns))


def aggregated(window: Window) -> OperatorSpec:
    return AggregateSpec(IN, window, {"key": "key"}, CALLS)


KEEPS_TEXTS: dict[str, OperatorSpec] = {
    "join": JoinSpec(IN, OTHER, JoinKind.INNER, (("key", "key"),), lower_us=-50, upper_us=50),
    "join with a condition": JoinSpec(
        IN, OTHER, JoinKind.INNER, (("key", "key"),), lower_us=-50, upper_us=50, where="l_other < r_other"
    ),
    "full join": FULL,
    "top-k": TopKSpec(IN, 1, (("key", True),), ("key",), TUMBLING),
    "top-k by text": TopKSpec(IN, 1, (("other", True), ("text", False)), ("key",), TUMBLING),
    "top-k of texts": TopKSpec(IN, 1, (("key", True),), ("other",), TUMBLING),
    "top-k of an instant": TopKSpec(IN, 1, (("other", True),), ("key",)),
    "tumbling window": aggregated(TUMBLING),
    "sliding window": aggregated(SLIDING),
    "count window": aggregated(CountWindow(2)),
}


@pytest.mark.parametrize("name", KEEPS_TEXTS)
def test_texts_are_stored_forgotten_and_released_in_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, one step touches no more of them than the rows that it takes in and releases need."""
    monkeypatch.setattr(texts, "DICTIONARY_LIMIT", 100)
    monkeypatch.setattr(steps, "SPARE", 50)
    spec, touched = KEEPS_TEXTS[name], Texts(monkeypatch)
    ports = len(spec.inputs)
    nothing: list[Rows | None] = [None] * ports
    operator = make(spec, *[KEPT] * ports)

    def given(of: Operator, rows: Rows, end: int, port: int = 0) -> list[Rows]:
        return touched.steps(of.work([rows if at == port else None for at in range(ports)], end))

    keys = np.random.default_rng(1).permutation(GROUPS)
    for at in range(0, GROUPS, ROWS):
        given(operator, text_rows(keys[at : at + ROWS], 1), 1 if name.endswith("instant") else 2)
    operators = [operator]
    if not name.endswith("instant"):
        for state in (operator.snapshot(), decode_state(encode_state(operator.snapshot()))):
            restored = make(spec, *[KEPT] * ports)
            restored.restore(state)
            work = list[None]()
            touched.steps(work.append(None) for _ in iter(restored.load, False))
            assert len(work) > GROUPS // steps.INDEXED
            operators.append(restored)
    outcomes = []
    for one in operators:
        last = ports - 1
        out = given(one, text_rows(keys[:ROWS], 3), 4, last) if not name.endswith("instant") else []
        out += given(one, text_rows(keys[::2][:200], 4), 5, last) if ports == 2 else []
        out += touched.steps(one.work(nothing, 1000))  # all that is due leaves; what was kept is forgotten
        for time in range(1001, 1006):
            out += given(one, text_rows(keys[:ROWS], time), time + 1)
        assert out
        outcomes.append([row for rows in out for row in rows.to_tuples()])
    assert all(outcome == outcomes[0] for outcome in outcomes)
    # Of what comes or leaves in a step, two columns, or three results, each looked up and made a few times.
    assert touched.most <= 8 * steps.RELEASED
    assert touched.largest <= 100 + 8 * steps.RELEASED


class Pass(StepwiseOperator):
    """Passes rows on in portions, and records its input."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.given: list[tuple[list[int], int]] = []

    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        if (given := ports[0]) is not None:
            self.given.append((given.time.tolist(), boundary))
            for start, stop in steps.portions(len(given), steps.RELEASED):
                if start:
                    yield None
                yield given.slice(start, stop)

    def _restoring(self, state: Any) -> steps.Steps[None]:
        yield from ()


def passing(*operators: Operator) -> Fragment:
    """A fragment of several of these in sequence."""
    fragment = Fragment(Unit(UnitId("u"), "f", (InputStream(IN, SCHEMA, 1, None),), (), (), partitions=1))
    names = [IN, *[StreamId(f"s{n}") for n in range(len(operators))]]
    fragment._steps = [(name, (before,), one) for before, name, one in zip(names, names[1:], operators, strict=False)]
    fragment._outputs = (names[-1],)
    return fragment


def test_many_rows_of_one_time_are_taken_in_piece_by_piece() -> None:
    """No boundary divides them, so they are one slice, but still several steps (B8)."""
    one = Pass(SCHEMA)
    parts = [rows(np.arange(at, at + 50), 1) for at in range(0, 400, 50)]
    (made,) = finished(passing(one).work(Slice([parts], 9, Kind.STABLE)))
    assert [n for piece in made for n in piece.columns[0].values.tolist()] == list(range(400))
    assert max(len(times) for times, _ in one.given) <= 2 * steps.RELEASED
    assert {end for _, end in one.given[:-1]} == {1}
    assert one.given[-1][1] == 9


def test_a_chain_of_operators_passes_pieces_on_one_by_one() -> None:
    """Cut between rows of one time: more rows follow while the boundary stays at this time."""
    filter_ = Filter(FilterSpec(IN, "value >= 0"), SCHEMA)
    first, last = Pass(SCHEMA), Pass(SCHEMA)
    fragment = passing(first, filter_, last)
    stamps = np.array([1] * 30 + [2] * 30 + [3] * 30)
    piece = Slice([[Rows(stamps, stamps, (Column(np.arange(90)), Column(np.arange(90.0))))]], 9, Kind.STABLE)
    (made,) = finished(fragment.work(piece))
    assert [n for rows in made for n in rows.columns[0].values.tolist()] == list(range(90))
    assert [len(times) for times, _ in last.given] == [24, 24, 24, 18]
    assert [(times[-1], end) for times, end in last.given] == [(1, 1), (2, 2), (3, 3), (3, 9)]


def test_many_small_writes_after_a_snapshot_are_stored_together() -> None:
    columns = Columns([(np.int64, 0), (np.float64, 0.5)])
    columns.add(GROUPS)
    leaves = columns.freeze()
    for at in np.random.default_rng(1).permutation(GROUPS):
        one = np.array([at])
        columns.before_write(one)
        columns.arrays[0][one] = 1
        columns.arrays[1][one] = 2.0
    frozen = leaves[0]._frozen
    assert len(frozen.saved) < GROUPS // 10
    assert leaves[0].array().tolist() == [0] * GROUPS
    assert leaves[1].array().tolist() == [0.5] * GROUPS


def test_new_strings_of_a_slice_are_added_in_portions() -> None:
    """One slice, however many texts it has; the ids are as if all were added at once."""
    texts = [f"group {n}" for n in range(100)]
    column = Column.from_list([texts[n % 100] for n in range(0, 1000, 7)], AttributeType.STRING)
    ids = TextIds()
    assert pauses(ids.ids_in_portions(column)) >= 100 // steps.RELEASED
    assert pauses(ids.ids_in_portions(column)) == 0
    assert (ids.ids(column) == TextIds().ids(column)).all()
    assert ids.texts(ids.ids(column)) == column.to_list()

    schema = Schema.of(key="string", value="float64!")
    for window in (TUMBLING, COUNTED):
        operator = make(AggregateSpec(IN, window, {"key": "key"}, {"n": AggregateCall("count")}), schema)
        stamps = np.full(len(column), 1, np.int64)
        piece = Rows(stamps, stamps, (column, Column(np.zeros(len(column)))))
        assert pauses(operator.work([piece], 2)) >= 100 // steps.RELEASED


def test_few_rows_add_few_texts_to_another_dictionary() -> None:
    large, target = StringDictionary([f"text {n}" for n in range(1000)]), StringDictionary(["text 3"])
    for codes in ([3, 5, 5], [5, 7], [], [999]):
        column = Column(np.array(codes, np.int32), None, large)
        assert column.in_dictionary(target).to_list() == column.to_list()
    assert target.strings == ["text 3", "text 5", "text 7", "text 999"]
    large.code("one more")
    assert Column(np.array([1000, 3], np.int32), None, large).in_dictionary(target).to_list() == ["one more", "text 3"]
    # Under a null there may be a code that the dictionary does not have.
    for source in (large, StringDictionary()):
        assert len(Column(np.array([2000], np.int32), np.array([False]), source).in_dictionary(target)) == 1


def test_small_pieces_are_concatenated_in_portions() -> None:
    """An operator that releases few rows at a time has them concatenated at the end, but not in one step."""
    size, work = steps.RELEASED // 2 - 1, _of_good_size([rows(np.arange(at, at + 5), 1) for at in range(0, GROUPS, 5)])
    found = finished(work)
    assert [n for piece in found for n in piece.columns[0].values.tolist()] == list(range(GROUPS))
    assert all(size < len(piece) <= size + 5 for piece in found[:-1])
    again = _of_good_size([rows(np.arange(5), 1) for _ in range(GROUPS // 5)])
    assert pauses(again) >= GROUPS // (size + 5) - 1
