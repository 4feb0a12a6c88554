"""The example of a connector in a package of its own keeps what it states, against a server in memory."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from replicas.testing import check_reader, check_sink
from spe.connectors import find_reader, find_sink
from spe.connectors.installed_connectors import READERS_GROUP, SINKS_GROUP, installed
from tests.support.fake_redis import ADDRESS, SCHEMA, FakeRedis, row_of
from tests.support.redis_streams import EXAMPLE, installed_example

#: Crashes of each kind.
SOME = 10
#: Without a crash, and with so many of each kind.
PLAYS = 4 * (SOME + 1)
ENTRIES = 12


@pytest.fixture(autouse=True)
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with installed_example(monkeypatch, tmp_path):
        yield


def test_the_example_is_short() -> None:
    lines = [line for file in (EXAMPLE / "redis_streams").glob("*.py") for line in file.read_text().splitlines()]
    assert len(lines) < 200


def test_redis_connector_is_installed_by_entry_points() -> None:
    assert list(installed(READERS_GROUP)) == list(installed(SINKS_GROUP)) == ["redis"]
    reader, sink = find_reader("redis"), find_sink("redis")
    assert reader is not None
    assert reader.live
    assert sink is not None
    assert list(sink.modes) == ["stable", "current"]


@pytest.mark.parametrize("trim", [False, True])
def test_redis_reader_delivers_each_entry_once(trim: bool) -> None:
    source = {
        "schema": SCHEMA,
        "time": "ts",
        "from": {"redis": {"address": ADDRESS, "stream": "in", "trim": trim}},
    }
    servers: list[FakeRedis] = []

    def server() -> FakeRedis:
        servers.append(FakeRedis(ENTRIES))
        return servers[-1]

    assert check_reader(source, [row_of(n) for n in range(ENTRIES)], server, most=SOME) == PLAYS
    assert {len(one.stream) < ENTRIES for one in servers[1:]} == {trim}, "the first one is not played"


@pytest.mark.parametrize("name", ["test_reader", "test_sink"])
def test_the_tests_of_the_page_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (EXAMPLE.parents[1] / "docs" / "how-to" / "own-connectors.md").read_text(encoding="utf-8")
    (tests,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    server = ModuleType("my_server")
    server.__dict__.update(MyServer=lambda: FakeRedis(ENTRIES), ROWS=[row_of(n) for n in range(ENTRIES)])
    monkeypatch.setitem(sys.modules, "my_server", server)
    names: dict[str, Any] = {}
    exec(compile(tests, "own-connectors.md", "exec"), names)
    names[name]()


@pytest.mark.parametrize("mode", ["stable", "current"])
def test_redis_sink_holds_each_row_once(mode: str) -> None:
    assert check_sink({"redis": {"address": ADDRESS, "key": "out"}, "mode": mode}, FakeRedis, most=SOME) == PLAYS
