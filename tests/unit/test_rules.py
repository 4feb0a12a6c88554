"""Each rule of the protocol has tests, and one of them at least is played by `make test`."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULE = re.compile(r"^\* \*\*([A-Z]\d+[a-z]?)\b", re.MULTILINE)
ID = r"[A-Z]\d+[ab]?"
#: In parentheses, or at the beginning of an assertion's text.
CITATION = re.compile(rf"\((?:rules? )?({ID}(?:(?:, and |, | and | to |-){ID})*)\)|\"({ID}): ")
ROW = re.compile(r"^\| (?!rule )([^|]+) \| (.+) \|$", re.MULTILINE)


def rows() -> dict[str, list[str]]:
    """Rule -> names of tests, and of files whose tests are all about it."""
    found = ROW.findall((ROOT / "tests" / "rules.md").read_text())
    return {rule: re.findall(r"`(test_\w+|tests/[\w/]+\.py)`", names) for rule, names in found}


def is_long(mark: ast.AST) -> bool:
    """Is it ``pytest.mark.long``, or a list with it?"""
    return any(isinstance(n, ast.Attribute) and n.attr == "long" for n in ast.walk(mark))


@cache
def played() -> dict[str, bool]:
    """Name of a test, and path of a file -> does `make test` play it, or at least some of its cases?"""
    found: dict[str, bool] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        body = ast.parse(path.read_text()).body
        marks = [n.value for n in body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark"]
        all_long = any(map(is_long, marks))
        found[str(path.relative_to(ROOT))] = not all_long
        for node in [*body, *(n for one in body if isinstance(one, ast.ClassDef) for n in one.body)]:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                long = all_long or any(isinstance(d, ast.Attribute) and is_long(d) for d in node.decorator_list)
                found[node.name] = found.get(node.name, False) or not long
    return found


def test_the_tests_of_rules_exist() -> None:
    assert len(rows()) > 100
    assert {rule: gone for rule, names in rows().items() if (gone := [n for n in names if n not in played()])} == {}


def test_each_rule_has_a_row() -> None:
    rules = RULE.findall((ROOT / "docs" / "internals" / "rules.md").read_text())
    named = {name.strip() for rule in rows() for name in rule.split(",")}
    assert 100 < len(rules) <= 110
    assert [rule for rule in rules if rule not in named] == []


def test_code_cites_rules_that_exist() -> None:
    rules = {*RULE.findall((ROOT / "docs" / "internals" / "rules.md").read_text()), "P1", "P2", "P3", "P4"}
    cited = {
        (str(path.relative_to(ROOT)), id)
        for folder in ("spe", "operators", "consistency", "replicas")
        for path in (ROOT / folder).rglob("*.py")
        for match in CITATION.finditer(path.read_text())
        for id in re.findall(ID, match[0])
    }
    assert len(cited) > 300
    assert [(file, id) for file, id in sorted(cited) if id not in rules] == []


def test_every_rule_has_a_test_that_is_not_long() -> None:
    assert [rule for rule, names in rows().items() if not any(played().get(name) for name in names)] == []
