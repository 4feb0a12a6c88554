"""During a redo, each tentative slice of live contains every stable row of its time that has arrived (R5, R6)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from consistency.dpc.partners import Ask
from operators.sunion.slice import Slice
from spe.plan.nodes import Policy
from spe.runtime.spill import SpillNotLoaded
from spe.stream.batch import Batch, Element
from spe.stream.names import NodeState
from tests.support.spilling import Spilling, drive
from tests.unit.consistency.dpc.test_manager import SCHEMA, World

UNTIL = 400


class Watched(World):
    """Compares each tentative slice with the input so far, and counts rows that redo had released before."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(failure=policy, stabilization=policy)
        self.came: list[tuple[int, str]] = []
        self.stable_rows: list[str] = []
        self.redo_was_ahead = 0
        self._release = self.sunion.release_tentative
        self.sunion.release_tentative = self._released  # type: ignore[method-assign]

    def _released(self, end: int, max_rows: int) -> Slice:
        low, redo_next = self.sunion.next, self.sunion.cursors.redo
        piece = self._release(end, max_rows)
        rows = [r for r in piece.merged() if r is not None]
        shown = sorted((t, x) for r in rows for t, (x,) in zip(r.time.tolist(), r.to_tuples(), strict=True))
        assert shown == sorted(row for row in self.came if low <= row[0] < piece.end)
        self.redo_was_ahead += bool(shown and redo_next is not None and low < redo_next)
        return piece

    def stable(self, output: int, elements: Sequence[Element]) -> None:
        self.stable_rows += [x for e in elements if isinstance(e, Batch) for (x,) in e.rows.to_tuples()]

    def deliver(self, at: int, upto: int, now: int) -> None:
        """A row every three units of time, and the boundary."""
        begin = max(0, self.sunion.inputs[at].frontier)
        rows = [(t, f"{at}.{t}") for t in range(begin, upto) if t % 3 == at]
        self.came += rows
        if rows:
            self.S(at, now, *rows)
        self.B(at, now, upto)


class Spilled(Watched):
    """The same with most kept data in spill files, whose pieces must be loaded before they are read."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.spilling = Spilling()
        for one in self.sunion.inputs:
            one.spill = self.spilling.shelf(SCHEMA)
        self.sunion.store.redo_bytes = 400
        self._loaded: list[SpillNotLoaded] = []

    def advance(self, now: int) -> tuple[bool, Ask | None]:
        try:
            found = super().advance(now)
        except SpillNotLoaded as piece:
            drive(piece.load())
            self._loaded.append(piece)
            return True, None
        while self._loaded:
            self._loaded.pop().release()
        self.spilling.settle()
        return found


def play(seed: int, world: Watched) -> Watched:
    """Inputs fail and heal, partners start and stop; redo advances one step at a time."""
    random = Random(seed)
    back = [0, 0]
    for now in range(0, UNTIL, 4):
        for at in (0, 1):
            if world.live[at] and random.random() < 0.06:
                world.live[at], back[at] = False, now + random.choice([45, 90])
            world.live[at] = world.live[at] or now >= back[at]
            if world.live[at] and random.random() < 0.8:
                world.deliver(at, now, now)
        for _ in range(random.randint(1, 4)):
            _, ask = world.advance(now)
            if ask is not None:
                world.asks.append(ask)
        if world.asks and random.random() < 0.7:
            world.grant(now)
        if random.random() < 0.2:
            world.partner["n2"] = random.choice([None, None, NodeState.STABLE])
    world.live, world.partner["n2"] = [True, True], NodeState.STABLE
    for now in range(UNTIL, UNTIL + 1200, 100):
        for at in (0, 1):
            world.deliver(at, now, now)
        world.run(now)
        if world.asks:
            world.grant(now)
    return world


@pytest.mark.parametrize("kind", [Watched, Spilled])
@pytest.mark.parametrize("policy", [Policy.PROCESS, Policy.DELAY])
def test_live_shows_every_stable_row_although_redo_took_it(
    policy: Policy, kind: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "slice_rows", 2)
    redo_was_ahead = loaded = 0
    for seed in range(16):
        world = play(seed, kind(policy))
        if isinstance(world, Spilled):
            loaded += world.spilling.folder.read
        redo_was_ahead += world.redo_was_ahead
        assert world.replica.state is NodeState.STABLE
        assert world.stable_rows == [x for _, x in sorted(world.came)]
        assert world.sunion.stable_bytes == 0
    if policy is Policy.DELAY:  # under policy process live runs first
        assert redo_was_ahead > 8
    assert (loaded > 160) == (kind is Spilled)
