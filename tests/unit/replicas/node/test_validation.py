"""Validation names the invariant that the state of a replica breaks (docs/internals/rules.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from operators.sunion.cursors import Cursors
from replicas.consumer.feed import Feed
from replicas.node.replica import Replica
from replicas.node.validation import ROWS_EVERY, ReplicaValidation
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.query.operators.union import UnionSpec
from spe.stream.batch import Batch, Boundary, Rows
from spe.stream.ids import PartitionId
from spe.stream.names import Kind, NodeId, NodeState, StreamId, UnitId
from spe.stream.times import END_OF_TIME
from spe.wire.fields import Mode
from tests.support.effects import NoEffects
from tests.support.plans import SEQUENCE, chain, pass_on, source


def plan() -> tuple[Plan, Directory]:
    """One unit on two nodes; checkpoints on disk."""
    found, directory = chain(
        [source("a", reader={}), source("b", reader={})],
        [("s", UnionSpec((StreamId("a"), StreamId("b"))), SEQUENCE), ("t", pass_on("s"), SEQUENCE)],
    )
    durable = {
        name: replace(node, checkpoints=replace(node.checkpoints, every_us=1, disk=True))
        for name, node in directory.nodes.items()
    }
    return found, replace(directory, nodes=durable)


def replica() -> Replica:
    """A STABLE replica with one released and one waiting tuple."""
    found, directory = plan()
    id = next(i for i in directory.replicas_on(NodeId("n1a")) if i.of == PartitionId(UnitId("u1"), 0))
    one = Replica(found, directory, id, random=Random(0), now=0, effects=NoEffects())
    one.reading.installed = True
    one.reading.caught_up = lambda: True  # type: ignore[method-assign]
    bucket = found.bucket_us
    for port in one.sunion.inputs:
        rows = Rows.from_tuples(SEQUENCE, [5, 3 * bucket + 1], [(1, 1.0), (2, 2.0)])
        port.add_stable(Batch(Kind.STABLE, 0, 2, None, rows), 1)
        port.add_boundary(Boundary(Kind.STABLE, 2 * bucket, 2), 1)
    while one.advance(2)[0]:
        pass
    return one


def feed(producer: str, *, mode: Mode = "main", position: int = 0) -> Feed:
    return Feed(0, producer, mode, position)


def two_main_feeds(one: Replica) -> None:
    one.inputs[0].main, one.inputs[0].corr = feed("a"), feed("a")


def ahead_of_the_port(one: Replica) -> None:
    one.inputs[0].main = feed("a", position=99)


def tentative_below_the_frontier(one: Replica) -> None:
    port = one.sunion.inputs[0]
    low = port.frontier
    port.add_tentative(Batch(Kind.TENTATIVE, 0, 1, None, Rows.from_tuples(SEQUENCE, [low + 5], [(3, 3.0)])), 3)
    port.frontier = port.tentative_frontier = low + 6


def another_stable_tuple(one: Replica) -> None:
    log = one.logs[0]
    rows = Rows.from_tuples(SEQUENCE, [log.stable.frontier + 1], [(1, 1.0)])
    log.append_stable([Batch(Kind.STABLE, log.last_id, log.last_id + 1, None, rows)])


def setting(path: str, value: object) -> Callable[[Replica], None]:
    """Sets an attribute of a part of the replica."""

    def set_it(one: Replica) -> None:
        *way, last = path.split(".")
        part: object = one
        for name in way:
            part = part[int(name)] if name.isdigit() else getattr(part, name)  # type: ignore[index]
        setattr(part, last, value)

    set_it.__name__ = path
    return set_it


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (setting("sunion.cursors", Cursors(live=END_OF_TIME, restart=0)), "U8: tainted in state"),
        (setting("partners._asked", dict.fromkeys(range(17), "n1b")), "K1: few requests are open"),
        (setting("partners._since", 1), "R3: a request is open in UP_FAILURE"),
        (setting("sunion.inputs.0.tentative_frontier", 0), "B1: a stable boundary"),
        (setting("sunion.store.stable_bytes", 1), "B6: stable tuples are counted"),
        (setting("sunion.clocks._starts", [1, 2, 3]), "B3: each clock has a start"),
        (setting("sunion.inputs.0.stable.0.first_id", 99), "U10: ids ascend, up to the position"),
        (setting("sunion.inputs.1.frontier", 1), "invariant 5: nothing goes back"),
        (setting("logs.0.state", NodeState.UP_FAILURE), "U1: outputs have the unit's state"),
        (setting("logs.0.fresh", True), "R5: live runs beside a redo"),
        (setting("logs.0.stable.memory_bytes", 1), "A2: what is kept is counted"),
        (setting("recovery.stored", {"positions": []}), "A3: a checkpoint is installed once"),
        (two_main_feeds, "invariant 6: one CORRECTIONS"),
        (ahead_of_the_port, "U10: what came counts once"),
        (tentative_below_the_frontier, "B4: nothing tentative lies below φ"),
        (another_stable_tuple, "U9: s/0 has ids up to"),
    ],
)
def test_a_broken_rule_is_named(broken: Callable[[Replica], None], named: str) -> None:
    one = replica()
    validation = ReplicaValidation(one)
    for _ in range(ROWS_EVERY - 1):
        validation.step()
    broken(one)
    with pytest.raises(AssertionError, match=named):
        validation.step()


def test_a_correct_replica_is_valid() -> None:
    validation = ReplicaValidation(one := replica())
    for _ in range(2 * ROWS_EVERY):
        validation.step()
    assert one.state is NodeState.STABLE
    assert one.logs[0].last_id == 2
