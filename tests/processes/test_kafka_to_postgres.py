"""The example from Kafka into PostgreSQL, at twice its pace: every process is killed, and both servers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="the example needs Kafka's client: confluent-kafka is not installed")

from examples.kafka_to_postgres.__main__ import RIGHT, SECONDS
from examples.kafka_to_postgres.orders import orders
from examples.servers import kafka
from examples.servers.postgres import PASSWORD, missing

pytestmark = [pytest.mark.long, pytest.mark.processes]

ROOT = Path(__file__).parents[2]
PACE = 2.0


@pytest.mark.parametrize(
    ("options", "broken"),
    [
        pytest.param([], 10, marks=pytest.mark.skipif(bool(missing()), reason=f"no PostgreSQL server: {missing()}")),
        pytest.param(["--files"], 8, marks=pytest.mark.skipif(not missing(), reason="a server takes its place")),
    ],
    ids=["server", "files"],
)
def test_the_example_is_right_with_everything_killed_in_turn(tmp_path: Path, options: list[str], broken: int) -> None:
    command = [sys.executable, "-m", "examples.kafka_to_postgres", "--pace", str(PACE), "--seed", "7", *options]
    environment = {name: value for name, value in os.environ.items() if name not in ("KAFKA", "POSTGRES")}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=tmp_path, env=environment | {"PYTHONPATH": path}, text=True, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == RIGHT
    (folder,) = (tmp_path / "runs").iterdir()
    lines = [line for line in done.stdout.splitlines() if " s  " in line]
    killed = "kill Kafka" in done.stdout  # a broker, and not the mock
    assert killed == (kafka.missing() is None)
    assert len(lines) == 1 + broken + killed, done.stdout  # the first one: before anything was
    looks = re.search(r"It was looked at (\d+) times", done.stdout)
    assert looks is not None
    assert int(looks[1]) > 50
    counted = Counter[str]()
    for row in map(json.loads, (folder / "table.jsonl").read_text().splitlines()):
        counted[row["product"]] += row["orders"]
    assert counted == Counter(order.product for order in orders(7, SECONDS / PACE))
    for file in folder.rglob("*"):
        if file.is_file():
            assert PASSWORD.encode() not in file.read_bytes(), file
