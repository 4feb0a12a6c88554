"""A line for each thing that is broken, which changes until the next one is."""

from __future__ import annotations

import sys
from typing import Final

from examples.kafka_to_postgres.watch import Watch

HEAD: Final = """
The table is looked at every 50 ms: its final rows, the most tentative rows at a
time, the age of its newest result at most, and results that were there twice.

   at  what is broken                    final  tentative      age   twice"""
_RED, _PLAIN, _TO_END = "\x1b[31m", "\x1b[0m", "\x1b[K"


class Screen:
    """Attributes:
    over: how many things were broken, and are whole again.
    """

    def __init__(self, watch: Watch) -> None:
        self.over = 0
        self._watch = watch
        self._is_terminal = sys.stdout.isatty()
        self._at_s, self._text, self._broken = 0.0, "", False
        self._most, self._age_s = 0, 0.0

    def begin(self) -> None:
        print(HEAD, flush=True)
        self._text = "nothing"

    def breaks(self, at_s: float, text: str) -> None:
        self.end_line()
        self._at_s, self._text, self._broken = at_s, text, True
        self._most, self._age_s = 0, 0.0

    def is_whole(self) -> None:
        self.over += 1
        self._broken = False

    def draw(self, *, live: bool = True) -> None:
        """``live``: orders come, so that age counts."""
        self._most = max(self._most, self._watch.tentative)
        self._age_s = max(self._age_s, self._watch.age_s if live else 0.0)
        if self._is_terminal and self._text:
            print(f"\r{_RED if self._broken else ''}{self._line()}{_PLAIN}{_TO_END}", end="", flush=True)

    def end_line(self) -> None:
        """What comes next stands below."""
        print("" if self._is_terminal else self._line(), flush=True)

    def _line(self) -> str:
        watch = self._watch
        figures = f"{watch.final:>8}{self._most:>11}{self._age_s:>7.1f} s{watch.twice:>8}"
        return f"{self._at_s:3.0f} s  {self._text:<31}{figures}"
