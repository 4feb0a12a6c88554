"""Cases of other stream processors through real replicated processes, with a node killed and a source cut off.

The expected output does not depend on failures: a replica is killed and restarted meanwhile, and an input is cut and
healed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from replicas.client.recorder import recorded_stable
from spe.config import load as load_config
from spe.log.recording import client_folder
from spe.runtime.storage import DiskStorage
from spe.stream.ids import Channel
from tests.conformance.test_cluster import named
from tests.support.conformance import FOLDER, cluster_cases, load

pytestmark = [
    pytest.mark.processes,
    pytest.mark.conformance,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the conformance cases are not beside this checkout"),
]
#: Windows behind windows, late rows, an outer join, a top-k; tests/conformance plays all cases in virtual time.
REAL = ("arroyo_cascaded_windows", "flink_tumble_late", "rw_interval_join_left", "nexmark_q5_hot_items")
#: Wall time of a replay; the faults lie in it.
REPLAY_SECONDS = 6.0


def faults(source: str) -> list[dict[str, Any]]:
    return [
        {"at": "1500ms", "kind": "kill", "target": "n1", "for": "1500ms"},
        {"at": "2500ms", "kind": "cut", "from": f"source:{source}", "to": "all", "for": "2500ms"},
    ]


@pytest.mark.long
@pytest.mark.parametrize("id_", REAL)
def test_a_run_with_a_kill_and_a_cut_gives_the_expected_results(id_: str, tmp_path: Path) -> None:
    rows = max(entry["rows"] for entry in load(id_).data["inputs"].values())
    (one,) = cluster_cases(tmp_path, [id_], replay={"rate": rows / REPLAY_SECONDS})
    config, schedule, run_dir = tmp_path / "case.yaml", tmp_path / "faults.yaml", tmp_path / "run"
    config.write_text(one.config)
    schedule.write_text(yaml.safe_dump(faults(next(iter(one.case.data["inputs"])))))
    command = [sys.executable, "-m", "replicas.cli", "run", config, "--data", one.data, "--faults", schedule]
    ended = subprocess.run(
        [*command, "--run-dir", run_dir, "--no-view"], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    plan, directory = load_config(config, one.data)
    (client,) = directory.clients.values()
    schemas = {Channel(s, p): plan.query.schema_of(s) for s in client.reads for p in range(plan.partitions_of(s))}
    found = recorded_stable(DiskStorage(run_dir), client_folder(client.name), schemas)
    assert one.case.differences(named(plan, found)) == []
    assert "tentative" in json.loads((run_dir / "summary.json").read_text())
