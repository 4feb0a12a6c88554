"""Tables as lines of text, for terminals and Markdown.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def text_table(rows: Iterable[Sequence[str]], *, right: Collection[int] = (), indent: str = "") -> list[str]:
    """Formats columns of equal width, two spaces apart, without trailing space.

    Args:
      rows: rows with the same number of cells, the head included.
      right: right-aligned columns, such as figures.
    """
    return [(indent + "  ".join(cells)).rstrip() for cells in _padded(rows, right)]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, aligned: bool = False) -> list[str]:
    """Formats a Markdown table; ``aligned`` for reading the source."""
    lines = [list(head), *map(list, rows)]
    cells = _padded(lines) if aligned else lines
    rule = "|".join("-" * (len(cell) + 2 if aligned else 3) for cell in cells[0])
    table = [f"| {' | '.join(line)} |" for line in cells]
    return [table[0], f"|{rule}|", *table[1:]]


def _padded(rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> list[list[str]]:
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        [c.rjust(w) if at in right else c.ljust(w) for at, (c, w) in enumerate(zip(line, widths, strict=True))]
        for line in lines
    ]
