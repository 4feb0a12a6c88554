"""Old rows and then live ones, piped into real processes that are stopped and killed (S7: time of live input)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

CONFIG = """
cluster: piped
bucket: 50ms
defaults: {x: 2s, alpha: 0.9, policy: process}
sources:
  a: {schema: {ts: timestamp!, n: int64!}, time: ts, boundary: 50ms, from: {stdin: true, timestamps: us}, idle: 1500ms}
query:
  sums: {aggregate: {from: a, window: 1m, compute: {n: count(*)}}}
outputs: [sums]
fragments: {all: {operators: [sums], replicas: [n1, n2]}}
nodes: [n1, n2]
clients: {screen: {reads: [sums], sinks: [{jsonl: results}]}}
faults:
  - {at: 2s, kind: freeze, target: "source:a", for: 2s}
  - {at: 5s, kind: kill, target: n1, for: 1s}
"""
#: A row in each second of an hour of 2025.
HISTORY_US = [1_750_000_020_000_000 + n * 1_000_000 for n in range(3600)]


def test_old_rows_keep_their_windows_and_live_rows_follow(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (tmp_path / "config.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "replicas.cli", "run", tmp_path / "config.yaml", "--run-dir", run_dir, "--no-view"]
    running = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert running.stdin is not None
    running.stdin.write("".join(json.dumps({"ts": ts, "n": 1}) + "\n" for ts in HISTORY_US))
    running.stdin.flush()
    live = 0
    until = time.monotonic() + 8
    while time.monotonic() < until:
        print(json.dumps({"ts": time.time_ns() // 1000, "n": 1}), file=running.stdin, flush=True)
        live += 1
        time.sleep(0.05)
    told, _ = running.communicate(timeout=120)
    assert running.returncode == 0, told
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    assert [one["late"] for one in summary["sources"]] == [0], told
    (results,) = (run_dir / "output" / "results").glob("sums.*.jsonl")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["n"] for row in rows[:60]] == [60] * 60
    assert sum(row["n"] for row in rows[60:]) == live
