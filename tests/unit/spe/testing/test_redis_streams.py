"""The example of a connector in a package of its own keeps what it states: in memory, and against a real server."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from spe.connectors import find_reader, find_sink
from spe.connectors.installed import READERS_GROUP, SINKS_GROUP, installed
from spe.runtime.env import Network
from spe.testing import check_reader, check_sink
from tests.support.fake_redis import ADDRESS, FakeRedis, row_of
from tests.support.installed import install_points

EXAMPLE = Path(__file__).parents[4] / "examples" / "redis_streams"
SERVER = shutil.which("redis-server")

#: Crashes of each kind, in memory and with a real server.
SOME = 30
#: Without a crash, and with so many of each kind.
PLAYS = 4 * (SOME + 1)
FEW = 3
ENTRIES = 12
SCHEMA = {"ts": "timestamp!", "n": "int64!", "text": "string"}


@pytest.fixture(autouse=True)
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs it, as pip would."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    install_points(monkeypatch, tmp_path, points, "spe-redis-streams")
    yield
    installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("redis_streams")]:
        del sys.modules[name]


def test_the_example_is_short() -> None:
    lines = [line for file in (EXAMPLE / "redis_streams").glob("*.py") for line in file.read_text().splitlines()]
    assert len([line for line in lines if line.strip()]) < 200


def test_it_is_found_by_its_entry_points() -> None:
    assert list(installed(READERS_GROUP)) == list(installed(SINKS_GROUP)) == ["redis"]
    reader, sink = find_reader("redis"), find_sink("redis")
    assert reader is not None
    assert reader.live
    assert sink is not None
    assert list(sink.modes) == ["stable", "current"]


@pytest.mark.parametrize("trim", [False, True])
def test_its_reader_brings_each_entry_once(trim: bool) -> None:
    source = {
        "schema": SCHEMA,
        "time": "ts",
        "from": {"redis": {"address": ADDRESS, "stream": "in", "trim": trim}},
    }
    assert check_reader(source, [row_of(n) for n in range(ENTRIES)], lambda: FakeRedis(ENTRIES), most=SOME) == PLAYS


@pytest.mark.parametrize("mode", ["stable", "current"])
def test_its_sink_holds_each_row_once(mode: str) -> None:
    assert check_sink({"redis": {"address": ADDRESS, "key": "out"}, "mode": mode}, FakeRedis, most=SOME) == PLAYS


class RealRedis:
    """A redis-server of its own, which writes everything to disk before it answers."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._folder = folder / f"redis-{self.port}"
        self._folder.mkdir()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, network: Network, *, task_status: trio.TaskStatus[str]) -> None:
        options = ["--port", str(self.port), "--dir", str(self._folder), "--save", "", "--loglevel", "warning"]
        command = [str(SERVER), *options, "--appendonly", "yes", "--appendfsync", "always"]
        process = await trio.lowlevel.open_process(command)
        try:
            while True:
                try:
                    if await self._ask("PING") == "PONG":
                        break
                except OSError:
                    await trio.sleep(0.02)
            task_status.started(self.address)
            await trio.sleep_forever()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()

    async def _ask(self, *words: str) -> Any:
        from redis_streams.resp import Redis

        from spe.runtime.production import production_env

        try:
            async with Redis(production_env(self._folder), self.address) as redis:
                answer = await redis.ask(*words)
                return answer.decode() if isinstance(answer, bytes) else answer
        except Exception as error:
            raise ConnectionError(str(error)) from error


class RealStream(RealRedis):
    """With entries that are there from the beginning."""

    async def serve(self, network: Network, *, task_status: trio.TaskStatus[str]) -> None:
        async with trio.open_nursery() as nursery:
            address = await nursery.start(super().serve, network)
            if not await self._ask("EXISTS", "filled"):
                for n in range(ENTRIES):
                    await self._ask("XADD", "in", "*", "json", json.dumps(row_of(n)))
                await self._ask("SET", "filled", "yes")
            task_status.started(address)


class RealSets(RealRedis):
    async def rows(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for partition in (0, 1):
            members = await self._ask("ZRANGE", f"out:results:{partition}", "0", "-1")
            found += [json.loads(member) | {"_partition": partition} for member in members]
        return found


@pytest.mark.processes
@pytest.mark.skipif(SERVER is None, reason="redis-server is not installed")
def test_its_reader_brings_each_entry_once_from_a_real_server(tmp_path: Path) -> None:
    def source(server: RealStream) -> dict[str, Any]:
        reader = {"redis": {"address": server.address, "stream": "in", "trim": True}}
        return {"schema": SCHEMA, "time": "ts", "from": reader}

    rows = [row_of(n) for n in range(ENTRIES)]
    assert check_reader(source, rows, lambda: RealStream(tmp_path), virtual=False, most=FEW) == 3 * (FEW + 1)


@pytest.mark.processes
@pytest.mark.skipif(SERVER is None, reason="redis-server is not installed")
@pytest.mark.parametrize("mode", ["stable", "current"])
def test_its_sink_holds_each_row_once_in_a_real_server(tmp_path: Path, mode: str) -> None:
    def sink(server: RealSets) -> dict[str, Any]:
        return {"redis": {"address": server.address, "key": "out"}, "mode": mode}

    assert check_sink(sink, lambda: RealSets(tmp_path), virtual=False, most=FEW) == 3 * (FEW + 1)
