"""From Kafka through a partitioned query into Kafka, with real processes that are killed, and brokers that hang."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="Kafka is not tested: confluent-kafka is not installed")

from examples.servers.kafka import PARTITIONS, Brokers, brokers
from spe.testing import check_reader

pytestmark = pytest.mark.processes

#: Crashes of each kind.
SOME = 4
ROWS = 40
#: How often messages are sent to the run, a tenth of a second apart at least, and how many.
ROUNDS = 160
EACH = 20

CONFIG = """
cluster: kafka
bucket: 50ms
defaults: {{x: 2s, alpha: 0.8, policy: process}}
sources:
  orders:
    schema: {{ts: timestamp!, customer: string, n: int64!}}
    time: ts
    disorder: 500ms
    boundary: 50ms
    from:
      kafka: {{servers: [{servers}], topics: orders, attributes: {{customer: key}}, group: lag, until: [{until}]}}
      timestamps: us
query:
  sums: {{aggregate: {{from: orders, window: 1s, group_by: customer, compute: {{rows: count(*), n: sum(n)}}}}}}
outputs: [sums]
fragments: {{sums: {{operators: [sums], replicas: [[n1, n2], [n2, n3]], partitions: 2, key: customer}}}}
nodes: [n1, n2, n3]
clients:
  board:
    reads: [sums]
    sinks: [{{jsonl: final}}, {{kafka: {{servers: [{servers}], topic: sums, key: customer}}}}]
faults:
  - {{at: 3s, kind: kill, target: n2, for: 1s}}
  - {{at: 6s, kind: kill, target: "source:orders", for: 1s}}
  - {{at: 9s, kind: kill, target: "client:board", for: 1s}}
"""


@pytest.fixture(scope="module")
def mock() -> Iterator[Brokers]:
    with brokers(2) as running:
        for topic in ("orders", "sums", "spe-positions"):
            running.make(topic)
        yield running


class Topic:
    """A topic of its own for each play."""

    numbers = count()

    def __init__(self, mock: Brokers) -> None:
        self.name = f"play{next(self.numbers)}"
        mock.send(self.name, [message(n, n * 1_000) for n in range(ROWS)])


def message(n: int, ts: int) -> dict[str, Any]:
    return {"value": {"ts": ts, "n": n}, "key": f"c{n % 7}", "partition": n % PARTITIONS}


def test_its_reader_brings_each_message_once_wherever_it_is_killed(mock: Brokers) -> None:
    def source(topic: Topic) -> dict[str, Any]:
        reader = {"kafka": {"servers": mock.servers, "topics": topic.name}, "timestamps": "us"}
        return {"schema": {"ts": "timestamp!", "n": "int64!"}, "time": "ts", "from": reader}

    rows = [{"ts": n * 1_000, "n": n} for n in range(ROWS)]
    order = lambda row: row["n"] % PARTITIONS  # noqa: E731
    assert check_reader(source, rows, lambda: Topic(mock), order=order, virtual=False, most=SOME) == 2 * (SOME + 1)


@pytest.mark.long
def test_a_run_survives_the_death_of_node_source_and_client_and_brokers_that_hang(
    mock: Brokers, tmp_path: Path
) -> None:
    config, run_dir = tmp_path / "config.yaml", tmp_path / "run"
    until = ", ".join([str(ROUNDS * EACH // PARTITIONS)] * PARTITIONS)
    config.write_text(CONFIG.format(servers=", ".join(f'"{s}"' for s in mock.servers), until=until))
    options = ["--run-dir", run_dir, "--no-view", "--dashboard", "off", "--report"]
    command = [sys.executable, "-m", "spe.cli", "run", config, *options]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for sent in range(0, ROUNDS * EACH, EACH):
        if sent == ROUNDS * EACH * 3 // 4:
            mock.pause()
            time.sleep(2)
            mock.resume()
        now_us = time.time_ns() // 1_000
        mock.send("orders", [message(sent + i, now_us) for i in range(EACH)])
        time.sleep(0.1)
    told, _ = running.communicate(timeout=480)
    assert running.returncode == 0, told
    assert running.returncode == 0, told
    assert json.loads((run_dir / "report" / "report.json").read_text())["verdict"] == "CONSISTENT", told
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["sources"][0]["tuples"], summary["sources"][0]["late"]) == (ROUNDS * EACH, 0), told
    final = [
        json.loads(line) | {"_partition": partition}
        for partition in range(2)
        for line in (run_dir / "output" / "final" / f"sums.{partition}.jsonl").read_text().splitlines()
    ]
    there = [json.loads(m.value()) for p in range(PARTITIONS) for m in mock.read_all("sums", p)]
    in_topic = {(row["_partition"], row["_id"]): row for row in there}
    assert all(in_topic[row["_partition"], row["_id"]] == row for row in there), "one id, two rows"
    assert in_topic == {(row["_partition"], row["_id"]): row for row in final}
    assert len(there) - len(in_topic) < 100, "the mock aborts nothing, so what a killed client had sent is there"
    assert mock.committed("lag", "orders") > 0
