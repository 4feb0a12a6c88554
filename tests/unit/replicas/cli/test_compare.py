"""``spe compare``: what is refused before Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from replicas.cli.app import execute
from spe.errors import SpeError
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support.runs import FILTERED, make_run
from tests.support.streams import parse

CONFIG: dict[str, Any] = {**FILTERED, "clients": {"one": {"reads": ["out"]}, "two": {"reads": ["out"]}}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs, one of which has another attribute, and a table; whoever starts Spark fails."""
    elements = parse("S1/10:10,1 Binf(1)", Schema.of(ts="timestamp", n="int64"))
    make_run(tmp_path / "run", CONFIG, {StreamId("a"): elements})
    other = {**CONFIG, "query": {"out": {"map": {"from": "a", "compute": {"n": "n", "m": "n + 1"}}}}}
    make_run(tmp_path / "other", other, {StreamId("a"): elements})
    (tmp_path / "table.csv").write_text("ts,n\n")
    (tmp_path / "table.txt").write_text("ts,n\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("replicas.cli.report.try_to_start", lambda *args: pytest.fail("Spark is started"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run none.csv", "none.csv: there is no such file or directory"),
        ("none table.csv", "none: there is no such file or directory"),
        ("table.csv run", "table.csv is not the directory of a run: it has no cluster.json; give the run first"),
        ("run empty", "empty has no files: it is neither a run nor a table"),
        ("run table.txt --client one", "cannot see the format of table.txt; say it with --format"),
        ("run table.csv --format avro --client one", "--format: expected one of: parquet, csv, jsonl, got 'avro'"),
        ("run table.csv", "several clients read 'out'; say whose rows count with --client, one of: one, two"),
        ("run table.csv --client three", "no client 'three'"),
        ("run table.csv --client one --output outs", "no output 'outs' (did you mean 'out'?)"),
        ("run table.csv --client one --key m", "no attribute 'm'"),
        ("run table.csv --client one --ignore m", "no attribute 'm'"),
        ("run table.csv --client one --columns n", "--columns: expected ATTRIBUTE=COLUMN, got 'n'"),
        ("run table.csv --client one --tolerance 1", "--tolerance: expected a share from 0 to below 1, got 1"),
        ("run table.csv --client one --conf memory", "--conf: expected NAME=VALUE"),
        ("run other --client one", "output 'out' of the other run has no attribute 'ts'; leave it out with --ignore"),
        ("run other --client one --ignore ts", "output 'out' has no attribute 'm', which it has in the other run"),
        ("run run --client one --columns n=m", "--columns is for tables; the other side is a run"),
        ("run run --client one --time ts", "--time is for tables"),
        ("run run --client one --format csv", "--format is for tables"),
        ("run run --client one --delimiter ;", "--delimiter is for tables"),
    ],
)
def test_incomparable_runs_are_refused_first(
    folder: Path, command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["compare", *command.split()]) == 2
    assert said in capsys.readouterr().err


def test_an_error_goes_into_the_file_for_ci(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is refused first, and of a Spark that does not start: of ``spe report``, too."""
    monkeypatch.setattr("replicas.cli.report.try_to_start", lambda *args: SpeError("there is no Java"))
    for command, said in (
        ("compare run none.csv", "none.csv: there is no such file or directory"),
        ("compare run table.csv --client one", "there is no Java"),
        ("report run", "there is no Java"),
        ("report none", "none: there is no such directory"),
    ):
        assert execute([*command.split(), "--junit", "found.xml"]) == 2
        (error,) = ET.parse(folder / "found.xml").getroot().iter("error")
        assert error.get("message") == said
        (folder / "found.xml").unlink()
