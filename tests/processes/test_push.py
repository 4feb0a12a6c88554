"""A source that is pushed to ends while a run goes on; the run ends when a program of the user's has read all, too."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from replicas.client.positions import OutputPositions
from replicas.client.push import Pusher
from replicas.local.run_dir import Target, load_target
from spe.log.pushed_batches import encode_part
from spe.stream.batch import Rows
from spe.stream.names import StreamId
from spe.stream.schema import Schema

pytestmark = pytest.mark.processes

CONFIG = """
cluster: pushed
bucket: 50ms
defaults: {x: 2s}
sources:
  a: {schema: {ts: timestamp!, n: int64!}, time: ts, idle: 10s, from: {push: [etl, other]}}
query:
  sums: {aggregate: {from: a, window: 1s, compute: {n: sum(n)}}}
outputs: [sums]
fragments: {all: {operators: [sums], replicas: [n1, n2]}}
nodes: [n1, n2]
clients:
  screen: {reads: [sums]}
  program: {reads: [sums], external: true}
"""
SCHEMA = Schema.of(ts="timestamp!", n="int64!")
BATCHES, ROWS, BEGIN_US = 6, 500, 1_750_000_020_000_000
PATIENCE_S = 120.0


def spe(*words: str | Path) -> str:
    process = subprocess.run(
        [sys.executable, "-m", "replicas.cli", *words], capture_output=True, text=True, check=False
    )
    return process.stdout + process.stderr


def until_said(said: Path, text: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while text not in said.read_text():
        assert time.monotonic() < end, said.read_text()
        time.sleep(0.1)


async def push(target: Target, run: Path) -> None:
    """Batches of which each has ten seconds of rows; the source is killed between two of them."""
    env, stream = target.env("writer:etl"), StreamId("a")
    one = Pusher(env, target.plan, target.directory, stream, "etl", patience_s=PATIENCE_S, token=target.token)
    for batch in range(BATCHES):
        rows = [(BEGIN_US + 20_000 * (batch * ROWS + n), 1) for n in range(ROWS)]
        part = encode_part([Rows.from_tuples(SCHEMA, [r[0] for r in rows], rows)], SCHEMA)
        await one.commit("query", batch, [await one.stage("query", batch, part)])
        if batch == BATCHES // 2:
            spe("inject", run, "kill", "source:a", "--for", "500ms")


async def read_all(target: Target) -> dict[int, int]:
    """Acknowledges all that there is, and ends at once."""
    env, stream = target.env("client:program"), StreamId("sums")
    one = OutputPositions(env, target.plan, target.directory, "program", stream, token=target.token)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(one.run)
            await one.heard_of_all()
            origin, latest = await one.origin(one.channels[0], 0, ""), one.latest()
            one.acknowledge(latest, {0: origin})
            await one.told()
            nursery.cancel_scope.cancel()
    return latest


def test_a_run_ends_when_its_writers_have_ended_and_all_is_read(tmp_path: Path) -> None:
    (tmp_path / "pushed.yaml").write_text(CONFIG)
    run, said = tmp_path / "run", tmp_path / "said"
    command = [sys.executable, "-m", "replicas.cli", "run", tmp_path / "pushed.yaml", "--run-dir", run, "--no-view"]
    with said.open("wb") as file:
        running = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        until_said(said, "stable")
        target = load_target(run)
        trio.run(push, target, run)
        assert "no source 'b'; expected one of: a" in spe("end", run, "b")
        assert (
            spe("end", run, "a", "--writer", "other") == "a ends behind 3,000 rows, and those that etl may still push\n"
        )
        assert spe("end", run, "a") == spe("end", run, "a") == "a ends behind 3,000 rows\n"
        until_said(said, "waits for program to read the rest")
        assert trio.run(read_all, target) == {0: 60}
        assert running.wait(PATIENCE_S) == 0, said.read_text()
    finally:
        running.kill()
        running.wait()
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    assert "may not have read" not in said.read_text()
    assert (summary["verdict"]["complete"], summary["verdict"]["equal"]) == (True, True)
    assert summary["verdict"]["rows"] == BATCHES * ROWS // 50
