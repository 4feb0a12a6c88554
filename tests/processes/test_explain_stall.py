"""``spe explain-stall`` of a run of real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.long, pytest.mark.processes]

CONFIG = """
cluster: explained
sources:
  a: {from: {generator: {name: sequence, rate: 100, seed: 1, duration: 600s}}}
  b: {from: {generator: {name: sequence, rate: 100, seed: 2, duration: 600s}}}
query: {out: {union: [a, b]}}
nodes: [n1, n2]
"""
PATIENCE_S = 120.0
SPE = [sys.executable, "-m", "replicas.cli"]


def test_stall_explanation_names_the_source(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    run_dir = tmp_path / "run"
    command = [*SPE, "run", tmp_path / "c.yaml", "--run-dir", run_dir, "--no-view", "--duration", "600s"]

    def ask(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*SPE, *more], capture_output=True, text=True, timeout=60, check=False)

    def until(condition: str) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while True:
            asked = ask("explain-stall", str(run_dir), "--json")
            found: list[dict[str, Any]] = json.loads(asked.stdout) if asked.stdout else [{}]
            if found[0].get("condition") == condition:
                assert asked.returncode == (condition != "fine")
                return found[0]
            assert time.monotonic() < end, asked
            time.sleep(0.5)

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            assert until("fine")["causes"] == []
            asked = ask("inject", str(run_dir), "stall", "source:a")
            assert asked.returncode == 0, asked.stderr
            found = until("tentative")
            text = ask("explain-stall", str(run_dir), "out").stdout
            wrong = ask("explain-stall", str(run_dir), "outt")
        finally:
            running.terminate()
    assert [(cause["kind"], cause["processes"]) for cause in found["causes"]] == [("quiet", ["source:a"])]
    assert (found["steps"][0]["who"], found["steps"][-1]["who"]) == ("client:client", "source:a")
    assert text.startswith("out/0 at client client is tentative\n")
    assert "cause (quiet): source:a logs nothing new" in text
    assert wrong.returncode == 2
    assert "no output 'outt'" in wrong.stderr
