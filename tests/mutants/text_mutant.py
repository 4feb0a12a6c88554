"""A mistake as a change of source text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class TextMutant:
    """A mistake.

    Its old text occurs once in its file, so it survives code that moves within the file; a test checks that.

    Attributes:
      mistake: what it does wrong, and the rule that it breaks.
      path: the changed file.
      old: text that occurs once in it.
      new: its replacement.
      tests: those that must fail, as pytest names them.
      equivalent: why no test can fail; "" if one does.
    """

    mistake: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    equivalent: str = ""

    def changed(self) -> str:
        """The source with the mistake.

        Raises:
          ValueError: the text does not occur once.
        """
        source = (ROOT / self.path).read_text()
        if (many := source.count(self.old)) != 1:
            raise ValueError(f"{self.path} has {self.old!r} {many} times, expected once")
        return source.replace(self.old, self.new)
