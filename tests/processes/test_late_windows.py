"""The recipe that repairs windows from the late sink gives what more disorder would have given."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
REPAIR = ROOT / "configs" / "repair.yaml"
SPE = [sys.executable, "-m", "replicas.cli"]
PATIENCE_S = 120.0
CONFIG = """
sources:
  clicks:
    schema: {ts: timestamp!, page: string}
    time: ts
    from: {jsonl: in.jsonl}
    replay: {max: true}
    LATE
query:
  per_minute: {aggregate: {from: clicks, window: {tumbling: 1m, on: ts}, group_by: page, compute: {n: count(*)}}}
clients:
  board: {reads: [per_minute], sinks: [{jsonl: results}]}
"""


def windows(lines: str) -> dict[tuple[str, str], int]:
    return {(row["window_start"], row["page"]): row["n"] for row in map(json.loads, lines.splitlines())}


def computed(config: Path, data: Path) -> dict[tuple[str, str], int]:
    command = [*SPE, "reference", config, "--data", data]
    return windows(subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout)


def test_repaired_windows_equal_those_without_late_rows(tmp_path: Path) -> None:
    random, start = Random(3), datetime(2026, 1, 1, 12, tzinfo=UTC)
    with (tmp_path / "in.jsonl").open("w") as file:
        for second in range(600):
            late_s = random.choice([20, 45, 70, 200]) if random.random() < 0.15 else 0
            ts = start + timedelta(seconds=second - late_s)
            file.write(json.dumps({"ts": ts.isoformat(), "page": random.choice("abc")}) + "\n")
    config, whole, output = tmp_path / "clicks.yaml", tmp_path / "whole.yaml", tmp_path / "run" / "output"
    config.write_text(CONFIG.replace("LATE", "late: {jsonl: late_clicks}"))
    whole.write_text(CONFIG.replace("LATE", "disorder: 1h"))
    command = [*SPE, "run", config, "--run-dir", tmp_path / "run", "--no-view", "--dashboard", "off"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    results = windows((output / "results/per_minute.0.jsonl").read_text())
    late = len((output / "late_clicks/clicks.late.0.jsonl").read_text().splitlines())
    expected = computed(whole, tmp_path)
    missed = 600 - sum(results.values())
    assert 0 < missed < late, "some late rows came before their window ended"
    assert sum(expected.values()) == 600
    assert computed(REPAIR, output) == expected


def test_the_recipe_names_the_query_that_it_repairs() -> None:
    comment = "".join(line for line in REPAIR.read_text().splitlines(keepends=True) if line.startswith("#"))
    assert next(line.strip() for line in CONFIG.splitlines() if "per_minute:" in line) in comment
