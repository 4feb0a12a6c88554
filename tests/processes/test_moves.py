"""Real processes: a node is drained to a spare one and back while the stream continues."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

SPE = [sys.executable, "-m", "spe.cli"]
CONFIG = """
cluster: moved
bucket: 50ms
sources:
  a: {boundary: 50ms, from: {generator: {name: sequence, rate: 200, seed: 1, duration: 120s}}}
  b: {boundary: 50ms, from: {generator: {name: sequence, rate: 200, seed: 2, duration: 120s}}}
query:
  all: {union: [a, b]}
  sums: {aggregate: {from: all, window: {tumbling: 500ms}, compute: {n: count(*), total: sum(value)}}}
outputs: [sums]
fragments:
  f1: {operators: [all], replicas: [n1, n2]}
  f2: {operators: [sums], replicas: [n2, n3]}
defaults: {x: 4s, alpha: 0.9, policy: process}
nodes: {n1: {}, n2: {}, n3: {}, n4: {spare: true}}
clients: {c: {reads: [sums]}}
"""
PATIENCE_S = 60.0


def ask(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SPE, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_node_is_drained_to_a_spare_one_and_back_over_one_that_joins(tmp_path: Path) -> None:
    config, run_dir = tmp_path / "c.yaml", tmp_path / "run"
    config.write_text(CONFIG)
    command = [*SPE, "run", config, "--run-dir", run_dir, "--no-view"]
    until = time.monotonic() + PATIENCE_S
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        while ask("status", run_dir).returncode and time.monotonic() < until:
            time.sleep(0.2)
        changed = ask("set", run_dir, "n1", "x=3s", "policy=delay")
        drained = ask("drain", run_dir, "n2")
        shown = ask("status", run_dir)
        with subprocess.Popen([*SPE, "node", run_dir, "--node", "n9", "--join"], stderr=subprocess.PIPE) as joined:
            while "n9" not in (again := ask("status", run_dir)).stdout and time.monotonic() < until:
                time.sleep(0.2)
            over = ask("move", run_dir, "f1", "n4", "n9")
            back = ask("move", run_dir, "f1", "n9", "n2")
            joined.terminate()
            told = joined.communicate(timeout=PATIENCE_S)[1].decode()
        said, _ = running.communicate(timeout=3 * PATIENCE_S)
    assert changed.stdout.startswith("n1 has X 3s, α 0.9, policy delay, by version"), changed.stdout + changed.stderr
    assert "X 3s, α 0.9, policy delay  X 4s, α 0.9, policy process" in shown.stdout
    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert "from n2 to n4: done in" in drained.stdout
    assert "n2 f1" not in shown.stdout
    assert "n4 f1" in shown.stdout
    assert "n9" in again.stdout, told
    assert over.returncode == 0, over.stdout + over.stderr + told
    assert back.returncode == 0, back.stdout + back.stderr
    assert running.returncode == 0, said
    assert "equals the reference run" in said
    summary = json.loads((run_dir / "summary.json").read_text())
    assert [channel["tentative"] for channel in summary["channels"]] == [0]
