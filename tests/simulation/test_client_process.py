"""The client process in virtual time: what it records and writes survives its own death, each tuple once."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import trio

from replicas.client.process import ClientProcess
from replicas.client.recorder import recorded_stable
from replicas.comparison import compare
from replicas.reference import reference_rows
from replicas.simulation.clock import JumpClock
from replicas.simulation.cluster import SimCluster
from spe.log.recording import client_folder
from spe.log.source_log import read_source_log
from spe.plan.delays import ReplayEpoch
from spe.plan.plan import Plan
from spe.runtime.storage import in_folder
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from tests.simulation.test_cluster import SECONDS, X_US, make_plan

OUT = Channel(StreamId("s1"), 0)


def plan_with_sinks() -> Plan:
    plan = make_plan(rate=50.0)
    sinks: tuple[dict[str, Any], ...] = (
        {"kind": "jsonl", "path": "final", "mode": "stable"},
        {"kind": "jsonl", "path": "newest", "mode": "corrections"},
    )
    return replace(plan, clients={"c": replace(plan.clients["c"], sinks=sinks)})


def runs_client(cluster: SimCluster, folder: Path, kept: list[ClientProcess]) -> Callable[[], Awaitable[None]]:
    """A client process in place of the cluster's plain client; every start of it is kept."""

    async def main() -> None:
        process = ClientProcess(
            cluster.env("client:c"),
            cluster.plan,
            "c",
            place=in_folder,
            sinks_root=folder,
            epochs={"s1": ReplayEpoch()},
            address="client-c:1",
        )
        kept.append(process)
        await process.run()

    return main


async def start_with(cluster: SimCluster, client: Callable[[], Awaitable[None]]) -> None:
    await cluster.start()
    await trio.sleep(0.01)
    cluster.kill("client:c")
    cluster.launch("client:c", client)


def reference_of(cluster: SimCluster) -> Any:
    plan = cluster.plan
    logs = {
        s: read_source_log(cluster.env(f"source:{s}").storage, PurePosixPath(s), plan.query.sources[s])
        for s in plan.sources
    }
    return reference_rows(plan, logs)


def replayed(lines: list[dict[str, Any]]) -> list[int]:
    """Ids that are left when a sink with corrections is read from the beginning: inserts added, undone ones dropped."""
    ids: list[int] = []
    for line in lines:
        if line["_kind"] == "insert":
            ids.append(line["_id"])
        elif line["_kind"] == "undo":
            ids = [i for i in ids if i <= line["_id"]]
    return ids


async def test_a_client_that_dies_goes_on_behind_what_it_has_kept(jump_clock: JumpClock, tmp_path: Path) -> None:
    """1. it dies and comes back while all is well; 2. a source is cut off, tentative tuples arrive, it dies again and
    comes back; 3. the cut heals: recording and sinks hold the stable stream, each tuple once, and nothing tentative"""
    plan, kept = plan_with_sinks(), list[ClientProcess]()
    async with SimCluster(plan) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, tmp_path, kept))
            await trio.sleep(2)
            cluster.kill("client:c")
            await trio.sleep(0.5)
            cluster.restart("client:c")
            await trio.sleep(0.5)
            cluster.cut("source:a", "*")
            await trio.sleep(2.5)
            assert kept[-1].status()["channels"][0]["held"]
            cluster.kill("client:c")
            await trio.sleep(0.5)
            cluster.restart("client:c")
            await trio.sleep(0.5)
            cluster.heal()
            await trio.sleep(SECONDS)

            schemas = {OUT: plan.query.schema_of(OUT.stream)}
            recorded = recorded_stable(cluster.env("client:c").storage, client_folder("c"), schemas)
            reference = reference_of(cluster)
            assert compare(recorded, reference) == []
            count = len(reference[OUT][0])
            final = [json.loads(line)["_id"] for line in (tmp_path / "final/s1.0.jsonl").read_text().splitlines()]
            assert final == list(range(1, count + 1))
            newest = [json.loads(line) for line in (tmp_path / "newest/s1.0.jsonl").read_text().splitlines()]
            assert any(line.get("_tentative") for line in newest)
            assert replayed(newest) == final
            assert len(kept) == 3


@pytest.mark.parametrize("seed", range(3))
async def test_a_client_without_power_goes_on_from_its_recording(
    jump_clock: JumpClock, tmp_path: Path, seed: int
) -> None:
    """It has acknowledged only what was synced: everything after it is still there."""
    plan, kept = make_plan(rate=50.0), list[ClientProcess]()
    async with SimCluster(plan, seed=seed) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, tmp_path, kept))
            await trio.sleep(5 + seed / 7)
            assert any(r.logs[0].truncation_line > 0 for r in cluster.replicas().values())
            cluster.kill("client:c", power=True)
            await trio.sleep(0.5)
            cluster.restart("client:c")
            await trio.sleep(SECONDS + 4)
            schemas = {OUT: plan.query.schema_of(OUT.stream)}
            recorded = recorded_stable(cluster.env("client:c").storage, client_folder("c"), schemas)
            assert compare(recorded, reference_of(cluster)) == []
            assert len(kept) == 2


async def test_a_client_process_tells_what_it_experienced(jump_clock: JumpClock, tmp_path: Path) -> None:
    """Its replica dies: one switch, timed; delays stay below X; the stream comes to its end."""
    plan, kept = plan_with_sinks(), list[ClientProcess]()
    async with SimCluster(plan) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, tmp_path, kept))
            await trio.sleep(4)
            first = kept[0].status()["channels"][0]["producer"]
            cluster.kill(first)
            await trio.sleep(SECONDS)
            status = kept[0].status()
    (channel,) = status["channels"]
    (switch,) = status["switches"]
    assert (switch["before"], switch["channel"]) == (first, "s1/0")
    assert switch["after"] != first
    assert 0 < switch["silence_us"] < X_US
    assert channel["ended"]
    assert (channel["switches"], channel["tentative"], channel["held"]) == (1, 0, False)
    assert channel["stable"] == channel["position"] == 3 * 50 * SECONDS
    assert 0 < channel["delay_max_us"] < X_US
    assert channel["stable_gap_max_us"] >= switch["silence_us"]
