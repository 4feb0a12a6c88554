"""From PostgreSQL through a query into Kafka, with sources, client and both servers killed or stopped.

The way from Kafka into PostgreSQL is examples/kafka_to_postgres.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="Kafka is not tested: confluent-kafka is not installed")

from examples.servers.mock_kafka import PARTITIONS, brokers
from examples.servers.postgres import PASSWORD, PostgresServer
from tests.support.postgres_server import running_server

pytestmark = pytest.mark.processes

CONFIG = """
cluster: tables
bucket: 50ms
defaults: {x: 1s, alpha: 0.9, policy: process}
sources:
  a: &table
    {schema: {ts: timestamp!, n: int64!}, time: ts, boundary: 50ms, disorder: 100ms, idle: 4s, from: {postgres: in_a}}
  b: {<<: *table, from: {postgres: in_b}}
query:
  both: {union: [a, b]}
  sums: {aggregate: {from: both, window: {tumbling: 500ms}, compute: {n: count(*), total: sum(n)}}}
outputs: [sums]
fragments: {all: {operators: [both, sums], replicas: [n1, n2]}}
nodes: [n1, n2]
clients: {shop: {reads: [sums], sinks: [{jsonl: final}, {kafka: {servers: [SERVERS], topic: sums}}]}}
faults:
  - {at: 3s, kind: kill, target: "source:a", for: 3s}
  - {at: 8s, kind: kill, target: "client:shop", for: 1s}
  - {at: 9s, kind: freeze, target: "source:b", for: 2s}
"""


class Feed(Thread):
    """Inserts into both tables all the time; a row whose commit is not known is inserted again."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server
        self.over = Event()
        self.rows = 0

    def run(self) -> None:
        import psycopg

        connection: Any = None
        while not self.over.wait(0.01):
            self.rows += 1
            given = [time.time(), self.rows]
            while True:
                try:
                    connection = connection or self._server.connect()
                    for table in ("in_a", "in_b"):
                        connection.execute(
                            f"insert into {table} values (to_timestamp(%s), %s) on conflict do nothing", given
                        )
                    break
                except psycopg.OperationalError:
                    if connection is not None:
                        connection.close()
                    connection = None
                    time.sleep(0.05)
        if connection is not None:
            connection.close()


@contextmanager
def beside(*threads: Any) -> Iterator[None]:
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.over.set()
        for thread in threads:
            thread.join(60)


@pytest.mark.long
def test_tables_reach_topic_complete_despite_kills(tmp_path: Path) -> None:
    with running_server() as server, brokers(2) as kafka:
        for topic in ("sums", "spe-positions"):
            kafka.make(topic)
        for table in ("in_a", "in_b"):
            server.query(f"create table {table} (ts timestamptz, n bigint primary key)")
        (tmp_path / "c.yaml").write_text(CONFIG.replace("SERVERS", ", ".join(f'"{s}"' for s in kafka.servers)))
        run_dir = tmp_path / "run"
        options = ["--run-dir", run_dir, "--no-view", "--duration", "25s"]
        command = [sys.executable, "-m", "replicas.cli", "run", tmp_path / "c.yaml", *options]
        feed = Feed(server)
        with (
            (tmp_path / "out.txt").open("wb") as out,
            subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | server.environment) as running,
        ):
            with beside(feed):
                time.sleep(7)
                server.restart()
                time.sleep(3)
                with server.stopped():
                    time.sleep(1.5)
                with kafka.stopped():
                    time.sleep(2)
                time.sleep(1)
            running.wait(180)
        told = (tmp_path / "out.txt").read_text()
        assert running.returncode == 0, told
        assert "agree with the reference" in " ".join(told.split())  # lines are as long as the terminal is wide
        expected = server.query(
            "select count(*), sum(n)::bigint from (select * from in_a union all select * from in_b) as given "
            "group by date_bin('500ms', ts, '2000-01-01 00:00+00') order by min(ts)"
        )
        there = [json.loads(m.value()) for p in range(PARTITIONS) for m in kafka.read_all("sums", p)]
    final = [json.loads(line) for line in (run_dir / "output" / "final" / "sums.0.jsonl").read_text().splitlines()]
    assert [(row["n"], row["total"]) for row in final] == expected, told
    assert sum(n for n, _ in expected) == 2 * feed.rows
    assert len(expected) > 15
    in_topic = {row["_id"]: row for row in there}
    assert all(in_topic[row["_id"]] == row for row in there), "one id, two rows"
    assert [in_topic[id_] for id_ in sorted(in_topic)] == [row | {"_partition": 0} for row in final]
    assert len(there) - len(in_topic) < 100, "the mock aborts nothing, so what a killed client had sent is there"
    for file in [tmp_path / "out.txt", *run_dir.rglob("*")]:
        if file.is_file():
            assert PASSWORD.encode() not in file.read_bytes(), file
