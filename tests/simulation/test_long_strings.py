"""Strings larger than a frame, and results beyond the limit of a row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from replicas.simulation.world.clock import JumpClock
from spe.plan.deploy import Deployed
from spe.plan.plan import Limits
from spe.query.operators.filter import FilterSpec
from spe.query.operators.map import MapSpec
from spe.stream import text_size
from spe.stream.names import NodeId, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.wire.codec import ElementDecoder
from tests.simulation.test_cluster import Outcome
from tests.support.faulty_cluster import FaultyCluster
from tests.support.plans import chain, placed, source

SCHEMA = Schema.of(ts="timestamp!", text="string!")
FRAME_BYTES = 64 << 10
COUNT = 30


def make_plan(folder: Path) -> Deployed:
    """Two units; every third row is larger than a frame, in the source's log and doubled in the result."""
    lines = [{"ts": f"2026-01-01T00:00:{n:02}Z", "text": f"{n} " * (40_000 if n % 3 else 1)} for n in range(COUNT)]
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    events = replace(source("a", reader={"kind": "jsonl", "path": str(path)}, schema=SCHEMA), replay={"rate": 10.0})
    doubled = MapSpec(StreamId("s1"), {"text": "concat(text, text)"}, keep=False)
    stages = [("s1", FilterSpec(StreamId("a"), "length(text) > 0"), SCHEMA), ("s2", doubled, Schema.of(text="string!"))]
    return chain([events], stages, limits=Limits(frame_bytes=FRAME_BYTES))


async def test_strings_larger_than_a_frame_reach_the_client(jump_clock: JumpClock, tmp_path: Path) -> None:
    """Also after a restart, from the source's log; such rows stopped a cluster of an earlier version for good."""
    async with FaultyCluster(*make_plan(tmp_path)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(1)
            cluster.kill("source:a")
            cluster.kill("n1a")
            await trio.sleep(1)
            cluster.restart("source:a")
            cluster.restart("n1a")
            await trio.sleep(10)
            Outcome(cluster).assert_complete()


async def test_a_result_beyond_the_row_limit_stops_its_replicas(
    jump_clock: JumpClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(text_size, "ROW_TEXT_BYTES", 130_000)
    async with FaultyCluster(*make_plan(tmp_path)) as cluster:
        await cluster.start()
        await trio.sleep(10)
        assert not any(r.error for r in cluster.nodes["n1a"].status().replicas)
    told = capsys.readouterr().err
    for replica in ("u2/0@n2a", "u2/0@n2b"):
        assert f"{replica} stopped: operator 's2' raised" in told
    assert "of text in one row; at most 130000 can be sent" in told


async def test_replicas_of_a_node_have_dictionaries_of_their_own(
    jump_clock: JumpClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one of them holds for hours, in a failure, must not keep the texts that another one has long given away."""
    pools: list[StringPool] = []

    class Decoder(ElementDecoder):
        def __init__(self, schema: Schema, pool: StringPool) -> None:
            pools.append(pool)
            super().__init__(schema, pool)

    monkeypatch.setattr("replicas.consumer.upstream.ElementDecoder", Decoder)
    plan, directory = make_plan(tmp_path)
    directory = placed(directory, {id: [NodeId("n1a")] for id in directory.placement})
    async with FaultyCluster(plan, directory) as cluster:
        await cluster.start()
        await trio.sleep(10)
        Outcome(cluster).assert_complete()
    assert len(pools) >= 3
    assert len({id(pool) for pool in pools}) == 3, "of both replicas, and of the client"
