"""Collects mistakes instead of raising the first, so that all mistakes of a configuration are shown at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from spe.errors import ConfigError

#: A place in a configuration: keys and list positions from the root.
Path = tuple[str | int, ...]


class Problem(NamedTuple):
    """A mistake.

    Attributes:
      path: the place.
      message: the mistake; what was expected.
      text, offset: the piece of SQL (as in the configuration) and the 0-based place in it; "" if the mistake is not
        in an expression.
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
    """Formats a path: ``sources.orders.schema``, ``fragments.f.replicas[0][1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `` (did you mean 'x'?)``, or "" without a similar name."""
    near = difflib.get_close_matches(name, [str(k) for k in known], n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


#: Keys of other stream processors, and the equivalent keys here.
_OTHER_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "parallelism": ("partitions",),
    "key_by": ("key", "group_by", "partition_by"),
    "keys": ("key",),
    "limit": ("k",),
    "select": ("compute",),
    "predicate": ("where",),
    "condition": ("where",),
    "hop": ("sliding",),
    "tumble": ("tumbling",),
}
#: The source limits the lateness of rows: replicas, sinks and proofs rely on stable windows that never change.
_LATENESS: Final = (
    " (a stable window never changes, so no late row can be added to it: raise disorder of the source, or repair "
    "windows from its late sink, as docs/explanation/live.md shows)"
)
_INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(("lateness", "allowed_lateness", "grace", "grace_period"), _LATENESS),
    "having": " (put a filter behind the aggregate)",
    "session": " (there are no session windows; docs/how-to/own-operators.md has an operator that makes them)",
}


def instead_of(name: str, known: Collection[str]) -> str:
    """Advice for an unknown key: the equivalent of another system's key, or a similar name."""
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("keyby", "key_by")
    if here := [k for k in _OTHER_WORDS.get(word, ()) if k in known]:
        return f" (that is {here[0]!r} here)"
    return _INSTEAD.get(word, "") or did_you_mean(name, known)


def check_known(kind: str, name: str, known: Iterable[object]) -> None:
    """Raises ConfigError if there is no node, source or client of this name."""
    names = [str(k) for k in known]
    if name not in names:
        raise ConfigError([f"no {kind} {name!r}{did_you_mean(name, names)}; expected {one_of(names)}"])


def one_of(names: Sequence[str], limit: int = 12) -> str:
    """Formats ``one of: a, b, c``, cut after ``limit`` names."""
    if not names:
        return "nothing: there are none"
    return f"one of: {', '.join(names[:limit])}{', …' if len(names) > limit else ''}"
