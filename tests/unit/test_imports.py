"""Imports go downwards only: spe <- operators <- consistency <- replicas; names are unique."""

from __future__ import annotations

import ast
import re
import tokenize
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLOORS = {"spe": 1, "operators": 2, "consistency": 3, "replicas": 4}
SPARK, CLI, KIT = (ROOT / "replicas" / name for name in ("spark", "cli", "testing"))
FILES = sorted(p for floor in FLOORS for p in (ROOT / floor).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Imports and classes, wherever they stand."""
    return [n for n in ast.walk(parsed(path)) if isinstance(n, ast.Import | ast.ImportFrom | ast.ClassDef)]


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_imports_go_downwards() -> None:
    upward = {
        str(path.relative_to(ROOT)): names
        for path in FILES
        if (names := [n for n in imported(path) if FLOORS.get(n, 0) > FLOORS[path.relative_to(ROOT).parts[0]]])
    }
    assert upward == {}


def test_modules_do_not_import_each_other_in_circles() -> None:
    modules = {module_of(path): path for path in FILES}
    graph = TopologicalSorter({name: modules_imported(path, set(modules)) - {name} for name, path in modules.items()})
    graph.prepare()


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules_imported(path: Path, known: set[str]) -> set[str]:
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inside & known or {node.module}
    return names & known


def test_nothing_below_imports_the_command_line() -> None:
    assert [
        p for p in FILES if not p.is_relative_to(CLI) and re.search(r"(from|import) replicas\.cli\b", p.read_text())
    ] == []


def test_only_the_spark_entry_point_imports_the_spark_package() -> None:
    users = [p for p in FILES if not p.is_relative_to(SPARK) and "replicas.spark" in p.read_text()]
    assert users == []
    assert "replicas.spark" in (ROOT / "pyspark_spe.py").read_text()


def test_test_kit_is_not_imported() -> None:
    users = [
        p for p in FILES if not p.is_relative_to(KIT) and re.search(r"(from|import) \w+\.testing\b", p.read_text())
    ]
    assert users == []


def test_the_test_kit_imports_hypothesis_only_for_strategies() -> None:
    for path in FILES:
        top = [n for n in parsed(path).body if isinstance(n, ast.Import | ast.ImportFrom)]
        names = {a.name for n in top for a in n.names} | {getattr(n, "module", None) or "" for n in top}
        assert not any(name.split(".")[0] == "hypothesis" for name in names), path


def test_a_node_imports_neither_spark_nor_arrow() -> None:
    """pyspark, pyarrow, pandas and the proof may only be imported inside a function; the proof itself may."""
    for path in FILES:
        if path.relative_to(ROOT).parts[:2] == ("consistency", "proof") or path.is_relative_to(SPARK):
            continue
        for node in parsed(path).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [a.name for a in node.names] + [getattr(node, "module", None) or ""]
                assert not any(n.split(".")[0] in {"pyspark", "pyarrow", "pandas"} for n in names), path
                assert not any(n.startswith("consistency.proof") for n in names), path


#: A module or what is in one, as comments and docstrings name it; without what only looks like it, such as spe.yaml.
REFERENCE = re.compile(r"(?<![\w./~-])(?:spe|operators|consistency|replicas)(?:\.[A-Za-z_]\w*)+(?![\w/])")
OTHER = {"spe.yaml"}
IMPORT = re.compile(r"^ *from [\w.]+ import ", re.MULTILINE)


def test_modules_that_comments_name_exist() -> None:
    missing: dict[str, list[str]] = {}
    for path in FILES:
        named = set(REFERENCE.findall("\n".join(comments_and_texts(path))))
        for name in sorted(named - OTHER):
            parts = name.split(".")
            found = max(n for n in range(1, len(parts) + 1) if is_module(parts[:n]))
            if found == 1 or not defines(parts[:found], parts[found:]):
                missing.setdefault(str(path.relative_to(ROOT)), []).append(name)
    assert missing == {}


def comments_and_texts(path: Path) -> list[str]:
    if not REFERENCE.search(IMPORT.sub("", path.read_text())):  # most files: only their imports have such names
        return []
    with path.open("rb") as file:
        return [t.string for t in tokenize.tokenize(file.readline) if t.type in (tokenize.COMMENT, tokenize.STRING)]


def is_module(parts: list[str]) -> bool:
    at = ROOT.joinpath(*parts)
    return at.is_dir() or at.with_suffix(".py").is_file()


def defines(module: list[str], inside: list[str]) -> bool:
    """Does the text of a module, or of a package's first file, have these names?"""
    at = ROOT.joinpath(*module)
    text = (at / "__init__.py" if at.is_dir() else at.with_suffix(".py")).read_text()
    return all(re.search(rf"\b{name}\b", text) for name in inside)


#: Pure packages: their functions take and return values; time and randomness are passed in.
PURE_FOLDERS = [ROOT / "operators", ROOT / "consistency" / "dpc", ROOT / "replicas" / "planning"]
PURE = [p for p in FILES if any(p.is_relative_to(folder) for folder in PURE_FOLDERS)]
FORBIDDEN = {"time", "random", "socket", "threading", "trio", "os", "uuid", "asyncio"}


def test_pure_packages_use_no_time_randomness_or_io() -> None:
    for path in PURE:
        allowed = {"random"} if path.name == "partners.py" else set()  # the type of the seeded source that is passed in
        assert not imported(path) & (FORBIDDEN - allowed), path


def test_public_class_names_are_unique() -> None:
    """So that a name always means the same class."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_classes_of_the_glossary_exist() -> None:
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    named = re.findall(r"^\* \*\*.+?\*\* \(`(\w+)`\)", text, re.MULTILINE)
    classes = {n.name for p in FILES for n in nodes(p) if isinstance(n, ast.ClassDef)}
    assert len(named) > 20
    assert [name for name in named if name not in classes] == []
