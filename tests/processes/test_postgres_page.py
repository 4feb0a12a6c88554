"""The example of docs/how-to/postgres.md, as it stands there, between two tables of a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.servers.postgres import DATABASE, PASSWORD, USER, PostgresServer
from tests.support.postgres_server import running_server

pytestmark = [pytest.mark.processes, pytest.mark.servers]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "postgres.md").read_text(encoding="utf-8")
#: The page names the results, and leaves open how they are computed.
QUERY = {"totals": {"aggregate": {"from": "orders", "window": "1s", "compute": {"n": "count(*)", "sum": "sum(total)"}}}}
PATIENCE_S = 120.0


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    """1. rows that are there, and then others, come out as totals; 2. the slot is dropped as the page says."""
    source, client = (yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S))
    (drop,) = re.findall(r"`(SELECT pg_drop_replication_slot\('\w+'\))`", PAGE)
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump({"query": QUERY, **source, **client}, sort_keys=False))
    with running_server() as server:
        services = tmp_path / "services"
        services.write_text(f"[shop]\nhost=127.0.0.1\nport={server.port}\nuser={USER}\ndbname={DATABASE}\n")
        known = {**os.environ, "PGSERVICEFILE": str(services), "PGPASSWORD": PASSWORD}
        server.query("create table orders (id bigint primary key, placed timestamptz, total double precision)")
        add(server, 1, 100)
        command = [sys.executable, "-m", "replicas.cli", "run", "shop.yaml", "--no-view", "--dashboard", "off"]
        with (tmp_path / "told").open("wb") as told, subprocess.Popen(
            command, cwd=tmp_path, env=known, stdout=told, stderr=told
        ) as running:  # fmt: skip
            try:
                soon(running, lambda: len(totals(server)) >= 20)
                add(server, 101, 200)
                soon(running, lambda: len(totals(server)) >= 45)
            finally:
                running.terminate()
        soon(None, lambda: server.query("select active from pg_replication_slots") == [(False,)])
        server.query(drop)
        assert server.query("select slot_name from pg_replication_slots") == []
        there = totals(server)
        assert there == [(4, 10.0)] * len(there)


def add(server: PostgresServer, first: int, last: int) -> None:
    """Four orders a second, of 1, 2, 3 and 4; the first second begins with the first order."""
    server.query(
        "insert into orders select n, timestamptz '2026-01-01 12:00:00+00' + (n - 1) * interval '250ms', "
        f"1 + (n - 1) % 4 from generate_series({first}, {last}) n"
    )


def totals(server: PostgresServer) -> list[tuple[Any, ...]]:
    """What is final; nothing while there is no table."""
    if server.query("select to_regclass('public.totals')") == [(None,)]:
        return []
    return server.query("select n, sum from totals where not _tentative order by _id")


def soon(running: subprocess.Popen[bytes] | None, holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert running is None or running.poll() is None, "it ended"
        assert time.monotonic() < until, "it never came"
        time.sleep(0.1)
