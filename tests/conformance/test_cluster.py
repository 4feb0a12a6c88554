"""The same cases through a whole cluster in virtual time: a replica killed and restarted does not change the answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from consistency.comparison import ChannelRows
from replicas.client.recorder import stable_rows
from replicas.simulation.world.clock import JumpClock
from spe.config import load_text
from spe.plan.deploy import Deployed, with_addresses
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.ids import Channel
from spe.stream.names import NodeId
from tests.support.conformance import CLUSTER_CASES, FOLDER, ClusterCase, cluster_cases, load
from tests.support.faulty_cluster import FaultyCluster

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the conformance cases are not beside this checkout"),
]
#: Length of a replay during which a replica dies.
REPLAY_SECONDS = 3.0
LONGEST_SECONDS = 1_000


def addressed(plan: Plan, directory: Directory) -> Deployed:
    """Each process on a host of its own name."""
    addresses = {name: f"{name.removeprefix('source:')}:1" for name in directory.addresses()}
    return Deployed(plan, with_addresses(directory, addresses))


async def run(one: ClusterCase, *, kill: NodeId | None = None) -> tuple[Plan, dict[Channel, ChannelRows]]:
    """Runs a case to its end; returns the client's stable tuples."""
    plan, directory = addressed(*load_text(one.config, one.case.id, one.data))
    (name,) = directory.clients
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain(), trio.fail_after(LONGEST_SECONDS):
            await cluster.start()
            if kill is not None:
                await trio.sleep(REPLAY_SECONDS / 3)
                cluster.kill(kill)
                await trio.sleep(REPLAY_SECONDS / 3)
                cluster.restart(kill)
            while not (name in cluster.clients and cluster.clients[name].finished):  # noqa: ASYNC110 - time is virtual
                await trio.sleep(0.1)
        changes = cluster.changes[name]
        channels = cluster.clients[name].channels
    return plan, {
        channel: stable_rows([c for c in changes if c.channel == channel], plan.query.schema_of(channel.stream))
        for channel in channels
    }


def named(plan: Plan, found: Mapping[Channel, ChannelRows]) -> list[dict[str, Any]]:
    return [
        dict(zip(plan.query.schema_of(channel.stream).names, values, strict=True))
        for channel, (_, rows) in found.items()
        for values in rows.to_tuples()
    ]


@pytest.mark.parametrize("id_", CLUSTER_CASES)
async def test_a_replicated_cluster_gives_the_expected_results(id_: str, tmp_path: Path, jump_clock: JumpClock) -> None:
    (one,) = cluster_cases(tmp_path, [id_])
    assert one.case.differences(named(*await run(one))) == []


@pytest.mark.parametrize("id_", CLUSTER_CASES)
async def test_a_restarted_replica_does_not_change_the_results(id_: str, tmp_path: Path, jump_clock: JumpClock) -> None:
    rows = max(entry["rows"] for entry in load(id_).data["inputs"].values())
    (one,) = cluster_cases(tmp_path, [id_], replay={"rate": rows / REPLAY_SECONDS})
    assert one.case.differences(named(*await run(one, kill=NodeId("n1")))) == []
