"""Whichever process dies during a move, the move ends and a replica runs where the directory says."""

from __future__ import annotations

from random import Random

from hypothesis import event, example, given
from hypothesis import strategies as st

from replicas.placement.deciders.move import MovePhase, MoveRefused
from spe.plan.directory import Role
from tests.support.moves import PARTITION, A, B, C, FakeCluster, plan_of


@example(8769, "AC", True)  # a role that is lent goes when it is taken back
@given(st.integers(0, 2**32), st.sampled_from(["A", "AC", "A+B", "A+C", "AC+B"]), st.booleans())
def test_move_ends_as_directory_says_whichever_process_dies(seed: int, layout: str, faults: bool) -> None:
    random = Random(seed)
    replicas, _, standbys = layout.partition("+")
    names = {"A": A, "B": B, "C": C}
    world = FakeCluster(*plan_of([names[n] for n in replicas], [names[n] for n in standbys]))
    world.recovery, world.lends = random.choice([1, 3, 10]), True
    before = list(world.directory.roles[PARTITION].values())
    source = random.choice([names[n] for n in replicas + standbys])
    try:
        world.ask(source, random.choice([n for n in names.values() if n != source]))
    except MoveRefused:
        event("refused")
        return
    kills = 0
    for _ in range(random.choice([5, 15, 60])):
        if faults and random.random() < 0.3:
            node = random.choice([A, B, C])
            if not world.nodes[node].alive:
                world.start(node)
            # DPC's premise: of each partition a replica with its state survives.
            elif any(n.state is not None and n.alive for name, n in world.nodes.items() if name != node):
                world.kill(node)
                kills += 1
            world.lag = {n for n in [*names.values(), *world.sources] if random.random() < 0.1}
        here = not faults or random.random() < 0.8
        world.beat(coordinator=here, stores=not faults or random.random() < 0.9)
        if faults and random.random() < 0.1:
            world.begin()
        assert faults or world.served()
    world.lag.clear()
    for node in names.values():
        if not world.nodes[node].alive:
            world.start(node)
    for _ in range(150):
        world.beat()
    (move,) = world.orders.all()
    event(f"{move.role} {move.phase}{' after faults' if kills else ''}")
    roles = world.directory.roles[PARTITION]
    assert move.over, move
    assert sorted(roles.values()) == sorted(before), "as many replicas and standbys as before"
    assert (roles.get(move.target) is move.role) == (move.phase is MovePhase.DONE)
    assert world.running() == sorted(n for n, role in roles.items() if role is Role.ACTIVE)
    assert faults or move.phase is MovePhase.DONE
