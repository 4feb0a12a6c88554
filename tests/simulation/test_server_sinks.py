"""A client that writes to servers, in virtual time: they are away, it dies; each row is there once in the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import trio

from replicas.client.process import ClientProcess
from replicas.simulation.world.clock import JumpClock
from spe.connectors import installed_connectors as installed
from spe.plan.deploy import Deployed
from spe.stream.batch import Batch
from spe.stream.names import Kind
from tests.simulation.test_client_process import OUT, reference_of, runs_client, start_with
from tests.simulation.test_cluster import SECONDS, Outcome, make_plan
from tests.support.faulty_cluster import FaultyCluster
from tests.support.table_server import SERVERS, TABLE, TableServer

MODES = ("stable", "current", "corrections")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, TableServer]]:
    monkeypatch.setitem(installed._LOADED, (installed.SINKS_GROUP, "table"), TABLE)
    SERVERS.update({mode: TableServer() for mode in MODES})
    yield SERVERS
    SERVERS.clear()


def plan_with_tables() -> Deployed:
    plan, directory = make_plan(rate=50.0)
    sinks: tuple[dict[str, Any], ...] = tuple({"kind": "table", "at": mode, "mode": mode} for mode in MODES)
    return Deployed(plan, replace(directory, clients={"c": replace(directory.clients["c"], sinks=sinks)}))


def check_tables(cluster: FaultyCluster, servers: dict[str, TableServer]) -> None:
    """Each holds the rows of a run without failures, each once, and none that is tentative."""
    _, rows = reference_of(cluster)[OUT]
    expected = {(str(OUT), i): (False, row) for i, row in zip(range(1, len(rows.time) + 1), rows.to_tuples())}
    for mode, server in servers.items():
        assert server.rows == expected, mode
    assert len(expected) > 100


async def test_absent_server_blocks_only_its_client(
    jump_clock: JumpClock, servers: dict[str, TableServer], capsys: pytest.CaptureFixture[str]
) -> None:
    """1. one is away when the client starts, and comes; 2. another goes, and comes back."""
    (plan, directory), kept = plan_with_tables(), list[ClientProcess]()
    servers["stable"].away = True
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, kept))
            await trio.sleep(1)
            (why,) = kept[0].status().away.items()
            assert why == ("sink table stable", "[Errno 111] Connection refused")
            servers["stable"].away = False
            await trio.sleep(3)
            assert kept[0].status().away == {}
            reached = len(servers["stable"].rows)
            assert reached > 100
            servers["current"].away = True
            await trio.sleep(1)
            assert list(kept[0].status().away) == ["sink table current"]
            served = [r.logs[0].last_id for r in cluster.replicas().values()]
            await trio.sleep(1)
            assert [r.logs[0].last_id for r in cluster.replicas().values()] > served
            servers["current"].away = False
            await trio.sleep(SECONDS)
            check_tables(cluster, servers)
    said = capsys.readouterr().err.splitlines()
    assert dict.fromkeys(said) == dict.fromkeys(
        f"client:c: sink table {which}: {what}"
        for which in ("stable", "current")
        for what in ("[Errno 111] Connection refused; trying again", "it answers again")
    )


async def test_slow_server_delays_its_own_client_only(jump_clock: JumpClock, servers: dict[str, TableServer]) -> None:
    """A transaction takes two seconds, of a failure and its correction as well."""
    (plan, directory), kept = plan_with_tables(), list[ClientProcess]()
    other = replace(directory.clients["c"], name="other", sinks=())
    directory = replace(directory, clients={**directory.clients, "other": other})
    servers["current"].delay_s = 1.0
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, kept))
            await trio.sleep(3)
            cluster.cut("source:a", "*")
            await trio.sleep(2.5)
            batches = [c.element for c in cluster.changes["other"] if isinstance(c.element, Batch)]
            assert batches[-1].kind is Kind.TENTATIVE
            made = max(r.logs[0].last_id for r in cluster.replicas().values())
            assert max(b.upto_id for b in batches if b.kind is Kind.STABLE) == made
            assert len(servers["current"].rows) < batches[-1].upto_id
            cluster.heal()
            await trio.sleep(2 * SECONDS)
            assert kept[0].status().away == {}
            check_tables(cluster, servers)
            Outcome(cluster, "other").assert_complete()


async def test_a_killed_client_goes_on_where_its_servers_are(
    jump_clock: JumpClock, servers: dict[str, TableServer]
) -> None:
    """Without a failure; while rows are tentative; while a server is away."""
    (plan, directory), kept = plan_with_tables(), list[ClientProcess]()
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, kept))
            await trio.sleep(2)
            for away in (None, "stable"):
                cluster.cut("source:a", "*")
                await trio.sleep(2.5)
                assert any(tentative for tentative, _ in servers["current"].rows.values())
                if away is not None:
                    servers[away].away = True
                cluster.kill("client:c")
                await trio.sleep(0.5)
                cluster.restart("client:c")
                await trio.sleep(0.5)
                cluster.heal()
                if away is not None:
                    servers[away].away = False
                await trio.sleep(1)
            await trio.sleep(SECONDS)
            check_tables(cluster, servers)
            assert len(kept) == 3
            assert "undo s1/0" in "".join(servers["corrections"].changes)
