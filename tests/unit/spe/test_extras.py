"""Extras: what a configuration needs, and how messages and pages say to install it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from replicas.cli.app import execute
from spe import extras
from spe.connectors import READERS, SINKS

ROOT = Path(__file__).parents[3]
CONFIG = """
sources:
  shop: {schema: {at: timestamp!}, time: at, from: {postgres: orders}, late: {delta: /lake/late}}
  files: {schema: {at: timestamp!}, time: at, from: {directory: in, format: parquet}}
  events: {schema: {at: timestamp!}, time: at, from: {sse: "http://shop/events"}}
query: {out: {union: [shop, files, events]}}
clients: {c: {reads: [out], sinks: [{kafka: {servers: "b:9092", topic: t}}, {jsonl: results}]}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(CONFIG)
    return path


def test_check_names_missing_extras(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    assert execute(["check", str(config)]) == 0
    assert capsys.readouterr().out.partition("\nEXTRAS\n")[2].splitlines() == [
        "  missing: sources.shop.from: postgres needs the extra postgres: pip install '.[postgres]'",
        "  missing: sources.files.from: parquet needs the extra parquet: pip install '.[parquet]'",
        "  missing: sources.events.from: sse needs the extra http: pip install '.[http]'",
        "  missing: sources.shop: delta needs the extra delta: pip install '.[delta]'",
        "  missing: clients.c.sinks: kafka needs the extra kafka: pip install '.[kafka]'",
    ]


def test_check_says_nothing_of_installed_extras(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for modules in extras.MODULES.values():
        for module in modules:
            pytest.importorskip(module)
    assert execute(["check", str(config)]) == 0
    assert "EXTRAS" not in capsys.readouterr().out


def test_modules_are_of_extras_that_exist() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        offered = tomllib.load(file)["project"]["optional-dependencies"]
    for extra, modules in extras.MODULES.items():
        wanted = " ".join(offered[extra]).replace("-", "_")
        assert [m for m in modules if m not in wanted] == []


def test_other_connectors_need_no_extra() -> None:
    """Each kind without an extra can be imported where no extra is installed."""
    known = {*extras.MODULES, *extras._OTHER}
    plain = [kind for kind in READERS if kind not in known]
    assert {kind for kind in SINKS if kind not in known} == {"jsonl"}
    code = (
        "import sys\n"
        f"for modules in {tuple(extras.MODULES.values())}:\n"
        "    sys.modules |= dict.fromkeys(modules)\n"
        "from spe.connectors import READERS\n"
        "from spe.connectors.installed_connectors import construction\n"
        f"for kind in {plain}: construction(READERS[kind])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_text_names_a_distribution_that_no_index_has() -> None:
    files = [p for top in ("spe", "replicas", "consistency", "docs", "examples") for p in (ROOT / top).rglob("*")]
    texts = [ROOT / "README.md", *(p for p in files if p.suffix in (".py", ".md"))]
    assert [
        str(p) for p in texts if "tentative-spe[" in p.read_text() or "install tentative-spe" in p.read_text()
    ] == []
