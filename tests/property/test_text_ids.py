"""Ids of strings against a plain dict: with changing dictionaries, steps, restores, and equal hashes."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from operators import texts
from operators.steps import finished
from operators.texts import TextIds
from spe.stream.batch import Column
from spe.stream.schema import AttributeType
from spe.stream.strings import StringDictionary
from spe.wire.state import decode_state, encode_state
from tests.support.distribution import Situations
from tests.support.operators import step_sizes

#: Also a lone surrogate, which UTF-8 does not have.
TEXTS = st.one_of(st.none(), st.text("ab", max_size=3), st.sampled_from(["", "é", "\ud800", "𐀀", "long " * 9]))
HASHES: dict[str, Any] = {"its own": hash, "by length": len, "all alike": lambda _: 7}
RESTORED = ["never", "beside", "from bytes"]

MET = Situations(
    {
        "restored in the middle": 0.2,
        "one that was known before comes again": 0.15,
        "two texts with one hash": 0.2,
        "a new dictionary for what leaves": 0.2,
        "nulls only": 0.02,
    }
)


def again(ids: TextIds, how: str) -> TextIds:
    """The same after a restore.  The old instance continues without effect on the restored one."""
    snapshot: Any = ids.snapshot()
    if how == "never":
        return ids
    if how == "from bytes":
        snapshot = decode_state(encode_state(snapshot))
    ids.ids_of(["only in the old one"])
    return finished(TextIds.restoring(snapshot))


@MET.required
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(TEXTS, max_size=12), min_size=3, max_size=6),
    st.sampled_from(sorted(HASHES)),
    st.sampled_from(RESTORED),
    st.integers(1, 3),
    st.sampled_from([3, 6, 100]),
)
def test_strings_get_ids_by_first_appearance(
    batches: list[list[str | None]], hashes: str, restored: str, restored_at: int, limit: int
) -> None:
    ids, expected, dictionaries = TextIds(), dict[str, int](), []
    before: set[str] = set()
    with (
        step_sizes(),
        patch.object(texts, "_hash", HASHES[hashes]),
        patch.object(texts, "_LEAST_PIECE", 4),
        patch.object(texts, "DICTIONARY_LIMIT", limit),
    ):
        for i, batch in enumerate(batches):
            if i == restored_at:
                ids, before = again(ids, restored), set(expected)
            finished(ids.reserve(len(batch)))
            column = Column.from_list(batch, AttributeType.STRING, StringDictionary([f"{i}", "x"]))
            assert column.dictionary is not None
            for text in batch:
                if text is not None:
                    expected.setdefault(text, len(expected) + 1)
            valid = [text is not None for text in batch]
            found = np.where(valid, ids.ids(column), 0)
            assert found.tolist() == [0 if text is None else expected[text] for text in batch]
            assert ids.texts(np.arange(1, ids.count)) == list(expected)
            codes, dictionary = ids.column(np.append(found, 0))
            assert [dictionary.strings[c] for c in codes.tolist()] == [*(text or "" for text in batch), ""]
            assert len(dictionary) <= limit + len(set(batch)) + 1
            dictionaries.append(dictionary)
            ids.close()
    after = {text for batch in batches[restored_at:] for text in batch}
    MET.example(
        {
            "restored in the middle": restored != "never" and before,
            "one that was known before comes again": restored != "never" and before & after,
            "two texts with one hash": hashes != "its own" and len(expected) > 4,
            "a new dictionary for what leaves": len(set(map(id, dictionaries))) > 1,
            "nulls only": any(batch and set(batch) == {None} for batch in batches),
        }
    )


def test_a_code_under_a_null_need_not_be_in_the_dictionary() -> None:
    ids = TextIds()
    nothing = Column(np.full(3, 7, np.int32), np.zeros(3, np.bool_), StringDictionary())
    assert len(ids.ids(nothing)) == 3
    some = Column(np.array([9, 0], np.int32), np.array([False, True]), StringDictionary(["a"]))
    assert ids.texts(ids.ids(some)[1:]) == ["a"]
