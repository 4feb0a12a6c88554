"""Files, classes and functions of the packages stay small enough to be read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted(p for package in ("spe", "operators", "consistency", "replicas") for p in (ROOT / package).rglob("*.py"))
FILE_LINES, FUNCTION_LINES, CLASS_METHODS = 500, 40, 30
#: Number of longer functions; it may only fall.
LONG_FUNCTIONS = 27

Function = ast.FunctionDef | ast.AsyncFunctionDef


def definitions() -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Yields every function and class with its place."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function | ast.ClassDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def larger(sizes: Iterator[tuple[int, str]], most: int) -> list[tuple[int, str]]:
    return sorted((size for size in sizes if size[0] > most), reverse=True)


def test_files_have_at_most_500_lines() -> None:
    lines = ((len(path.read_text().splitlines()), str(path.relative_to(ROOT))) for path in FILES)
    assert larger(lines, FILE_LINES) == [], "divide these files by meaning"


def test_classes_have_at_most_30_methods() -> None:
    methods = (
        (sum(isinstance(part, Function) for part in node.body), place)
        for place, node in definitions()
        if isinstance(node, ast.ClassDef)
    )
    assert larger(methods, CLASS_METHODS) == [], "divide these classes by meaning"


def test_few_functions_have_over_40_lines_and_not_more() -> None:
    lines = (
        (node.end_lineno - node.lineno + 1, place)
        for place, node in definitions()
        if isinstance(node, Function) and node.end_lineno is not None
    )
    long = larger(lines, FUNCTION_LINES)
    listed = "\n".join(f"{count:4} {place}" for count, place in long)
    assert len(long) <= LONG_FUNCTIONS, f"divide one of these, or a new one, by meaning:\n{listed}"
    assert len(long) == LONG_FUNCTIONS, f"there are fewer: set LONG_FUNCTIONS to {len(long)}"
