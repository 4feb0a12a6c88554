"""The checkers on a run of real processes, from the recording of its client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from consistency.checking.bounds import Bounds
from consistency.checking.verdict import Premise, judge
from replicas.cli.reference import logged_inputs
from replicas.cli.run.recorded_history import NOISE_US, recorded_history
from replicas.local.run_dir import load_target
from replicas.reference import reference_rows
from spe.stream.batch import Batch
from spe.stream.history import Delivered, History

pytestmark = pytest.mark.processes

CONFIG = """
cluster: checked
bucket: 50ms
sources:
  a: {boundary: 50ms, from: {generator: {name: sequence, rate: 100, seed: 1, duration: 16s}}}
  b: {boundary: 50ms, from: {generator: {name: sequence, rate: 100, seed: 2, duration: 16s}}}
query: {out: {union: [a, b]}}
outputs: [out]
fragments: {f: {operators: [out], replicas: [n1, n2]}}
defaults: {x: 2s, alpha: 0.8, policy: process}
nodes: [n1, n2]
clients: {c: {reads: [out]}}
"""
#: X is long enough for a disk that syncs nothing for two seconds.
FAULTS = (
    "- {at: 1s, kind: kill, target: 'reads:c', for: 1s}\n- {at: 3s, kind: cut, from: 'source:a', to: all, for: 3s}\n"
)


def test_run_with_faults_holds_and_added_silence_is_detected(tmp_path: Path) -> None:
    """1. spe run reports that nothing was late, and how much was checked
    2. the same recording with five seconds of silence in it: P1 fails
    3. ... with its undo taken out: P2 fails"""
    config, schedule, run_dir = tmp_path / "c.yaml", tmp_path / "f.yaml", tmp_path / "run"
    config.write_text(CONFIG)
    schedule.write_text(FAULTS)
    command = [
        sys.executable,
        "-m",
        "replicas.cli",
        "run",
        config,
        "--faults",
        schedule,
        "--run-dir",
        run_dir,
        "--no-view",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    verdict = json.loads((run_dir / "summary.json").read_text())["verdict"]
    assert verdict["late"] == [], ended.stdout
    assert verdict["checked"]["p1 tuples due"] > 0
    assert verdict["checked"]["undos checked"] > 0
    identities = {path.read_text() for path in run_dir.glob("sources/*/identity")}
    assert len(identities) == 2, "each log draws its own identity, also one that begins anew (S6)"

    plan = load_target(run_dir).plan
    directory = load_target(run_dir).directory
    reference = reference_rows(plan, logged_inputs(plan, run_dir))
    history = recorded_history(plan, directory, run_dir)
    bounds = Bounds.of(plan, directory, noise_us=NOISE_US)

    def broken(events: History) -> set[tuple[str, str]]:
        premise = Premise(quiet=False)
        return {
            (f.property, f.rule)
            for f in judge(events, plan, directory, reference, premise=premise, bounds=bounds).findings
        }

    assert broken(history) == set()
    ends_at = max(e.at_us for e in history if isinstance(e, Delivered))

    def held_back(event: object) -> bool:
        return isinstance(event, Delivered) and ends_at - 6_000_000 < event.at_us < ends_at - 1_000_000

    silent = History([e for e in history if not held_back(e)])
    assert ("P1", "results come within kX") in broken(silent)
    no_undo = History([e for e in history if not isinstance(e, Delivered) or isinstance(e.element, Batch)])
    assert ("P2", "an undo comes before corrections") in broken(no_undo)
