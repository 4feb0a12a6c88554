"""spe simulate and spe sweep: what they print, write and replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replicas.cli.app import execute
from replicas.cli.sweep import measure
from replicas.faults.model import one_fault
from replicas.simulation.scenarios.scenario import Scenario
from spe.config import load_data
from spe.stream.times import SECOND
from tests.mutants.catalogue import MUTANTS

CONFIG = """
bucket: 100ms
sources:
  a: {boundary: 100ms, from: {generator: {name: orders, rate: 20, keys: 3}}}
  b: {schema: {at: timestamp!, key: int64, n: int64}, time: at, boundary: 100ms, from: {jsonl: nowhere.jsonl}}
query:
  left: {map: {from: a, compute: {key: key, n: qty}}}
  right: {map: {from: b, compute: {key: key, n: n}}}
  both: {union: [left, right]}
  sums: {aggregate: {from: both, window: 200ms, group_by: key, compute: {n: sum(n)}}}
fragments: {f: {operators: [left, right, both, sums], replicas: [n1, n2]}}
nodes: [n1, n2]
defaults: {x: 600ms}
"""
FAULTS = "[{at: 2s, kind: cut, target: 'source:a', for: 1500ms}, {at: 4s, kind: kill, target: n2, for: 300ms}]"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("faults.yaml").write_text(FAULTS)
    path = Path("config.yaml")
    path.write_text(CONFIG)
    return path


def spe(*words: str) -> int:
    return execute([*words, "--processes", "1"] if words[0] == "simulate" and "--replay" not in words else list(words))


def test_simulate_reports_its_runs(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert spe("simulate", "config.yaml", "--seeds", "3:5", "--duration", "6s") == 0
    told = capsys.readouterr().out
    assert "b: " in told
    assert "is not there; made-up rows of its schema instead" in told
    assert "2 runs (seeds 3:5)" in told
    assert "s of CPU for the first run; all 2, 1 at a time, take about" in told
    assert "\n2 held, 0 failed\n\n2 runs (seeds 3:5)" in told
    assert "with a whole tree" in told
    assert not Path("runs").exists()


def test_sinks_of_sources_are_simulated_or_left_out(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG.replace("time: at,", "time: at, late: {jsonl: late}, rejected: {parquet: aside},"))
    assert spe("simulate", "config.yaml", "--seeds", "3:4", "--duration", "6s") == 0
    assert "\n1 held, 0 failed\n" in capsys.readouterr().out


def test_a_failure_is_shrunk_written_and_replayed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MUTANTS["no-undo"].on():
        assert spe("simulate", "config.yaml", "--faults", "faults.yaml", "--duration", "6s") == 1
        told = capsys.readouterr().out
        assert "seed 0: FAILED" in told
        assert "cut source:a for 1.5s" in told
        assert "again: spe simulate --replay runs/simulation/seed-0.json" in told
        case = json.loads(Path("runs/simulation/seed-0.json").read_text())
        assert [f["kind"] for f in case["scenario"]["faults"]] == ["cut"]
        said = "stable tuples while tentative ones are live (P4)"  # the client itself refuses them
        assert any(said in one for one in case["found"])
        assert spe("simulate", "--replay", "runs/simulation/seed-0.json") == 1
        assert said in capsys.readouterr().out
    assert spe("simulate", "--replay", "runs/simulation/seed-0.json") == 0
    assert "holds (1 faults" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", "--seeds", "x"], "--seeds: expected a number of runs"),
        (["simulate", "--faults", "faults.yaml"], "--faults needs a configuration"),
        (["simulate", "config.yaml", "--replay", "faults.yaml"], "expected --replay without CONFIG"),
        (["simulate", "--replay", "faults.yaml"], "faults.yaml: expected a scenario"),
        (["sweep", "config.yaml", "--x", "1,soon"], "--x: "),
        (["sweep", "config.yaml", "--x", "1", "--cut", "nobody"], "no process 'nobody'"),
    ],
)
def test_wrong_arguments_are_refused(
    config: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert spe(*words) == 2
    assert said in capsys.readouterr().err


def test_a_larger_x_gives_later_results_and_fewer_tentative_ones() -> None:
    """A failure of 1.5 s: with a small X results come after αX, with X = 4 s it is masked."""
    generator = {"name": "orders", "rate": 20, "keys": 3, "duration": "8s"}
    data = {
        "bucket": "100ms",
        "sources": {name: {"boundary": "100ms", "from": {"generator": generator}} for name in "ab"},
        "query": {"both": {"union": ["a", "b"]}},
        "fragments": {"f": {"operators": ["both"], "replicas": ["n1", "n2"]}},
        "nodes": ["n1", "n2"],
    }
    cut = one_fault({"kind": "cut", "target": "source:a", "at": "3s", "for": "1500ms"}, load_data(data).directory)
    scenario = Scenario(seed=0, config=data, faults=(cut,), heal_us=6 * SECOND, grace_us=20 * SECOND)
    short, long, masked = (measure(scenario, x_us) for x_us in (SECOND // 2, SECOND, 4 * SECOND))
    assert short.findings == long.findings == masked.findings == ()
    assert short.cost.quantile_us(1) < long.cost.quantile_us(1) <= SECOND
    assert short.cost.tentative >= long.cost.tentative > masked.cost.tentative == 0
    assert short.cost.stable == long.cost.stable == masked.cost.stable > 0


def test_a_sweep_checks_every_x_before_it_runs_any(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicas.cli.sweep.measure", None)
    assert execute(["sweep", "config.yaml", "--x", "1s,20s,10ms"]) == 2
    told = capsys.readouterr().err
    assert "X = 10ms: " in told
    assert "X = 1s" not in told
