"""Dictionaries of strings (property tests have the rest)."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from spe.stream.batch import Column, Rows
from spe.stream.schema import Schema
from spe.stream.strings import DICTIONARY_TEXT_BYTES, SHORT_TEXT, StringDictionary, StringPool


def test_the_cycle_collector_does_not_track_texts() -> None:
    """It would visit all of them in one step, however many there are (B8: steps are bounded)."""
    dictionary = StringDictionary(["a", "b"])
    dictionary.code("c")
    dictionary.extend([f"text {n}" for n in range(10_000)])
    dictionary.encode(["d", "a"])
    gc.collect()
    assert not gc.is_tracked(dictionary.strings)
    assert not gc.is_tracked(dictionary._by_string)
    assert dictionary.strings[:4] == ["a", "b", "c", "text 0"]
    assert len(dictionary.strings) == 10_004


def test_a_pool_begins_a_new_dictionary_after_much_text() -> None:
    """A dictionary lives as long as any of its rows: 131,072 texts of 10 KB would be 1.3 GB."""
    pool, each = StringPool(), 1 << 20
    first, count = pool.current(), 0
    while pool.current() is first:
        first.code(f"{count}" * each)
        count += 1
        assert count <= DICTIONARY_TEXT_BYTES // each
    assert count > DICTIONARY_TEXT_BYTES // each // 4


def test_short_texts_do_not_fill_a_pool_by_their_bytes() -> None:
    pool = StringPool()
    first = pool.current()
    first.extend([f"{n:0{SHORT_TEXT}}" for n in range(100_000)])
    assert pool.current() is first
    first.code("a" * (SHORT_TEXT + 1))
    assert pool.current() is first


def test_bytes_of_rows_do_not_depend_on_rest_of_dictionary() -> None:
    """Nor on what it has got since: what was added to a sum must be what is taken away."""
    schema = Schema.of(a="string", b="string", n="int64")
    tuples = [("short", "x" * 1_000, 1), (None, "y" * 100, 2), ("z" * 20, None, 3), ("é" * 40, "x" * 1_000, 4)]
    rows = Rows.from_tuples(schema, range(4), tuples, pool := StringPool())
    before = rows.nbytes
    assert 1_000 + 100 + 40 < before < 2_000
    pool.current().extend([f"{n}" * 5_000 for n in range(1, 20)])
    assert rows.nbytes == before
    other = StringDictionary(["w" * 9_000])
    assert rows.with_columns(tuple(c.in_dictionary(other) for c in rows.columns)).nbytes == before


def test_text_under_a_null_has_no_bytes() -> None:
    dictionary = StringDictionary(["a" * 1_000])
    column = Column(np.array([7, 0], np.int32), np.array([False, False]), dictionary)
    assert column.text_bytes == 0


@pytest.mark.parametrize("others", [0, 5_000])
@pytest.mark.parametrize("count", [4, 1_000])
def test_a_text_in_many_rows_has_its_bytes_once(others: int, count: int) -> None:
    """However many rows there are, and texts in the dictionary."""
    dictionary = StringDictionary([f"{n}" * 50 for n in range(1_000, 1_000 + others)])
    codes = dictionary.encode(["a" * 1_000, "b", "c" * 2_000, "d" * 3_000])
    column = Column(np.tile(codes[[0, 2, 1, 2]], count), None, dictionary)
    one = Column(codes[:3], None, dictionary)
    assert 3_000 < column.text_bytes == one.text_bytes < 3_200
