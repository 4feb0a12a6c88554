"""``spe run --continue``: what is read of the earlier run, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from replicas.cli.app import execute
from replicas.local.continuation import earlier_run
from spe.errors import SpeError

CONFIG = """
sources: {a: {from: {generator: {name: sequence, rate: 10}}}}
query: {out: {filter: {from: a, where: value >= 0}}}
faults: [{at: 1s, kind: kill, target: n1}]
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """As a supervisor leaves it whose machine lost power."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    facts = {"version": 1, "pid": 2**22 + 1, "data": "/data", "origins": {"a": 7}, "addresses": {}, "budget": 0}
    (tmp_path / "cluster.json").write_text(json.dumps(facts))
    begins = [{"t": at, "event": "begin", "begun_us": at} for at in (5, 9)]
    lines = [json.dumps(event) for event in ({"t": 1, "event": "run"}, *begins)]
    (tmp_path / "events.jsonl").write_text("\n".join([*lines, '{"t']))
    return tmp_path


def test_an_earlier_run_is_read_without_a_torn_event(run_dir: Path) -> None:
    earlier = earlier_run(run_dir)
    assert (earlier.data, earlier.origins, earlier.budget, earlier.begun_us) == (Path("/data"), {"a": 7}, 0, 5)
    assert earlier.document.name.endswith("config.yaml")
    assert len((run_dir / "events.jsonl").read_text().splitlines()) == 3


def test_a_run_that_goes_on_is_refused(run_dir: Path) -> None:
    facts = json.loads((run_dir / "cluster.json").read_text())
    (run_dir / "cluster.json").write_text(json.dumps({**facts, "pid": os.getpid()}))
    with pytest.raises(SpeError, match=f"goes on, with process {os.getpid()}; stop it first"):
        earlier_run(run_dir)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected either a configuration, or --continue with the directory of a run"),
        (["c.yaml", "--continue", "tests"], "expected either a configuration, or --continue"),
        (["--continue", "tests", "--run-dir", "x"], "expected --continue without --data, --run-dir and --on spark"),
        (["--continue", "tests"], "tests is not the directory of a run"),
        (["--continue", "nowhere"], "expected the directory of a run, got nowhere"),
    ],
)
def test_impossible_continuation_is_reported(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", *words]) == 2
    assert said in capsys.readouterr().err
