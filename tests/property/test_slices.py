"""Results do not depend on how few rows a step may take, also inside a bucket (B8, R6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from operators.fragment import Fragment
from operators.sunion.slice import Slice
from operators.sunion.slice_end import slice_end
from operators.sunion.sunion import SUnion
from spe.plan.nodes import Checkpoints, Reconcile
from spe.stream.batch import Batch, Boundary, Rows
from spe.stream.names import Kind, NodeState
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME
from tests.property.test_undo_redo import Replica, play, unit_of
from tests.support.catalogue import CATALOGUE
from tests.support.long_forms import long_but
from tests.unit.consistency.dpc.test_manager import World

D = 100
IDS = Schema.of(id="int64")
INPUTS = 2
ROWS = 200


def is_bounded(piece: Slice, max_rows: int) -> bool:
    """At most this many rows of each input, or the rows of one time."""
    return all(rows is None or len(rows) <= max_rows or rows.time[0] == rows.time[-1] for rows in piece.merged())


def filled(seed: int, kind: str) -> tuple[SUnion, list[list[tuple[int, int]]]]:
    """Two buckets that are stable on both inputs, and (time, id) per input in their order of release."""
    random = Random(f"{seed} {kind}")
    in_order = kind == "sorted"
    sunion = SUnion(inputs=[(at, in_order) for at in range(INPUTS)], streams=INPUTS, bucket_us=D)
    expected = []
    for one in sunion.inputs:
        times = sorted(random.randrange(5, 2 * D) // 3 * 3 for _ in range(ROWS))
        if kind == "disordered":
            times = [t for _, t in sorted((at + random.randint(0, 30), t) for at, t in enumerate(times))]
        elif kind == "shuffled":
            random.shuffle(times)
        first = 0
        while first < ROWS:
            some = times[first : first + random.randint(1, 20)]
            ids = list(range(first + 1, first + 1 + len(some)))
            rows = Rows.from_tuples(IDS, some, [(id,) for id in ids])
            one.add_stable(Batch(Kind.STABLE, first, ids[-1], None, rows), 0)
            first = ids[-1]
        one.add_boundary(Boundary(Kind.STABLE, 2 * D, ROWS), 0)
        expected.append(sorted((t, at + 1) for at, t in enumerate(times)))
    return sunion, expected


def released(sunion: SUnion, way: str, max_rows: int) -> Iterator[Slice]:
    """All slices of one of the four kinds of release."""
    if way == "stable, kept":
        sunion.keep_from(BEFORE_TIME)
    if way in ("redo", "tentative"):
        sunion.taint()
    if way == "redo":
        sunion.cursors = replace(sunion.cursors, live=2 * D)
        sunion.begin_redo()
    while True:
        if way == "tentative":
            piece = None if sunion.next == 2 * D else sunion.release_tentative(2 * D, max_rows)
        else:
            piece = sunion.release_redo(max_rows) if way == "redo" else sunion.release_stable(max_rows)
        if piece is None:
            return
        yield piece


@pytest.mark.parametrize("kind", ["sorted", "disordered", "shuffled"])
@pytest.mark.parametrize("max_rows", [1, 3, 10, 64, 1000])
def test_counting_ordered_rows_ends_a_slice_as_sorting_does(kind: str, max_rows: int) -> None:
    for seed in range(15):
        random = Random(seed)
        sunion, _ = filled(seed, kind)
        low, end = random.choice([(BEFORE_TIME, 2 * D), (random.randrange(D), D + random.randrange(D))])
        bucket_us = random.choice([D, 10, 1])
        held = [(one.stable,) for one in sunion.inputs]
        sorting = [(one.stable, []) for one in sunion.inputs]  # two lists of unknown order
        found = [slice_end(h, low, end, max_rows=max_rows, bucket_us=bucket_us) for h in (held, sorting)]
        assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["sorted", "disordered", "shuffled"])
@pytest.mark.parametrize("way", ["stable", "stable, kept", "redo", "tentative"])
@pytest.mark.parametrize("max_rows", [1, 3, 10, 64, 1000])
def test_slices_are_bounded_and_contain_all_rows_once_in_order(kind: str, way: str, max_rows: int) -> None:
    for seed in range(3):
        sunion, expected = filled(seed, kind)
        left: list[list[tuple[int, int]]] = [[] for _ in range(INPUTS)]
        steps = 0
        for piece in released(sunion, way, max_rows):
            steps += 1
            assert is_bounded(piece, max_rows)
            assert all(len(rows) for parts in piece.parts for rows in parts)
            for at, rows in enumerate(piece.merged()):
                if rows is not None:
                    assert int(rows.time[-1]) < piece.end
                    assert piece.ids_of(at, range(len(rows))) == [(at, id) for (id,) in rows.to_tuples()]
                    left[at] += [(t, id) for t, (id,) in zip(rows.time.tolist(), rows.to_tuples(), strict=True)]
            if way in ("stable", "redo"):  # A1: an acknowledgement inside a bucket
                assert sunion.acknowledged() == [
                    min((id for t, id in rows if t >= piece.end), default=ROWS + 1) - 1 for rows in expected
                ]
                assert sunion.stable_bytes == sum(c.nbytes for i in sunion.inputs for c in i.stable)
            else:
                assert sunion.acknowledged() == [0, 0]
        assert left == expected
        assert steps <= 4 + 2 * INPUTS * ROWS // max_rows  # and no more of them than needed


def test_a_slice_ends_with_a_bucket_where_possible() -> None:
    sunion = SUnion(inputs=[(0, True)], streams=1, bucket_us=D)
    times = [10, 20, 30, 110, 120, 130, 140, 150, 160, 210, 220]
    rows = Rows.from_tuples(IDS, times, [(0,) for _ in times])
    sunion.inputs[0].add_stable(Batch(Kind.STABLE, 0, len(times), None, rows), 0)
    sunion.inputs[0].add_boundary(Boundary(Kind.STABLE, 3 * D, len(times)), 0)
    assert [(len(p), p.end) for p in released(sunion, "stable", 5)] == [(3, 100), (5, 160), (3, 300)]


def test_the_rest_of_a_cut_bucket_keeps_its_age() -> None:
    """B3: the rest of a cut tentative bucket is due at once, not after another αX."""
    sunion = SUnion(inputs=[(0, True)], streams=1, bucket_us=D)
    rows = Rows.from_tuples(IDS, [10, 20, 30], [(1,), (2,), (3,)])
    sunion.inputs[0].add_stable(Batch(Kind.STABLE, 0, 3, None, rows), 7)
    sunion.taint()
    sunion.release_tentative(D, 2)
    assert sunion.next == 30
    assert sunion.clocks.start(0) == 7
    assert sunion.due(47, wait_us=30, hard_us=40, fresh=[False]) == D


def stable_tuples(world: Replica) -> list[list[str]]:
    """Per output, its stable tuples with their ids."""
    out: list[list[str]] = [[], [], []]
    at = 0
    for line in world.shown:
        if line.startswith("out "):
            at = int(line[4:])
        elif line.startswith("S") and line[1].isdigit():
            out[at].append(line)
    return out


@pytest.mark.parametrize(
    ("name", "reconcile"),
    long_but(
        [
            ("map", Reconcile.UNDO),
            ("sliding", Reconcile.CHECKPOINT),
            ("count windows", Reconcile.UNDO),
            ("top-k by attribute", Reconcile.CHECKPOINT),
            ("full join", Reconcile.UNDO),
            ("right join in windows by attribute", Reconcile.CHECKPOINT),
            ("custom with state", Reconcile.CHECKPOINT),
            ("aggregate that skips", Reconcile.UNDO),
        ],
        product(CATALOGUE, Reconcile),
    ),
)
def test_stable_streams_are_the_same_through_failures(
    name: str, reconcile: Reconcile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets have about ten rows per input; failures, redo, undo and checkpoints happen inside them."""
    monkeypatch.setattr(World, "reconcile", reconcile)
    unit, work = unit_of(name), Fragment.work
    inside = 0

    def counted(self: Fragment, piece: Slice, *watch: object) -> object:
        nonlocal inside
        assert is_bounded(piece, World.slice_rows)
        inside += piece.end % 10 != 0
        return work(self, piece, *watch)  # type: ignore[arg-type]

    monkeypatch.setattr(Fragment, "work", counted)
    for seed, slice_rows in enumerate((4, 1)):
        checkpoints = Checkpoints(every_us=100) if seed % 2 else Checkpoints()
        monkeypatch.setattr(World, "slice_rows", 20_000)
        whole = play(unit, seed, checkpoints)
        monkeypatch.setattr(World, "slice_rows", slice_rows)
        sliced = play(unit, seed, checkpoints)
        assert stable_tuples(sliced) == stable_tuples(whole)
        assert sliced.replica.counters() == whole.replica.counters()
    assert inside > 50


@pytest.mark.parametrize(
    ("name", "reconcile"),
    long_but(
        [
            ("sliding", Reconcile.UNDO),
            ("full join", Reconcile.CHECKPOINT),
            ("count windows", Reconcile.UNDO),
            ("top-k by attribute", Reconcile.CHECKPOINT),
        ],
        product(["sliding", "full join", "count windows", "top-k by attribute"], Reconcile),
    ),
)
def test_a_snapshot_inside_a_bucket_continues_like_its_maker(
    name: str, reconcile: Reconcile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reconcile", reconcile)
    monkeypatch.setattr(World, "slice_rows", 3)
    unit = unit_of(name)
    maker = Replica(unit, 0, (), Checkpoints())
    for upto in (20, 200):
        for at in (0, 1):
            maker.deliver(at, upto, 0)
        if upto == 20:
            maker.run(0)
    taken = []
    while maker.advance(0)[0]:
        if maker.sunion.next % 10:
            snapshot = maker.replica.snapshot()
            assert snapshot is not None
            taken.append((*snapshot, [len(made) for made in stable_tuples(maker)]))
    everything = stable_tuples(maker)
    assert len(taken) > 20
    for checkpoint, positions, known in taken:
        other = Replica(unit, 0, (), Checkpoints())
        other.install(checkpoint, positions)
        for at, position in enumerate(positions):
            other.data[at] = other.data[at][position:]
            other.deliver(at, 200, 0)
        other.run(0)
        assert other.replica.state is NodeState.STABLE
        assert stable_tuples(other) == [made[count:] for made, count in zip(everything, known, strict=True)]


def test_rows_of_one_time_are_one_step_and_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "slice_rows", 2)
    world = World()
    world.S(0, 0, (1, "a"), (2, "b"), (4, "c"), (4, "d"), (4, "e"), (4, "f"), (4, "g"), (5, "h"))
    world.S(1, 0, (6, "i"))
    for at in (0, 1):
        world.B(at, 0, 10)
    assert world.run(0) == "S1/1a S2/2b B4(2) S3/4c S4/4d S5/4e S6/4f S7/4g B5(7) S8/5h S9/6i B10(9)"
    assert world.replica.largest_slice == 5
