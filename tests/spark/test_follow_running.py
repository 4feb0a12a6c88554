"""``spe report --follow`` beside real processes, one of which is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from consistency.proof.follow import follow_loop as following
from consistency.proof.recorded.run import Run
from consistency.proof.report.follow_model import Followed
from replicas.cli.follow import follow
from replicas.cli.report import CONSISTENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG: dict[str, Any] = {
    "bucket": "100ms",
    "defaults": {"x": "1s"},
    "sources": {
        name: {"from": {"generator": {"name": "orders", "rate": 50, "keys": 4, "seed": at, "duration": "25s"}}}
        for at, name in enumerate("ab")
    },
    "query": {
        "both": {"union": ["a", "b"]},
        "sums": {"aggregate": {"from": "both", "window": "1s", "group_by": "key", "compute": {"n": "sum(price)"}}},
        "last": {"aggregate": {"from": "both", "window": {"count": 7}, "compute": {"n": "last(price)"}}},
    },
    "outputs": ["sums", "last"],
    "nodes": ["n1", "n2"],
    "clients": {"board": {"reads": ["sums", "last"]}},
}
FAULTS = [
    {"at": "4s", "kind": "kill", "target": "reads:board", "for": "3s"},
    {"at": "10s", "kind": "cut", "from": "source:a", "to": "all", "for": "4s"},
]


@pytest.fixture(autouse=True)
def _warm(commands_use_it: None, spark: SparkSession) -> None:
    spark.range(1_000).selectExpr("id % 7 AS k").groupBy("k").count().collect()  # the first query takes long


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """The directory of a run that has just begun."""
    for name, what in (("config", CONFIG), ("faults", FAULTS)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(what, sort_keys=False))
    command = [
        sys.executable,
        "-m",
        "replicas.cli",
        "run",
        "config.yaml",
        "--faults",
        "faults.yaml",
        "--run-dir",
        "run",
    ]
    with (tmp_path / "output").open("w") as output, subprocess.Popen(
        [*command, "--dashboard", "off", "--no-view"], cwd=tmp_path, stdout=output, stderr=output
    ) as process:  # fmt: skip
        try:
            while not (tmp_path / "run" / "cluster.json").is_file():
                assert process.poll() is None, (tmp_path / "output").read_text()
                time.sleep(0.1)
            yield tmp_path / "run"
            assert process.wait(60) == 0, (tmp_path / "output").read_text()
        finally:
            process.terminate()


@pytest.mark.long
def test_a_run_with_a_kill_is_proved_while_it_goes_on(running: Path) -> None:
    assert follow(str(running), every_us=1_000_000) == CONSISTENT
    assert not Run.open(running).going_on
    found = Followed.model_validate_json((running / following.RESULT).read_text())
    assert found.ended
    assert found.reasons == []
    first = found.latest[0]
    assert first.number == 1
    assert first.until_us is not None  # while the run went on
    assert all(o.truth == o.stable > 20 for o in found.outputs)
    assert any(o.tentative for o in found.outputs)
