"""Strings that an operator keeps, against plain lists: whatever is kept, forgotten, restored and given back."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.steps import finished
from operators.strings import KeptStrings
from spe.stream.batch import Column, Rows
from spe.stream.schema import AttributeType
from spe.stream.strings import StringDictionary
from spe.wire.state import decode_state, encode_state
from tests.support.distribution import Situations
from tests.support.operators import EXERCISED, require_exercised, step_sizes

TEXTS = st.one_of(st.none(), st.text("ab", max_size=3), st.sampled_from(["", "é", "\ud800", "long " * 9]))
#: What is done after rows have come: which of those that are kept are dropped, and how the rest goes on.
CHANGES = st.tuples(st.integers(0, 3), st.sampled_from(["goes on", "beside", "from bytes", "back"]))

MET = Situations({"rows are dropped": 0.5, "an earlier state is put back": 0.1, "nulls only": 0.03, "no rows": 0.1})


def rows_of(texts: list[str | None], others: list[str | None], number: int) -> Rows:
    """Two columns of strings in one dictionary, and one of numbers."""
    dictionary = StringDictionary([f"{number}", "x"])
    time = np.arange(len(texts))
    columns = [Column.from_list(column, AttributeType.STRING, dictionary) for column in (texts, others)]
    return Rows(time, time, (columns[0], Column(time), columns[1]))


def lists(strings: KeptStrings, kept: list[Rows]) -> list[Any]:
    return [finished(strings.given_back(rows)).to_tuples() for rows in kept]


@MET.required
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(TEXTS, max_size=9), CHANGES), min_size=2, max_size=6))
def check_kept_strings(batches: list[tuple[list[str | None], tuple[int, str]]]) -> None:
    strings, kept, expected = KeptStrings(), list[Rows](), list[Any]()
    before: tuple[Any, list[Rows], list[Any]] = (strings.snapshot(), [], [])
    for number, (texts, (dropped, how)) in enumerate(batches):
        rows = rows_of(texts, texts[::-1], number)
        kept = [*kept, finished(strings.adopt(rows))][dropped:]
        expected = [*expected, rows.to_tuples()][dropped:]
        assert lists(strings, kept) == expected
        if strings.crowded:
            kept = finished(strings.compacted_rows(kept))
        assert lists(strings, kept) == expected
        if kept and texts:  # of some columns only
            some = finished(strings.given_back(kept[-1], [2]))
            assert some.columns[0].dictionary is None
            assert some.columns[2].to_list() == [other for _, _, other in expected[-1]]
        now = (strings.snapshot(), kept, expected)
        if how != "goes on":
            state, kept, expected = before if how == "back" else now
            if how == "from bytes":
                state, kept = decode_state(encode_state((state, kept)))
            finished(strings.adopt(rows_of(["only in the old one"], [None], 9)))
            strings = KeptStrings()
            finished(strings.load(state))
            assert lists(strings, kept) == expected
        before = now
    MET.example(
        {
            "rows are dropped": any(dropped for _, (dropped, _) in batches),
            "an earlier state is put back": any(how == "back" for _, (_, how) in batches[1:]),
            "nulls only": any(texts and set(texts) == {None} for texts, _ in batches),
            "no rows": any(not texts for texts, _ in batches),
        }
    )


def test_stored_texts_survive_forgetting_and_restoring() -> None:
    EXERCISED.clear()
    with step_sizes():
        check_kept_strings()
    require_exercised({"texts forgotten": 21, "dictionaries begun": 21})


def test_rows_without_strings_are_stored_unchanged() -> None:
    strings, time = KeptStrings(), np.arange(3)
    rows = Rows(time, time, (Column(time), Column(time > 1)))
    assert finished(strings.adopt(rows)) is rows
    assert finished(strings.given_back(rows)) is rows
    assert strings.snapshot() is None
