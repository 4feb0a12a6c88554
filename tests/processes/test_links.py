"""Faults of links on real processes: injected inside the processes, by proxies, and by the kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.namespaces import why_not

pytestmark = pytest.mark.processes

CONFIG = """
cluster: links
bucket: 50ms
defaults: {x: 1s, alpha: 0.8, policy: process}
sources:
  a: {from: {generator: {name: orders, rate: 200, keys: 5, seed: 1, duration: 9s}}, boundary: 50ms, disorder: 20ms}
  b: {from: {generator: {name: orders, rate: 200, keys: 5, seed: 2, duration: 9s}}, boundary: 50ms, disorder: 20ms}
query:
  both: {union: [a, b]}
  sums: {aggregate: {from: both, window: {tumbling: 500ms}, group_by: key, compute: {n: count(*), v: sum(qty)}}}
outputs: [sums]
fragments: {all: {operators: [both, sums], replicas: [n1, n2]}}
nodes: [n1, n2]
clients: {screen: {reads: [sums]}}
"""
FAULTS = """
- {at: 1s, kind: cut, from: n1, to: "client:screen", one_way: true, for: 1s}
- {at: 1500ms, kind: kill, target: n2, for: 1s}
- {at: 4s, kind: cut, from: "source:a", to: all, for: 2500ms}
"""

LINKS = [
    "inside",
    "proxy",
    pytest.param("namespaces", marks=pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}")),
]


@pytest.mark.long
@pytest.mark.parametrize("links", LINKS)
def test_a_run_with_cuts_and_a_kill_ends_equal(links: str, tmp_path: Path) -> None:
    play(CONFIG, links, tmp_path)


def test_a_run_over_mutual_tls_ends_equal_with_the_same_faults(tmp_path: Path) -> None:
    config = CONFIG + "security: {certificates: keys}\n"
    (tmp_path / "config.yaml").write_text(config)
    subprocess.run(
        [sys.executable, "-m", "replicas.cli", "certs", tmp_path / "config.yaml"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    play(config, "inside", tmp_path)
    told = [json.loads(line) for p in (tmp_path / "run" / "trace").iterdir() for line in p.read_text().splitlines()]
    refused = [e["why"] for e in told if e["event"] == "no_tls"]
    # A process that waits too long for a busy machine closes during the handshake, and connects again.
    assert [why for why in refused if "eof" not in why] == []


def play(config: str, links: str, tmp_path: Path) -> None:
    """A run that has tentative tuples, undoes them all, and ends equal to the reference."""
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "faults.yaml").write_text(FAULTS)
    run_dir = tmp_path / "run"
    module, how = ("tests.support.namespaces", []) if links == "namespaces" else ("replicas.cli", ["--links", links])
    command = [sys.executable, "-m", module, "run", tmp_path / "config.yaml", "--faults", tmp_path / "faults.yaml"]
    ended = subprocess.run(
        [*command, "--run-dir", run_dir, *how, "--no-view"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    (screen,) = summary["channels"]
    assert screen["tentative"] > 0
    assert screen["undone"] == screen["tentative"]
