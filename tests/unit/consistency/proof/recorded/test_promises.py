"""X, α and waits as the nodes announced them: table rows, kX over time, and the plan as it ran."""

from __future__ import annotations

from consistency.proof.recorded.promises import as_announced, bounds, promises
from spe.config import load_text
from spe.log.announced_settings import RecordedAnnouncement
from spe.plan.nodes import Policy
from spe.stream.names import NodeId, StreamId
from spe.stream.times import BEFORE_TIME
from spe.wire.messages.feeds import Announcement

SECOND = 1_000_000
PLAN, DIRECTORY = load_text("""
sources:
  a: {from: {generator: {name: orders, rate: 10, duration: 10s}}}
query:
  big: {filter: {from: a, where: price > 10}}
  bigger: {filter: {from: big, where: price > 20}}
outputs: [bigger]
fragments:
  first: {operators: [big], replicas: [n1, n2]}
  second: {operators: [bigger], replicas: [n2, n3]}
nodes: [n1, n2, n3]
defaults: {x: 2s, alpha: 0.9, policy: process}
""")
FIRST, SECOND_UNIT = (str(u.id) for u in PLAN.units)
BIGGER = StreamId("bigger")


def said(node: str, unit: str, x_s: int, *, start: int = 5, waited_s: int = 0) -> Announcement:
    us = x_s * SECOND
    return Announcement(
        node, unit, start, start * SECOND, us, us, 0.9, "process", "process", "checkpoint", waited_s * SECOND
    )


def at(second: int, one: Announcement) -> RecordedAnnouncement:
    return RecordedAnnouncement(second * SECOND, one)


def test_the_bound_is_the_sum_of_the_largest_x_per_unit() -> None:
    heard = [at(1, said("n1", FIRST, 2)), at(1, said("n2", FIRST, 3)), at(2, said("n3", SECOND_UNIT, 4))]
    assert bounds(PLAN, BIGGER, heard) == [(BEFORE_TIME, 7 * SECOND)]


def test_the_bound_is_unknown_until_all_units_are_announced() -> None:
    assert bounds(PLAN, BIGGER, []) == []
    assert bounds(PLAN, BIGGER, [at(1, said("n3", SECOND_UNIT, 4))]) == []


def test_the_bound_changes_with_a_restart_that_has_another_x() -> None:
    heard = [
        at(6, said("n1", FIRST, 2)),
        at(6, said("n3", SECOND_UNIT, 4)),
        at(19, said("n1", FIRST, 1, start=18)),
        at(20, said("n1", FIRST, 2, start=5, waited_s=1)),
    ]
    assert bounds(PLAN, BIGGER, heard) == [(BEFORE_TIME, 6 * SECOND), (18 * SECOND, 5 * SECOND)]


def test_the_bound_changes_while_a_node_runs() -> None:
    """X5: from 2 s to 9 s at 20 s, and back at 50 s: what entered up to 6 s before meets the longer one."""
    heard = [
        at(6, said("n1", FIRST, 2)),
        at(6, said("n3", SECOND_UNIT, 4)),
        at(21, said("n1", FIRST, 9)._replace(since_us=20 * SECOND)),
        at(51, said("n1", FIRST, 2)._replace(since_us=50 * SECOND)),
    ]
    expected = [(BEFORE_TIME, 6), (14 * SECOND, 13), (50 * SECOND, 6)]
    assert bounds(PLAN, BIGGER, heard) == [(at_us, s * SECOND) for at_us, s in expected]


def test_node_counts_after_partition_moves_to_it() -> None:
    heard = [
        at(6, said("n1", FIRST, 2)),
        at(6, said("n3", SECOND_UNIT, 4)),
        at(31, said("n2", FIRST, 5)._replace(since_us=30 * SECOND)),
    ]
    assert bounds(PLAN, BIGGER, heard) == [(BEFORE_TIME, 6 * SECOND), (24 * SECOND, 9 * SECOND)]


def test_a_row_per_node_unit_and_setting_with_the_longest_wait() -> None:
    heard = [
        at(1, said("n3", SECOND_UNIT, 2, waited_s=1)),
        at(2, said("n1", FIRST, 2)),
        at(3, said("n1", FIRST, 2, waited_s=3)),
        at(4, said("n1", FIRST, 2, start=6)),
        at(9, said("n1", FIRST, 60, start=7, waited_s=50)),
    ]
    rows = promises(PLAN, DIRECTORY, heard, begun_us=5 * SECOND)
    assert [
        (r.node, r.x_us // SECOND, r.waited_us // SECOND, r.kept, r.since_us // SECOND, r.differs) for r in rows
    ] == [
        ("n1", 2, 3, False, 0, ""),
        ("n1", 60, 50, True, 2, "X 2s"),
        ("n3", 2, 1, True, 0, ""),
    ]


def test_p99_of_used_x_comes_from_the_summary() -> None:
    heard = [at(2, said("n1", FIRST, 2)), at(2, said("n3", SECOND_UNIT, 2))]
    replicas = [
        {"replica": f"{FIRST}/{p}@n1", "x_used": {"largest": 1.0, "p99": p99, "releases": 9}}
        for p, p99 in enumerate([0.25, 0.5])
    ]
    replicas.append({"replica": f"{SECOND_UNIT}/0@n3", "x_used": None})
    rows = promises(PLAN, DIRECTORY, heard, 0, {"replicas": replicas})
    assert {r.node: r.used_p99 for r in rows} == {"n1": 0.5, "n3": None}


def test_a_node_that_joined_has_its_rows_and_is_not_in_the_file() -> None:
    heard = [at(6, said("n9", FIRST, 2)), at(6, said("n1", FIRST, 2))]
    rows = promises(PLAN, DIRECTORY, heard, begun_us=0)
    assert [(r.node, r.differs) for r in rows] == [("n1", ""), ("n9", "no such node")]
    assert as_announced(DIRECTORY, heard) == DIRECTORY


def test_the_plan_as_run_has_the_latest_announcements() -> None:
    other = said("n1", FIRST, 9)._replace(during_failure="delay", alpha=0.5, since_us=8 * SECOND)
    ran = as_announced(DIRECTORY, [at(1, other), at(2, said("n1", FIRST, 2))])
    node = ran.nodes[NodeId("n1")]
    assert (node.x_us, node.alpha, node.during_failure) == (9 * SECOND, 0.5, Policy.DELAY)
    assert ran.nodes[NodeId("n2")] == DIRECTORY.nodes[NodeId("n2")]
