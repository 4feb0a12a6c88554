"""``on_error: skip`` and ``on_late: reject`` in a cluster with failures: all replicas reject the same rows, and one
client gets each once (U15)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest
import trio

from replicas.client.recorder import stable_rows
from replicas.simulation.world.clock import JumpClock
from spe.log.source_log import read_source_log
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.nodes import Checkpoints, Reconcile
from spe.plan.plan import Plan
from spe.query.declaration import OnError, OnLate, OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.custom import CustomSpec
from spe.query.operators.rejected import REJECTIONS, RejectedSpec
from spe.query.query import QueryOperator
from spe.query.windows import SlidingWindow
from spe.stream.batch import Batch, Element
from spe.stream.names import Kind, StreamId
from spe.stream.times import SECOND
from tests.simulation.test_cluster import SCHEMA, SECONDS, Outcome, make_plan, run
from tests.support.faulty_cluster import FaultyCluster
from tests.support.plans import union_of

BAD = 7
#: The stream of what is rejected.
LEFT = StreamId("left")


def skipping_plan(**options: Any) -> Deployed:
    """Unit u1 merges three sources, with an operator that refuses multiples of seven; u2 passes rows on."""
    plan, directory = make_plan(2, **options)
    spec = CustomSpec((StreamId("s0"),), "tests.support.operators_for_tests:Picky", {"bad": BAD}, OnError.SKIP)
    return with_operators(plan, directory, s0=union_of("a", "b", "c"), s1=spec)


def of_one_source(**options: Any) -> Deployed:
    """One unit with one operator that reads a source."""
    plan, directory = make_plan(1, **options)
    spec = CustomSpec((StreamId("a"),), "tests.support.operators_for_tests:Picky", {"bad": BAD}, OnError.SKIP)
    return with_operators(plan, directory, s1=spec)


def late_plan(**options: Any) -> Deployed:
    """One unit that counts rows of three sources in windows of two seconds by an attribute.

    The attribute of a tenth of them lies a second and a half back, so that these are late; some have none.
    """
    plan, directory = make_plan(1, **options)
    window = SlidingWindow(2 * SECOND, SECOND, 0, "seen")
    lagging = {"late": 10, "by_us": 3 * SECOND // 2, "null": 97}
    return with_operators(
        plan,
        directory,
        all=union_of("a", "b", "c"),
        lagging=CustomSpec((StreamId("all"),), "tests.support.operators_for_tests:Lagging", lagging),
        s1=AggregateSpec(StreamId("lagging"), window, {}, {"n": AggregateCall("count")}, on_late=OnLate.REJECT),
    )


def with_operators(plan: Plan, directory: Directory, **specs: OperatorSpec) -> Deployed:
    """These operators in the first unit; its client reads what the last of them, s1, rejects too."""
    first, *others = plan.units
    operators: list[QueryOperator] = []
    schema = SCHEMA
    for name, spec in {**specs, LEFT: RejectedSpec(StreamId("s1"))}.items():
        schema = spec.output_schema([schema] * len(spec.inputs))
        operators.append(QueryOperator(StreamId(name), spec, schema))
    units = (replace(first, operators=tuple(operators), outputs=(*first.outputs, LEFT)), *others)
    every = tuple(o for unit in units for o in unit.operators)
    query = replace(plan.query, operators=every, outputs=(*plan.query.outputs, LEFT))
    clients = {name: replace(one, reads=(*one.reads, LEFT)) for name, one in directory.clients.items()}
    return Deployed(replace(plan, query=query, units=units), replace(directory, clients=clients))


def rejected(outcome: Outcome) -> list[dict[str, Any]]:
    """The stable rows of the client, whose tentative ones were all withdrawn."""
    changes = [c for c in outcome.changes if c.channel.stream == LEFT]
    _, rows = stable_rows(changes, REJECTIONS)
    names = ("time", *REJECTIONS.names)
    found = [dict(zip(names, (time, *row), strict=True)) for time, row in zip(rows.time, rows.to_tuples(), strict=True)]
    return [{**row, "values": json.loads(row.pop("text"))} for row in found]


def expected(cluster: FaultyCluster, *sources: str) -> list[int]:
    """``n`` of each row to be rejected, in order of time."""
    rows = []
    for at, name in enumerate(sources):
        storage = cluster.env(f"source:{name}").storage
        for element in read_source_log(storage, PurePosixPath(name), SCHEMA):
            if hasattr(element, "rows"):
                values = element.rows.columns[SCHEMA.index("n")].to_list()
                ids = element.row_ids().tolist()
                rows += list(zip(element.rows.time.tolist(), [at] * len(ids), ids, values, strict=True))
    return [n for _, _, _, n in sorted(rows) if n % BAD == 0]


@pytest.mark.parametrize("reconcile", Reconcile)
async def test_all_replicas_reject_the_same_rows_through_failures(jump_clock: JumpClock, reconcile: Reconcile) -> None:
    plan, directory = skipping_plan()
    directory = replace(directory, nodes={n: replace(one, reconcile=reconcile) for n, one in directory.nodes.items()})
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2)
            cluster.cut("source:b", "*")
            await trio.sleep(3)
            cluster.heal()
            outcome = await run(cluster, SECONDS + 6)
            outcome.assert_complete()
            assert outcome.tentative > 100
            wanted = expected(cluster, "a", "b", "c")
            assert len(wanted) > 100
            rows = rejected(outcome)
            assert [row["n"] for row in rows] == list(range(1, len(wanted) + 1))
            assert [row["values"]["n"] for row in rows] == wanted
            assert {(row["input"], row["input_id"]) for row in rows} == {("s0", None)}, "made inside the unit: no ids"
            tentative = [c.element for c in outcome.changes if c.channel.stream == LEFT and is_tentative(c.element)]
            assert tentative, "what is rejected during a failure is tentative too"
            for node in ("n1a", "n1b"):
                replica = cluster.replicas()[f"u1/0@{node}"]
                assert replica.counters()["s1.rejected"] == len(wanted)
                assert not replica.differs()
        for node in ("n1a", "n1b"):
            told = f"rejected replica=u1/0@{node} operator=s1 what=a row of s0"
            assert sum(told in line for line in cluster.log) == 1


def is_tentative(element: Element) -> bool:
    return isinstance(element, Batch) and element.kind is Kind.TENTATIVE


@pytest.mark.parametrize("reconcile", Reconcile)
async def test_the_late_rows_are_those_of_a_run_without_failures(jump_clock: JumpClock, reconcile: Reconcile) -> None:
    """Each once, in spite of redo, replay from a checkpoint, and a replica that is killed and replaced."""
    plan, directory = late_plan()
    every = Checkpoints(every_us=500_000, disk=True)
    nodes = {n: replace(one, reconcile=reconcile, checkpoints=every) for n, one in directory.nodes.items()}
    async with FaultyCluster(plan, replace(directory, nodes=nodes)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2)
            cluster.cut("source:b", "*")
            await trio.sleep(2)
            cluster.heal()
            cluster.kill("n1b")
            await trio.sleep(0.7)
            cluster.restart("n1b")
            outcome = await run(cluster, SECONDS + 8)
            outcome.assert_complete()  # equal to the reference, which has no failures
            assert outcome.tentative > 0
            rows, counters = rejected(outcome), cluster.replicas()["u1/0@n1b"].counters()
    late, without = counters["s1.late"], counters["s1.without_time"]
    assert late > 200
    assert without > 20
    assert counters["s1.rejected"] == len(rows) == late + without
    assert [row["n"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["input"] for row in rows} == {"lagging"}
    assert sum(row["reason"].startswith("without time: ") for row in rows) == without
    late_ones = [row for row in rows if row["reason"].startswith("late: ")]
    assert all(row["values"]["n"] % 10 == 0 for row in late_ones)
    assert {row["reason"][:26] for row in late_ones} == {"late: 1 of its 2 windows h", "late: 2 of its 2 windows h"}


async def test_a_rejected_row_has_its_id(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*of_one_source()) as cluster:
        with cluster.explain():
            await cluster.start()
            outcome = await run(cluster, SECONDS + 4)
            outcome.assert_complete()
            rows = rejected(outcome)
            assert {row["input"] for row in rows} == {"a/0"}
            log = read_source_log(cluster.env("source:a").storage, PurePosixPath("a"), SCHEMA)
            by_id = {
                id: n
                for e in log
                if hasattr(e, "rows")
                for id, n in zip(e.row_ids().tolist(), e.rows.columns[SCHEMA.index("n")].to_list(), strict=True)
            }
            assert [row["input_id"] for row in rows] == [id for id, n in by_id.items() if n % BAD == 0]


async def test_after_restarts_each_rejected_row_came_once(jump_clock: JumpClock) -> None:
    """All replicas die, and begin from checkpoints on disk; later one of them dies again."""
    plan, directory = of_one_source()
    every = Checkpoints(every_us=500_000, disk=True)
    directory = replace(directory, nodes={n: replace(one, checkpoints=every) for n, one in directory.nodes.items()})
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2)
            cluster.kill("n1a")
            cluster.kill("n1b")
            await trio.sleep(0.5)
            cluster.restart("n1a")
            await trio.sleep(1)
            cluster.restart("n1b")
            await trio.sleep(1)
            cluster.kill("n1a")
            await trio.sleep(0.5)
            cluster.restart("n1a")
            outcome = await run(cluster, SECONDS + 8)
            outcome.assert_complete()
            rows = rejected(outcome)
            assert [row["values"]["n"] for row in rows] == expected(cluster, "a")
            assert [row["n"] for row in rows] == list(range(1, len(rows) + 1))
