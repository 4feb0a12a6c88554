"""Dictionaries of operators are bounded by their text as well as by their entries."""

from __future__ import annotations

from operators.texts import TextIds
from operators.union import Union
from spe.stream.batch import Rows
from spe.stream.schema import Schema
from spe.stream.strings import DICTIONARY_TEXT_BYTES, StringDictionary

SCHEMA = Schema.of(text="string")
EACH = 1 << 20


def rows(text: str) -> Rows:
    """In a dictionary of its own."""
    return Rows.from_tuples(SCHEMA, [1], [(text,)])


def text_in(dictionary: StringDictionary | None) -> int:
    assert dictionary is not None
    return sum(map(len, dictionary.strings))


def test_a_union_does_not_collect_long_texts() -> None:
    union, most = Union(SCHEMA), 0
    for at in range(64):
        out = union.step([rows(f"{at:02}" * (EACH // 2)), rows("b")], 10)
        assert out is not None
        assert out.to_tuples() == [(f"{at:02}" * (EACH // 2),), ("b",)]
        most = max(most, text_in(out.columns[0].dictionary))
    assert DICTIONARY_TEXT_BYTES // 2 < most <= DICTIONARY_TEXT_BYTES + 2 * EACH


def test_long_texts_of_state_leave_in_several_dictionaries() -> None:
    ids, most = TextIds(), 0
    for at in range(64):
        text = f"{at:02}" * (EACH // 2)
        codes, dictionary = ids.column(ids.ids(rows(text).columns[0]))
        assert dictionary.strings[codes[0]] == text
        most = max(most, text_in(dictionary))
    assert DICTIONARY_TEXT_BYTES // 2 < most <= DICTIONARY_TEXT_BYTES + 2 * EACH
