"""A correlated failure of real processes: all unreplicated nodes are killed, and standbys take over."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.reports import check_schema

pytestmark = pytest.mark.processes

CONFIG = """
cluster: backed
bucket: 50ms
sources:
  a: {boundary: 50ms, from: {generator: {name: sequence, rate: 100, seed: 1, duration: 26s}}}
  b: {boundary: 50ms, from: {generator: {name: sequence, rate: 100, seed: 2, duration: 26s}}}
query:
  all: {union: [a, b]}
  sums: {aggregate: {from: all, window: {tumbling: 500ms}, compute: {n: count(*), total: sum(value)}}}
outputs: [sums]
fragments:
  f1: {operators: [all], replicas: [n1], standby: [n3], checkpoint: 500ms}
  f2: {operators: [sums], replicas: [n2], standby: [n4], checkpoint: 500ms}
defaults: {x: 1s, alpha: 0.9, policy: process}
nodes: [n1, n2, n3, n4]
clients: {c: {reads: [sums]}}
"""
FAULTS = """
- {at: 4s, kind: kill, target: n1, for: 5s}
- {at: 4s, kind: kill, target: n2, for: 5s}
- {at: 6s, kind: kill, target: coordinator, for: 1s}
"""


@pytest.mark.long
def test_two_unreplicated_neighbours_die_and_nothing_is_lost(tmp_path: Path) -> None:
    config, schedule, run_dir = tmp_path / "c.yaml", tmp_path / "f.yaml", tmp_path / "run"
    config.write_text(CONFIG)
    schedule.write_text(FAULTS)
    command = [
        sys.executable,
        "-m",
        "replicas.cli",
        "run",
        config,
        "--faults",
        schedule,
        "--run-dir",
        run_dir,
        "--no-view",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "equals the reference run" in ended.stdout
    longest = json.loads((run_dir / "summary.json").read_text())
    assert longest["verdict"]["late"] == [], ended.stdout
    with closing(sqlite3.connect(run_dir / "coordinator" / "state.sqlite")) as database:
        orders = database.execute("SELECT verb, replica, answer FROM orders ORDER BY number").fetchall()
        epochs = {e for (e,) in database.execute("SELECT DISTINCT epoch FROM orders")}
    assert {order for order in orders if order[0] == "install"} >= {
        ("install", "f1/0@n3", ""),
        ("install", "f2/0@n4", ""),
    }
    assert {order for order in orders if order[0] == "retire"} == {
        ("retire", "f1/0@n3", ""),
        ("retire", "f2/0@n4", ""),
    }
    assert len(epochs) == 2, "one coordinator took over, another one let them retire"


BUDGET = """
cluster: half
bucket: 50ms
sources:
  a: {boundary: 50ms, from: {generator: {name: sequence, rate: 60, seed: 1, duration: 14s}}}
  b: {boundary: 50ms, from: {generator: {name: sequence, rate: 100, seed: 2, duration: 14s}}}
query:
  s_a: {filter: {from: a, where: n >= 0}}
  s_b: {filter: {from: b, where: n >= 0}}
  all: {union: [s_a, s_b]}
outputs: [all]
fragments:
  fa: {operators: [s_a], replicas: [n1], standby: [n3], checkpoint: 500ms}
  fb: {operators: [s_b], replicas: [n2], standby: [n3], checkpoint: 500ms}
  all: {operators: [all], replicas: [n4, n5]}
defaults: {x: 1s, alpha: 0.9, policy: process}
nodes: [n1, n2, n3, n4, n5]
clients: {c: {reads: [all]}}
"""


@pytest.mark.long
def test_with_a_budget_of_one_only_the_other_partition_is_lost(tmp_path: Path) -> None:
    """Both primaries and the coordinator die; the standby of the larger stream runs already by plan."""
    config, schedule, run_dir = tmp_path / "c.yaml", tmp_path / "f.yaml", tmp_path / "run"
    config.write_text(BUDGET)
    schedule.write_text(
        """
- {at: 5s, kind: kill, target: coordinator, for: 3s}
- {at: 5s, kind: kill, target: n1, for: 6s}
- {at: 5s, kind: kill, target: n2, for: 6s}
"""
    )
    options = ["--budget", "1", "--faults", schedule, "--run-dir", run_dir, "--no-view", "--report"]
    command = [sys.executable, "-m", "replicas.cli", "run", config, *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=480, check=False)  # Spark on a busy machine
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "CONSISTENT" in ended.stdout
    text = (run_dir / "report" / "report.json").read_text()
    check_schema(text)
    report = json.loads(text)
    lost = [one for one in report["losses"] if one["until_us"] - one["from_us"] > 1_000_000]
    assert [one["partitions"] for one in lost] == [["fa/0"]], ended.stdout
    assert 0.55 < lost[0]["fidelity"] < 0.7, "the larger stream is a hundred of a hundred and sixty"
    assert "longest loss: nobody ran 1 partition for" in ended.stdout


def test_a_budget_beyond_the_standbys_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(BUDGET)
    command = [sys.executable, "-m", "replicas.cli", "run", config, "--budget", "3", "--no-view"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "--budget: expected at most 2" in ended.stderr
