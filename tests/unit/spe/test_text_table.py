"""Tables as lines of text."""

from __future__ import annotations

from spe.text_table import markdown_table, text_table


def test_columns_are_aligned_and_nothing_ends_in_space() -> None:
    assert text_table([["a", "bb", "c c"], ["aaa", "b", ""]], indent="  ") == ["  a    bb  c c", "  aaa  b"]
    assert text_table([["n", "x"], ["100", "y"]], right=[0]) == ["  n  x", "100  y"]
    assert text_table([]) == []


def test_markdown_is_aligned_where_people_read_it() -> None:
    assert markdown_table(["a", "b"], [["long", "c"]]) == ["| a | b |", "|---|---|", "| long | c |"]
    assert markdown_table(["a", "b"], [["long", "c"]], aligned=True) == [
        "| a    | b |",
        "|------|---|",
        "| long | c |",
    ]
