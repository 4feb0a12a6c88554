"""The digest by which replicas compare their stable output."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from operators.digest import MARK_EVERY, RollingDigest
from spe.stream.batch import Column, Rows, concat_rows
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary

NUMBERS = Schema.of(n="int64", s="string", on="bool")
SMALLEST = np.iinfo(np.int64).min
#: Rows of two columns, of two blocks.
STREAM = 2 * MARK_EVERY


def numbered(count: int) -> Rows:
    """``count`` tuples at times 0, 1, 2, … ."""
    return Rows.from_tuples(NUMBERS, range(count), [(i * 7 % 13, f"k{i % 5}", not i % 3) for i in range(count)])


def digest(*parts: Rows) -> int:
    rolling = RollingDigest()
    for part in parts:
        rolling.add(part)
    return rolling.value()


@pytest.mark.parametrize("size", [1, 7, 999, 1_000, 1_001, 8_192, 19_999])
def test_a_digest_does_not_depend_on_batches(size: int) -> None:
    """Across marks and many blocks, and wherever the digest is taken."""
    stream = numbered(3_000 if size < 100 else 30_500)
    whole, pieces, asked = RollingDigest(), RollingDigest(), RollingDigest()
    whole.add(stream)
    for start in range(0, len(stream), size):
        for one in (pieces, asked):
            one.add(stream.slice(start, min(start + size, len(stream))))
        asked.value()
    assert pieces.marks() == asked.marks() == whole.marks()
    assert list(whole.marks()) == list(range(MARK_EVERY, len(stream) + 1, MARK_EVERY))
    assert pieces.value() == asked.value() == whole.value()


def test_a_digest_is_the_same_in_every_release() -> None:
    """Checkpoints contain it, and replicas compare it.  A change needs a line in the changelog."""
    rolling = RollingDigest()
    rolling.add(numbered(2_500))
    assert rolling.value() == 6807341814111134658
    assert rolling.marks() == {1_000: 4868024523658794022, 2_000: 9100051193832707303}


@pytest.mark.parametrize("place", [0, 1, 999, 1_000, 1_001, 2_000])
def test_a_digest_continues_from_a_value(place: int) -> None:
    stream = numbered(3_500)
    begun = RollingDigest(place, digest(stream.slice(0, place)))
    begun.add(stream.slice(place, len(stream)))
    assert begun.value() == digest(stream)
    assert begun.newest_mark()[0] == 3_000


@pytest.mark.parametrize("floats", [False, True])
def test_any_other_order_of_rows_changes_the_digest(floats: bool) -> None:
    """Also of equal rows in mirrored pairs, x y y x and y x x y, which a factor growing with the place would miss."""

    def rows(values: tuple[int, ...]) -> Rows:
        """Rows that differ in one attribute only."""
        time = np.full(len(values), 7, np.int64)
        column = np.array(values, np.float64 if floats else np.int64)
        return Rows(time, time, (Column(np.ones(len(values), np.int64)), Column(column)))

    sequences = list(product(range(3), repeat=4))
    assert len({digest(rows(s)) for s in sequences}) == len(sequences)


def test_rows_exchanged_between_blocks_change_the_digest() -> None:
    stream = numbered(STREAM)
    order = np.arange(len(stream))
    order[[5, MARK_EVERY + 5]] = order[[MARK_EVERY + 5, 5]]
    blocks = np.roll(np.arange(len(stream)), MARK_EVERY)
    assert len({digest(one) for one in (stream, stream.take(order), stream.take(blocks))}) == 3


def test_changed_value_null_and_exchange_change_digest() -> None:
    plain = numbered(100)
    number, text, on = plain.columns
    at = np.arange(100)
    variants = [
        plain,
        plain.with_columns((Column(number.values + (at == 50)), text, on)),
        plain.with_columns((Column(number.values, at != 13), text, on)),
        plain.with_columns((number, Column(text.values, None, StringDictionary(["", *"abcde"])), on)),
        plain.with_columns((number, text, Column(on.values ^ (at == 99)))),
        Rows(plain.time, plain.time - 1, plain.columns),
        concat_rows([plain.slice(1, 2), plain.slice(0, 1), plain.slice(2, 100)]),
    ]
    assert len({digest(v) for v in variants}) == len(variants)


def changed(*changes: tuple[int, int, int]) -> Rows:
    """STREAM rows of two columns of ones, in which (row, column) are given values."""
    time = np.arange(STREAM)
    values = np.ones((2, STREAM), np.int64)
    for row, column, value in changes:
        values[column, row] = value
    return Rows(time, time, (Column(values[0]), Column(values[1])))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (changed((3, 0, 0)), changed((3, 0, SMALLEST))),
        (changed(), changed((3, 0, 1 + (1 << 62)), (8, 0, 1 + (1 << 62)))),
        (changed((3, 0, 2), (3, 1, 5)), changed((3, 0, 5), (3, 1, 2))),
        (changed((3, 0, 2)), changed((3, 1, 2))),
        (changed((3, 1, 2)), changed((3 + MARK_EVERY, 0, 2))),
        (changed((3, 0, 2)), changed((3 + MARK_EVERY, 1, 2))),
    ],
    ids=["highest bit", "high bits of two", "columns exchanged", "other column", "a block later", "and to the right"],
)
def test_differences_that_cancel_in_sums_change_the_digest(one: Rows, other: Rows) -> None:
    assert digest(one) != digest(other)


def test_exchanged_high_bytes_change_the_digest() -> None:
    """Such as keys with a region in the top byte."""
    count = 60
    plain = changed(*((row, 0, row << 56) for row in range(count)))
    exchanged = [
        changed(*((row, 0, {a: b, b: a}.get(row, row) << 56) for row in range(count)))
        for a in range(count)
        for b in range(a)
    ]
    assert digest(plain) not in {digest(one) for one in exchanged}


@pytest.mark.parametrize("type_", [np.int64, np.bool_])
def test_null_and_n_differ_from_zero_and_n_plus_one(type_: type[np.generic]) -> None:
    """Such as (sum, count) of no rows, and of a zero."""
    time = np.zeros(1, np.int64)
    zero = np.zeros(1, type_)
    nothing = Rows(time, time, (Column(zero, np.zeros(1, np.bool_)), Column(np.array([0]))))
    found = Rows(time, time, (Column(zero), Column(np.array([1]))))
    assert digest(nothing) != digest(found)


def test_strings_are_digested_by_their_text() -> None:
    time = np.zeros(2, np.int64)
    forward, backward = StringDictionary(["a", "b"]), StringDictionary(["b", "a"])
    mine = Rows(time, time, (Column(np.array([0, 1], np.int32), None, forward),))
    theirs = Rows(time, time, (Column(np.array([1, 0], np.int32), None, backward),))
    assert digest(mine) == digest(theirs)
