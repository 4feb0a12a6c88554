"""Tables as lines of text."""

from __future__ import annotations

from spe.text_table import markdown_table, text_table


def test_columns_are_aligned_without_trailing_spaces() -> None:
    assert text_table([["a", "bb", "c c"], ["aaa", "b", ""]], indent="  ") == ["  a    bb  c c", "  aaa  b"]
    assert text_table([["n", "x"], ["100", "y"]], right=[0]) == ["  n  x", "100  y"]
    assert text_table([]) == []


def test_markdown_tables_may_be_aligned() -> None:
    assert markdown_table(["a", "b"], [["long", "c"]]) == ["| a | b |", "|---|---|", "| long | c |"]
    assert markdown_table(["a", "b"], [["long", "c"]], aligned=True) == [
        "| a    | b |",
        "|------|---|",
        "| long | c |",
    ]
