"""Mistakes are collected, not raised one by one: whoever corrects a configuration wants to see them all."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: Where in a configuration: keys and list positions from the root.
Path = tuple[str | int, ...]


class Problem(NamedTuple):
    """One mistake.

    Attributes:
      path: what is wrong there.
      message: what is wrong; what was expected.
      text, offset: the piece of SQL (as it stands in the configuration) and the 0-based place in it; "" where the
        mistake is not in an expression.
    """

    path: Path
    message: str
    text: str = ""
    offset: int = 0


@dataclass
class Problems:
    """The mistakes found so far."""

    found: list[Problem] = field(default_factory=list)

    def add(self, path: Path, message: str, text: str = "", offset: int = 0) -> None:
        problem = Problem(path, message, text, offset)
        if problem not in self.found:
            self.found.append(problem)

    def __bool__(self) -> bool:
        return bool(self.found)


def show_path(path: Iterable[str | int]) -> str:
    """``sources.orders.schema``, ``fragments.f.replicas[0][1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)``, or "" where nothing is near."""
    near = difflib.get_close_matches(name, [str(k) for k in known], n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


def one_of(names: Sequence[str], limit: int = 12) -> str:
    """``one of: a, b, c``, cut short where there are many."""
    if not names:
        return "nothing: there are none"
    return f"one of: {', '.join(names[:limit])}{', …' if len(names) > limit else ''}"
