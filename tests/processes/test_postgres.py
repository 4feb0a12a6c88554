"""From PostgreSQL through a query into PostgreSQL, with nodes, sources, client and server killed in turn."""

from __future__ import annotations

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
clients: {shop: {reads: [sums], sinks: [{postgres: results, mode: current}, {postgres: final}]}}
faults:
  - {at: 5s, kind: kill, target: n1, for: 1s}
  - {at: 8s, kind: kill, target: "source:a", for: 4s}
  - {at: 13s, kind: kill, target: "client:shop", for: 1s}
  - {at: 15s, kind: freeze, target: "source:b", for: 3s}
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


class Watch(Thread):
    """Looks at the results all the time, as a reader would."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server
        self.over = Event()
        self.looks = self.tentative = 0
        self.wrong: list[Any] = []

    def run(self) -> None:
        import psycopg

        final = 0
        while not self.over.wait(0.05):
            try:
                rows = self._server.query("select _time, _id, _tentative from results order by _id")
            except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
                continue
            self.looks += 1
            self.tentative += any(tentative for *_, tentative in rows)
            for key in (0, 1):
                if len({row[key] for row in rows}) < len(rows):
                    self.wrong.append(("twice", rows))
            count = sum(not tentative for *_, tentative in rows)
            if count < final:
                self.wrong.append(("final rows went away", final, rows))
            final = count


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
def test_the_table_equals_the_reference_and_never_holds_a_result_twice(tmp_path: Path) -> None:
    with running_server() as server:
        for table in ("in_a", "in_b"):
            server.query(f"create table {table} (ts timestamptz, n bigint primary key)")
        (tmp_path / "c.yaml").write_text(CONFIG)
        run_dir = tmp_path / "run"
        options = ["--run-dir", run_dir, "--no-view", "--duration", "36s"]
        command = [sys.executable, "-m", "spe.cli", "run", tmp_path / "c.yaml", *options]
        feed, watch = Feed(server), Watch(server)
        with (
            (tmp_path / "out.txt").open("wb") as out,
            subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | server.environment) as running,
            beside(watch),
        ):
            with beside(feed):
                time.sleep(14)
                server.restart()
                time.sleep(5)
                with server.stopped():
                    time.sleep(1.5)
                time.sleep(3)
            running.wait(180)
        told = (tmp_path / "out.txt").read_text()
        assert running.returncode == 0, told
        assert "agree with the reference" in " ".join(told.split())  # lines are as long as the terminal is wide
        assert watch.wrong == []
        assert watch.looks > 50
        assert watch.tentative > 0, told
        expected = server.query(
            "select count(*), sum(n)::bigint from (select * from in_a union all select * from in_b) as given "
            "group by date_bin('500ms', ts, '2000-01-01 00:00+00') order by min(ts)"
        )
        for table, where in (("results", "where not _tentative"), ("final", "")):
            assert server.query(f"select n, total from {table} {where} order by _id") == expected, told
        assert sum(n for n, _ in expected) == 2 * feed.rows
        assert len(expected) > 20
    for file in [tmp_path / "out.txt", *run_dir.rglob("*")]:
        if file.is_file():
            assert PASSWORD.encode() not in file.read_bytes(), file
