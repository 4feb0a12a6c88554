"""Delta tables behind a real run: a client that is killed, an input that is cut off, rows each once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

pytestmark = [pytest.mark.processes, pytest.mark.long]

CONFIG = """
cluster: lake
bucket: 50ms
defaults: {x: 500ms, alpha: 0.9, policy: process}
sources:
  a: {from: {generator: {name: orders, rate: 300, duration: 12s}}}
  b: {from: {generator: {name: orders, rate: 300, duration: 12s, seed: 2}}}
query:
  both: {union: [a, b]}
  sums: {aggregate: {from: both, window: {tumbling: 200ms}, compute: {n: count(*), total: sum(price)}}}
outputs: [sums]
fragments: {all: {operators: [both, sums], replicas: [n1, n2]}}
nodes: [n1, n2]
clients:
  shop:
    reads: [sums]
    sinks:
      - {jsonl: final}
      - {jsonl: changes, mode: corrections}
      - {parquet: parts, mode: corrections}
      - {delta: {path: PLACE/stable, every: 300ms}}
      - {delta: {path: PLACE/current, every: 200ms}, mode: current}
      - {delta: {path: PLACE/changes, every: 200ms}, mode: corrections}
faults:
  - {at: 6s, kind: freeze, target: "source:b", for: 4s}
  - {at: 9s, kind: kill, target: "client:shop", for: 300ms}
"""


def rows(path: Path, version: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(DeltaTable(path, version=version).to_pyarrow_table()).to_pylist()
    return sorted(found, key=lambda r: r["_id"])


def test_tables_hold_each_result_once_in_every_version(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG.replace("PLACE", str(tmp_path)))
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "replicas.cli", "run", tmp_path / "c.yaml", "--run-dir", run_dir, "--no-view"]
    told = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=180, check=False)
    said = told.stdout + told.stderr
    assert told.returncode == 0, said
    lines = (run_dir / "output" / "final" / "sums.0.jsonl").read_text().splitlines()
    final = [(row["_id"], row["n"], row["total"]) for row in map(json.loads, lines)]
    assert len(final) > 30
    sinks = json.loads((run_dir / "summary.json").read_text())["sinks"]
    assert [(one["equal"], one["rows"]) for one in sinks] == [(True, len(final))] * 6, sinks
    assert f"{len(final)} rows, equal to its recording" in said
    for name in ("stable", "current"):
        assert [(r["_id"], r["n"], r["total"]) for r in rows(tmp_path / name)] == final, said
    tentative = 0
    for version in range(DeltaTable(tmp_path / "current").version() + 1):
        held = rows(tmp_path / "current", version)
        assert [r["_id"] for r in held] == list(range(1, len(held) + 1)), f"version {version}"
        assert len({r["_time"] for r in held}) == len(held), f"version {version}: two rows of one window"
        tentative += any(r["_tentative"] for r in held)
    assert tentative, "the input was cut off for longer than X"
