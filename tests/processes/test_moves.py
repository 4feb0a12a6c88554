"""Real processes: a node is drained to a spare one and back while the stream continues; the stream ends after that."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from subprocess import PIPE
from typing import IO

import pytest

pytestmark = pytest.mark.processes

SPE = [sys.executable, "-m", "replicas.cli"]
CONFIG = """
cluster: moved
bucket: 50ms
sources:
  a: {schema: {ts: timestamp!, n: int64!}, time: ts, boundary: 50ms, from: {stdin: true, timestamps: us}}
query:
  all: {filter: {from: a, where: n >= 0}}
  sums: {aggregate: {from: all, window: {tumbling: 500ms}, compute: {n: count(*), total: sum(n)}}}
outputs: [sums]
fragments:
  f1: {operators: [all], replicas: [n1, n2]}
  f2: {operators: [sums], replicas: [n2, n3]}
defaults: {x: 9s, alpha: 0.9, policy: process}
nodes: {n1: {}, n2: {}, n3: {}, n4: {spare: true}}
clients: {c: {reads: [sums], sinks: [{jsonl: results}]}}
"""
PATIENCE_S = 120.0


def ask(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SPE, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def feed(into: IO[str], ended: threading.Event) -> int:
    """Rows of the present, some forty a second, until ``ended``; returns how many."""
    for rows in count(1):
        print(json.dumps({"ts": time.time_ns() // 1000, "n": 1}), file=into, flush=True)
        if ended.wait(0.025):
            into.close()
            return rows
    raise AssertionError


@pytest.mark.long
def test_drained_node_hands_roles_to_joined_node(tmp_path: Path) -> None:
    config, run_dir = tmp_path / "c.yaml", tmp_path / "run"
    config.write_text(CONFIG)
    command = [*SPE, "run", config, "--run-dir", run_dir, "--no-view"]
    until = time.monotonic() + PATIENCE_S
    ended = threading.Event()
    with (
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=subprocess.STDOUT, text=True) as running,
        ThreadPoolExecutor(1) as aside,
        ExitStack() as at_end,
    ):
        at_end.callback(ended.set)
        assert running.stdin is not None
        feeding = aside.submit(feed, running.stdin, ended)
        while ask("status", run_dir).returncode and time.monotonic() < until:
            time.sleep(0.2)
        changed = ask("set", run_dir, "n1", "x=8s", "policy=delay")
        drained = ask("drain", run_dir, "n2")
        shown = ask("status", run_dir)
        joined = at_end.enter_context(subprocess.Popen([*SPE, "node", run_dir, "--node", "n9", "--join"], stderr=PIPE))
        at_end.callback(joined.kill)
        while "n9" not in (again := ask("status", run_dir)).stdout and time.monotonic() < until:
            time.sleep(0.2)
        over = ask("move", run_dir, "f1", "n4", "n9")
        back = ask("move", run_dir, "f1", "n9", "n2")
        joined.terminate()
        told = joined.communicate(timeout=PATIENCE_S)[1].decode()
        while (left := ask("leave", run_dir, "n9")).returncode and time.monotonic() < until:
            time.sleep(0.2)  # its silence is noticed after a moment
        after = ask("status", run_dir)
        ended.set()
        rows = feeding.result(PATIENCE_S)
        assert running.stdout is not None
        said = running.stdout.read()
    assert changed.stdout.startswith("n1 has X 8s, α 0.9, policy delay, by version"), changed.stdout + changed.stderr
    assert "X 8s, α 0.9, policy delay  X 9s, α 0.9, policy process" in shown.stdout
    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert "from n2 to n4 (n2 is drained): done in" in drained.stdout
    assert "n2 f1" not in shown.stdout
    assert "n4 f1" in shown.stdout
    assert "n9" in again.stdout, told
    assert over.returncode == 0, over.stdout + over.stderr + told
    assert back.returncode == 0, back.stdout + back.stderr
    assert left.stdout == "n9 is no node of this cluster any more\n", left.stderr
    assert "n9" in [line.split()[0] for line in again.stdout.splitlines() if line.strip()]
    assert "n9" not in [line.split()[0] for line in after.stdout.splitlines() if line.strip()]
    assert running.returncode == 0, said
    assert "equals the reference run" in said
    summary = json.loads((run_dir / "summary.json").read_text())
    assert [channel["tentative"] for channel in summary["channels"]] == [0]
    (results,) = (run_dir / "output" / "results").glob("sums.*.jsonl")
    assert sum(json.loads(line)["n"] for line in results.read_text().splitlines()) == rows
