"""``on_error: skip`` and ``on_late: reject`` in a cluster with failures: all replicas reject the same rows, and their
files list them (U15)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest
import trio

from replicas.node.rejected_rows import RejectedRows
from replicas.simulation.clock import JumpClock
from spe.log.source_log import read_source_log
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.nodes import Checkpoints, Reconcile
from spe.plan.plan import Plan
from spe.query.declaration import OnError, OnLate
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.custom import CustomSpec
from spe.query.query import QueryOperator
from spe.query.windows import Window, WindowKind
from spe.stream.names import StreamId
from spe.stream.times import SECOND, parse_timestamp
from tests.simulation.test_cluster import SCHEMA, SECONDS, make_plan, run
from tests.support.faulty_cluster import FaultyCluster
from tests.support.plans import union_of
from tests.support.situations import until

BAD = 7
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]*\d")
PATH = PurePosixPath("nodes")


def skipping_plan(**options: Any) -> Deployed:
    """Unit u1 merges three sources, with an operator that refuses multiples of seven; u2 passes rows on."""
    plan, directory = make_plan(2, **options)
    first, second = plan.units
    spec = CustomSpec((StreamId("s0"),), "tests.support.operators_for_tests:Picky", {"bad": BAD}, OnError.SKIP)
    operators = (
        QueryOperator(StreamId("s0"), union_of("a", "b", "c"), SCHEMA),
        QueryOperator(StreamId("s1"), spec, SCHEMA),
    )
    return with_operators(replace(plan, units=(replace(first, operators=operators), second)), directory)


def of_one_source(**options: Any) -> Deployed:
    """One unit with one operator that reads a source."""
    plan, directory = make_plan(1, **options)
    (unit,) = plan.units
    spec = CustomSpec((StreamId("a"),), "tests.support.operators_for_tests:Picky", {"bad": BAD}, OnError.SKIP)
    return with_operators(
        replace(plan, units=(replace(unit, operators=(QueryOperator(StreamId("s1"), spec, SCHEMA),)),)), directory
    )


def late_plan(**options: Any) -> Deployed:
    """One unit that counts rows of three sources in windows of two seconds by an attribute.

    The attribute of a tenth of them lies a second and a half back, so that these are late; some have none.
    """
    plan, directory = make_plan(1, **options)
    (unit,) = plan.units
    names = [StreamId(name) for name in ("all", "lagging", "s1")]
    window = Window(WindowKind.SLIDING, 2 * SECOND, SECOND, 0, "seen")
    lagging = {"late": 10, "by_us": 3 * SECOND // 2, "null": 97}
    specs = [
        union_of("a", "b", "c"),
        CustomSpec((names[0],), "tests.support.operators_for_tests:Lagging", lagging),
        AggregateSpec(names[1], window, {}, {"n": AggregateCall("count")}, on_late=OnLate.REJECT),
    ]
    operators: list[QueryOperator] = []
    schema = SCHEMA
    for name, spec in zip(names, specs, strict=True):
        schema = spec.output_schema([schema] * len(spec.inputs))
        operators.append(QueryOperator(name, spec, schema))
    return with_operators(replace(plan, units=(replace(unit, operators=tuple(operators)),)), directory)


def with_operators(plan: Plan, directory: Directory) -> Deployed:
    query = replace(plan.query, operators=tuple(o for unit in plan.units for o in unit.operators))
    return Deployed(replace(plan, query=query), directory)


def lines_of(cluster: FaultyCluster, node: str) -> list[dict[str, Any]]:
    data = cluster.env(node).storage.read(PATH / node / "rejected" / "u1-0.jsonl")
    header, *lines = map(json.loads, data.splitlines())
    assert set(header) == {"plan", "origin"}
    return lines


def since_first(lines: list[dict[str, Any]]) -> list[str]:
    """Lines with times since that of the first one: runs begin at different times, whole seconds apart."""
    first = parse_timestamp(lines[0]["time"])
    return [TIMESTAMP.sub(lambda found: str(parse_timestamp(found[0]) - first), json.dumps(line)) for line in lines]


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
            for node in ("n1a", "n1b"):
                lines = lines_of(cluster, node)
                assert [line["n"] for line in lines] == list(range(1, len(wanted) + 1))
                assert [line["values"]["n"] for line in lines] == wanted
                assert {line["from"] for line in lines} == {"s0"}  # made inside the unit: no ids
                assert {line["id"] for line in lines} == {None}
                replica = cluster.replicas()[f"u1/0@{node}"]
                assert replica.counters()["s1.rejected"] == len(wanted)
                assert not replica.differs()
        for node in ("n1a", "n1b"):
            told = f"rejected replica=u1/0@{node} operator=s1 what=a row of s0"
            assert sum(told in line for line in cluster.log) == 1


@pytest.mark.parametrize("reconcile", Reconcile)
async def test_the_late_rows_are_those_of_a_run_without_failures(jump_clock: JumpClock, reconcile: Reconcile) -> None:
    """Each once, with reason and position, in spite of redo, replay from a checkpoint, and two replicas."""
    plan, directory = late_plan()
    every = Checkpoints(every_us=500_000, disk=True)
    nodes = {n: replace(one, reconcile=reconcile, checkpoints=every) for n, one in directory.nodes.items()}
    directory = replace(directory, nodes=nodes)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            outcome = await run(cluster, trio.current_time() + SECONDS + 3)
            outcome.assert_complete()
            wanted = lines_of(cluster, "n1a")
            assert wanted == lines_of(cluster, "n1b")
            counters = cluster.replicas()["u1/0@n1a"].counters()
            late, without = counters["s1.late"], counters["s1.without_time"]
            assert late > 200
            assert without > 20
            assert counters["s1.rejected"] == len(wanted) == late + without
    assert [line["n"] for line in wanted] == list(range(1, len(wanted) + 1))
    assert {line["operator"] for line in wanted} == {"s1"}
    assert {line["from"] for line in wanted} == {"lagging"}
    assert sum(line["reason"].startswith("without time: ") for line in wanted) == without
    late_ones = [line for line in wanted if line["reason"].startswith("late: ")]
    assert all(line["values"]["n"] % 10 == 0 for line in late_ones)
    assert {line["reason"][:26] for line in late_ones} == {"late: 1 of its 2 windows h", "late: 2 of its 2 windows h"}

    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            begun = trio.current_time()
            await cluster.start()
            await trio.sleep(2)
            cluster.cut("source:b", "*")
            await trio.sleep(2)
            cluster.heal()
            cluster.kill("n1b")
            await trio.sleep(0.7)
            cluster.restart("n1b")
            outcome = await run(cluster, begun + SECONDS + 8)
            outcome.assert_complete()
            assert outcome.tentative > 0
            assert cluster.replicas()["u1/0@n1b"].counters() == counters
            whole, part = lines_of(cluster, "n1a"), lines_of(cluster, "n1b")
    assert since_first(whole) == since_first(wanted)
    assert 0 < len(part) < len(whole)  # an install leaves out what the partner's file has
    assert part == [line for line in whole if line in part]


async def test_a_rejected_row_has_its_id_in_the_file(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*of_one_source()) as cluster:
        with cluster.explain():
            await cluster.start()
            outcome = await run(cluster, SECONDS + 4)
            outcome.assert_complete()
            lines = lines_of(cluster, "n1a")
            assert lines == lines_of(cluster, "n1b")
            assert {line["from"] for line in lines} == {"a/0"}
            log = read_source_log(cluster.env("source:a").storage, PurePosixPath("a"), SCHEMA)
            by_id = {
                id: n
                for e in log
                if hasattr(e, "rows")
                for id, n in zip(e.row_ids().tolist(), e.rows.columns[SCHEMA.index("n")].to_list(), strict=True)
            }
            assert [line["id"] for line in lines] == [id for id, n in by_id.items() if n % BAD == 0]


async def test_after_restarts_no_row_is_in_a_file_twice(jump_clock: JumpClock) -> None:
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
            wanted = expected(cluster, "a")
            numbers = {node: [line["n"] for line in lines_of(cluster, node)] for node in ("n1a", "n1b")}
            for found in numbers.values():
                assert found == sorted(set(found))
            # rows that one replica missed by an install are in its partner's file
            assert sorted(set(numbers["n1a"]) | set(numbers["n1b"])) == list(range(1, len(wanted) + 1))


async def _late(_: RejectedRows) -> None:
    await trio.sleep_forever()


async def test_what_a_partner_is_given_is_in_the_file_before(
    jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is late, and the giver dies: nobody else has seen the rows."""
    async with FaultyCluster(*of_one_source()) as cluster:
        with cluster.explain():
            with monkeypatch.context() as patch:
                patch.setattr(RejectedRows, "run", _late)
                await cluster.start()
                await trio.sleep(2)
            cluster.kill("n1b")
            cluster.restart("n1b")
            await until(lambda: "u1/0@n1b" in (found := cluster.replicas()) and found["u1/0@n1b"].reading.installed)
            cluster.kill("n1a")
            await trio.sleep(1)
            cluster.restart("n1a")
            outcome = await run(cluster, SECONDS + 6)
            outcome.assert_complete()
            wanted = expected(cluster, "a")
            found = {line["values"]["n"] for node in ("n1a", "n1b") for line in lines_of(cluster, node)}
            assert found == set(wanted)
