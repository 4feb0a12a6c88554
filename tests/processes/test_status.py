"""``spe status`` of a run of real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from spe.status import ClientStatus, ClusterStatus, NodeStatus, SourceStatus

pytestmark = pytest.mark.processes

CONFIG = """
cluster: shown
sources: {a: {from: {generator: {name: sequence, rate: 100, seed: 1, duration: 60s}}}}
query: {out: {filter: {from: a, where: value > 3}}}
nodes: [n1, n2]
"""
PATIENCE_S = 60.0


def test_the_json_of_a_status_is_as_documented(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    spe, run_dir = [sys.executable, "-m", "replicas.cli"], tmp_path / "run"
    command = [*spe, "run", tmp_path / "c.yaml", "--run-dir", run_dir, "--no-view", "--duration", "60s"]
    until = time.monotonic() + PATIENCE_S
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            while True:
                asked = subprocess.run(
                    [*spe, "status", run_dir, "--json"], capture_output=True, text=True, timeout=30, check=False
                )
                if asked.returncode == 0 or time.monotonic() > until:
                    break
                time.sleep(0.2)
        finally:
            running.terminate()
    assert asked.returncode == 0, asked.stdout + asked.stderr
    found = TypeAdapter(ClusterStatus).validate_json(asked.stdout)

    assert {name: type(each) for name, each in found.processes.items()} == {
        "n1": NodeStatus,
        "n2": NodeStatus,
        "source:a": SourceStatus,
        "client:client": ClientStatus,
    }
    assert found.errors == {}
