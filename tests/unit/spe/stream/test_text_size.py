"""The text of a row in bytes, and its limit."""

from __future__ import annotations

import numpy as np
import pytest

from spe.stream import text_size
from spe.stream.batch import Column
from spe.stream.schema import AttributeType
from spe.stream.strings import StringDictionary
from spe.stream.text_size import row_bytes, too_large


def texts(*items: str | None) -> Column:
    return Column.from_list(list(items), AttributeType.STRING)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_size, "ROW_TEXT_BYTES", 10)


def test_the_text_of_all_columns_counts_in_utf8_bytes() -> None:
    first, second = texts("a" * 10, "é" * 5, "é" * 5, "", None, None), texts("", None, "b", "c" * 11, "d" * 10, None)
    assert too_large([first, Column(np.arange(6)), second]) == {2: 11, 3: 11}


def test_a_text_in_several_columns_counts_once() -> None:
    assert too_large([texts("a" * 9, "a" * 9), texts("a" * 9, "b" * 2)]) == {1: 11}


def test_text_under_a_null_does_not_count() -> None:
    dictionary = StringDictionary(["a" * 11])
    column = Column(np.array([0, 0, 7], np.int32), np.array([True, False, False]), dictionary)
    assert too_large([column]) == {0: 11}


def test_unused_texts_of_a_dictionary_do_not_count() -> None:
    dictionary = StringDictionary(["a" * 5_000, "b"])
    column = Column(np.array([1, 1], np.int32), None, dictionary)
    assert too_large([column]) == {}
    found = row_bytes([column])
    assert not isinstance(found, int)
    assert found.max() < 100


def test_no_rows_and_no_texts_are_never_too_large() -> None:
    assert too_large([]) == {}
    assert too_large([Column(np.arange(3))]) == {}
    assert too_large([Column(np.empty(0, np.int32), None, StringDictionary(["a" * 20]))]) == {}
    assert isinstance(row_bytes([Column(np.arange(3))]), int)
