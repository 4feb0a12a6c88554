"""The client process in virtual time: its recording and sinks survive its death, with each tuple once."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from os import getpid
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import trio

from consistency.checking.counters import Counters
from consistency.checking.protocol.feeds import check_feeds
from consistency.comparison import compare
from replicas.client.process import ClientProcess
from replicas.client.recorder import read_recording, recorded_stable
from replicas.client.result_folder import ResultFolder
from replicas.reference import reference_rows
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import sink_folder
from spe.errors import LogError, SpeError
from spe.log.announced_settings import announced_folder, read_announced
from spe.log.recording import channel_folder, client_folder
from spe.log.source_log import read_source_log
from spe.plan.delays import ReplayEpoch
from spe.plan.deploy import Deployed
from spe.runtime.storage import in_folder
from spe.stream.batch import Boundary
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeId, StreamId
from tests.simulation.test_cluster import SECONDS, X_US, make_plan
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but

OUT = Channel(StreamId("s1"), 0)
FINAL = sink_folder(Path("final")) / "s1.0.jsonl"


def plan_with_sinks() -> Deployed:
    plan, directory = make_plan(rate=50.0)
    sinks: tuple[dict[str, Any], ...] = (
        {"kind": "jsonl", "path": "final", "mode": "stable"},
        {"kind": "jsonl", "path": "newest", "mode": "corrections"},
    )
    return Deployed(plan, replace(directory, clients={"c": replace(directory.clients["c"], sinks=sinks)}))


def runs_client(cluster: FaultyCluster, kept: list[ClientProcess]) -> Callable[[], Awaitable[None]]:
    """A client process instead of the cluster's plain client; the process of each start is kept."""

    async def main() -> None:
        process = ClientProcess(
            cluster.env("client:c"),
            cluster.plan,
            cluster.directory,
            "c",
            place=lambda folder: (cluster.disks["client:c"], sink_folder(folder)),
            epochs={"s1": ReplayEpoch()},
            address="client-c:1",
        )
        kept.append(process)
        await process.run()

    return main


async def start_with(cluster: FaultyCluster, client: Callable[[], Awaitable[None]]) -> None:
    await cluster.start()
    await trio.sleep(0.01)
    cluster.wipe("client:c")
    cluster.launch("client:c", client)


def lines_of(cluster: FaultyCluster, sink: str) -> list[str]:
    return cluster.disks["client:c"].read(sink_folder(Path(sink)) / "s1.0.jsonl").decode().splitlines()


def reference_of(cluster: FaultyCluster) -> Any:
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


async def test_a_killed_client_continues_from_its_recording(jump_clock: JumpClock) -> None:
    """1. it dies and comes back while all is well; 2. a source is cut off, tentative tuples arrive, it dies again and
    comes back; 3. the cut heals: recording and sinks hold the stable stream, each tuple once, and nothing tentative"""
    (plan, directory), kept = plan_with_sinks(), list[ClientProcess]()
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, kept))
            await trio.sleep(2)
            cluster.kill("client:c")
            await trio.sleep(0.5)
            cluster.restart("client:c")
            await trio.sleep(0.5)
            cluster.cut("source:a", "*")
            await trio.sleep(2.5)
            assert kept[-1].status().channels[0].held
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
            final = [json.loads(line)["_id"] for line in lines_of(cluster, "final")]
            assert final == list(range(1, count + 1))
            newest = [json.loads(line) for line in lines_of(cluster, "newest")]
            assert any(line.get("_tentative") for line in newest)
            assert replayed(newest) == final
            assert len(kept) == 3


@pytest.mark.parametrize("seed", long_but([0], range(3)))
async def test_a_client_that_lost_power_continues_from_its_recording(jump_clock: JumpClock, seed: int) -> None:
    """It has acknowledged only synced tuples, so everything after them is still available."""
    (plan, directory), kept = make_plan(rate=50.0), list[ClientProcess]()
    async with FaultyCluster(plan, directory, seed=seed) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, kept))
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


async def test_a_sink_behind_the_recording_is_completed(jump_clock: JumpClock) -> None:
    """After a power failure each has its own last sync.  The client continues from the shorter one."""
    (plan, directory), kept = plan_with_sinks(), list[ClientProcess]()
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, kept))
            await trio.sleep(3.5)
            cluster.kill("client:c")
            disk = cluster.disks["client:c"]
            lines = disk.read(FINAL).splitlines(keepends=True)
            cluster.disks["client:c"] = disk.with_file(FINAL, b"".join(lines[:-20]))
            cluster.restart("client:c")
            await trio.sleep(SECONDS)
            final = [json.loads(line)["_id"] for line in lines_of(cluster, "final")]
            reference = reference_of(cluster)
            assert final == list(range(1, len(reference[OUT][0]) + 1))
            storage, folder = cluster.env("client:c").storage, client_folder("c")
            schema = plan.query.schema_of(OUT.stream)
            assert compare(recorded_stable(storage, folder, {OUT: schema}), reference) == []
            elements = [c.element for c in read_recording(storage, channel_folder(folder, OUT), schema)]
            times = [e.time for e in elements if isinstance(e, Boundary) and e.kind is Kind.STABLE]
            assert times == sorted(set(times))
            assert list(check_feeds(cluster.history, plan, Counters())) == []


async def test_a_client_continues_results_of_an_earlier_version(
    jump_clock: JumpClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """They do not name their query: a message says so once, and the name is stored from then on."""
    (plan, directory), kept = plan_with_sinks(), list[ClientProcess]()
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, kept))
            for begin in ("without", "with"):
                await trio.sleep(2)
                cluster.kill("client:c")
                for path in [p for p in cluster.disks["client:c"].files if p.name == ".spe.json"]:
                    if begin == "without":
                        cluster.disks["client:c"].remove(path)
                cluster.restart("client:c")
            await trio.sleep(SECONDS)
            final = [json.loads(line)["_id"] for line in lines_of(cluster, "final")]
            assert final == list(range(1, len(reference_of(cluster)[OUT][0]) + 1))
    said = [line for line in capsys.readouterr().err.splitlines() if "does not say of which query" in line]
    assert ["recording clients/c" in said[0], "sink final" in said[1], "sink newest" in said[2]] == [True] * 3
    assert len(said) == 3


async def test_announcements_of_all_upstream_nodes_are_recorded(
    jump_clock: JumpClock,
) -> None:
    """T8.  1. no failure; 2. a source is cut off; 3. a node restarts with another X; 4. the client restarts."""
    (plan, directory), kept = make_plan(2, rate=50.0), list[ClientProcess]()
    async with FaultyCluster(plan, directory, seed=3) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, kept))
            await trio.sleep(2)
            cluster.cut("source:a", "*")
            await trio.sleep(3)
            cluster.heal()
            await trio.sleep(1)
            cluster.kill("n1a")
            n1a = directory.nodes[NodeId("n1a")]
            nodes = {**directory.nodes, n1a.id: replace(n1a, x_us=7 * X_US)}
            cluster.directories["n1a"] = replace(directory, nodes=nodes)
            changed_us = cluster.env("client:c").clock.wall_us()
            cluster.restart("n1a")
            await trio.sleep(3)
            cluster.kill("client:c")
            await trio.sleep(0.5)
            cluster.restart("client:c")
            await trio.sleep(SECONDS)
            storage = cluster.env("client:c").storage
            recorded = list(read_announced(storage, announced_folder(client_folder("c"))))

    assert {(record.announcement.node, record.announcement.unit) for record in recorded} == {
        (node, unit) for unit, nodes in (("u1", ("n1a", "n1b")), ("u2", ("n2a", "n2b"))) for node in nodes
    }
    assert [record.arrived_us for record in recorded] == sorted(record.arrived_us for record in recorded)
    of_n1a = [record for record in recorded if record.announcement.node == "n1a"]
    assert {record.announcement.x_us for record in of_n1a if record.arrived_us < changed_us} == {X_US}
    first = next(record for record in of_n1a if record.announcement.x_us == 7 * X_US)
    assert 0 < first.arrived_us - changed_us < 3_000_000
    assert first.announcement.since_us >= changed_us
    waited = {
        record.announcement.node: record.announcement.waited_us for record in recorded if record.arrived_us < changed_us
    }
    alpha_x = n1a.alpha_x_us
    for node in ("n1a", "n1b"):  # during the cut they waited for as long as allowed, and no longer
        assert alpha_x <= waited[node] <= X_US
    assert max(waited.values()) <= X_US


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_a_second_process_of_a_client_is_refused(jump_clock: JumpClock, tmp_path: Path, kind: str) -> None:
    """Also one with its own recording."""
    plan, directory = make_plan()
    sink = {"kind": kind, "path": "results", "mode": "stable"}
    directory = replace(directory, clients={"c": replace(directory.clients["c"], sinks=(sink,))})
    first, second = FaultyCluster(plan, directory), FaultyCluster(plan, directory)
    process = ClientProcess(first.env("client:c"), plan, directory, "c", place=in_folder, sinks_root=tmp_path)
    with pytest.raises(LogError, match=f"sink {tmp_path}/results is written by another process: .*process {getpid()} "):
        ClientProcess(second.env("client:c"), plan, directory, "c", place=in_folder, sinks_root=tmp_path)
    process.close()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_a_sink_of_another_query_is_refused(jump_clock: JumpClock, tmp_path: Path, kind: str) -> None:
    plan, directory = make_plan()
    sink = {"kind": kind, "path": "results", "mode": "stable"}
    directory = replace(directory, clients={"c": replace(directory.clients["c"], sinks=(sink,))})
    folder = ResultFolder(*in_folder(tmp_path / "results"), "an earlier query", {OUT: "f00d"})
    await folder.keep()
    (tmp_path / "results" / ".spe.lock").unlink()  # that process has ended
    with pytest.raises(SpeError, match=rf"sink {tmp_path}/results \(.spe.json\) holds s1/0 of another query"):
        ClientProcess(
            FaultyCluster(plan, directory).env("client:c"), plan, directory, "c", place=in_folder, sinks_root=tmp_path
        )


async def test_the_status_of_a_client_shows_switches_and_delays(jump_clock: JumpClock) -> None:
    """Its replica dies: one switch with its time, delays below X, and the stream ends."""
    (plan, directory), kept = plan_with_sinks(), list[ClientProcess]()
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await start_with(cluster, runs_client(cluster, kept))
            await trio.sleep(4)
            first = kept[0].status().channels[0].producer
            assert first is not None
            cluster.kill(first)
            await trio.sleep(SECONDS)
            status = kept[0].status()
    (channel,) = status.channels
    (switch,) = status.switches
    assert (switch.before, switch.channel) == (first, "s1/0")
    assert switch.after != first
    assert 0 < switch.silence_us < X_US
    assert channel.ended
    assert (channel.switches, channel.tentative, channel.held) == (1, 0, False)
    assert channel.stable == channel.position == 3 * 50 * SECONDS
    assert channel.delay_max_us is not None
    assert 0 < channel.delay_max_us < X_US
    assert channel.stable_gap_max_us >= switch.silence_us
