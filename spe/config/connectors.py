"""Connectors of other packages in a configuration: kinds named there are known in addition to the built-in ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from spe.connectors.declaration import Reader, SinkDeclaration
from spe.connectors.installed_connectors import installed, installed_kinds
from spe.errors import ConfigError
from spe.problems import Path, Problems, instead_of

D = TypeVar("D", Reader, SinkDeclaration)


def with_installed(
    what: str,
    written: Any,
    built_in: Mapping[str, D],
    options: Iterable[str],
    group: str,
    find: Callable[[str], D | None],
    path: Path,
    problems: Problems,
) -> Collection[str] | None:
    """Returns the kinds that an entry may have: the built-in ones, and those of installed packages that it names.

    Args:
      what: ``reader`` or ``sink``, for messages.
      written: the entry, unchecked.
      options: keys that are no kinds.

    Returns:
      None: it names an unknown kind, or one whose package is broken; a problem names it and the known kinds.
    """
    keys = [key for key in written if isinstance(key, str)] if isinstance(written, Mapping) else []
    others = [key for key in keys if key not in built_in and key not in options]
    known: list[str] = []
    try:
        known = [key for key in others if find(key) is not None]
        if others and not known and not any(key in built_in for key in keys):
            # No key is a known kind, so this key is meant as one.
            kind, there = others[0], installed_kinds(group)
            hint = instead_of(kind, [*built_in, *installed(group)])
            more = f"; installed: {', '.join(there)}" if there else "; no package that is installed has another one"
            problems.add((*path, kind), f"no {what} {kind!r}{hint}; expected one of: {', '.join(built_in)}{more}")
            return None
    except ConfigError as error:
        for problem in error.problems:
            problems.add(path, problem)
        return None
    return [*built_in, *known]
