"""The status of a cluster, requested as ``spe status`` does; and peers that send a wrong status."""

from __future__ import annotations

import io
import json
from typing import Any

import msgpack
import pytest
import trio
from pydantic import TypeAdapter
from rich.console import Console

from replicas.cli.control import json_text
from replicas.cli.view.view import render
from replicas.local.polling import Poller, last_of
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from replicas.source.process import SourceProcess
from spe.figures.sight import Sight
from spe.status import ClusterStatus, NodeStatus, ProcessStatus, SourceStatus, plain
from spe.stream.names import NodeState
from spe.wire.framing import FrameType, frame
from spe.wire.messages.commands import Status
from tests.simulation.test_cluster import make_plan
from tests.support.statuses import a_source

NAMES = ["n1a", "n1b", "source:a", "source:b", "source:c"]


async def asked(cluster: SimCluster) -> Poller:
    """A poller that has asked each process once."""
    poller = Poller(cluster.env("control"), cluster.plan, cluster.directory.addresses(), "")
    for name in NAMES:
        await poller.ask_status(name)
    return poller


def drawn(cluster: SimCluster, poller: Poller) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    sight = Sight("test", cluster.env("control").clock.wall_us(), seen=poller.seen, errors=poller.errors)
    console.print(render(cluster.plan, cluster.directory, sight))
    return console.export_text()


async def test_every_status_has_its_declared_type(jump_clock: JumpClock) -> None:
    async with SimCluster(*make_plan(1)) as cluster:
        await cluster.start()
        await trio.sleep(3)
        poller = await asked(cluster)
    found = TypeAdapter(ClusterStatus).validate_json(json_text(poller))

    assert found.processes == {name: seen.status for name, seen in poller.seen.items()}
    assert (sorted(found.processes), found.errors) == (NAMES, {})
    node, source = last_of(poller.seen, "n1a", NodeStatus), last_of(poller.seen, "source:a", SourceStatus)
    assert node is not None
    assert node.server is not None
    assert node.server.connections["client:c"] + node.server.connections.get("n1b", 0) >= 1
    assert [(r.unit, r.state, len(r.inputs)) for r in node.replicas] == [("u1", NodeState.STABLE, 3)]
    assert source is not None
    assert source.log is not None
    assert source.log.last_id > 50


async def test_a_wrong_status_is_an_error_and_the_others_are_shown(
    jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n1a sends a status with a wrong field, source:b that of another process."""

    def encode(status: Status) -> bytes:
        data = plain(status.process)
        if data["name"] == "n1a":
            data["replicas"][0]["fill"] = "half"
        return frame(FrameType.CONTROL, msgpack.packb([Status.TAG, data]))

    lies: dict[str, ProcessStatus] = {}
    monkeypatch.setattr(Status, "encode", encode)
    right = SourceProcess.status

    def status(self: SourceProcess) -> ProcessStatus:
        answer = right(self)
        return lies.get(answer.name, answer)

    monkeypatch.setattr(SourceProcess, "status", status)
    async with SimCluster(*make_plan(1)) as cluster:
        await cluster.start()
        await trio.sleep(3)
        lies["source:b"] = a_source("n1b")
        poller = await asked(cluster)
        text = drawn(cluster, poller)
    said: dict[str, Any] = json.loads(json_text(poller))

    assert sorted(said["processes"]) == ["n1b", "source:a", "source:c"]
    assert sorted(said["errors"]) == ["n1a", "source:b"]
    assert said["errors"]["n1a"].startswith("Status.process: replicas.0.fill: Input should be a valid number")
    assert said["errors"]["source:b"] == "expected the status of source:b, got that of source n1b"
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "unreachable" in lines["n1a u1"]
    assert "STABLE" in lines["n1b u1"]
