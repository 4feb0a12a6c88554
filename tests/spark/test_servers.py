"""A run into a real server, which is killed and paused meanwhile: the report proves it, and the table has it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from consistency.proof.recorded.run import REPORT_FOLDER
from consistency.proof.report.model import Report, Verdict
from examples.servers.postgres import PostgresServer
from replicas.cli.app import execute
from replicas.cli.report import CONSISTENT
from replicas.client.recorder import recorded_stable
from replicas.local.run_dir import load_target
from spe.log.recording import client_folder
from spe.runtime.storage import DiskStorage
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from tests.support.postgres_server import running_server

pytestmark = [
    pytest.mark.long,
    pytest.mark.processes,
    pytest.mark.servers,
    pytest.mark.usefixtures("commands_use_it"),
]

CONFIG = """
cluster: shop
bucket: 50ms
defaults: {x: 1s, alpha: 0.9, policy: process}
sources:
  a: {boundary: 50ms, from: {generator: {name: orders, rate: 40, keys: 5, seed: 1, duration: 25s}}}
  b: {boundary: 50ms, from: {generator: {name: orders, rate: 40, keys: 5, seed: 2, duration: 25s}}}
query:
  both: {union: [a, b]}
  sums: {aggregate: {from: both, window: 500ms, group_by: key, compute: {n: count(*)}}}
outputs: [sums]
fragments: {all: {operators: [both, sums], replicas: [n1, n2]}}
nodes: [n1, n2]
clients: {board: {reads: [sums], sinks: [{postgres: {table: sums}, mode: current}]}}
"""
SPE = [sys.executable, "-m", "replicas.cli"]
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as one:
        yield one


def test_run_into_killed_and_paused_server_is_consistent(server: PostgresServer, tmp_path: Path) -> None:
    """
    1. results come into the table; a source is cut off until tentative ones stand there, too
    2. the server is paused; then it is killed, and is away for a second
    3. the cut is healed, and the run comes to its end: the table has what the report has proved
    """
    (tmp_path / "shop.yaml").write_text(CONFIG)
    run_dir = tmp_path / "run"
    command = [*SPE, "run", tmp_path / "shop.yaml", "--run-dir", run_dir, "--no-view", "--dashboard", "off"]
    with (tmp_path / "told").open("wb") as told, subprocess.Popen(
        command, stdout=told, stderr=told, env=os.environ | server.environment
    ) as running:  # fmt: skip
        try:
            soon(running, lambda: rows(server, "not _tentative") > 0)
            subprocess.run([*SPE, "inject", run_dir, "cut", "source:a", "all"], check=True, capture_output=True)
            soon(running, lambda: rows(server, "_tentative") > 0)
            with server.stopped():
                time.sleep(2)
            with server.down():
                time.sleep(1)
                assert running.poll() is None, "the run was over before"
            # Where that took so long that the other source has ended, the run has healed it by itself.
            subprocess.run([*SPE, "inject", run_dir, "heal"], check=False, capture_output=True)
            status = running.wait(PATIENCE_S)
        finally:
            running.terminate()
    assert status == 0, (tmp_path / "told").read_text()
    assert "; trying again" in (run_dir / "logs" / "client-board.log").read_text()

    assert execute(["report", str(run_dir)]) == CONSISTENT
    report = Report.model_validate_json((run_dir / REPORT_FOLDER / "report.json").read_text())
    (output,) = report.outputs
    assert (report.verdict, output.reasons) == (Verdict.CONSISTENT, [])
    assert output.stable == output.truth > 100
    assert output.tentative.count == output.tentative.undone > 0

    assert rows(server, "_tentative") == 0
    assert table(server) == recorded(run_dir)


def soon(running: subprocess.Popen[bytes], holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert running.poll() is None, "the run was over before"
        assert time.monotonic() < until, "it never came"
        time.sleep(0.1)


def rows(server: PostgresServer, which: str) -> int:
    """How many rows are in the table; none, while there is no table."""
    if server.query("select to_regclass('sums')") == [(None,)]:
        return 0
    return int(server.query(f"select count(*) from sums where {which}")[0][0])


def table(server: PostgresServer) -> list[tuple[Any, ...]]:
    return server.query("select _partition, _id, key, window_start, window_end, n from sums order by _partition, _id")


def recorded(run_dir: Path) -> list[tuple[Any, ...]]:
    """What the client has recorded, as the table has it."""
    plan, stream = load_target(run_dir).plan, StreamId("sums")
    schema = plan.query.schema_of(stream)
    assert schema.names == ("key", "window_start", "window_end", "n")
    channels = {Channel(stream, p): schema for p in range(plan.partitions_of(stream))}
    return [
        (channel.partition, id_, key, moment(start), moment(end), n)
        for channel, (ids, kept) in recorded_stable(DiskStorage(run_dir), client_folder("board"), channels).items()
        for id_, (key, start, end, n) in zip(ids.tolist(), kept.to_tuples(), strict=True)
    ]


def moment(us: int) -> datetime:
    return datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)
