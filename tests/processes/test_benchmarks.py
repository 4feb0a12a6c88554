"""Benchmarks of real processes when one of the processes fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.throughput import generate

pytestmark = pytest.mark.processes


@pytest.mark.long
def test_a_benchmark_whose_source_fails_stops_at_once(tmp_path: Path) -> None:
    """The file lacks columns that the query reads, so the client would wait for ever."""
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    generate(good, rows=1000, keys=10, rate=1000, seed=1)
    pq.write_table(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC"))}), bad)
    command = [sys.executable, "-m", "benchmarks", "throughput", "--rows", "1000", "--merge", good, bad]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "a process of the measurement ended" in ended.stderr
    assert "bad.parquet" in ended.stderr


@pytest.mark.long
def test_checkout_compared_with_itself_plays_same_scenarios() -> None:
    root = Path(__file__).resolve().parent.parent.parent
    command = [sys.executable, "-m", "benchmarks", "simulation", "--seeds", "1", "--against", root]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=root)
    rows = [line.split("|") for line in ended.stdout.splitlines() if "results checked" in line]
    assert [row[1].strip() for row in rows] == ["this", "other"]
    assert "Seeds per minute, this / other" in ended.stdout
