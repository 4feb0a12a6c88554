"""Tables of results, and the statistics in them."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from statistics import median
from typing import TypeVar

from spe.text_table import markdown_table

S = TypeVar("S", bound="tuple[object, ...]")

#: What a run must not be without: a result that was not compared with an independent one is no result.
CHECKED = "results checked"


class WrongResult(Exception):
    """The engine's answer differs from the independent computation."""


def demand(condition: bool, what: str) -> None:
    """Raises WrongResult."""
    if not condition:
        raise WrongResult(what)


def chosen(shapes: Sequence[S], arguments: argparse.Namespace) -> list[S]:
    """The shapes of the sizes that were asked for, all of them if none was; a shape begins with its size."""
    return [shape for shape in shapes if not arguments.sizes or shape[0] in arguments.sizes]


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Median (smallest-largest)."""
    return f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def verdict(value: float, limit: float | None) -> str:
    """A target beside what was measured."""
    if limit is None:
        return "-"
    return f"<= {limit:g}: {'met' if value <= limit else 'MISSED'}"


def beside(ours: Sequence[float], theirs: Sequence[float], limit: float | None) -> list[str]:
    """Paired rounds, CPU seconds a tuple, as cells: bare NumPy's and ours in ns, the ratio, its target, the check."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    theirs_ns, ours_ns = (spread([1e9 * v for v in values], ".1f") for values in (theirs, ours))
    return [theirs_ns, ours_ns, spread(ratios), verdict(median(ratios), limit), CHECKED]


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str] = ()) -> None:
    """Prints a table that is also Markdown."""
    print(f"\n### {title}\n")
    print(*markdown_table(head, [list(map(str, row)) for row in rows], aligned=True), sep="\n", end="\n\n")
    print(textwrap.fill(" ".join(notes), 116))
    print(flush=True)
