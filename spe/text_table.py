"""Tables as lines of text: for a terminal, and for Markdown.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def text_table(rows: Iterable[Sequence[str]], *, right: Collection[int] = (), indent: str = "") -> list[str]:
    """Columns of equal width, two spaces apart, without space at the end.

    Args:
      rows: of equally many cells; the head is one of them.
      right: columns that end at their right edge, as figures do.
    """
    return [(indent + "  ".join(cells)).rstrip() for cells in _padded(rows, right)]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, aligned: bool = False) -> list[str]:
    """A table of Markdown; ``aligned`` where people read it as it is."""
    lines = [list(head), *map(list, rows)]
    cells = _padded(lines) if aligned else lines
    rule = "|".join("-" * (len(cell) + 2 if aligned else 3) for cell in cells[0])
    found = [f"| {' | '.join(line)} |" for line in cells]
    return [found[0], f"|{rule}|", *found[1:]]


def _padded(rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> list[list[str]]:
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        [c.rjust(w) if at in right else c.ljust(w) for at, (c, w) in enumerate(zip(line, widths, strict=True))]
        for line in lines
    ]
