"""Dictionaries of strings (property tests have the rest)."""

from __future__ import annotations

import gc

from spe.stream.strings import StringDictionary


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
