"""Connectors of other packages: found by entry points, declared like the built-in ones, loaded when they are named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from replicas.connectors import open_reader
from replicas.connectors.sink_registry import open_sink
from replicas.simulation.scenarios.configured_scenario import configuration_to_simulate
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from spe.config import load_text
from spe.config.document import Document
from spe.config.load import load_document
from spe.connectors.installed_connectors import installed
from spe.errors import ConfigError
from spe.plan.deploy import Deployed
from spe.plan.draw import check_text
from spe.runtime.storage import in_folder
from spe.stream.times import SECOND
from tests.support.installed import install

POINTS = {"shelf": "shelf:READER", "broken": "shelf:NOTHING", "none": "shelf:Options", "other": "shelf:READER",
          "empty": "shelf:NO_STATES", "absent": "no_such_module:X"}  # fmt: skip


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in ("shelf", "shelf.impl"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    install(monkeypatch, tmp_path, POINTS, {"shelf": "shelf:SINK"})
    yield
    installed.cache_clear()


def loaded(source: str = "generator: {name: orders, count: 5}", sink: str = "jsonl: out") -> Deployed:
    schema = "" if "generator" in source else "schema: {ts: timestamp!, n: int64!}, time: ts, "
    return load_text(
        f"sources:\n  s: {{{schema}from: {{{source}}}}}\nquery:\n  q: {{filter: {{from: s, where: 1 = 1}}}}\n"
        f"clients:\n  c: {{sinks: [{{{sink}}}]}}\n",
        "test.yaml",
    )


def problems(source: str = "generator: {name: orders, count: 5}", sink: str = "jsonl: out") -> list[str]:
    with pytest.raises(ConfigError) as error:
        loaded(source, sink)
    return list(error.value.problems)


SHELF = "shelf: {address: 'here:1'}"


def test_a_reader_of_a_package_is_configured_as_a_built_in_one() -> None:
    plan, directory = loaded(f"{SHELF}, format: csv")
    (source,) = plan.sources.values()
    assert source.reader == {"kind": "shelf", "address": "here:1", "row": 1, "format": "csv"}
    assert source.live
    assert source.idle_us == 500_000
    assert "shelf" in check_text(plan, directory)


def test_a_sink_of_a_package_is_configured_with_its_options() -> None:
    plan, directory = loaded(sink="shelf: {address: 'here:1', row: 3}, mode: current")
    assert directory.clients["c"].sinks == ({"kind": "shelf", "address": "here:1", "row": 3, "mode": "current"},)
    assert "shelf here:1, 3 (current)" in check_text(plan, directory)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "shelf: {address: here}",
            "sources.s.from.shelf.address: expected host:port such as 127.0.0.1:7101, got 'here'",
        ),
        ("shelf: {address: 'a:1', rows: 2}", "sources.s.from.shelf.rows: unknown key (did you mean 'row'?)"),
        ("shelf: {address: 'a:1', row: 0}", "sources.s.from.shelf.row: expected a number of at least 1, got 0"),
        (f"{SHELF}, header: false", "header does not go with shelf; expected one of: format"),
        (
            f"{SHELF}, jsonl: a",
            "one of csv, jsonl, parquet, arrow, avro, directory, generator, tcp, stdin, http, sse, push, "
            "kafka, postgres, shelf",
        ),
        (
            "shlf: {address: 'a:1'}",
            "sources.s.from.shlf: no reader 'shlf' (did you mean 'shelf'?); expected one of: csv",
        ),
        (
            "shlf: {address: 'a:1'}",
            "postgres; installed: absent (shelves 1.0), broken (shelves 1.0), empty (shelves 1.0)",
        ),
        ("broken: {}", "connector 'broken' of shelves 1.0 (tentative_spe.readers: broken = shelf:NOTHING) cannot be"),
        ("absent: {}", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("none: {}", "= shelf:Options) is a pydantic"),
        ("none: {}", "expected a spe.connectors.declaration.Reader"),
        (
            "other: {}",
            "connector 'other' of shelves 1.0 (tentative_spe.readers: other = shelf:READER) declares the kind",
        ),
        ("empty: {}", "has no opens; expected module:Class"),
    ],
)
def test_mistakes_name_the_place_or_the_package(source: str, said: str) -> None:
    assert any(said in problem for problem in problems(source)), problems(source)


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (f"{SHELF}, mode: corrections", "shelf has no mode 'corrections'; expected one of: stable, current"),
        ("jsonl: out, mode: current", "jsonl has no mode 'current'; expected one of: stable, corrections"),
        ("shelf: {}", "clients.c.sinks[0].shelf.address: is missing"),
        (
            "shel: {}",
            "clients.c.sinks[0].shel: no sink 'shel' (did you mean 'shelf'?); expected one of: parquet, jsonl, delta",
        ),
        (
            f"{SHELF}}}, {{{SHELF}, mode: current",
            "two sinks of one kind write to 'here:1, 1'; expected a place for each",
        ),
    ],
)
def test_mistakes_in_sinks_have_their_place(sink: str, said: str) -> None:
    assert any(said in problem for problem in problems(sink=sink)), problems(sink=sink)


def test_resources_of_a_connector_are_imported_when_opened(tmp_path: Path) -> None:
    plan, directory = loaded(SHELF, SHELF)
    assert "shelf.impl" not in sys.modules
    (source,) = plan.sources.values()
    with pytest.raises(
        ConfigError, match=r"connector 'shelf': shelf.impl:ShelfReader cannot be imported: ModuleNotFound"
    ):
        open_reader(source)
    (tmp_path / "shelf" / "impl.py").write_text(
        "class ShelfReader:\n    def __init__(self, *given):\n        self.given = given\n"
        "class ShelfSink:\n    def __init__(self, *given): pass\n"
    )
    reader = open_reader(source)
    assert vars(reader)["given"] == (source.schema, "ts", source.reader)
    with pytest.raises(
        ConfigError, match=r"sink 'shelf': shelf.impl:ShelfSink made a ShelfSink; expected a ServerSink"
    ):
        open_sink(directory.clients["c"].sinks[0], {}, in_folder)


def test_two_packages_with_one_kind_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, {"shelf": "shelf:READER"}, {}, name="rivals")
    (problem,) = problems(SHELF)
    assert "both have a connector 'shelf' (tentative_spe.readers); remove one" in problem
    assert "rivals 1.0" in problem
    assert "shelves 1.0" in problem


def test_without_packages_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spe.connectors.installed_connectors.entry_points", lambda group: ())
    installed.cache_clear()
    (problem,) = problems("shelf: {}")
    assert "postgres; no package that is installed has another one" in problem


def test_a_simulated_run_opens_nothing() -> None:
    """The rows of a live reader are made up, and a sink on a server is left out."""
    config = {
        "sources": {"s": {"schema": {"ts": "timestamp!", "n": "int64!"}, "time": "ts", "from": yaml.safe_load(SHELF)}},
        "query": {"q": {"filter": {"from": "s", "where": "1 = 1"}}},
        "clients": {"c": {"sinks": [yaml.safe_load(SHELF), {"jsonl": "out"}]}},
    }
    document = Document("test.yaml", config)
    changed, said = configuration_to_simulate(document, load_document(document), SECOND)
    assert changed["clients"]["c"]["sinks"] == [{"jsonl": "out"}]
    assert said == ["s: shelf is live; made-up rows of its schema instead, 50 a second"]
    assert simulate(Scenario(seed=1, config=changed, heal_us=SECOND)).findings == []
    assert "shelf.impl" not in sys.modules
