"""``replicas.client.connect``: what a program receives, and its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from replicas.client import StableRows, TentativeRows, UndoneRows, connect
from replicas.client.view import CurrentView
from replicas.simulation.world.clock import JumpClock
from spe.config import load_text
from spe.errors import ConfigError, NotReachable, PeerRefused
from spe.plan.deploy import Deployed, with_addresses
from spe.stream.names import StreamId
from tests.support.faulty_cluster import FaultyCluster

CONFIG = """
cluster: shop
bucket: 50ms
defaults: {x: 1s, alpha: 0.8, policy: process}
sources:
  a: {from: {generator: {name: orders, rate: 20, keys: 5, seed: 1, duration: 8s}}, boundary: 50ms}
  b: {from: {generator: {name: orders, rate: 20, keys: 5, seed: 2, duration: 8s}}, boundary: 50ms}
query:
  both: {union: [a, b]}
  sums: {aggregate: {from: both, window: {tumbling: 500ms}, compute: {n: count(*), v: sum(qty)}}}
outputs: [sums]
nodes: [n1, n2]
clients: {board: {reads: [sums]}}
"""


def shop(changed: str = "50ms") -> Deployed:
    plan, directory = load_text(CONFIG.replace("bucket: 50ms", f"bucket: {changed}"))
    return Deployed(plan, with_addresses(directory, {n: f"{n.replace(':', '-')}:1" for n in directory.addresses()}))


@asynccontextmanager
async def running() -> AsyncIterator[FaultyCluster]:
    async with FaultyCluster(*shop()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(0.1)
            cluster.kill("client:board")
            yield cluster


async def test_a_program_gets_tentative_undone_and_stable_rows(jump_clock: JumpClock) -> None:
    view, seen, counted = CurrentView(), [], 0
    async with running() as cluster, trio.open_nursery() as nursery:

        async def cut() -> None:
            await trio.sleep(2)
            cluster.cut("source:b", "*")
            await trio.sleep(3)
            cluster.heal()

        nursery.start_soon(cut)
        async with connect(shop(), client="board", env=cluster.env("client:program")) as changes:
            async for change in changes:
                view.apply(change.change)
                seen.append(type(change))
                if isinstance(change, StableRows):
                    counted += sum(record["n"] for record in change.records())
    rows, tentative = view.rows(StreamId("sums"))

    assert seen.index(StableRows) < seen.index(TentativeRows) < seen.index(UndoneRows)
    assert (change.stream, change.partition, change.names) == ("sums", 0, ("window_start", "window_end", "n", "v"))
    assert not tentative.any()
    assert rows is not None
    assert counted == rows.columns[2].values.sum() == 320


async def test_a_program_can_read_final_tuples_only(jump_clock: JumpClock) -> None:
    async with (
        running() as cluster,
        connect(shop(), client="board", env=cluster.env("client:program")) as changes,
    ):
        counts = [n async for rows in changes.stable("sums") for n in rows.columns[2].to_list()]

    assert sum(counts) == 320


async def test_an_error_of_the_block_is_raised_unchanged(jump_clock: JumpClock) -> None:
    async with running() as cluster:
        with pytest.raises(ZeroDivisionError):
            async with connect(shop(), client="board", env=cluster.env("client:program")):
                raise ZeroDivisionError


async def test_an_unknown_client_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"no client 'bord' \(did you mean 'board'\?\); expected one of: board"):
        async with connect(shop(), client="bord"):
            pass


async def test_nodes_without_addresses_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="the configuration gives no address for n1, n2; give each"):
        async with connect(load_text(CONFIG), client="board"):
            pass


async def test_a_cluster_that_does_not_run_is_reported_with_addresses(jump_clock: JumpClock) -> None:
    cluster = FaultyCluster(*shop())
    with pytest.raises(NotReachable) as caught:
        async with connect(shop(), client="board", env=cluster.env("client:program"), wait_s=2):
            pass
    head, *tried = str(caught.value).splitlines()

    assert head == "cluster 'shop' does not answer client:board within 2 s; is it running?"
    assert [line.partition(": ")[0] for line in tried] == ["  n1 at n1:1", "  n2 at n2:1"]


async def test_a_cluster_of_another_plan_refuses_at_once(jump_clock: JumpClock) -> None:
    async with running() as cluster:
        before = trio.current_time()
        with pytest.raises(PeerRefused) as caught:
            async with connect(shop("100ms"), client="board", env=cluster.env("client:program")):
                pass

        assert trio.current_time() - before < 1
    head, *tried = str(caught.value).splitlines()
    assert head == "cluster 'shop' refuses client:board:"
    assert all("the plan is another one" in line for line in tried)
    assert len(tried) == 2
