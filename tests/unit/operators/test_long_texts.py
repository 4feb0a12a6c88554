"""Dictionaries of operators are bounded by their text as well as by their entries."""

from __future__ import annotations

from operators.keys import KeyIndex
from operators.steps import finished
from operators.texts import TextIds
from operators.union import Union
from spe.stream.batch import Column, Rows, concat_columns
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import DICTIONARY_TEXT_BYTES, StringDictionary
from spe.wire.state import decode_state, encode_state

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


def test_a_text_that_rows_of_others_brought_is_not_there_twice() -> None:
    """Batches are joined in the dictionary of the last one: a state with a text twice could not be read again."""
    keys = KeyIndex([AttributeType.STRING])

    def emitted(*texts: str) -> Column:
        column = Column.from_list(texts, AttributeType.STRING)
        (found,) = keys.columns(finished(keys.slots_in_portions([column], len(texts))))
        return found

    column = emitted("c")
    concat_columns([rows("a").columns[0], column])
    again = emitted("a", "c", "a")
    assert again.dictionary is column.dictionary
    assert again.to_list() == ["a", "c", "a"]
    restored = decode_state(bytes(encode_state({"column": again})))
    assert restored["column"].to_list() == ["a", "c", "a"]
    assert emitted("").to_list() == [""]
