"""The example of a connector in a package of its own, against a real server, which is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from replicas.testing import check_reader, check_sink
from tests.support.fake_redis import SCHEMA, row_of
from tests.support.redis_streams import EXAMPLE, SERVER, RealRedis, installed_example

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(SERVER is None, reason="redis-server is not installed: apt-get install redis-server"),
]

#: Crashes of each kind.
SOME = 3
PLAYS = 3 * (SOME + 1)
ENTRIES = 12

CONFIG = """
sources:
  orders:
    schema: {{ts: timestamp!, n: int64!}}
    time: ts
    ahead: 100000d
    idle: never
    from: {{redis: {{address: "{address}", stream: in, trim: true}}}}
query:
  sums: {{aggregate: {{from: orders, window: 1s, compute: {{rows: count(*), n: sum(n)}}}}}}
fragments: {{f: {{operators: [sums], replicas: 2}}}}
nodes: [n1, n2]
clients:
  board:
    sinks:
      - {{redis: {{address: "{address}", key: final}}}}
      - {{redis: {{address: "{address}", key: newest}}, mode: current}}
faults:
  - {{at: 2s, kind: kill, target: "client:board", for: 500ms}}
  - {{at: 5s, kind: kill, target: "source:orders", for: 500ms}}
"""


@pytest.fixture(autouse=True)
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with installed_example(monkeypatch, tmp_path):
        yield


class WithStream(RealRedis):
    """With entries that are there from the beginning."""

    async def filled(self) -> None:
        if not await self.ask("EXISTS", "filled"):
            for n in range(ENTRIES):
                await self.ask("XADD", "in", "*", "json", json.dumps(row_of(n)))
            await self.ask("SET", "filled", "yes")


class WithSets(RealRedis):
    async def rows(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for partition in (0, 1):
            members = await self.ask("ZRANGE", f"out:results:{partition}", "0", "-1")
            found += [json.loads(member) | {"_partition": partition} for member in members]
        return found


def test_redis_reader_delivers_each_entry_once_on_real_server(tmp_path: Path) -> None:
    def source(server: RealRedis) -> dict[str, Any]:
        reader = {"redis": {"address": server.address, "stream": "in", "trim": True}}
        return {"schema": SCHEMA, "time": "ts", "from": reader}

    rows = [row_of(n) for n in range(ENTRIES)]
    assert check_reader(source, rows, lambda: WithStream(tmp_path), virtual=False, most=SOME) == PLAYS


@pytest.mark.parametrize("mode", [pytest.param("stable", marks=pytest.mark.long), "current"])
def test_redis_sink_holds_each_row_once_on_real_server(tmp_path: Path, mode: str) -> None:
    def sink(server: RealRedis) -> dict[str, Any]:
        return {"redis": {"address": server.address, "key": "out"}, "mode": mode}

    assert check_sink(sink, lambda: WithSets(tmp_path), virtual=False, most=SOME) == PLAYS


@pytest.mark.long
async def test_redis_to_redis_run_survives_client_source_server_death(tmp_path: Path) -> None:
    """1. the client dies; 2. the source dies; 3. redis dies, and comes back; 4. more rows come."""
    server, config, run_dir = RealRedis(tmp_path), tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(CONFIG.format(address=server.address))
    command = [sys.executable, "-m", "replicas.cli", "run", str(config), "--run-dir", str(run_dir), "--no-view"]
    path = os.pathsep.join([str(tmp_path), str(EXAMPLE), os.environ.get("PYTHONPATH", "")])
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as serving:
            await serving.start(server.serve)
            running = partial(
                trio.run_process,
                [*command, "--dashboard", "off", "--duration", "20s"],
                env={**os.environ, "PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                capture_stdout=False,
            )
            await add_rows(server, 0, 200)
            process = await nursery.start(running)
            await trio.sleep(5.5)
            serving.cancel_scope.cancel()
        async with trio.open_nursery() as serving:
            await serving.start(server.serve)
            await trio.sleep(2)
            await add_rows(server, 200, 601)  # the last one ends the sixth window
            told = (await read_all(process.stdout)).decode()
            final, newest = [await rows_of(server, key) for key in ("final", "newest")]
            serving.cancel_scope.cancel()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["sources"][0]["tuples"] == 601, told
    assert [row["_id"] for row in final] == list(range(1, 7)), told
    assert [(row["rows"], row["n"]) for row in final] == [(100, sum(range(n, n + 100))) for n in range(0, 600, 100)]
    windows = [row["window_start"] for row in newest]
    assert len(set(windows)) == len(windows)
    assert [row["_id"] for row in newest if not row["_tentative"]] == list(range(1, 7))


async def add_rows(server: RealRedis, first: int, stop: int) -> None:
    """A row each 10 ms of event time."""
    for n in range(first, stop):
        row = {"ts": f"2026-01-01T12:00:{n // 100:02}.{n % 100:02}", "n": n}
        await server.ask("XADD", "in", "*", "json", json.dumps(row))


async def rows_of(server: RealRedis, key: str) -> list[dict[str, Any]]:
    return [json.loads(member) for member in await server.ask("ZRANGE", f"{key}:sums:0", "0", "-1")]


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    return b"".join([data async for data in stream])
