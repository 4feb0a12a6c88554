"""The stored sample of a release: ``python -m tests.support.stored_run FOLDER`` plays a small run and keeps its files.

In virtual time, so the files are the same each time.  ``tests/unit/test_stored_run.py`` reads those of each release.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from replicas.local.run_dir import CLUSTER, CONFIG
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from replicas.simulation.world.clock import now_us
from replicas.simulation.world.cluster import SimCluster
from spe import RUN_VERSION, __version__
from spe.stream.times import SECOND

FOLDER: Final = Path(__file__).parents[1] / "formats"
_REPLICAS: Final = ["n1", "n2"]
_ORDERS: Final = {"name": "orders", "rate": 20, "keys": 3, "seed": 1, "duration": "6s"}
CONFIGURATION: Final[dict[str, Any]] = {
    "cluster": "stored",
    "bucket": "100ms",
    "coordinator": {},
    "nodes": {"n1": {}, "n2": {}, "n3": {"spare": True}},
    "sources": {"orders": {"from": {"generator": _ORDERS}}},
    "defaults": {"checkpoint": {"every": "1s", "disk": True}},
    "query": {
        "large": {"filter": {"from": "orders", "where": "price * qty >= 20"}},
        "totals": {"aggregate": {"from": "large", "window": "1s", "group_by": "key", "compute": {"n": "count(*)"}}},
        "best": {"topk": {"from": "totals", "k": 1, "order_by": ["n desc", "key"], "window": {"tumbling": "1s"}}},
    },
    "outputs": ["totals", "best"],
    "fragments": {
        "first": {"operators": ["large", "totals"], "replicas": _REPLICAS},
        "second": {"operators": ["best"], "replicas": _REPLICAS, "checkpoint": {"continuous": True, "recovery": "2s"}},
    },
    "clients": {"board": {"reads": ["totals", "best"], "sinks": [{"jsonl": "best", "mode": "corrections"}]}},
}
#: X is set in the first second, so that there is a revision of the directory.
_SETTINGS: Final = [{"at_us": SECOND, "node": "n1", "changes": [["x", "5s"]]}]
_UNTIL_US: Final = 4 * SECOND


def played() -> tuple[Scenario, dict[str, bytes]]:
    """The run, and its files as they are in the middle of it."""
    scenario = Scenario(1, CONFIGURATION, {"settings": _SETTINGS}, (), 7 * SECOND, 10 * SECOND)
    files: dict[str, bytes] = {}

    def watch(cluster: SimCluster) -> None:
        if not files and now_us() >= _UNTIL_US:
            for disk in cluster.disks.values():
                files.update((_place(path), disk.read(path)) for path in disk.files)

    outcome = simulate(scenario, watch=watch)
    assert not outcome.findings, outcome.findings
    return scenario, files


def _place(path: PurePosixPath) -> str:
    """Where a file lies in the directory of a run: in a simulation a source has a disk of its own."""
    return str("sources" / path if path.parts[0] == "orders" else path)


def directory_of() -> dict[str, bytes]:
    """The files of the directory of the run, by their path."""
    scenario, files = played()
    plan, _ = scenario.deployed()
    facts = {"version": RUN_VERSION, "pid": 0, "data": ".", "fingerprint": plan.fingerprint, "addresses": {}}
    files[CONFIG] = yaml.safe_dump(CONFIGURATION, sort_keys=False).encode()
    files[CLUSTER] = (json.dumps({**facts, "origins": {}, "versions": {"spe": __version__}}, indent=1) + "\n").encode()
    return files


def main(folder: Path) -> None:
    for name, data in directory_of().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else FOLDER / __version__)
