"""Moves of a partition, heartbeat by heartbeat (rules M1-M6)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from replicas.placement.deciders.activation import Choice
from replicas.placement.deciders.move import IN_VAIN_US, Move, MovePhase, MoveRefused
from replicas.placement.deciders.move_orders import MoveOrders
from replicas.placement.deciders.moves import TRIES
from replicas.placement.view import ClusterView
from replicas.planning.prediction import StateSource
from spe.plan.directory import Role
from spe.stream.ids import ReplicaId
from spe.stream.names import NodeId, NodeState
from tests.support.moves import BEAT, PARTITION, A, B, C, FakeCluster, plan_of

UP_FAILURE = NodeState.UP_FAILURE


def cluster(replicas: str = "A", standbys: str = "", *, budget: int = 0) -> FakeCluster:
    names = {"A": A, "B": B, "C": C}
    return FakeCluster(*plan_of([names[n] for n in replicas], [names[n] for n in standbys]), budget=budget)


def beats(world: FakeCluster, count: int, **options: bool) -> None:
    for _ in range(count):
        world.beat(**options)


def beats_until(world: FakeCluster, move: Move, phase: MovePhase) -> None:
    for _ in range(100):
        if move.phase is phase:
            return
        world.beat()
    raise AssertionError(f"{move} is in phase {move.phase}, not {phase}")


def roles(world: FakeCluster) -> dict[NodeId, Role]:
    return dict(world.directory.roles[PARTITION])


def test_target_runs_before_old_replica_retires() -> None:
    world = cluster()
    move = world.ask(A, B)
    ran = []
    for _ in range(60):
        world.beat()
        assert world.served()
        if world.running() not in ran:
            ran.append(world.running())
    assert ran == [[A], [A, B], [B]]
    assert move.phase is MovePhase.DONE
    assert roles(world) == {B: Role.ACTIVE}
    assert world.story == [
        "[('n1b', 'standby')]",
        "install n1b",
        "[('n1b', 'active'), ('n1a', 'standby')]",
        "retire n1a",
        "[('n1a', None)]",
    ]
    assert list(move.began_us) == [MovePhase.JOIN, MovePhase.INSTALL, MovePhase.FOLLOW, MovePhase.LEAVE, MovePhase.DONE]
    beats(world, 30)
    assert world.running() == [B]


def test_old_replica_retires_when_target_has_state_on_disk() -> None:
    """M3: the only one may be on its own, and what comes before that upstream has forgotten."""
    world = cluster()
    world.full.add(B)
    move = world.ask(A, B)
    beats(world, 60)
    assert (move.phase, move.why) == (MovePhase.FOLLOW, "n1b must have its state on its disk first")
    assert world.running() == [A, B]
    world.full.clear()
    beats(world, 30)
    assert move.phase is MovePhase.DONE
    assert world.running() == [B]


def test_install_waits_until_live_producers_know_target() -> None:
    world = cluster()
    move = world.ask(A, B)
    (source, *_) = world.sources
    world.lag.add(source)
    beats(world, 20)
    assert (move.phase, move.why) == (MovePhase.JOIN, f"{source} must know of n1b first")
    assert world.running() == [A]
    world.lag.clear()
    beats(world, 20)
    assert move.phase is MovePhase.DONE


def test_old_replica_stays_while_a_node_does_not_know_target() -> None:
    world = cluster()
    move = world.ask(A, B)
    beats(world, 3)
    assert move.phase is MovePhase.INSTALL
    world.lag.add(C)
    world.nodes[C].directory = world.configured
    beats(world, 20)
    assert (move.phase, move.why) == (MovePhase.FOLLOW, "n1c must know of n1b first")
    world.kill(C)
    beats(world, 20)
    assert move.phase is MovePhase.DONE, "who is dead learns it when it comes back"


def test_old_replica_stays_until_target_is_level_with_others() -> None:
    world = cluster()
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.FOLLOW)
    assert move.mark is not None
    move.mark += 10 * 100_000
    beats(world, 8)
    assert (move.phase, move.why) == (MovePhase.FOLLOW, "n1b must be as far as the others were")
    beats(world, 8)
    assert move.phase is MovePhase.DONE


@pytest.mark.parametrize("furthest", [A, C])
def test_the_mark_is_that_of_the_furthest_other_replica(furthest: NodeId) -> None:
    """M3: consumers that read the furthest would have to wait for the target otherwise."""
    world = cluster("AC")
    world.nodes[furthest].ahead_us = 10 * BEAT
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.FOLLOW)
    assert move.mark == world.now + 10 * BEAT
    beats(world, 9)
    assert (move.phase, move.why) == (MovePhase.FOLLOW, "n1b must be as far as the others were")
    beats(world, 2)
    assert move.phase is MovePhase.LEAVE


def test_the_source_leaves_once_the_target_is_past_for_a_beat() -> None:
    """M: the time that an earlier phase took does not count."""
    world = cluster()
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.FOLLOW)
    world.beat()
    assert move.phase is MovePhase.FOLLOW
    world.beat()
    assert move.phase is MovePhase.LEAVE


def test_active_standby_swaps_roles_with_old_replica() -> None:
    world = cluster("A", "B")
    move = world.ask(A, B)
    beats(world, 30)
    assert move.phase is MovePhase.DONE
    assert roles(world) == {B: Role.ACTIVE, A: Role.STANDBY}
    assert world.running() == [B]


def lent(node: NodeId) -> FakeCluster:
    """A runs the partition, for which a recovery has made the node a standby for a while."""
    plan, directory = plan_of([A])
    return FakeCluster(plan, directory.with_lent(PARTITION, node))


def test_move_to_temporary_standby_removes_only_the_source() -> None:
    """O5: nobody would take back the role of the source."""
    world = lent(B)
    move = world.ask(A, B)
    beats(world, 30)
    assert move.phase is MovePhase.DONE
    assert roles(world) == {B: Role.ACTIVE}
    assert world.directory.lent == set()


def test_dropped_move_leaves_a_lent_role_to_its_lender() -> None:
    world = lent(B)
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.INSTALL)
    world.moves.cancel(move.number)
    beats(world, 5)
    assert move.phase is MovePhase.DROPPED
    assert world.directory.lent == {ReplicaId(*PARTITION, B)}


def test_a_lent_role_that_moves_stays_lent() -> None:
    """As from a node that is drained: the successor is no standby for ever."""
    world = lent(B)
    move = world.ask(B, C)
    beats(world, 30)
    assert move.phase is MovePhase.DONE
    assert roles(world) == {A: Role.ACTIVE, C: Role.STANDBY}
    assert world.directory.lent == {ReplicaId(*PARTITION, C)}


def test_standby_moves_when_successor_holds_two_checkpoints() -> None:
    world = cluster("A", "B")
    move = world.ask(B, C)
    for _ in range(30):
        world.nodes[C].held = 0  # it never comes to hold more than one
        world.beat()
        assert move.phase is not MovePhase.LEAVE
    assert roles(world) == {A: Role.ACTIVE, B: Role.STANDBY, C: Role.STANDBY}
    beats(world, 30)
    assert move.phase is MovePhase.DONE
    assert roles(world) == {A: Role.ACTIVE, C: Role.STANDBY}
    assert world.running() == [A]
    assert MovePhase.INSTALL not in move.began_us


@pytest.mark.parametrize("full", [False, True], ids=["on its disk", "in memory only"])
def test_standby_moves_to_node_running_for_dead_nodes(full: bool) -> None:
    """It gets no checkpoints then; its state must be on its disk.  Seed 7330575: it was waited for without an end."""
    world = cluster("A", "B", budget=1)
    beats(world, 10)
    move = world.ask(B, C)
    beats(world, 2)
    for node in (A, B):
        world.kill(node)
    world.full = {C} if full else set()
    beats(world, 20)
    assert world.running() == [C]
    world.start(A)
    beats(world, 40)
    assert move.phase is (MovePhase.FOLLOW if full else MovePhase.DONE)
    assert move.why == ("n1c must have its state on its disk first" if full else "")
    if not full:
        assert roles(world) == {A: Role.ACTIVE, C: Role.STANDBY}


def test_a_partition_moves_to_the_standby_that_the_budget_keeps() -> None:
    """Both change places; the old replica, now the standby, is the one that runs by choice, and does not retire."""
    world = cluster("A", "B", budget=1)
    beats(world, 10)
    assert world.running() == [A, B]
    move = world.ask(A, B)
    beats(world, 30)
    assert move.phase is MovePhase.DONE
    assert roles(world) == {B: Role.ACTIVE, A: Role.STANDBY}
    assert world.running() == [A, B]
    assert "retire" not in " ".join(world.story)


def test_a_standby_that_the_budget_keeps_running_moves() -> None:
    """First its successor runs, then it retires and leaves (H7)."""
    world = cluster("A", "B", budget=1)
    beats(world, 10)
    move = world.ask(B, C)
    beats(world, 30)
    assert move.phase is MovePhase.DONE
    assert roles(world) == {A: Role.ACTIVE, C: Role.STANDBY}
    assert world.running() == [A, C]
    assert world.story[-3:] == ["install n1c", "retire n1b", "[('n1b', None)]"]


def test_replica_run_by_budget_stays_while_partition_moves() -> None:
    world = cluster("A", "B", budget=1)
    beats(world, 10)
    move = world.ask(A, C)
    beats(world, 30)
    assert move.phase is MovePhase.DONE
    assert roles(world) == {B: Role.STANDBY, C: Role.ACTIVE}
    assert world.running() == [B, C]


def test_temporary_standby_of_a_move_is_not_chosen_to_run() -> None:
    """Else nobody would make it retire, and the move would wait for that for ever."""
    world = cluster("A")
    world.activation.budget = 1
    move = world.ask(A, C)
    while not move.over:
        world.beat()
        assert world.now < 100 * BEAT
        world.activation.adopt(Choice(frozenset({PARTITION}), 1.0, 0.0))
        assert world.activation.step(lambda standby: NodeState.STABLE) is None
    assert world.running() == [C]


def test_target_dying_for_good_as_source_leaves_gets_no_role() -> None:
    """Else the source would be waited for to retire for ever, and no other move could begin (M6)."""
    for standbys, left in (("", {A: Role.ACTIVE}), ("B", {B: Role.STANDBY, A: Role.ACTIVE})):
        world = cluster("A", standbys)
        move = world.ask(A, B)
        beats_until(world, move, MovePhase.LEAVE)
        world.kill(B)
        beats(world, 60)
        assert (move.phase, move.why) == (MovePhase.DROPPED, "n1b does not answer")
        assert roles(world) == left
        assert world.running() == [A]


def test_a_replica_leaves_though_another_one_is_dead() -> None:
    """What it is replaced by is STABLE, and of the dead one it did not take the place."""
    world = cluster("AB")
    world.kill(B)
    beats(world, 5)
    move = world.ask(A, C)
    beats(world, 30)
    assert move.phase is MovePhase.DONE
    assert roles(world) == {B: Role.ACTIVE, C: Role.ACTIVE}
    assert world.running() == [C]


def test_a_standby_that_runs_in_the_place_of_a_dead_one_moves() -> None:
    """Its successor runs before it leaves."""
    world = cluster("A", "B")
    world.kill(A)
    beats(world, 10)
    assert world.running() == [B]
    move = world.ask(B, C)
    for _ in range(40):
        world.beat()
        assert world.served()
    assert move.phase is MovePhase.DONE
    assert roles(world) == {A: Role.ACTIVE, C: Role.STANDBY}
    assert world.running() == [C]


def test_moves_are_carried_out_one_after_the_other() -> None:
    world = cluster("A", "B")
    first = world.ask(A, C)
    with pytest.raises(MoveRefused, match=r"move 1 \(u1/0 from n1a to n1c\) has not ended"):
        world.ask(B, C)
    beats(world, 30)
    second = world.ask(C, A)
    beats(world, 30)
    assert (first.phase, second.phase) == (MovePhase.DONE, MovePhase.DONE)
    assert roles(world) == {A: Role.ACTIVE, B: Role.STANDBY}


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        (A, NodeId("n9"), "there is no node n9; there are n1a, n1b, n1c"),
        (NodeId("n9"), B, "there is no node n9"),
        (C, B, "n1c has nothing to do with it; n1a have"),
        (A, A, "n1a runs it already"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_refused(source: NodeId, target: NodeId, why: str) -> None:
    with pytest.raises(MoveRefused, match=f"u1/0 cannot move from {source} to {target}: {why}"):
        cluster().ask(source, target)


def test_an_order_to_a_dead_node_is_refused() -> None:
    world = cluster()
    world.kill(B)
    world.beat()
    with pytest.raises(MoveRefused, match="n1b does not answer; start it first"):
        world.ask(A, B)


def test_a_move_waits_until_all_replicas_are_stable() -> None:
    world = cluster("AC")
    world.nodes[C].state = UP_FAILURE
    world.beat()
    move = world.ask(A, B)
    beats(world, 5)
    assert (move.phase, move.why) == (MovePhase.WAIT, "n1c must be STABLE first")
    world.nodes[C].state = NodeState.STABLE
    beats(world, 30)
    assert move.phase is MovePhase.DONE
    assert roles(world) == {C: Role.ACTIVE, B: Role.ACTIVE}


@pytest.mark.parametrize("phase", [MovePhase.JOIN, MovePhase.INSTALL, MovePhase.FOLLOW])
def test_move_with_dead_target_is_reverted(phase: MovePhase) -> None:
    world = cluster()
    move = world.ask(A, B)
    beats_until(world, move, phase)
    world.kill(B)
    beats(world, 60)
    assert (move.phase, move.why) == (MovePhase.DROPPED, "n1b does not answer")
    assert roles(world) == {A: Role.ACTIVE}
    world.start(B)
    beats(world, 10)
    assert world.running() == [A]


def test_a_target_that_dies_before_it_joins_is_waited_for_once() -> None:
    """A second death drops the move: it may have to wait for many producers, and others wait for it."""
    world = cluster()
    (source, *_) = world.sources
    world.lag.add(source)
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.JOIN)
    for phase in (MovePhase.JOIN, MovePhase.DROPPED):
        world.kill(B)
        beats(world, 5)
        assert (move.phase, move.why) == (phase, "n1b does not answer")
        world.start(B)
        beats(world, 5)
    assert roles(world) == {A: Role.ACTIVE}


def test_a_target_that_falls_silent_is_waited_for_three_times() -> None:
    """M6: the fourth time its move is taken back."""
    world = cluster()
    world.recovery = 10
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.INSTALL)
    for silent in range(1, TRIES + 1):
        world.silent.add(B)
        beats(world, 3)
        assert (move.phase, move.tries, move.why) == (MovePhase.INSTALL, silent, "n1b does not answer")
        world.silent.clear()
        world.nodes[B].recovers = 10
        beats(world, 2)
        assert move.why == "n1b recovers"
    world.silent.add(B)
    beats(world, 2)
    assert (move.phase, move.why) == (MovePhase.DROPPED, "n1b does not answer")
    assert roles(world) == {A: Role.ACTIVE}


def test_target_silent_for_its_patience_is_abandoned() -> None:
    world = cluster()
    world.recovery = 10
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.INSTALL)
    world.silent.add(B)
    beats(world, 20)
    assert (move.phase, move.dropping) == (MovePhase.INSTALL, None)
    world.beat()
    assert move.dropping == "n1b does not answer"


@pytest.mark.parametrize("phase", [MovePhase.JOIN, MovePhase.INSTALL, MovePhase.FOLLOW])
def test_a_move_that_is_cancelled_is_taken_back(phase: MovePhase) -> None:
    world = cluster("A", "C")
    move = world.ask(A, B)
    beats_until(world, move, phase)
    world.moves.cancel(move.number)
    beats(world, 30)
    assert (move.phase, move.why) == (MovePhase.DROPPED, "cancelled")
    assert roles(world) == {A: Role.ACTIVE, C: Role.STANDBY}
    assert world.running() == [A]
    with pytest.raises(MoveRefused, match="no move 1 is under way"):
        world.moves.cancel(move.number)


def test_nothing_is_done_of_an_order_that_is_not_on_disk() -> None:
    """A slow disk may refuse it after many heartbeats, and then nobody has ordered anything (M1)."""
    world = cluster()
    refused = world.orders.ask(PARTITION, A, B, "asked for")
    beats(world, 10)
    assert refused.phase is MovePhase.WAIT
    world.orders.forget([refused])
    assert world.orders.all() == []
    kept = world.orders.ask(PARTITION, A, B, "asked for")
    world.orders.stored([kept])
    beats(world, 30)
    assert kept.phase is MovePhase.DONE


def test_target_that_answers_but_is_never_ready_is_abandoned() -> None:
    """All other moves wait for this one."""
    world = cluster()
    world.recovery = 10**9
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.INSTALL)
    beats(world, 50)
    assert move.phase is MovePhase.INSTALL
    world.now += IN_VAIN_US
    beats(world, 30)
    assert (move.phase, move.why) == (MovePhase.DROPPED, "n1b recovers, after ten times as long as that should take")
    assert (roles(world), world.running()) == ({A: Role.ACTIVE}, [A])


def test_a_move_is_not_cancelled_once_the_old_replica_leaves() -> None:
    world = cluster()
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.LEAVE)
    with pytest.raises(MoveRefused, match="nearly over"):
        world.moves.cancel(move.number)


@pytest.mark.parametrize("phase", [MovePhase.INSTALL, MovePhase.FOLLOW, MovePhase.LEAVE])
def test_where_the_old_replica_dies_the_target_takes_over(phase: MovePhase) -> None:
    world = cluster()
    move = world.ask(A, B)
    beats_until(world, move, phase)
    world.kill(A)
    beats(world, 60)
    assert move.phase is MovePhase.DONE
    assert roles(world) == {B: Role.ACTIVE}
    world.start(A)
    beats(world, 10)
    assert world.running() == [B], "what came back with an old directory leaves when it learns of the new one"


@pytest.mark.parametrize("phase", [MovePhase.JOIN, MovePhase.INSTALL, MovePhase.FOLLOW, MovePhase.LEAVE])
def test_the_next_coordinator_goes_on_from_the_store(phase: MovePhase) -> None:
    world = cluster()
    move = world.ask(A, B)
    beats_until(world, move, phase)
    beats(world, 5, coordinator=False)
    world.begin()
    beats(world, 60)
    (found,) = world.orders.all()
    assert found.phase is MovePhase.DONE
    assert (roles(world), world.running()) == ({B: Role.ACTIVE}, [B])
    assert world.orders.ask(PARTITION, B, A, "back").number == 2


def following(source: NodeState | None) -> tuple[FakeCluster, Move]:
    """The target is STABLE, and its state is in memory only; of the source this is left."""
    world = cluster()
    world.lends = True
    world.full.add(B)
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.FOLLOW)
    beats(world, 3)
    if source is None:
        world.kill(A)
    world.nodes[A].state = source
    beats(world, 5)
    return world, move


@pytest.mark.parametrize("source", [None, UP_FAILURE], ids=["the source is dead", "the source is in UP_FAILURE"])
@pytest.mark.parametrize("ends", ["cancelled", "in vain", "cut off"])
def test_last_stable_replica_stays_when_move_is_reverted(ends: str, source: NodeState | None) -> None:
    """Its role is lent, and gone when the source is STABLE again."""
    world, move = following(source)
    if ends == "cancelled":
        world.moves.cancel(move.number)
    elif ends == "in vain":
        world.now += IN_VAIN_US
    else:
        world.silent = {B}
    beats(world, 30)
    assert move.phase is MovePhase.DROPPED
    assert (roles(world), world.nodes[B].state) == ({A: Role.ACTIVE, B: Role.STANDBY}, NodeState.STABLE)
    world.silent = set()
    if source is None:
        world.start(A)
    else:
        world.nodes[A].state = NodeState.STABLE
    beats(world, 20)
    assert (roles(world), world.running()) == ({A: Role.ACTIVE}, [A])


def test_cut_off_source_runs_on_if_target_dies() -> None:
    world = cluster()
    world.lends = True
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.LEAVE)
    world.kill(B)
    world.silent = {A}
    beats(world, 30)
    assert (move.phase, world.nodes[A].state) == (MovePhase.DONE, NodeState.STABLE)
    world.silent = set()
    beats(world, 10)
    assert world.running() == [A]
    world.start(B)
    beats(world, 20)
    assert (roles(world), world.running()) == ({B: Role.ACTIVE}, [B])


def test_cut_off_target_runs_on_if_leaving_source_is_in_failure() -> None:
    world = cluster()
    world.lends = True
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.LEAVE)
    world.nodes[A].state, world.silent = UP_FAILURE, {B}
    beats(world, 60)
    assert move.phase is MovePhase.DROPPED
    assert (roles(world), world.running()) == ({A: Role.ACTIVE, B: Role.STANDBY}, [A, B])
    world.nodes[A].state, world.silent = NodeState.STABLE, set()
    beats(world, 10)
    assert (roles(world), world.running()) == ({A: Role.ACTIVE}, [A])


def leaving_a_target_that_cannot_recover() -> tuple[FakeCluster, Move]:
    """It restarts as the source is to leave."""
    world = cluster()
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.LEAVE)
    world.kill(B)
    world.recovery = 10**9
    world.start(B)
    beats(world, 10)
    assert (move.phase, world.running()) == (MovePhase.LEAVE, [A, B])
    return world, move


def test_target_unable_to_recover_as_source_leaves_is_dropped() -> None:
    """No other move could begin.  The source never stopped."""
    world, move = leaving_a_target_that_cannot_recover()
    world.now += IN_VAIN_US
    beats(world, 10)
    assert (move.phase, move.why) == (
        MovePhase.DROPPED,
        "n1b must be STABLE, after ten times as long as that should take",
    )
    assert (roles(world), world.running()) == ({A: Role.ACTIVE}, [A])
    world.recovery = 3
    next_one = world.ask(A, C)
    beats(world, 30)
    assert next_one.phase is MovePhase.DONE


def test_another_failing_replica_does_not_block_other_moves() -> None:
    world = cluster("AC")
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.LEAVE)
    world.nodes[C].state = UP_FAILURE
    beats(world, 30)
    assert (move.phase, world.running()) == (MovePhase.LEAVE, [A, B, C])
    world.now += IN_VAIN_US
    beats(world, 10)
    assert (move.phase, move.why) == (
        MovePhase.DROPPED,
        "n1c must be STABLE, after ten times as long as that should take",
    )
    assert (roles(world), world.running()) == ({C: Role.ACTIVE, A: Role.ACTIVE}, [A, C])


def test_move_is_cancelled_if_target_cannot_recover() -> None:
    """But not at once: the order to retire may be on its way."""
    world, move = leaving_a_target_that_cannot_recover()
    with pytest.raises(MoveRefused, match="nearly over"):
        world.moves.cancel(move.number)
    beats(world, 15)
    world.moves.cancel(move.number)
    world.nodes[B].state = NodeState.STABLE  # from now on nobody may tell the source to retire
    beats(world, 3, stores=False)
    assert world.running() == [A, B]
    for _ in range(20):
        world.beat()
        assert world.nodes[A].state is NodeState.STABLE
    assert (move.phase, move.why) == (MovePhase.DROPPED, "cancelled")
    assert (roles(world), world.running()) == ({A: Role.ACTIVE}, [A])


@pytest.mark.parametrize("node", [A, B], ids=["the source is not STABLE", "the target is STABLE"])
def test_a_move_stays_where_the_source_may_leave_or_is_no_better(node: NodeId) -> None:
    world, move = leaving_a_target_that_cannot_recover()
    beats(world, 15)
    world.nodes[A].state = NodeState.STABLE if node == B else UP_FAILURE
    world.nodes[B].state = NodeState.STABLE if node == B else NodeState.RECOVERING
    world._hear()
    with pytest.raises(MoveRefused, match="nearly over"):
        world.moves.cancel(move.number)
    world.now += IN_VAIN_US
    beats(world, 20)
    assert move.phase is (MovePhase.DONE if node == B else MovePhase.LEAVE)


@pytest.mark.parametrize("state", [UP_FAILURE, NodeState.STABILIZATION])
def test_a_source_that_is_not_stable_leaves_as_the_target_is(state: NodeState) -> None:
    """Its failure may last, and all other moves wait."""
    world = cluster()
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.LEAVE)
    world.nodes[A].state = state
    world.nodes[B].state = UP_FAILURE
    beats(world, 10)
    assert (move.phase, world.running()) == (MovePhase.LEAVE, [A, B])
    world.nodes[B].state = NodeState.STABLE
    beats(world, 10)
    assert (move.phase, roles(world), world.running()) == (MovePhase.DONE, {B: Role.ACTIVE}, [B])


def test_full_disk_publishes_nothing_and_change_is_retried() -> None:
    world = cluster()
    move = world.ask(A, B)
    beats(world, 10, stores=False)
    assert roles(world) == {A: Role.ACTIVE}
    assert world.running() == [A]
    beats(world, 30)
    assert move.phase is MovePhase.DONE


def test_source_helps_if_target_dies_after_replacing_it() -> None:
    world = cluster()
    move = world.ask(A, B)
    beats_until(world, move, MovePhase.LEAVE)
    world.kill(B)
    beats(world, 15)
    assert move.phase is MovePhase.LEAVE
    assert world.running() == [A], "it stands by, and runs because nobody else does (H5)"
    world.start(B)
    beats(world, 60)
    assert move.phase is MovePhase.DONE
    assert world.running() == [B]


def ordered(known: Iterable[Move]) -> MoveOrders:
    """A coordinator that knows these moves."""
    return MoveOrders(ClusterView(*plan_of([A]), 0, recovery_us=1_000_000), known=known)


def having_moved(*moves: tuple[int, int], source: StateSource = StateSource.PARTNER) -> MoveOrders:
    """A coordinator that knows of moves: (state expected, took), milliseconds.  A heartbeat is 100 ms."""
    known = [
        Move(
            at,
            PARTITION,
            A,
            B,
            Role.ACTIVE,
            "ordered",
            state_us=1_000 * state,
            state_from=source,
            phase=MovePhase.DONE,
            began_us={MovePhase.JOIN: 0, MovePhase.DONE: 1_000 * took},
        )
        for at, (state, took) in enumerate(moves, 1)
    ]
    return ordered(known)


def test_phases_give_the_expectation_before_first_move() -> None:
    assert having_moved().expected_us(20_000) == 1_520_000


def test_latest_moves_give_the_expectation_for_the_next() -> None:
    assert having_moved((10, 2010), (10, 2210), (10, 2110)).expected_us(10_000) == 2_110_000
    assert having_moved((10, 2010), (10, 2210), (10, 2110)).expected_us(5_000_000) == 7_100_000, (
        "as for its state alone"
    )


def test_nothing_is_learned_from_an_interrupted_move() -> None:
    """The coordinator was dead for an hour in its middle."""
    before = having_moved((10, 2010), (10, 2210), (10, 2110))
    under_way = Move(4, PARTITION, A, B, Role.ACTIVE, "ordered", 10_000, phase=MovePhase.FOLLOW)
    under_way.began_us = {MovePhase.JOIN: 0}
    known = [*before.all(), under_way]
    after = ordered(known)
    under_way.phase = MovePhase.DONE
    under_way.began_us[MovePhase.DONE] = 3_600_000_000
    assert after.expected_us(10_000) == 2_110_000


def test_slow_transfers_of_state_make_later_predictions_longer() -> None:
    """Ten times as long, beside 2 s: links are slower than assumed."""
    slow = having_moved((1, 2010), (100, 3000), (1, 2010), (2, 2020))
    assert slow.expected_us(100_000) == 3_000_000
    assert slow.expected_us(50_000) == 2_500_000
    assert slow.expected_us(1_000) == 2_010_000
    assert slow.expected_us(100_000, StateSource.CHECKPOINT) == pytest.approx(2_100_000, rel=0.1), "a disk is no link"


def test_small_differences_say_nothing_of_large_states() -> None:
    """10 ms more for 1 ms of state may be chance."""
    assert having_moved((1, 2000), (2, 2010), (3, 2020)).expected_us(1_000_000) == pytest.approx(3_008_000, rel=0.01)


def test_a_partition_that_nobody_runs_does_not_move() -> None:
    """M: a move begins when all replicas are STABLE; there is none, and no state to bring."""
    world = cluster()
    move = world.ask(A, B)
    world.kill(A)
    beats(world, 5)
    assert (move.phase, move.why) == (MovePhase.WAIT, "a replica must be STABLE first")


def test_of_orders_that_are_refused_together_none_stays() -> None:
    """M5: a drain is refused whole."""
    world = cluster()
    with pytest.raises(MoveRefused):
        world.orders.ask_all([(PARTITION, A, B, None), (PARTITION, A, C, None)], "drained")
    assert world.orders.open() == []
