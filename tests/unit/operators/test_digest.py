"""The digest by which replicas compare what they made."""

from __future__ import annotations

from itertools import pairwise, permutations, product

import numpy as np
import pytest

from operators.digest import MARK_EVERY, RollingDigest
from spe.batch import Column, Rows, concat_rows
from spe.strings import StringDictionary


def rows(values: list[int], *, floats: bool = False) -> Rows:
    """Rows that differ in one attribute only."""
    time = np.full(len(values), 7, np.int64)
    column = np.array(values, np.float64 if floats else np.int64)
    return Rows(time, time, (Column(np.ones(len(values), np.int64)), Column(column)))


def digest(*parts: Rows) -> int:
    rolling = RollingDigest()
    for part in parts:
        rolling.add(part)
    return rolling.value()


@pytest.mark.parametrize("floats", [False, True])
def test_any_other_order_of_any_rows_is_seen(floats: bool) -> None:
    """Also of equal ones in mirrored pairs, x y y x and y x x y, which a factor by place does not tell apart."""
    sequences = {p for values in product(range(3), repeat=4) for p in permutations(values)}
    assert len({digest(rows(list(s), floats=floats)) for s in sequences}) == len(sequences)


def test_how_the_stream_is_cut_is_not_seen() -> None:
    whole = rows(list(range(3 * MARK_EVERY)))
    cuts = [0, 1, 2, 999, 1000, 1001, 2500, len(whole)]
    pieces = [whole.slice(a, b) for a, b in pairwise(cuts)]
    one, many = RollingDigest(), RollingDigest()
    one.add(whole)
    for piece in pieces:
        many.add(piece)
        many.value()
    assert one.marks() == many.marks()
    assert list(one.marks()) == [MARK_EVERY, 2 * MARK_EVERY, 3 * MARK_EVERY]


def test_it_goes_on_from_a_value() -> None:
    first, rest = rows(list(range(1500))), rows(list(range(1500, 4000)))
    begun = RollingDigest(len(first), digest(first))
    begun.add(rest)
    assert begun.value() == digest(concat_rows([first, rest]))


def test_strings_go_by_their_text() -> None:
    time = np.zeros(2, np.int64)
    forward, backward = StringDictionary(["a", "b"]), StringDictionary(["b", "a"])
    mine = Rows(time, time, (Column(np.array([0, 1], np.int32), None, forward),))
    theirs = Rows(time, time, (Column(np.array([1, 0], np.int32), None, backward),))
    assert digest(mine) == digest(theirs)
