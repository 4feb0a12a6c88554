"""``spe forget``: sinks on servers begin anew, of a client and of a source."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("deltalake", reason="needs the extra delta")

from deltalake import DeltaTable
from trio.testing import MockClock

from replicas.cli.app import execute
from replicas.connectors.server_sink import NOTHING_KEPT
from replicas.local.run_dir import RunDirectory
from spe.config import load, read_document
from tests.unit.replicas.connectors.delta.test_sink import written

CONFIG = """
sources:
  a: {schema: {at: timestamp!, x: string}, time: at, from: {tcp: "127.0.0.1:7000"}, late: {delta: LATE}}
query: {out: {filter: {from: a, where: x > ''}}}
clients: {c: {reads: [out], sinks: [{delta: TABLE}, {jsonl: results}]}, files: {reads: [out], sinks: [{jsonl: other}]}}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG.replace("LATE", str(tmp_path / "late")).replace("TABLE", str(tmp_path / "table")))
    return str(path)


def test_sinks_of_a_process_are_forgotten(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = str(tmp_path / "table")
    import trio

    trio.run(written, table, "S1/5a S2/6b B10(2)", clock=MockClock(autojump_threshold=0))
    assert execute(["forget", config, "client:c"]) == 0
    assert execute(["forget", config, "client:c"]) == 0
    assert execute(["forget", config, "source:a"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in lines] == [
        "its position and 2 rows are removed",
        "its position and 0 rows are removed",
        NOTHING_KEPT,
    ]
    assert DeltaTable(table).to_pyarrow_table().num_rows == 0


def test_a_run_that_goes_on_keeps_its_sinks(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its client would find that another process writes to them, and end."""
    run = RunDirectory.create(tmp_path / "run", read_document(Path(config)))
    plan, _ = load(Path(config))
    run.write_cluster(plan, data=str(tmp_path), addresses={}, origins={}, secret="", seed=1, via={}, metrics={})
    assert execute(["forget", str(run.path), "client:c"]) == 2
    assert f"the run in {run.path} goes on, with process {os.getpid()}; stop it first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("process", "said"),
    [
        ("client:files", "client:files has no sinks on servers; of files, remove the folders"),
        ("client:x", "no client 'x'; expected one of: c, files"),
        ("source:x", "no source 'x'; expected one of: a"),
        ("c", "expected client:NAME or source:NAME, got 'c'"),
    ],
)
def test_other_processes_have_nothing_to_forget(
    config: str, process: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["forget", config, process]) == 2
    assert said in capsys.readouterr().err
