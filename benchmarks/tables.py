"""A benchmark as a record, its table, and the statistics in that."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, Final, NamedTuple, TypeVar

from spe.text_table import markdown_table

S = TypeVar("S", bound="tuple[object, ...]")
Run = Callable[[argparse.Namespace], None]
Rows = Callable[[argparse.Namespace], Iterator[Any]]

#: The last cell of each row: a result that was not compared with an independent one is no result.
CHECKED = "results checked"


class Benchmark(NamedTuple):
    """A benchmark; ``options`` adds those of its own to the command line."""

    run: Run
    options: Callable[[argparse.ArgumentParser], object]


#: By name.
BENCHMARKS: Final[dict[str, Benchmark]] = {}


class WrongResult(Exception):
    """The engine's answer differs from the independent computation."""


def demand(condition: bool, what: str) -> None:
    """Raises WrongResult."""
    if not condition:
        raise WrongResult(what)


def chosen(shapes: Sequence[S], arguments: argparse.Namespace) -> list[S]:
    """The shapes of the sizes in the arguments, all of them if there are none; a shape begins with its size."""
    return [shape for shape in shapes if not arguments.sizes or shape[0] in arguments.sizes]


def spread(values: Sequence[float], form: str = ".2f", scale: float = 1.0) -> str:
    """Median (smallest-largest)."""
    values = [scale * value for value in values]
    return f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def verdict(value: float, limit: float | None) -> str:
    """A target, and whether the measured value meets it."""
    if limit is None:
        return "-"
    return f"<= {limit:g}: {'met' if value <= limit else 'MISSED'}"


def ratio(ours: Sequence[float], theirs: Sequence[float], limit: float | None) -> list[str]:
    """Paired rounds as cells: the ratio, and its target."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return [spread(ratios), verdict(median(ratios), limit)]


def beside(ours: Sequence[float], theirs: Sequence[float], limit: float | None) -> list[str]:
    """Paired rounds, CPU seconds a tuple, as cells: theirs (bare NumPy's) and ours in ns, the ratio, its target."""
    return [spread(theirs, ".1f", 1e9), spread(ours, ".1f", 1e9), *ratio(ours, theirs, limit)]


def benchmark(
    name: str, head: str, options: Callable[[argparse.ArgumentParser], object] = lambda parser: None
) -> Callable[[Rows], Rows]:
    """Makes a benchmark of the function that makes its rows.

    The function returns cells without that of the check, and texts that are added to the notes.  The first line of its
    docstring is the title, the rest the notes.  ``head`` has the names of the columns, with " | " between them.
    """

    def record(rows: Rows) -> Rows:
        def run(arguments: argparse.Namespace) -> None:
            title, *notes = inspect.cleandoc(rows.__doc__ or name).split("\n")
            cells: list[Sequence[object]] = []
            for row in rows(arguments):
                if isinstance(row, str):
                    notes.append(row)
                else:
                    cells.append([*row, CHECKED])
            show(title.rstrip("."), [*head.split(" | "), "check"], cells, notes)

        BENCHMARKS[name] = Benchmark(run, options)
        return rows

    return record


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str] = ()) -> None:
    """Prints a table that is also Markdown."""
    print(f"\n### {title}\n")
    print(*markdown_table(head, [list(map(str, row)) for row in rows], aligned=True), sep="\n", end="\n\n")
    print(textwrap.fill(" ".join(notes).strip(), 116))
    print(flush=True)
