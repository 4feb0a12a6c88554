"""Moves as load shifts (L5 to L8): relief, one at a time, spares; by an example, and by random shifts and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import permutations, product
from typing import Final

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replicas.planning.balancing.actions import (
    BalanceSettings,
    DrainNode,
    JoinSpare,
    MovePartition,
    NodeRoom,
    StillFull,
)
from replicas.planning.balancing.balancer import PATIENCE, Balancer
from replicas.planning.balancing.cluster import REST, BalanceState
from replicas.planning.load import SAMPLE_US, LoadHistory, LoadSample
from replicas.planning.prediction import Speeds, StateSource
from replicas.planning.relief import ReliefProblem
from replicas.planning.shares import Running
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from spe.stream.times import SECOND
from tests.support.distribution import Situations

N1, N2, N3, N4 = (NodeId(f"n{n}") for n in (1, 2, 3, 4))
PERIOD_US = 30 * SECOND
#: A state of 400 bytes: 4 s from a partner, 1 s from a checkpoint, and what comes in meanwhile.
SETTINGS = BalanceSettings(PERIOD_US, cap=0.8, idle=0.3, speeds=Speeds(network=100, disk=400))
STATE = 400.0
SPARE = NodeRoom(spare=True)


def p(number: int) -> PartitionId:
    return PartitionId(UnitId("f"), number)


class Cluster:
    """A balancer, the loads that it is told of each 10 s, and moves that take as long as is predicted.

    Args:
      running: nodes of each partition.
      loads: of each.
      spares: more nodes.
    """

    def __init__(
        self,
        running: Mapping[int, tuple[NodeId, ...]],
        loads: Mapping[int, float],
        *,
        nodes: Mapping[NodeId, NodeRoom] | None = None,
        memory: Mapping[int, float] | None = None,
        refused: Callable[[Running, PartitionId, NodeId], str | None] = lambda *_: None,
        exact: bool | None = None,
    ) -> None:
        rooms = dict.fromkeys(sorted({n for hosts in running.values() for n in hosts}), NodeRoom())
        self.rooms = {**rooms, **(nodes or {})}
        self.loads, self.memory = dict(loads), dict(memory or {})
        self.state = STATE
        self.now = 0
        self.silent: set[NodeId] = set()
        self.said: list[object] = []
        self.fails = False
        self._ends_at = 0
        self.balancer = Balancer(
            LoadHistory(),
            SETTINGS,
            self.rooms,
            {p(number): hosts for number, hosts in running.items()},
            0,
            refused=refused,
            exact=exact,
        )
        for node in self.rooms:
            self.balancer.came(node)

    def step(self) -> list[object]:
        """10 s: samples, the end of a move, decisions."""
        self.now += SAMPLE_US
        for partition, hosts in self.balancer.running.items():
            number = partition.partition
            if set(hosts) - self.silent:
                load = LoadSample(self.loads[number], memory=self.memory.get(number, 0.0), state=self.state)
                self.balancer.sampled(partition, load, self.now)
        order = self.balancer.order
        if order is not None and self.now >= self._ends_at:
            (self.balancer.failed if self.fails else self.balancer.moved)(order, self.now)
        said: list[object] = [*self.balancer.tick(self.now)]
        for action in said:
            if isinstance(action, MovePartition):
                self._ends_at = self.now + round(action.seconds * SECOND)
        self.said += said
        return said

    def periods(self, many: int) -> list[object]:
        return [action for _ in range(3 * many) for action in self.step()]

    def load_of(self, node: NodeId) -> float:
        hosts = self.balancer.running
        return sum(self.loads[of.partition] for of in hosts if node in hosts[of])


def moves(said: list[object]) -> list[tuple[int, NodeId, NodeId]]:
    return [(a.partition.partition, a.source, a.target) for a in said if isinstance(a, MovePartition)]


def full_cluster(**options: bool) -> Cluster:
    cluster = Cluster({0: (N1,), 1: (N1,), 2: (N1,), 3: (N2,)}, {0: 0.5, 1: 0.3, 2: 0.2, 3: 0.3}, **options)
    cluster.balancer.checkpointed(p(1), N2, 2 * PERIOD_US - SECOND)
    return cluster


def test_a_period_no_longer_than_a_sample_goes_by_the_newest_one() -> None:
    """The sample of the time that has just begun is yet to come."""
    settings = BalanceSettings(period_us=SAMPLE_US)
    balancer = Balancer(LoadHistory(), settings, {N1: NodeRoom()}, {p(0): (N1,)}, 0, refused=lambda *_: None)
    balancer.came(N1)
    said = []
    for number, cpu in enumerate((0.1, 0.1, 0.1, 0.9, 0.9), 1):
        said += balancer.tick(number * SAMPLE_US)
        balancer.sampled(p(0), LoadSample(cpu), number * SAMPLE_US + SECOND)
    assert balancer.need(N1, 5 * SAMPLE_US)[0] == pytest.approx(0.9), "not the mean of all"
    said += balancer.tick(6 * SAMPLE_US)
    assert [type(one) for one in said] == [StillFull], "for a second period"


@pytest.mark.parametrize("exact", [True, False])
def test_balancer_makes_cheapest_move_after_two_periods(exact: bool) -> None:
    cluster = full_cluster(exact=exact)
    assert cluster.periods(1) == [], "one period beyond the cap may be a peak"
    (order,) = cluster.periods(1)
    assert isinstance(order, MovePartition)
    assert (order.partition, order.source, order.target, order.state) == (p(1), N1, N2, StateSource.CHECKPOINT)
    # 1 s to read, and what came in 1 + 1 s at 0.3 of a core beside 0.7 that are free
    assert order.seconds == pytest.approx(1 + 2 * 0.3 / (0.7 - 0.3))
    assert order.reason == "n1 needs 1.00 of 0.80 cores"
    assert cluster.periods(5) == []
    assert (cluster.load_of(N1), cluster.load_of(N2)) == (pytest.approx(0.7), pytest.approx(0.6))


def test_periods_beyond_the_cap_must_follow_each_other() -> None:
    cluster = full_cluster()
    cluster.periods(1)
    cluster.loads[0] = 0.2
    cluster.periods(1)
    cluster.loads[0] = 0.5
    assert cluster.periods(1) == []
    assert len(cluster.periods(1)) == 1


def test_silent_period_is_neither_within_nor_beyond_cap() -> None:
    cluster = full_cluster()
    cluster.periods(1)
    cluster.silent = {N1}
    assert cluster.periods(2) == [], "nobody knows what n1 needs"
    cluster.silent = set()
    assert cluster.periods(1) == []
    assert len(cluster.periods(1)) == 1


def test_silent_node_counts_with_its_last_load() -> None:
    """n1's 0.3 would fit on a silent n2 if that had no load."""
    cluster = Cluster({0: (N1,), 1: (N1,), 2: (N2,)}, {0: 0.2, 1: 0.3, 2: 0.7})
    cluster.periods(1)
    cluster.silent = {N2}
    cluster.loads[0] = 0.6
    assert moves(cluster.periods(3)) == []


def test_moves_run_one_at_a_time_in_sequence() -> None:
    cluster = Cluster({0: (N1,), 1: (N1,), 2: (N1,), 3: (N2,), 4: (N3,)}, {0: 0.5, 1: 0.4, 2: 0.5, 3: 0.1, 4: 0.1})
    cluster.state = 4000.0
    assert len(moves(cluster.periods(4))) == 1, "it takes longer than a period"
    cluster.periods(8)
    assert len(moves(cluster.said)) == 2
    assert all(cluster.load_of(n) <= 0.8 + 1e-9 for n in (N1, N2, N3))


def test_memory_beyond_its_cap_is_reason_enough() -> None:
    room = NodeRoom(memory=10.0)
    cluster = Cluster(
        {0: (N1,), 1: (N1,), 2: (N2,), 3: (N3,)},
        {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.5},
        memory={0: 5.0, 1: 4.0, 2: 5.0, 3: 1.0},
        nodes={N1: room, N2: room, N3: room},
    )
    assert moves(cluster.periods(3)) in ([(0, N1, N3)], [(1, N1, N3)]), "n2 has no memory left, though the most CPU"


def test_a_moved_partition_rests_for_three_periods() -> None:
    cluster = full_cluster()
    cluster.periods(2)
    cluster.loads |= {0: 0.2, 3: 0.7}  # n2 is full now, and the newcomer would fit on n1
    assert moves(cluster.periods(REST)) == []
    assert moves(cluster.periods(1)) == [(1, N2, N1)]


def test_a_node_with_too_short_an_x_is_no_target_and_is_named() -> None:
    why = "αX = 450ms, the share of one unit there, is too short for unit 'f'"
    cluster = Cluster(
        {0: (N1,), 1: (N1,), 2: (N2,)},
        {0: 0.5, 1: 0.5, 2: 0.1},
        refused=lambda running, of, target: why if target == N2 else None,
    )
    (said,) = cluster.periods(6)
    assert isinstance(said, StillFull)
    assert said.node == N1
    assert said.reason == f"f/0 to n2: {why}"


def test_moves_that_exclude_each_other_go_to_different_nodes() -> None:
    """Either may go to n2, and not both: the second would find that out too late."""

    def apart(running: Running, of: PartitionId, target: NodeId) -> str | None:
        both = {p(0), p(1)}
        return "too short" if of in both and any(target in running[o] for o in both - {of}) and target != N1 else None

    cluster = Cluster(
        {0: (N1,), 1: (N1,), 2: (N1,), 3: (N2,), 4: (N3,)},
        {0: 0.3, 1: 0.3, 2: 0.8, 3: 0.1, 4: 0.1},
        refused=apart,
    )
    cluster.periods(4)
    assert cluster.balancer.running[p(0)] != cluster.balancer.running[p(1)]
    assert cluster.load_of(N1) == pytest.approx(0.8)


def test_where_nothing_fits_a_spare_joins() -> None:
    cluster = Cluster({0: (N1,), 1: (N1,), 2: (N2,)}, {0: 0.5, 1: 0.5, 2: 0.5}, nodes={N3: SPARE})
    said = cluster.periods(2)
    assert [type(a) for a in said] == [JoinSpare, MovePartition]
    assert said[0] == JoinSpare(N3, "n1 needs 1.00 of 0.80 cores")
    assert cluster.balancer.spares() == []
    assert moves(cluster.periods(5)) == []


def test_spare_that_is_dead_or_useless_does_not_join() -> None:
    cluster = Cluster({0: (N1,), 1: (N1,), 2: (N2,)}, {0: 0.5, 1: 0.5, 2: 0.5}, nodes={N3: SPARE})
    cluster.balancer.went(N3)
    (said,) = cluster.periods(4)
    assert isinstance(said, StillFull)
    hot = Cluster({0: (N1,), 1: (N2,)}, {0: 0.9, 1: 0.7}, nodes={N3: SPARE})
    (said,) = hot.periods(4)
    assert said == StillFull(N1, "f/0 to n2: 0.30 of a core is free, and 0.90 would never catch up")


def test_a_condition_is_logged_once_and_again_after_it_ended() -> None:
    cluster = Cluster({0: (N1,), 1: (N2,)}, {0: 0.9, 1: 0.7})
    assert len(cluster.periods(9)) == 1
    cluster.loads[0] = 0.5
    cluster.periods(2)
    cluster.loads[0] = 0.9
    assert len(cluster.periods(9)) == 1


def test_an_idle_cluster_drains_a_node_which_becomes_a_spare() -> None:
    cluster = Cluster({0: (N1,), 1: (N1,), 2: (N2,), 3: (N3,)}, {0: 0.3, 1: 0.2, 2: 0.1, 3: 0.2})
    cluster.periods(6)
    assert cluster.said[0] == DrainNode(N2, "load is below 0.3, and fits without n2")
    assert moves(cluster.said)[0][:2] == (2, N2)
    assert N2 in cluster.balancer.spares()
    assert cluster.load_of(N2) == 0


def test_partitions_without_load_leave_a_draining_node_too() -> None:
    cluster = Cluster({0: (N1,), 1: (N2,)}, {0: 0.3, 1: 0.0})
    cluster.periods(4)
    assert cluster.load_of(N1) + cluster.load_of(N2) == pytest.approx(0.3)
    assert len({n for hosts in cluster.balancer.running.values() for n in hosts}) == 1


def test_two_nodes_with_two_replicas_of_all_stay_even_if_idle() -> None:
    cluster = Cluster({0: (N1, N2), 1: (N1, N2)}, {0: 0.05, 1: 0.05})
    assert cluster.periods(6) == []


def test_a_cluster_that_is_silent_is_not_idle() -> None:
    cluster = Cluster({0: (N1,), 1: (N2,)}, {0: 0.6, 1: 0.2})
    cluster.periods(2)
    cluster.loads[0] = 0.1
    cluster.periods(1)
    cluster.silent = {N2}
    assert cluster.periods(4) == []
    cluster.silent = set()
    assert cluster.periods(2) != []


def test_more_load_ends_a_drain() -> None:
    cluster = Cluster({0: (N1,), 1: (N1,), 2: (N2,), 3: (N2,), 4: (N3,)}, {0: 0.2, 1: 0.2, 2: 0.1, 3: 0.1, 4: 0.2})
    while not any(isinstance(a, DrainNode) for a in cluster.step()):
        pass
    cluster.fails = True
    cluster.loads |= {0: 0.6, 1: 0.6}
    cluster.periods(3)
    cluster.fails = False
    cluster.periods(8)
    assert all(cluster.load_of(n) <= 0.8 + 1e-9 for n in (N1, N2, N3))
    assert not cluster.balancer.spares()


#: n1 and n2 both have 0.4 for n4, which must give 0.25 away for the second one.
FOR_THREE: Final = (
    {0: (N1,), 1: (N1,), 2: (N2,), 3: (N2,), 4: (N3,), 5: (N4,)},
    {0: 0.4, 1: 0.55, 2: 0.4, 3: 0.55, 4: 0.55, 5: 0.25},
)


def test_node_makes_room_for_expected_partitions() -> None:
    """Beside a first 0.4 and the 0.25 on n4 the second one would never catch up."""
    cluster = Cluster(*FOR_THREE, exact=True)
    cluster.periods(5)
    assert len(moves(cluster.said)) == 3
    assert all(cluster.load_of(n) <= 0.8 + 1e-9 for n in cluster.rooms)


def test_after_a_failed_move_another_target_is_tried() -> None:
    cluster = Cluster({0: (N1,), 1: (N1,), 2: (N2,), 3: (N3,)}, {0: 0.7, 1: 0.3, 2: 0.2, 3: 0.3})
    cluster.fails = True
    while len(moves(cluster.said)) < 2:
        cluster.step()
    first, second = moves(cluster.said)
    assert first[0] == second[0] == 1
    assert first[2] != second[2]


def test_news_that_come_twice_or_too_late_change_nothing() -> None:
    cluster = full_cluster()
    cluster.periods(2)
    order = cluster.balancer.order
    assert order is not None
    cluster.periods(1)
    before = cluster.balancer.running
    cluster.balancer.moved(order, cluster.now)
    cluster.balancer.failed(order, cluster.now)
    assert cluster.balancer.running == before


def test_after_a_failure_a_partition_that_rests_may_move_at_once() -> None:
    cluster = full_cluster()
    cluster.periods(3)
    assert cluster.balancer.running[p(1)] == (N2,)
    cluster.balancer.went(N2)
    cluster.balancer.knows(N3, NodeRoom())
    cluster.balancer.came(N3)
    cluster.balancer.runs(p(1), [N1])
    cluster.balancer.runs(p(3), [N3])
    cluster.loads |= {0: 0.55, 2: 0.0, 3: 0.1}
    cluster.periods(2)
    assert moves(cluster.said)[1:] == [(1, N1, N3)]


# --- at random ---


@st.composite
def starts(draw: st.DrawFn) -> Callable[..., Cluster]:
    nodes = draw(st.integers(2, 4))
    names = [N1, N2, N3, N4][:nodes]
    partitions = draw(st.integers(2, 6))
    replicas = draw(st.sampled_from([1, 1, 2]))
    running = {}
    for number in range(partitions):
        first = draw(st.integers(0, nodes - 1))
        running[number] = tuple(names[(first + r) % nodes] for r in range(replicas))
    rooms = {n: SPARE if n == N4 and draw(st.booleans()) and not used(running, N4) else NodeRoom() for n in names}
    loads = dict.fromkeys(range(partitions), 0.1)
    return partial(Cluster, running, loads, nodes=rooms, exact=draw(st.sampled_from([None, False])))


def clusters() -> st.SearchStrategy[Cluster]:
    return starts().map(lambda start: start())


def used(running: Mapping[int, tuple[NodeId, ...]], node: NodeId) -> bool:
    return any(node in hosts for hosts in running.values())


def shift(draw: st.DrawFn, cluster: Cluster) -> None:
    """Another load, in twentieths, of some partitions."""
    for number in cluster.loads:
        if draw(st.booleans()):
            cluster.loads[number] = draw(st.sampled_from([7, 11, 3, 1, 13, 0])) / 20


SHIFTS = Situations({"moves": 0.3, "two moves of one partition": 0.05, "a drain": 0.05})


@SHIFTS.required
@settings(max_examples=30)
@given(data=st.data(), cluster=clusters())
def test_no_partition_moves_twice_within_three_periods(data: st.DataObject, cluster: Cluster) -> None:
    ended_at: dict[PartitionId, int] = {}
    twice = drained = False
    for _ in range(12):
        shift(data.draw, cluster)
        for _ in range(3 * data.draw(st.integers(1, 4))):
            order = cluster.balancer.order
            said = cluster.step()
            if order is not None and cluster.balancer.order is not order:
                ended_at[order.partition] = cluster.now
            drained |= any(isinstance(a, DrainNode) for a in said)
            for action in said:
                if isinstance(action, MovePartition) and action.partition in ended_at:
                    twice = True
                    assert cluster.now - ended_at[action.partition] >= REST * PERIOD_US
    SHIFTS.example(
        {"moves": moves(cluster.said), "two moves of one partition": twice, "a drain": drained},
    )


STEADY = Situations({"full at first": 0.3, "moves": 0.12})


@STEADY.required
@settings(max_examples=30)
@given(start=starts(), twentieths=st.lists(st.sampled_from([8, 11, 5, 13, 2, 1]), min_size=6, max_size=6))
@example(start=partial(Cluster, *FOR_THREE), twentieths=[8, 11, 8, 11, 11, 5])
def test_under_a_steady_load_every_node_ends_within_its_cap(
    start: Callable[..., Cluster], twentieths: list[int]
) -> None:
    cluster = start(exact=True)
    for number in cluster.loads:
        cluster.loads[number] = twentieths[number] / 20
    full = [n for n in cluster.rooms if cluster.load_of(n) > 0.8 + 1e-9]
    possible = can_be_relieved(cluster)
    cluster.periods(PATIENCE + 8)
    if possible:
        assert all(cluster.load_of(n) <= 0.8 + 1e-6 for n in cluster.rooms)
    STEADY.example({"full at first": full, "moves": moves(cluster.said)})


CAPS: Final = Situations({"a node beyond its cap": 0.3, "moves": 0.15, "a spare joins": 0.05})


@CAPS.required
@settings(max_examples=60)
@given(data=st.data())
def test_no_move_fills_a_node_beyond_its_caps(data: st.DataObject) -> None:
    """Nodes of different sizes, some of them spares, under loads that shift: counted beside the balancer."""
    names = [N1, N2, N3, N4][: data.draw(st.integers(2, 4))]
    running = {number: (data.draw(st.sampled_from(names[:2])),) for number in range(data.draw(st.integers(2, 7)))}
    rooms = {n: NodeRoom(data.draw(st.sampled_from([1.0, 0.5, 2.0])), 10.0, n not in names[:2]) for n in names}
    cluster = Cluster(
        running,
        dict.fromkeys(running, 0.1),
        nodes=rooms,
        memory={number: data.draw(st.sampled_from([1.0, 0.0, 3.0])) for number in running},
        exact=data.draw(st.sampled_from([None, False])),
    )
    beyond = False
    for _ in range(5):
        shift(data.draw, cluster)
        for step in range(5 * PATIENCE):
            said = cluster.step()  # may end a move, and order the next one
            hosts = cluster.balancer.running
            for action in said:
                if isinstance(action, MovePartition) and step >= 4:  # earlier loads are means of old and new ones
                    there = {action.partition.partition, *(of.partition for of in hosts if action.target in hosts[of])}
                    cpu = sum(cluster.loads[number] for number in there)
                    memory = sum(cluster.memory[number] for number in there)
                    number = action.partition.partition
                    assert cpu <= 0.8 * rooms[action.target].capacity + 1e-5 or not cluster.loads[number]
                    assert memory <= 8.0 + 1e-5 or not cluster.memory[number]
            beyond |= any(cluster.load_of(n) > 0.8 * rooms[n].capacity + 1e-5 for n in rooms)
    joins = any(isinstance(action, JoinSpare) for action in cluster.said)
    CAPS.example({"a node beyond its cap": beyond, "moves": moves(cluster.said), "a spare joins": joins})


def can_be_relieved(cluster: Cluster) -> bool:
    """Do moves of one replica of each partition at most, one after the other, bring every node within its cap?"""
    begin = tuple(cluster.balancer.running.values())
    twentieths = [round(20 * load) for load in cluster.loads.values()]
    seen, left = {begin}, [begin]
    while left:
        running = left.pop()
        load = {n: sum(t for t, hosts in zip(twentieths, running, strict=True) if n in hosts) for n in cluster.rooms}
        if max(load.values()) <= 16:
            return True
        for at, hosts in enumerate(running):
            for source, target in product(hosts if hosts == begin[at] else (), cluster.rooms):
                after = (*running[:at], (*(h for h in hosts if h != source), target), *running[at + 1 :])
                if target not in hosts and load[target] + twentieths[at] <= 16 and after not in seen:
                    seen.add(after)
                    left.append(after)
    return False


ORDERS = Situations({"no order": 0.05, "some orders": 0.05})


@ORDERS.required
@given(
    plan=st.lists(
        st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from([1, 0, 2]), st.sampled_from([9, 7, 1, 4])),
        min_size=3,
        max_size=5,
    ).filter(lambda plan: all(sum(t for n, _, t in plan if n == node) < 20 for node in range(3)))
)
def test_possible_order_is_always_computed(
    plan: list[tuple[int, int, int]],
) -> None:
    """Beside all orders that keep targets within a cap of 0.8; moves are (node, node at the end, twentieths)."""
    home, where, twentieths = (np.array(column) for column in zip(*plan, strict=True))
    seconds = np.arange(3.0 * len(plan)).reshape(len(plan), 3) + 1
    problem = ReliefProblem(home, np.arange(len(plan)), np.array([twentieths / 20]), np.full((1, 3), 0.8), seconds)
    state = BalanceState((N1, N2, N3), tuple((p(at), N1) for at in range(len(plan))), problem, where, np.ones(3))

    def keeps(order: tuple[tuple[int, int], ...]) -> bool:
        load = np.bincount(home, twentieths, 3)
        for replica, node in order:
            load[home[replica]] -= twentieths[replica]
            load[node] += twentieths[replica]
            if load[node] > 16:
                return False
        return True

    orders = list(permutations(problem.moves(where)))
    possible = [order for order in orders if keeps(order)]
    assert (tuple(state.order) in possible) if state.order is not None else not possible
    ORDERS.example({"no order": not possible, "some orders": 0 < len(possible) < len(orders)})


CHAOS = Situations({"moves": 0.15, "a node dies during a move": 0.05})


@CHAOS.required
@settings(max_examples=30)
@given(data=st.data(), cluster=clusters())
def test_every_order_can_be_followed_despite_failures(data: st.DataObject, cluster: Cluster) -> None:
    """The balancer's own assertions judge; orders to dead nodes fail, and partitions of dead nodes run elsewhere."""
    dead: set[NodeId] = set()
    during = False
    cluster.state = 3000.0  # moves take longer than a period
    for _ in range(15):
        shift(data.draw, cluster)
        node = data.draw(st.sampled_from(sorted(cluster.rooms)))
        if node in dead:
            dead.remove(node)
            cluster.balancer.came(node)
        elif len(dead) + 1 < len(cluster.rooms):
            dead.add(node)
            during |= cluster.balancer.order is not None
            cluster.balancer.went(node)
        order = cluster.balancer.order
        cluster.fails = order is not None and order.target in dead
        cluster.silent = dead
        for _ in range(data.draw(st.sampled_from([7, 9, 2, 1]))):
            for action in cluster.step():
                if isinstance(action, MovePartition):
                    assert action.target not in dead
                    cluster.fails = False
    CHAOS.example({"moves": moves(cluster.said), "a node dies during a move": during})
