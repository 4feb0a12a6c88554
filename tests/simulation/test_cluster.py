"""A whole cluster through failures, in virtual time: real node, source and client code on a simulated network.

Every run ends by healing, and then the client's stable stream must equal the reference run over the sources' logs,
tuple for tuple, with nothing tentative left (P3); the client itself refuses a stable tuple while tentative ones live
(P4) and a gap or a duplicate of ids (P2).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest
import trio

from consistency.comparison import compare
from replicas.client.client import Client
from replicas.client.recorder import stable_rows
from replicas.reference import reference_rows
from replicas.simulation.world.clock import JumpClock, Stuck
from spe.errors import SpeError
from spe.log.source_log import read_source_log
from spe.plan.deploy import Deployed
from spe.plan.generators import GENERATORS
from spe.plan.nodes import Policy
from spe.plan.plan import Limits
from spe.query.declaration import OperatorSpec
from spe.stream.batch import Batch, Boundary, Element, Rows, Undo
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.plans import chain, pass_on, source, union_of

SCHEMA = GENERATORS["sequence"].schema
X_US = 1_000_000
SECONDS = 8


def make_plan(depth: int = 1, *, rate: float = 100.0, bucket_us: int = 100_000, **options: Any) -> Deployed:
    """Three sources, merged by the first of ``depth`` units in a row."""
    reader = {"kind": "generator", "generator": "sequence"}
    sources = [
        replace(
            source(name, reader=reader | {"rate": rate, "seed": at, "duration": f"{SECONDS}s"}, schema=SCHEMA),
            boundary_us=bucket_us,
        )
        for at, name in enumerate("abc")
    ]
    stages: list[tuple[str, OperatorSpec, Schema]] = [("s1", union_of("a", "b", "c"), SCHEMA)]
    stages += [(f"s{at}", pass_on(f"s{at - 1}"), SCHEMA) for at in range(2, depth + 1)]
    return chain(sources, stages, x_us=X_US, bucket_us=bucket_us, **options)


def _keys(rows: Rows) -> list[Any]:
    return list(zip(rows.time.tolist(), map(str, rows.to_tuples()), strict=True))


class Outcome:
    """What the client saw."""

    def __init__(self, cluster: FaultyCluster, client: str = "c") -> None:
        self.cluster = cluster
        self.changes = cluster.changes[client]
        batches = [c for c in self.changes if isinstance(c.element, Batch)]
        self.tentative = sum(len(c.element) for c in batches if c.element.kind is Kind.TENTATIVE)
        self.undos = sum(isinstance(c.element, Undo) for c in self.changes)

    def assert_complete(self) -> None:
        """The stable stream of every output equals the reference to its end, and nothing tentative is left."""
        self.assert_complete_for(*self.cluster.plan.query.outputs)

    def assert_complete_for(self, *streams: str) -> None:
        plan = self.cluster.plan
        needed = {StreamId(s) for s in streams}
        for unit in reversed(plan.units):
            if needed & set(unit.outputs):
                needed |= {i.stream for i in unit.inputs}
        query = replace(plan.query, outputs=tuple(StreamId(s) for s in streams))
        plan = replace(plan, query=query, units=tuple(u for u in plan.units if needed & set(u.outputs)))
        inputs = {
            s: read_source_log(self.cluster.env(f"source:{s}").storage, PurePosixPath(s), plan.query.sources[s])
            for s in plan.sources
        }
        reference = reference_rows(plan, inputs)
        recorded = {
            channel: stable_rows(
                [c for c in self.changes if c.channel == channel], plan.query.schema_of(channel.stream)
            )
            for channel in reference
        }
        assert compare(recorded, reference) == []
        assert sum(len(ids) for ids, _ in reference.values()) > 0
        for channel in reference:
            own = [c.element for c in self.changes if c.channel == channel]
            ends = [e for e in own if isinstance(e, Boundary) and e.kind is Kind.STABLE]
            assert ends, f"{channel} has no stable boundary"
            assert ends[-1].time == END_OF_TIME, f"{channel} did not end"
            live = False
            for element in own:
                if isinstance(element, Batch):
                    live = element.kind is Kind.TENTATIVE
                elif isinstance(element, Undo):
                    live = False
            assert not live, f"{channel}: tentative tuples are left"
            self._assert_nothing_is_live_twice(own, reference[channel][1])

    def _assert_nothing_is_live_twice(self, elements: list[Element], reference: Rows) -> None:
        """P2: a correct result never occurs more often than in the reference, also among tentative results."""
        allowed = Counter(_keys(reference))
        stable: Counter[Any] = Counter()
        live: Counter[Any] = Counter()
        for element in elements:
            if isinstance(element, Undo):
                live.clear()
            elif isinstance(element, Batch):
                keys = _keys(element.rows)
                (stable if element.kind is Kind.STABLE else live).update(keys)
                for key in keys:
                    assert key not in allowed or stable[key] + live[key] <= allowed[key], f"{key} is there twice"

    def longest_wait_us(self) -> int:
        """Delay_new: the largest arrival minus tuple time (here the creation) of tuples newer than all before."""
        newest, worst = 0, 0
        for change in self.changes:
            element = change.element
            if isinstance(element, Batch) and len(element):
                fresh = element.rows.time[element.rows.time > newest]
                if len(fresh):
                    worst = max(worst, change.arrived_us - int(fresh[0]))
                    newest = int(element.rows.time[-1])
        return worst


async def run(cluster: FaultyCluster, until: float) -> Outcome:
    """Runs to ``until`` seconds, after which everything must have been corrected."""
    await trio.sleep(until - trio.current_time())
    return Outcome(cluster)


async def test_without_failures_all_results_are_stable(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan()) as cluster:
        with cluster.explain():
            await cluster.start()
            outcome = await run(cluster, SECONDS + 2)
            outcome.assert_complete()
            assert outcome.tentative == 0
            assert outcome.longest_wait_us() <= 150_000  # the first tuples wait for the start-up


async def test_cut_source_gives_tentative_results_until_corrected(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.cut("source:b", "*")
            await trio.sleep(4)
            cluster.heal()
            outcome = await run(cluster, SECONDS + 5)
            outcome.assert_complete()
            assert outcome.tentative > 100
            assert outcome.longest_wait_us() < X_US + 100_000


async def test_a_failure_shorter_than_alpha_x_is_masked(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.cut("source:b", "*")
            await trio.sleep(0.3)
            cluster.heal()
            outcome = await run(cluster, SECONDS + 3)
            outcome.assert_complete()
            assert outcome.tentative == 0


async def test_the_client_continues_with_the_other_replica(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            (reading,) = [i.main.producer for i in cluster.clients["c"].inputs if i.main is not None]
            cluster.kill(reading)
            outcome = await run(cluster, SECONDS + 3)
            outcome.assert_complete()
            assert outcome.tentative == 0
            assert outcome.longest_wait_us() < 600_000


async def test_a_restarted_replica_takes_over_when_the_other_dies(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2)
            cluster.kill("n1a")
            await trio.sleep(1.5)
            cluster.restart("n1a")
            await trio.sleep(1.5)
            cluster.kill("n1b")
            outcome = await run(cluster, SECONDS + 3)
            outcome.assert_complete()
            assert outcome.tentative == 0


async def test_all_replicas_die_and_start_from_nothing(jump_clock: JumpClock) -> None:
    """A3 (3): the sources still have everything, so the same ids are made again."""
    async with FaultyCluster(*make_plan()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.kill("n1a")
            cluster.kill("n1b")
            await trio.sleep(1)
            cluster.restart("n1a")
            cluster.restart("n1b")
            outcome = await run(cluster, SECONDS + 5)
            outcome.assert_complete()


async def test_a_killed_source_continues_where_its_log_ends(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.kill("source:a")
            await trio.sleep(2)
            cluster.restart("source:a")
            outcome = await run(cluster, SECONDS + 5)
            outcome.assert_complete()
            assert outcome.tentative > 0


@pytest.mark.parametrize("depth", long_but([2], [2, 4]))
async def test_in_a_chain_results_come_within_kx_and_are_corrected(jump_clock: JumpClock, depth: int) -> None:
    async with FaultyCluster(*make_plan(depth, rate=100.0)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.cut("source:b", "*")
            await trio.sleep(4)
            cluster.heal()
            outcome = await run(cluster, SECONDS + 10)
            outcome.assert_complete()
            assert outcome.tentative > 0
            assert outcome.longest_wait_us() < X_US + 200_000  # process & process: αX once, not once per node (T7)


async def test_a_kill_inside_a_chain_is_masked(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan(3, rate=100.0)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.kill("n2a")
            await trio.sleep(3)
            cluster.restart("n2a")
            outcome = await run(cluster, SECONDS + 5)
            outcome.assert_complete()
            assert outcome.tentative == 0


async def test_an_evicted_consumer_installs_a_snapshot_and_serves(jump_clock: JumpClock) -> None:
    """A2, A3: upstream's buffer is full and evicts it; later it alone continues the stream."""
    plan, directory = make_plan(2, rate=50.0, limits=Limits(output_bytes=30_000, spill_bytes=0))
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2)
            for upstream in ("n1a", "n1b"):
                cluster.cut(upstream, "n2b")
            await trio.sleep(4)
            cluster.heal()
            await trio.sleep(1.5)
            assert any("n2b" in line and "reinstall" in line for line in cluster.log)
            cluster.kill("n2a")
            outcome = await run(cluster, SECONDS + 5)
            outcome.assert_complete()


@pytest.mark.parametrize(
    ("failure", "stabilization"),
    long_but(
        [(Policy.PROCESS, Policy.SUSPEND), (Policy.DELAY, Policy.PROCESS), (Policy.SUSPEND, Policy.PROCESS)],
        [(f, s) for f in (Policy.PROCESS, Policy.DELAY) for s in Policy] + [(Policy.SUSPEND, Policy.PROCESS)],
    ),
)
async def test_every_policy_without_partners_ends_complete(
    jump_clock: JumpClock, failure: Policy, stabilization: Policy
) -> None:
    plan, directory = make_plan(2, rate=50.0, failure=failure, stabilization=stabilization, replicas=1)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.cut("source:b", "*")
            await trio.sleep(3)
            cluster.heal()
            outcome = await run(cluster, SECONDS + 10)
            outcome.assert_complete()
            assert (outcome.tentative == 0) == (failure is Policy.SUSPEND)


async def test_second_client_of_a_name_gets_truncation_error(
    jump_clock: JumpClock,
) -> None:
    """Tuples acknowledged under a name are gone for it; silence would look like a slow query."""
    async with FaultyCluster(*make_plan()) as cluster:
        with cluster.explain():
            await cluster.start()
            await run(cluster, SECONDS + 2)
            again = Client(cluster.env("again"), cluster.plan, cluster.directory, "c")
            async with trio.open_nursery() as nursery:
                await nursery.start(again.run)
                with pytest.raises(SpeError, match="an earlier process of this name has acknowledged"):
                    await anext(again.changes())
                nursery.cancel_scope.cancel()


async def test_a_busy_loop_ends_a_test_with_an_error(jump_clock: JumpClock) -> None:
    """Code after the loop never runs, so the test must not pass."""

    async def spin() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    async def block() -> None:
        async with FaultyCluster(*make_plan(1)) as cluster:
            await cluster.start()
            cluster.launch("source:idle", spin)
            await trio.sleep(1)
            raise AssertionError("it was not noticed")

    with pytest.raises(Stuck, match="busy loop"):
        await block()
