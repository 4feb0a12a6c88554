"""What an SUnion holds is counted with its texts."""

from __future__ import annotations

from operators.sunion.sunion import SUnion
from spe.stream.batch import Batch, Boundary, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from tests.support.spilling import Spilling, loading

SCHEMA = Schema.of(text="string")
LONG = 10_000


class Fed:
    """Two inputs; rows come on the first, the boundaries of the second are missing."""

    def __init__(self, spilling: Spilling | None = None) -> None:
        spills = None if spilling is None else [spilling.shelf(SCHEMA), spilling.shelf(SCHEMA)]
        cap = 1 << 20
        inputs = [(0, True), (0, True)]
        self.sunion = SUnion(inputs=inputs, streams=1, bucket_us=10, tentative_bytes=cap, redo_bytes=cap, spills=spills)
        self._pool = StringPool()
        self._next = 1

    def batch(self, kind: Kind, *texts: str) -> Batch:
        first, self._next = self._next, self._next + len(texts)
        rows = Rows.from_tuples(SCHEMA, range(first, self._next), [(t,) for t in texts], self._pool)
        return Batch(kind, first - 1, self._next - 1, None, rows)

    def stable(self, count: int) -> None:
        for _ in range(count):
            self.sunion.inputs[0].add_stable(self.batch(Kind.STABLE, f"{self._next} " * (LONG // 5)), 0)


def test_stable_texts_are_counted_until_they_are_released() -> None:
    """Also where the first batch, by which rows are measured, has short ones."""
    fed, now = Fed(), 0
    fed.sunion.inputs[0].add_stable(fed.batch(Kind.STABLE, "a", "b"), now)
    fed.stable(100)
    assert 0.5 * 100 * LONG < fed.sunion.stable_bytes < 2 * 100 * LONG
    fed.sunion.validate_rows()
    for one in fed.sunion.inputs:
        one.add_boundary(Boundary(Kind.STABLE, 50, 0), now)
    assert fed.sunion.release_stable(1_000) is not None
    assert 0.2 * 100 * LONG < fed.sunion.stable_bytes < 1 * 100 * LONG
    for one in fed.sunion.inputs:
        one.add_boundary(Boundary(Kind.STABLE, 200, 0), now)
    fed.sunion.release_stable(1_000)
    assert fed.sunion.stable_bytes == 0


def test_tentative_texts_are_capped() -> None:
    fed = Fed()
    for at in range(300):
        fed.sunion.inputs[0].add_tentative(fed.batch(Kind.TENTATIVE, f"{at:05}" * (LONG // 5)), 0)
    assert fed.sunion.inputs[0].tentative_bytes <= 1 << 20
    assert 190 < fed.sunion.tentative_dropped < 210 + 64  # small chunks are put together, and go together


def test_long_texts_that_only_a_redo_needs_are_spilled() -> None:
    spilling = Spilling()
    fed = Fed(spilling)
    sunion = fed.sunion
    fed.stable(300)
    sunion.taint()
    sunion.release_tentative(290, 1_000)
    for _ in range(20):
        spilling.settle()
        sunion.spill_redo_data()
    assert sunion.stable_bytes < 1 << 20
    assert spilling.folder.used > 1_500_000
    for one in sunion.inputs:
        one.add_boundary(Boundary(Kind.STABLE, 1_000, 0), 0)
    sunion.begin_redo()
    count = 0
    while (made := loading(lambda: sunion.release_redo(50))) is not None:
        (rows,) = made.merged()
        count += len(rows or ())
    assert count == 300
    assert sunion.stable_bytes == 0
