"""When nodes are submitted to Spark, and whether they stay where their tasks have landed."""

from __future__ import annotations

from random import Random

import pytest

from replicas.on_spark.placement import (
    FAILURES_MAX,
    FIRST_PAUSE_US,
    LONGEST_PAUSE_US,
    SAY_US,
    Accept,
    Action,
    Cancel,
    Event,
    Fail,
    GiveBack,
    JobEnded,
    Landed,
    Lost,
    NodeUnwanted,
    NodeWanted,
    PlaceLost,
    Registered,
    Say,
    SeatStage,
    SparkPlacement,
    Submit,
    Tick,
)
from replicas.on_spark.spots import Executor, Spot

APART = {"n1": ["n2"], "n2": ["n1"]}
A, B, C = Spot("0", "h1"), Spot("1", "h1"), Spot("2", "h2")


def placed(*, by_host: bool = False) -> SparkPlacement:
    """n1 runs on A, and the first attempt of n2 is submitted."""
    found = SparkPlacement(APART, by_host=by_host)
    assert found.handle(NodeWanted("n1"), 0) == [Submit("n1", 1)]
    assert found.handle(Landed("n1", 1, A), 0) == [Accept("n1", 1)]
    assert found.handle(NodeWanted("n2"), 0) == [Submit("n2", 1)]
    return found


def test_task_next_to_partner_is_returned_and_resubmitted() -> None:
    one = placed()
    assert one.handle(Landed("n2", 1, A), 0) == [GiveBack("n2", 1, "n1 runs on executor 0 on h1")]
    assert one.handle(JobEnded("n2", 1, ""), 0) == []
    assert one.handle(Tick(), FIRST_PAUSE_US - 1) == []
    assert one.handle(Tick(), FIRST_PAUSE_US) == [Submit("n2", 2)]
    assert one.handle(Landed("n2", 2, B), FIRST_PAUSE_US) == [Accept("n2", 2)]
    assert one.placed == {"n1": A, "n2": B}


def test_by_host_another_executor_of_the_host_is_returned() -> None:
    one = placed(by_host=True)
    assert one.handle(Landed("n2", 1, B), 0) == [GiveBack("n2", 1, "n1 runs on host h1")]
    one.handle(Tick(), FIRST_PAUSE_US)
    assert one.handle(Landed("n2", 2, C), FIRST_PAUSE_US) == [Accept("n2", 2)]


def test_pauses_grow_to_limit_and_restart_after_placement() -> None:
    one, now, pauses = placed(), 0, []
    for attempt in range(1, 7):
        one.handle(Landed("n2", attempt, A), now)
        began = now
        while one.handle(Tick(), now) == []:
            now += FIRST_PAUSE_US // 2
        pauses.append(now - began)
    assert pauses == [FIRST_PAUSE_US * k for k in (1, 2, 4, 8, 8, 8)]
    assert pauses[-1] == LONGEST_PAUSE_US
    one.handle(Landed("n2", 7, B), now)
    one.handle(Lost("n2", 7), now)
    one.handle(NodeWanted("n2"), now)
    one.handle(Landed("n2", 8, A), now)
    assert one.handle(Tick(), now + FIRST_PAUSE_US) == [Submit("n2", 9)]


@pytest.mark.parametrize("event", [Lost("n1", 1), JobEnded("n1", 1, "executor 0 was lost")])
def test_lost_node_is_reported_once_and_resubmitted_on_request(event: Event) -> None:
    one = placed()
    assert one.handle(event, 5) == [Cancel("n1", 1), PlaceLost("n1", A)]
    assert one.handle(Lost("n1", 1), 5) == []
    assert one.handle(JobEnded("n1", 1, "it was cancelled"), 5) == []
    assert one.handle(Tick(), 10) == []
    assert one.handle(NodeWanted("n1"), 10) == [Submit("n1", 2)]
    assert one.handle(Landed("n2", 1, A), 10) == [Accept("n2", 1)]
    assert one.handle(Landed("n1", 2, A), 10) == [GiveBack("n1", 2, "n2 runs on executor 0 on h1")]


def test_message_of_an_earlier_attempt_is_refused() -> None:
    """Spark may start a task again by itself, and a lost one may only have been slow."""
    one = placed()
    one.handle(Lost("n1", 1), 0)
    one.handle(NodeWanted("n1"), 0)
    late = "it is the task of an earlier attempt"
    assert one.handle(Landed("n1", 1, B), 0) == [GiveBack("n1", 1, late)]
    assert one.handle(JobEnded("n1", 1, "lost"), 0) == []
    assert one.stage("n1") is SeatStage.SUBMITTED
    one.handle(Landed("n1", 2, B), 0)
    assert one.handle(Landed("n1", 2, C), 0) == [GiveBack("n1", 2, late)]
    assert one.handle(Landed("n9", 1, C), 0) == [GiveBack("n9", 1, late)]
    assert one.placed == {"n1": B}


def test_a_node_that_is_not_wanted_any_more_is_not_submitted() -> None:
    one = placed()
    assert one.handle(NodeUnwanted("n2"), 0) == [Cancel("n2", 1)]
    assert one.handle(JobEnded("n2", 1, "cancelled"), 0) == []
    assert one.handle(Tick(), SAY_US) == []
    assert one.handle(NodeUnwanted("n1"), 0) == []  # it has a place, which it keeps
    assert one.stage("n1") is SeatStage.PLACED


def test_jobs_that_end_before_their_task_is_heard_of_end_the_run() -> None:
    one, now, found = placed(), 0, list[Action]()
    for attempt in range(1, FAILURES_MAX + 1):
        found = one.handle(JobEnded("n2", attempt, "ModuleNotFoundError: replicas"), now)
        now += LONGEST_PAUSE_US
        if attempt < FAILURES_MAX:
            assert found == []
            assert one.handle(Tick(), now) == [Submit("n2", attempt + 1)]
    (end,) = found
    assert isinstance(end, Fail)
    assert "n2 cannot run on Spark" in end.text
    assert "ModuleNotFoundError" in end.text


def test_long_wait_is_reported_with_the_need() -> None:
    one = placed()
    one.handle(Registered((Executor(A, 2),)), 0)
    one.handle(Landed("n2", 1, A), 0)
    assert one.handle(Tick(), SAY_US - 1) == [Submit("n2", 2)]
    (said,) = one.handle(Tick(), SAY_US)
    assert isinstance(said, Say)
    assert said.text.startswith("n2 has waited 20 s for an executor; its task came to executor 0 on h1, but n1 runs on")
    assert "need 2 tasks at a time on 2 executors or more" in said.text
    assert "there are 1 executors" in said.text
    assert one.handle(Tick(), 2 * SAY_US - 1) == []
    assert len(one.handle(Tick(), 2 * SAY_US)) == 1


def test_place_that_another_node_requires_is_returned() -> None:
    one = SparkPlacement({"a": ["b"], "b": ["a", "c"], "c": ["b"]}, by_host=False)
    one.handle(Registered((Executor(A, 1), Executor(B, 2))), 0)
    for node in "abc":
        one.handle(NodeWanted(node), 0)
    assert one.handle(Landed("a", 1, A), 0) == [GiveBack("a", 1, "a node that can run nowhere else needs that place")]
    assert one.handle(Landed("b", 1, A), 0) == [Accept("b", 1)]


def test_hosts_are_compared_by_the_names_that_tasks_give() -> None:
    """Spark may know the same hosts under other names."""
    one = SparkPlacement(APART, by_host=True)
    one.handle(Registered((Executor(Spot("0", "10.0.0.1"), 1), Executor(Spot("1", "10.0.0.2"), 1))), 0)
    for node, spot in (("n1", Spot("0", "worker-1")), ("n2", Spot("1", "worker-2"))):
        assert one.handle(NodeWanted(node), 0) == [Submit(node, 1)]
        assert one.handle(Landed(node, 1, spot), 0) == [Accept(node, 1)]


@pytest.mark.parametrize("seed", range(30))
def test_all_nodes_get_places_despite_failures_of_spark(seed: int) -> None:
    """Spark puts tasks anywhere where there is room, executors are killed and replaced, and messages are late.

    At any time partners are apart and a node has one place; and in the end all have one."""
    random = Random(seed)
    names = [f"n{i}" for i in range(6)]
    apart = {n: [o for o in names if o != n and (int(o[1]) // 2 == int(n[1]) // 2)] for n in names}
    alive = [Executor(Spot(str(i), f"h{i % 3}"), 2) for i in range(4)]
    one, now, number = SparkPlacement(apart, by_host=True), 0, 4
    jobs: dict[tuple[str, int], Spot | None] = {}

    def do(event: Event) -> None:
        for action in one.handle(event, now):
            match action:
                case Submit(node, attempt):
                    jobs[node, attempt] = None
                case Cancel(node, attempt) | GiveBack(node, attempt, _):
                    jobs.pop((node, attempt), None)
                case PlaceLost(node, _):
                    do(NodeWanted(node))
                case Fail(text):
                    pytest.fail(text)

    for name in names:
        do(NodeWanted(name))
    for step in range(4_000):
        now += 50_000
        do(Registered(tuple(alive)))
        do(Tick())
        room = [e.spot for e in alive for _ in range(e.slots - sum(s == e.spot for s in jobs.values()))]
        if (waiting := [job for job, spot in jobs.items() if spot is None]) and room:
            job = random.choice(waiting)
            jobs[job] = random.choice(room)
            do(Landed(*job, jobs[job]))  # type: ignore[arg-type]
        if step < 2_000 and step % 100 == 50:
            dead = alive.pop(random.randrange(len(alive)))
            alive.append(Executor(Spot(str(number), dead.spot.host), 2))
            number += 1
            for job in [job for job, spot in jobs.items() if spot == dead.spot]:
                jobs.pop(job)
                do(random.choice([Lost(*job), JobEnded(*job, "executor lost")]))
        for node, spot in one.placed.items():
            assert [s for (n, _), s in jobs.items() if n == node and s is not None] == [spot]
            assert all(one.placed.get(o) is None or one.placed[o].host != spot.host for o in apart[node])
        if step >= 2_000 and len(one.placed) == len(names):
            return
    pytest.fail(f"placed only {one.placed}")
