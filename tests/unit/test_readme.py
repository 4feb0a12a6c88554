"""README and docs: every example runs, every named thing exists, and the pages stay short."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import pytest
import trio
import trio.testing
import yaml

from replicas.cli.app import app
from replicas.faults.model import load_faults_text
from replicas.reference import reference_rows
from replicas.simulation.world.clock import JumpClock
from replicas.source.reference_stream import reference_elements
from replicas.testing import OperatorHarness
from spe.config import load_plan, load_plan_text, load_text
from spe.errors import ConfigError
from spe.log.source_log import read_source_log
from spe.plan.deploy import Deployed, with_addresses
from spe.plan.plan import Plan
from spe.plan.review import review
from spe.stream.names import StreamId
from tests.support.faulty_cluster import FaultyCluster

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / name
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests/rules.md", "tests/mutants/README.md")
] + sorted([*DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
#: Generated pages, whose length does not count.
GENERATED = {DOCS / page for page in ("reference/api.md", "reference/command-line.md")}

FOLDERS = ("spe", "operators", "consistency", "replicas", "tests", "configs", "docs", "benchmarks", "examples")
#: Paths of modules, whole and from any folder on.  The last ones are the reader's own.
MODULES = {
    "/".join(file.relative_to(ROOT).parts[start:])
    for folder in FOLDERS
    for file in (ROOT / folder).rglob("*.py")
    for start in range(len(file.relative_to(ROOT).parts))
} | {"shop_operators.py", "shop.py", "test_shop.py"}

LINES_OF_README = 200
LINES_OF_CHANGELOG = 80
WORDS = 26_300
#: All Markdown of the project, with tables and what is generated into pages.
WORDS_OF_MARKDOWN = 50_000


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(language: str, *pages: str) -> list[str]:
    return [
        block
        for page in pages
        for block in re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
    ]


(SMALLEST,) = blocks("yaml", "README.md")
SHOP, FAULTS = blocks("yaml", "docs/tutorials/own-query.md")
PARTS = blocks("yaml", "docs/how-to/real-input.md", "docs/how-to/several-machines.md", "docs/how-to/own-operators.md")
(BUILDER,) = blocks("python", "docs/tutorials/python.md")
READING, NOTEBOOK = [b for b in blocks("python", "docs/how-to/read-results.md") if "connect" in b]
(OPERATOR,) = [b for b in blocks("python", "docs/how-to/own-operators.md") if "class Records" in b]
(KEYED,) = [b for b in blocks("python", "docs/how-to/own-operators.md") if "KeyedOperator" in b]
(TESTS,) = blocks("python", "docs/how-to/test.md")
COMMANDS = [
    line
    for page in PAGES
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.startswith("spe ")
]


def with_part(part: str) -> str:
    """The shop's configuration with the sections of another example in place of its own."""
    return yaml.safe_dump({**yaml.safe_load(SHOP), **yaml.safe_load(part)}, sort_keys=False)


@pytest.fixture
def operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator of the page, importable as on a node."""
    (tmp_path / "shop_operators.py").write_text(OPERATOR, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shop_operators", raising=False)


def reading(cluster: FaultyCluster) -> ModuleType:
    """The page's program, which finds the simulated cluster."""
    module = ModuleType("reading")
    exec(compile(READING, "read-results.md", "exec"), module.__dict__)
    connect, env = module.__dict__["connect"], cluster.env("client:program")
    deployed = Deployed(cluster.plan, cluster.directory)
    module.__dict__["connect"] = lambda config, client: connect(deployed, client=client, env=env)
    return module


def answer(plan: Plan) -> Any:
    """What ``spe reference`` computes."""
    return reference_rows(plan, {s: reference_elements(source) for s, source in plan.sources.items()})


# -- examples


@pytest.mark.parametrize("text", [SMALLEST, SHOP], ids=["smallest", "shop"])
def test_complete_configurations_have_no_warnings(text: str) -> None:
    assert review(*load_text(text)) == []


def test_every_numbered_line_is_explained() -> None:
    numbers = [int(n) for n in re.findall(r"# +(\d+)$", SHOP, re.MULTILINE)]
    explained = [int(n) for n in re.findall(r"^\| (\d+) \| ", text_of("docs/tutorials/own-query.md"), re.MULTILINE)]

    assert numbers == explained == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("recipe", sorted((ROOT / "configs/cookbook").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_recipe_of_the_cookbook_has_results(recipe: Path) -> None:
    text = recipe.read_text(encoding="utf-8").replace("duration: 30s", "duration: 12s")
    assert review(*load_text(text)) == []
    assert all(len(ids) for ids, _ in answer(load_plan_text(text)).values())


@pytest.mark.parametrize("part", PARTS, ids=lambda p: p.splitlines()[1].strip())
def test_other_pieces_of_configuration_fit_without_a_warning(part: str, operators: None) -> None:
    assert review(*load_text(with_part(part))) == []


def test_the_faults_are_faults_of_this_cluster() -> None:
    assert [str(f) for f in load_faults_text(FAULTS, "faults.yaml", load_text(SHOP).directory)] == [
        "kill n1 for 4s",
        "cut source:shop_b for 5s",
    ]


def test_the_python_builder_makes_the_plan_of_the_file() -> None:
    names: dict[str, Any] = {}
    exec(compile(BUILDER, "python.md", "exec"), names)

    assert names["env"].plan() == load_plan_text(SHOP)
    assert load_plan_text(names["env"].to_yaml()) == names["env"].plan()


def test_the_mistake_of_the_tutorial_gives_its_message(tmp_path: Path) -> None:
    shown = re.findall(r"`(shop\.py:\d+: [^`]*)`", text_of("docs/tutorials/python.md"))
    (tmp_path / "shop.py").write_text(BUILDER.replace("value >=", "valu >="), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_plan(tmp_path / "shop.py")

    assert [p.splitlines()[0].removeprefix(f"{tmp_path}/") for p in caught.value.problems] == shown


def test_the_results_are_the_three_best_of_every_window() -> None:
    ((ids, rows),) = answer(load_plan_text(SHOP)).values()
    names = load_plan_text(SHOP).query.schema_of(StreamId("best")).names

    assert len(ids) == 57  # 30 s are in 19 windows of 10 s that begin every 2 s
    assert [row[names.index("rank")] for row in rows.to_tuples()] == [1, 2, 3] * 19


def test_the_documented_operator_passes_only_records(operators: None) -> None:
    (part,) = [p for p in PARTS if "shop_operators" in p]
    ((_, rows),) = answer(load_plan_text(with_part(part))).values()
    values = [value for _, value in rows.to_tuples()]

    assert len(values) > 3
    assert values == sorted(set(values))


def test_the_documented_operator_with_keys_passes_only_changes() -> None:
    names: dict[str, Any] = {}
    exec(compile(OPERATOR + KEYED, "own-operators.md", "exec"), names)
    changes = OperatorHarness(names["Changes"], "product string, value float64")
    found = changes.check("_time product value \n 1s tea 3 \n 2s - 3 \n 3s tea 3 \n 4s - 2 \n 5s tea 5 \n 6s - 2")
    assert [(row["product"], row["value"]) for row in found] == [("tea", 3), (None, 3), (None, 2), ("tea", 5)]


@pytest.mark.parametrize("name", re.findall(r"^def (test_\w+)", TESTS, re.MULTILINE))
def test_the_documented_tests_pass(name: str, operators: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.yaml").write_text(SHOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(TESTS, "test.md", "exec"), names)
    names[name]()


@asynccontextmanager
async def running_shop() -> AsyncIterator[FaultyCluster]:
    """The shop in virtual time with fewer orders; the page's program replaces its client."""
    smaller = SHOP.replace("start: 2026-01-01T12:00:00, duration: 30s", "duration: 14s").replace("00, keys", "0, keys")
    plan, directory = load_text(smaller)
    directory = with_addresses(directory, {name: f"{name.replace(':', '-')}:1" for name in directory.addresses()})
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(0.1)
            cluster.kill("client:board")
            yield cluster


def logged_answer(cluster: FaultyCluster) -> list[tuple[Any, ...]]:
    """The reference results from the sources' logs."""
    inputs = {
        s: read_source_log(cluster.env(f"source:{s}").storage, PurePosixPath(s), source.schema)
        for s, source in cluster.plan.sources.items()
    }
    ((_, rows),) = reference_rows(cluster.plan, inputs).values()
    return rows.to_tuples()


async def test_the_client_ends_with_the_reference_results(
    jump_clock: JumpClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async def cut_for_longer_than_x() -> None:
        await trio.sleep(4)
        cluster.cut("source:shop_b", "*")
        await trio.sleep(5)
        cluster.heal()

    async with running_shop() as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(cut_for_longer_than_x)
        await reading(cluster).watch()
    printed = capsys.readouterr().out.splitlines()
    final = [ast.literal_eval(line) for line in map(str.strip, printed) if line.startswith("{")]

    assert any(line.startswith("? ") for line in printed)
    assert any(line.startswith("< ") for line in printed)
    assert [tuple(record.values()) for record in final] == logged_answer(cluster)


# -- what the pages name


def test_every_command_of_the_command_line_is_shown_and_exists() -> None:
    assert {line.split()[1] for line in COMMANDS} == {name for name in app if not name.startswith("-")}


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_line_parses(line: str) -> None:
    app.parse_args(line.partition("#")[0].split()[1:], exit_on_error=False, print_error=False)


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) < LINES_OF_README


def test_all_pages_together_are_short() -> None:
    """A word has a letter or a digit.  What is generated into a page, between markers, does not count."""
    words = {}
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        if page not in GENERATED:
            text = re.sub(r"<!-- generated: .*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
            words[str(page.relative_to(ROOT))] = len(re.findall(r"\S*\w\S*", text))

    assert sum(words.values()) <= WORDS, words


def test_the_changelog_is_one_page() -> None:
    assert len(text_of("CHANGELOG.md").splitlines()) <= LINES_OF_CHANGELOG


def test_all_markdown_together_is_short() -> None:
    files = [*ROOT.glob("*.md"), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.md"))]
    words = {str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").split()) for file in files}

    assert {"CHANGELOG.md", "tests/rules.md", "docs/reference/status.md"} <= words.keys()
    assert sum(words.values()) <= WORDS_OF_MARKDOWN, words


def test_the_longest_delay_has_one_name() -> None:
    """In pages, reports, views and metrics."""
    files = [path for end in ("py", "js", "json", "md") for path in (*DOCS.rglob(f"*.{end}"), *code(end))]
    assert len(files) > 400
    others = re.compile("(largest|worst|maximum) delay", re.IGNORECASE)
    assert [str(path) for path in files if others.search(path.read_text(encoding="utf-8"))] == []


def code(end: str) -> list[Path]:
    return [path for folder in ("spe", "consistency", "replicas") for path in (ROOT / folder).rglob(f"*.{end}")]


def test_the_index_links_to_every_page_once() -> None:
    """The site makes its list of pages of them (docs/conf.py)."""
    linked = re.findall(r"\]\(([\w/-]+\.md)\)", text_of("docs/index.md"))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}
    assert sorted(linked) == sorted(pages)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_have_targets(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", page.read_text(encoding="utf-8")):
        path, anchor = target
        if path.startswith("http"):
            continue
        file = page if not path else (page.parent / path)
        if not file.exists():
            broken.append(path)
        elif anchor and anchor[1:] not in anchors(file):
            broken.append(path + anchor)

    assert broken == []


def anchors(file: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_named_code_exists(page: Path) -> None:
    """``path/file.py::Class.method``, paths of files and folders, and modules by their last names."""
    missing = []
    text = page.read_text(encoding="utf-8")
    for path, name in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w/.-]*)(?:::([\w.]+))?`", text):
        if not (ROOT / path).exists():
            missing.append(path)
        elif name and not _exists(path, name):
            missing.append(f"{path}::{name}")
    if page.name != "CHANGELOG.md":
        missing += set(re.findall(r"`([\w/]+\.py)`", text)) - MODULES

    assert missing == []


def _exists(path: str, name: str) -> bool:
    found: Any = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_named_tests_exist(page: Path) -> None:
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
    }

    assert set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))) - there == set()


def test_every_cited_rule_is_explained() -> None:
    """In comments rules stand in brackets, ``(U2)``, ``(F3, A1)``; docs/internals/rules.md explains each."""
    rules = set(re.findall(r"^\* \*\*([USWBTCRKVFAHDLOG]\d+)", text_of("docs/internals/rules.md"), re.MULTILINE))
    cited = {
        rule
        for package in ("spe", "operators", "consistency", "replicas")
        for file in (ROOT / package).rglob("*.py")
        for group in re.findall(r"\(((?:[USWBTCRKVFAHDLOG]\d+(?:, | and )?)+)\)", file.read_text(encoding="utf-8"))
        for rule in re.findall(r"[A-Z]\d+", group)
    }

    assert cited - rules == set()
