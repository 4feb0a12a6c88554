"""Collects mistakes instead of raising the first, so that all mistakes of a configuration are shown at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from spe.errors import ConfigError

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


#: Keys of other stream processors, and the key that means the same here.
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
#: How late a row may be is said by the source: replicas, sinks and proofs rely on stable windows that never change.
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
    """What to write instead of a key that is unknown here: a known one that other systems call so, or that is near."""
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("keyby", "key_by")
    if here := [k for k in _OTHER_WORDS.get(word, ()) if k in known]:
        return f" (that is {here[0]!r} here)"
    return _INSTEAD.get(word, "") or did_you_mean(name, known)


def check_known(kind: str, name: str, known: Iterable[object]) -> None:
    """Raises ConfigError where there is no node, source or client of this name."""
    names = [str(k) for k in known]
    if name not in names:
        raise ConfigError([f"no {kind} {name!r}{did_you_mean(name, names)}; expected {one_of(names)}"])


def one_of(names: Sequence[str], limit: int = 12) -> str:
    """``one of: a, b, c``, cut short where there are many."""
    if not names:
        return "nothing: there are none"
    return f"one of: {', '.join(names[:limit])}{', …' if len(names) > limit else ''}"
