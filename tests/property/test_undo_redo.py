"""Checkpoint/redo and undo/redo give the same elements for any failures and cuts (R9)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product
from random import Random

import pytest

from consistency.dpc.undo import UndoInstance
from operators.rejections import Rejection
from spe.plan.nodes import Checkpoints, Policy, Reconcile
from spe.plan.plan import InputStream, Unit
from spe.query.declaration import OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.query import QueryOperator
from spe.query.windows import SlidingWindow, TumblingWindow, Window
from spe.stream.batch import Batch, Boundary, Element, Rows
from spe.stream.names import Kind, NodeState, StreamId, UnitId
from spe.stream.schema import Schema
from tests.support.catalogue import CATALOGUE, LEFT, RIGHT, SCHEMA, stream
from tests.support.long_forms import long_but
from tests.support.operators import step_sizes
from tests.unit.consistency.dpc.test_manager import World

UNTIL = 300
NO_CHECKPOINTS = Checkpoints()
SLIDING = SlidingWindow(15, 5)
SECOND_STAGE = AggregateSpec(StreamId("first"), TumblingWindow(20), {}, {"n": AggregateCall("count")})


def unit_of(name: str, window: Window = SLIDING) -> Unit:
    """The operator, a second one behind it, and one beside it, over ``window``, that only reads the right
    input."""
    operators: list[QueryOperator] = []
    schemas: dict[StreamId, Schema] = {LEFT: SCHEMA, RIGHT: SCHEMA}
    beside = AggregateSpec(RIGHT, window, {"key": "key"}, {"sum": AggregateCall("sum", "value")})
    specs: list[tuple[str, OperatorSpec]] = [("first", CATALOGUE[name]), ("second", SECOND_STAGE), ("beside", beside)]
    for at, spec in specs:
        schema = spec.output_schema([schemas[i] for i in spec.inputs])
        operators.append(QueryOperator(StreamId(at), spec, schema))
        schemas[StreamId(at)] = schema
    return Unit(
        id=UnitId("u"),
        fragment="f",
        inputs=tuple(InputStream(s, SCHEMA, 1, None) for s in (LEFT, RIGHT)),
        operators=tuple(operators),
        outputs=tuple(o.name for o in operators),
        partitions=1,
    )


class Replica(World):
    """A replica with two whole streams as inputs; records its output with times."""

    def __init__(self, unit: Unit, seed: int, partners: Sequence[str], checkpoints: Checkpoints) -> None:
        failure = list(Policy)[seed % 3]
        self._output = -1
        self.shown: list[str] = []
        super().__init__(unit=unit, failure=failure, partners=partners, checkpoints=checkpoints)
        self.data = [stream(seed * 2 + at, UNTIL) for at in (0, 1)]
        self.sent = [0, 0]

    def _write(self, tuples: str, boundary: str, elements: Sequence[Element]) -> None:
        for element in elements:
            if isinstance(element, Batch):
                rows = zip(
                    element.row_ids().tolist(), element.rows.time.tolist(), element.rows.to_tuples(), strict=True
                )
                self.shown += [f"{tuples}{id}/{time} {values!r}" for id, time, values in rows]
            else:
                self.shown.append(repr(element))

    def stable(self, output: int, elements: Sequence[Element]) -> None:
        self._tell_output(output, elements)
        super().stable(output, elements)

    def tentative(self, output: int, elements: Sequence[Element]) -> None:
        self._tell_output(output, elements)
        super().tentative(output, elements)

    def _tell_output(self, output: int, elements: Sequence[Element]) -> None:
        """Joins consecutive elements, because the division of a slice does not matter."""
        if elements and output != self._output:
            self._output = output
            self.shown.append(f"out {output}")

    def clear_suffix(self) -> None:
        self._tell("clear")

    def announce(self, state: NodeState, fresh: bool) -> None:
        self._tell(f"{state.name} {fresh}")

    def _tell(self, event: str) -> None:
        self._output = -1
        self.shown.append(event)

    def deliver(self, at: int, upto: int, now: int) -> None:
        """The input's tuples below ``upto``, and the boundary."""
        rows = [t for t in self.data[at] if self.sent[at] <= t[0] < upto]
        if rows:
            one = self.sunion.inputs[at]
            made = Rows.from_tuples(SCHEMA, [t for t, _ in rows], [v for _, v in rows])
            one.add_stable(Batch(Kind.STABLE, one.position, one.position + len(rows), None, made), now)
        self.sunion.inputs[at].add_boundary(Boundary(Kind.STABLE, upto, self.sunion.inputs[at].position), now)
        self.sent[at] = upto


def play(unit: Unit, seed: int, checkpoints: Checkpoints = NO_CHECKPOINTS) -> Replica:
    """Inputs fail and heal at random; at the end everything is corrected.  Every third run uses tiny steps."""
    with step_sizes() if seed % 3 == 1 else nullcontext():
        return _play(unit, seed, checkpoints)


def _play(unit: Unit, seed: int, checkpoints: Checkpoints) -> Replica:
    random = Random(seed)
    world = Replica(unit, seed, ("n2",) if seed % 2 else (), checkpoints)
    back = [0, 0]
    now = 0
    for now in range(0, UNTIL, 4):
        for at in (0, 1):
            if world.live[at] and random.random() < 0.04:
                world.live[at], back[at] = False, now + random.choice([20, 45, 90])
            world.live[at] = world.live[at] or now >= back[at]
            if world.live[at] and random.random() < 0.8:
                world.deliver(at, now, now)
        world.run(now)
        if world.asks and random.random() < 0.7:
            world.grant(now)
        if world.partner and random.random() < 0.1:
            world.partner["n2"] = random.choice([None, NodeState.STABLE, NodeState.STABILIZATION])
    world.live = [True, True]
    world.partner |= dict.fromkeys(world.partner, NodeState.UP_FAILURE)
    for later in range(now, now + 3000, 100):
        for at in (0, 1):
            world.deliver(at, later, later)
        world.run(later)
        if world.asks:
            world.grant(later)
    assert world.replica.state is NodeState.STABLE
    return world


def rejected(world: Replica) -> dict[tuple[str, bool, int], Rejection]:
    """Rows rejected for good, by operator, kind and number; the numbers are the counted ones (U15)."""
    found: dict[tuple[str, bool, int], Rejection] = {}
    for one in world.rejections:
        assert found.setdefault((one.operator, one.result, one.number), one) == one
    for name in {o for o, _, _ in found}:
        for result, counter in ((False, "rejected"), (True, "rejected_results")):
            numbers = sorted(n for o, r, n in found if (o, r) == (name, result))
            assert numbers == list(range(1, world.replica.counters()[f"{name}.{counter}"] + 1))
    return found


#: One of each policy; together also each policy with and without partners.
SEEDS = long_but([range(3)], [range(3), range(3, 6)])


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
@pytest.mark.parametrize("name", CATALOGUE)
def test_checkpoint_and_undo_give_the_same_elements(name: str, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = unit_of(name)
    redone = rebuilt = skipped = 0
    for seed in seeds:
        monkeypatch.setattr(World, "reconcile", Reconcile.CHECKPOINT)
        one = play(unit, seed)
        monkeypatch.setattr(World, "reconcile", Reconcile.UNDO)
        other = play(unit, seed)
        assert other.shown == one.shown
        assert other.replica.counters() == one.replica.counters()
        assert rejected(other) == rejected(one)
        redone += other.replica.counts.redone_rows
        rebuilt += other.replica.counts.rebuilt_rows
        skipped += len(rejected(one))
    assert (skipped > 50) == ("skips" in name or "rejects" in name)
    assert redone > 50
    assert rebuilt > 0


KEPT = [
    "sliding",
    "full join",
    "count windows",
    "top-k by attribute",
    "custom that skips",
    "aggregate that skips",
    "aggregate that rejects late rows",
    "join that rejects late rows",
]


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
@pytest.mark.parametrize(
    ("name", "reconcile"),
    long_but([*zip(KEPT, [*Reconcile] * 4, strict=True)], product(KEPT, Reconcile)),
)
def test_periodic_checkpoints_give_the_same_elements(
    name: str, reconcile: Reconcile, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redo starts earlier; repeated results are recognized and dropped (R8)."""
    monkeypatch.setattr(World, "reconcile", reconcile)
    unit = unit_of(name)
    dropped = 0
    for seed in seeds:
        one, other = play(unit, seed), play(unit, seed, Checkpoints(every_us=100))
        assert other.shown == one.shown
        assert other.replica.counters() == one.replica.counters()
        assert rejected(other) == rejected(one)
        assert other.replica.counts.redone_rows >= one.replica.counts.redone_rows
        dropped += sum(o.dropped for o in other.replica._run.live.outputs)
    assert dropped > 0


def test_an_operator_without_failed_inputs_keeps_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo covers affected paths only: an operator that reads only the unaffected input is not rebuilt."""
    monkeypatch.setattr(World, "reconcile", Reconcile.UNDO)

    def rebuilt(*right: int) -> int:
        world = Replica(unit_of("tumbling", TumblingWindow(1000)), 1, (), NO_CHECKPOINTS)
        world.data = [[(t, (t, "a", 1.0)) for t in times] for times in ([21, 22, 31, 33], [12, 13, 14, *right])]
        for at in (0, 1):
            world.deliver(at, 9, 9)
        for at in (0, 1):
            world.deliver(at, 29, 29)
        world.run(29)
        assert world.sunion.next == 20
        world.live[1] = False
        world.deliver(0, 40, 40)
        world.deliver(1, 36, 40)  # its boundary does not reach the end of the bucket
        for now in range(40, 100, 4):
            world.run(now)
        assert world.replica.state is NodeState.UP_FAILURE
        world.live[1] = True
        for at in (0, 1):
            world.deliver(at, 110, 110)
        world.run(110)
        assert world.replica.state is NodeState.STABLE
        return world.replica.counts.rebuilt_rows

    assert rebuilt() == 1  # the second operator's, a result of [20, 30)
    assert rebuilt(35) == 1 + 3


def test_input_kept_for_undo_is_bounded_in_any_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an hour, stable or in failure, the input buffers hold one window."""
    monkeypatch.setattr(World, "reconcile", Reconcile.UNDO)
    world = Replica(unit_of("sliding"), 0, (), NO_CHECKPOINTS)
    live = world.replica._run.live
    assert isinstance(live, UndoInstance)
    most = 0
    for now in range(0, UNTIL, 4):
        for at in (0, 1):
            world.deliver(at, now, now)
        world.run(now)
        most = max(most, live.buffered_rows)
    world.live = [False, True]
    for now in range(UNTIL, 3 * UNTIL, 4):
        world.deliver(1, now, now)
        world.run(now)
    assert world.replica.state is NodeState.UP_FAILURE
    assert 0 < live.buffered_rows <= most < len(world.data[0]) / 2
