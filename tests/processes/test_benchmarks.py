"""Benchmarks of real processes when one of the processes fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.data import Shape
from benchmarks.node_cpu import aggregated
from benchmarks.throughput import generate

pytestmark = pytest.mark.processes


def test_prepared_segments_reach_a_node() -> None:
    """A feeder takes the place of a source; the node's results are compared with those of NumPy."""
    node, without = aggregated(Shape(batch=1_000, batches=150), rounds=1)
    assert min(*node, *without) > 0


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
