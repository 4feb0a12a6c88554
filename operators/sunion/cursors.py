"""Positions of the two instances of a unit, and the beginning of a redo (C1, R5-R8)."""

from __future__ import annotations

from dataclasses import dataclass

from spe.stream.times import BEFORE_TIME


@dataclass(frozen=True, slots=True)
class Cursors:
    """Consistent positions in tuple time; each step makes new ones.

    Attributes:
      live: start of the next bucket of the live instance.
      redo: start of the next slice of the redo instance; None: there is none.
      restart: n*, the start of the first bucket released tentatively; None while untainted.
      kept_from: time of the last periodic checkpoint, from which released stable tuples are kept (R8); None: there is
        none, and a redo would start at the first tentative data.
      beside_redo: live runs during the redo, and needs its unreleased rows, even if redo has released them.
    """

    live: int = BEFORE_TIME
    redo: int | None = None
    restart: int | None = None
    kept_from: int | None = None
    beside_redo: bool = False

    def __post_init__(self) -> None:
        if self.restart is None:
            assert self.redo is None, "R5: there is nothing to redo where nothing was tentative"
        else:
            assert self.restart <= self.live, "C1: n* is where tentative releases began"
        assert self.kept_from is None or self.kept_from <= self.released, "R8: redo starts at or before n*"
        assert not self.beside_redo or self.redo is not None, "R5: live runs beside a redo"

    def with_live(self, live: int) -> Cursors:
        """Returns cursors with another position of live; much faster than ``replace``."""
        assert live > self.live, "B1: each bucket is released once"
        return Cursors(live, self.redo, self.restart, self.kept_from, self.beside_redo)

    def with_redo(self, redo: int) -> Cursors:
        """Returns cursors with another position of redo."""
        assert redo > (self.redo or BEFORE_TIME), "R6: redo takes each stable slice once"
        return Cursors(self.live, redo, self.restart, self.kept_from, self.beside_redo)

    @property
    def tainted(self) -> bool:
        return self.restart is not None

    @property
    def released(self) -> int:
        """End of the last stable slice."""
        if self.redo is not None:
            return self.redo
        return self.live if self.restart is None else self.restart

    @property
    def restart_point(self) -> int:
        """Time from which a restored copy would need the stable tuples (A1)."""
        return self.released if self.kept_from is None else self.kept_from

    @property
    def needed_from(self) -> int:
        """Time from which the live instance or a redo needs the stable tuples."""
        return min(self.live, self.restart_point) if self.beside_redo else self.restart_point
