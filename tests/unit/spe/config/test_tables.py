"""Declarations are complete, the documentation is generated from them, and its example of a new operator works."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from consistency.proof.recorded import query_file as reading
from operators import build
from replicas.reference import reference_rows
from replicas.source.reference_stream import reference_elements
from spe.config import load_data, load_plan_text, load_text
from spe.connectors import READERS, SINKS
from spe.connectors.declaration import CURRENT, OPTIONS, Reader, SinkDeclaration
from spe.connectors.installed_connectors import construction
from spe.errors import ConfigError
from spe.plan.draw import check_text
from spe.query.operators import OPERATORS
from spe.stream.schema import Schema
from tests.support.doc_tables import TABLES, filled
from tests.support.operators import check_contract, make, text, tuples

ROOT = Path(__file__).parents[4]
DOCS = ROOT / "docs"
FILES = [
    path
    for floor in ("spe", "operators", "consistency", "replicas")
    for path in sorted((ROOT / floor).rglob("*.py"))
    if path.parent != ROOT / "spe" / "query" / "operators" and path.name != "replan.py"
]
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "<!-- generated: " in page.read_text(encoding="utf-8")]
CONFIG = """
sources:
  orders: {from: {generator: {name: orders, rate: 50, duration: 2s}}}
query:
  thinned: {sample: {from: orders, every: 10}}
"""
#: Of a source whose reader is shown alone.
ATTRIBUTES = {"schema": {"ts": "timestamp!", "text": "string"}, "time": "ts", "disorder": "1s"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_generated_tables_are_up_to_date(page: Path) -> None:
    """``python -m tests.support.doc_tables docs/*/*.md`` makes them."""
    written = page.read_text(encoding="utf-8")
    assert filled(written) == written


def test_every_table_is_on_a_page() -> None:
    written = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall("<!-- generated: (.*?) -->", written)) == set(TABLES)


@pytest.mark.parametrize("keyword", OPERATORS)
def test_every_key_has_a_description(keyword: str) -> None:
    fields = OPERATORS[keyword].KEYS.model_fields
    assert [name for name, field in fields.items() if not field.description] == []
    assert OPERATORS[keyword].GUARANTEES


@pytest.mark.parametrize("keyword", OPERATORS)
def test_every_operator_has_an_implementation_and_a_proof(keyword: str) -> None:
    assert OPERATORS[keyword] in build._CONSTRUCTIONS
    assert keyword in reading._OPERATORS


def test_no_code_distinguishes_operators_by_class() -> None:
    """All facts about an operator are in its declaration.  One simulated fault (replan.py) changes a query."""
    specs = {declared.__name__ for declared in OPERATORS.values()}
    assert [path.name for path in FILES if specs & told_apart(ast.parse(path.read_text(encoding="utf-8")))] == []


def told_apart(tree: ast.Module) -> set[str]:
    """Names of classes in ``isinstance`` calls and patterns."""
    asked: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            asked += ast.walk(node.args[1])
        elif isinstance(node, ast.MatchClass):
            asked.append(node.cls)
    return {name.id for name in asked if isinstance(name, ast.Name)}


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module on the page."""
    page = (DOCS / "internals" / "new-operator.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "sample_operator.py").write_text(block, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sample_operator", raising=False)
    yield importlib.import_module("sample_operator")
    del OPERATORS["sample"]


def test_the_new_operator_of_the_page_runs(sample: Any) -> None:
    plan, directory = load_text(CONFIG)
    assert "one in 10 of orders" in check_text(plan, directory)
    orders = reference_elements(plan.sources[plan.query.operators[0].spec.inputs[0]])
    found = reference_rows(plan, {"orders": orders})  # type: ignore[dict-item]
    assert sum(len(rows) for _, rows in found.values()) == 10


def test_the_new_operator_of_the_page_keeps_the_contract(sample: Any) -> None:
    schema = Schema.of(n="int64!")
    rows = tuples(schema, "1 1 \n 2 2 \n 2 3 \n 5 4 \n 6 5 \n 7 6")
    spec = sample.SampleSpec("in", 2)
    out = check_contract(lambda: make(spec, schema), [schema], [rows], [(2, False), (4, True), (6, False)])
    assert text(out) == "2 2\n5 4\n7 6"


def test_mistakes_in_the_operator_of_the_page_have_their_place(sample: Any) -> None:
    with pytest.raises(ConfigError) as error:
        load_plan_text(CONFIG.replace("every: 10", "every: 0, evrey: 3"), "shop.yaml")
    assert str(error.value).splitlines() == [
        "shop.yaml:5: query.thinned.sample.every: expected a number of at least 1, got 0",
        "shop.yaml:5: query.thinned.sample.evrey: unknown key (did you mean 'every'?); expected one of: from, every",
    ]


@pytest.mark.parametrize("declared", [*READERS.values(), *SINKS.values()], ids=lambda one: one.opens)
def test_every_connector_has_an_implementation(declared: Reader | SinkDeclaration) -> None:
    assert construction(declared)


@pytest.mark.parametrize(
    "declared", [*READERS.values(), *SINKS.values()], ids=lambda one: f"{type(one).__name__} {one.kind}"
)
def test_connectors_have_guarantees_and_a_loadable_example(declared: Reader | SinkDeclaration) -> None:
    assert declared.guarantees is not None
    assert all([*declared.guarantees[:3], *declared.guarantees.failures.values()])
    source: dict[str, Any] = {"from": {"generator": "orders"}}
    client: dict[str, Any] = {}
    if isinstance(declared, Reader):
        source = ATTRIBUTES | yaml.safe_load(declared.example)
    else:
        client = yaml.safe_load(declared.example)
        assert (CURRENT in declared.modes) != bool(declared.not_current)  # why it does not have it
    config = {"sources": {"s": source}, "query": {"q": {"filter": {"from": "s", "where": "true"}}}}
    plan, directory = load_data({**config, "clients": {"c": {"reads": ["q"], **client}}}, "the example")
    if isinstance(declared, Reader):
        (found,) = [one.reader for one in plan.sources.values()]
    else:
        (found,) = directory.clients["c"].sinks
    assert found["kind"] == declared.kind


def _pieces() -> list[Any]:
    """Pieces of configuration in the pages of connectors."""
    pages = [f"how-to/{page}.md" for page in ("delta", "directories", "http", "kafka", "postgres", "spark")]
    return [
        pytest.param(yaml.safe_load(block), id=f"{page} {at}")
        for page in [*pages, "explanation/live.md"]
        for at, block in enumerate(
            re.findall(r"^```yaml\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
        )
    ]


@pytest.mark.parametrize("piece", _pieces())
def test_pieces_of_configuration_in_the_pages_of_connectors_load(piece: dict[str, Any]) -> None:
    if not piece.keys() & {"sources", "clients"}:  # the options of one connector
        piece = {"sources": {"s": {**ATTRIBUTES, "from": {"kafka": {"servers": "b:1", "topics": "t", **piece}}}}}
    sources = piece.get("sources", {"s": {"from": {"generator": "orders"}}})
    query = {"totals": {"filter": {"from": next(iter(sources)), "where": "true"}}}
    load_data({"sources": sources, "query": query, "clients": piece.get("clients", {})}, "the page", ".")


@pytest.mark.parametrize("kind", READERS)
def test_options_of_a_reader_are_declared(kind: str) -> None:
    assert set(READERS[kind].options) <= set(OPTIONS)
    assert READERS[kind].about
