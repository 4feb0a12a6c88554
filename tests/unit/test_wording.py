"""No decision depends on the wording of a text for people, and a text that is empty is no answer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("spe", "operators", "consistency", "replicas")
#: Names that hold a text for people.
TEXTS: Final = frozenset({"error", "why", "reason", "trouble", "complaint"})
#: Modules that read messages of other programs, which give no data.
FOREIGN: Final = frozenset(
    {
        "consistency/proof/session/errors.py",
        "replicas/connectors/formats/file_format.py",
        "replicas/connectors/postgres/session.py",
    }
)
#: Functions that say "allowed" by an empty text, outside of the folders that have none; the number only falls.
EMPTY_MEANS_ALLOWED: Final = 20
CLEAN: Final = ("replicas/placement", "replicas/producer", "replicas/node", "replicas/on_spark", "replicas/link")


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def _is_text(node: ast.expr) -> bool:
    """Is it a text for people, or made of an error?"""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        return _is_text(node.args[0])
    return (isinstance(node, ast.Name) and node.id in TEXTS) or (isinstance(node, ast.Attribute) and node.attr in TEXTS)


def _is_word(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 1


def comparisons(tree: ast.AST) -> list[int]:
    """Lines that compare a text for people with words."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            holds_text = isinstance(node.ops[0], (ast.In, ast.NotIn)) and _is_text(sides[1])
            if (holds_text and not isinstance(sides[0], ast.Tuple)) or (
                isinstance(node.ops[0], (ast.Eq, ast.NotEq)) and any(map(_is_text, sides)) and any(map(_is_word, sides))
            ):
                found.append(node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_text(node.func.value):
            found += [node.lineno] * (node.func.attr in ("startswith", "endswith", "find"))
    return found


def test_the_check_finds_comparisons() -> None:
    for line in (
        'if "refused" in str(error): pass',
        "if word in move.why: pass",
        'if why.startswith("cannot"): pass',
        'if move.reason == "n1 is drained": pass',
    ):
        assert comparisons(ast.parse(line)), line
    for line in ("if why is None: pass", "if error.reason is Reason.SILENT: pass", 'if "why" in fields: pass'):
        assert not comparisons(ast.parse(line)), line


def test_no_decision_depends_on_the_wording_of_a_text() -> None:
    found = [f"{file}:{line}" for file, tree in _modules() if file not in FOREIGN for line in comparisons(tree)]
    assert not found


def test_an_empty_text_does_not_mean_allowed() -> None:
    found = [
        f"{file}:{node.lineno} {node.name}"
        for file, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and re.search(r'\b[Ww]hy\b.*""', (ast.get_docstring(node) or ""), re.DOTALL)
        and isinstance(node.returns, ast.Name)
        and node.returns.id == "str"
    ]
    assert not [one for one in found if one.startswith(CLEAN)]
    assert len(found) <= EMPTY_MEANS_ALLOWED, f"{len(found)} functions: {found}"
