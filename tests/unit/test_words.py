"""Words of the code: docstrings begin with a noun or a verb, names are nouns, test names and commit subjects are short.

The bounds and the allow lists may only shrink: lower a bound when you lower the count.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("spe", "operators", "consistency", "replicas")
FILES = sorted(path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
#: A genitive without a head, or a relative clause in place of a noun.
NO_BEGINNING = re.compile(r"(Of|Whom|Those|Who|Whoever|What|What's)\b")
#: Names that do not say what they hold, and how often each may still be assigned or be a parameter.
VAGUE_NAMES = {"one": 0, "found": 1, "told": 0, "kept": 4, "seen": 1, "said": 0, "given": 0, "of": 1}
#: Module names that are no nouns, and the modules that may still have one.
VAGUE_MODULES = {
    "kept",
    "seen",
    "told",
    "said",
    "given",
    "found",
    "one",
    "beside",
    "meanwhile",
    "quiet",
    "live",
    "whom",
}
ALLOWED_MODULES = {"replicas/spark/live.py"}
LONGEST_TEST_NAME = 60
LONGEST_SUBJECT = 72
#: The commit after which the subjects are in the imperative.
SINCE = "8d8236ce"
SUBJECT = re.compile(r"([a-z][\w/., -]*: )?(?P<verb>\w+)")
#: First words that are no verbs, verbs that end like another form, and older commits with other subjects.
NO_VERBS = re.compile(r"(the|an?|what|who|it|this|these|\w+ed|\w+ing|\w+[^s]s)$", re.IGNORECASE)
VERBS = {"bring", "embed", "feed", "need", "seed", "shed", "speed"}
ALLOWED_COMMITS = {"bc2fe52e", "c35ef737"}


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def docstrings(path: Path) -> list[tuple[str, str]]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = [(getattr(n, "name", path.name), ast.get_docstring(n)) for n in nodes(path) if isinstance(n, kinds)]
    return [(name, text) for name, text in texts if text]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    vague = [f"{p.relative_to(ROOT)} {n}: {t[:60]}" for p in FILES for n, t in docstrings(p) if NO_BEGINNING.match(t)]
    assert vague == []


def test_variables_and_parameters_are_nouns() -> None:
    names: Counter[str] = Counter()
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] += 1
            elif isinstance(node, ast.arg):
                names[node.arg] += 1
    assert {name: names[name] for name in VAGUE_NAMES if names[name] > VAGUE_NAMES[name]} == {}


def test_modules_are_nouns() -> None:
    vague = {path.relative_to(ROOT).as_posix() for path in FILES if path.stem in VAGUE_MODULES}
    assert vague == ALLOWED_MODULES


def test_names_of_tests_are_short() -> None:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    names = [n.name for path in TESTS for n in nodes(path) if isinstance(n, functions)]
    assert [name for name in names if name.startswith("test_") and len(name) > LONGEST_TEST_NAME] == []


def is_imperative(subject: str) -> bool:
    match = SUBJECT.match(subject)
    if match is None or len(subject) > LONGEST_SUBJECT:
        return False
    area, verb = match[1], match["verb"]
    return (bool(area) or verb[0].isupper()) and (verb.lower() in VERBS or NO_VERBS.match(verb) is None)


@pytest.mark.parametrize(
    ("subject", "good"),
    [
        ("Take the default frame limit from spe.wire", True),
        ("proof: remove an unused argument, name two constants", True),
        ("Feed the log", True),
        ("Pass the time in", True),
        ("Say in one line what was counted, in words that make the line longer than it may be", False),
        ("Removes an argument", False),
        ("The wire says how large a frame may be", False),
        ("Removed an unused argument", False),
        ("proof: removing an unused argument", False),
        ("remove an unused argument", False),
    ],
)
def test_an_imperative_is_recognised(subject: str, good: bool) -> None:
    assert is_imperative(subject) == good


def test_subjects_of_commits_are_imperatives() -> None:
    command = ["git", "log", "--no-merges", "--format=%h %s", "--abbrev=8", f"{SINCE}..HEAD"]
    try:
        log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("there is no git")
    if log.returncode != 0:
        pytest.skip(f"the history does not reach back to {SINCE}")
    commits = [line.split(" ", 1) for line in log.stdout.splitlines()]
    assert [s for commit, s in commits if commit not in ALLOWED_COMMITS and not is_imperative(s)] == []
