"""Connectors of other packages, found by their entry points.

An entry point names a kind, and a declaration: ``redis = "my_package.connectors:REDIS"`` in the group READERS_GROUP or
SINKS_GROUP.  A declaration is loaded when a configuration names its kind; what it ``opens``, when that is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar

from spe.connectors.declaration import Reader, SinkDeclaration
from spe.errors import ConfigError

READERS_GROUP: Final = "tentative_spe.readers"
SINKS_GROUP: Final = "tentative_spe.sinks"

D = TypeVar("D", Reader, SinkDeclaration)

_LOADED: Final[dict[tuple[str, str], Reader | SinkDeclaration]] = {}


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Entry points of installed packages, by kind.  Raises ConfigError where two packages have one of a kind."""
    found: dict[str, EntryPoint] = {}
    for one in entry_points(group=group):
        other = found.setdefault(one.name, one)
        if (other.value, _package(other)) != (one.value, _package(one)):
            raise ConfigError(
                [f"{_package(one)} and {_package(other)} both have a connector {one.name!r} ({group}); remove one"]
            )
    return dict(sorted(found.items()))


def installed_kinds(group: str) -> list[str]:
    """``redis (redis-streams 0.1)``: what other packages have."""
    return [f"{kind} ({_package(one)})" for kind, one in installed(group).items()]


def load_connector(group: str, kind: str, of: type[D]) -> D | None:
    """The declaration that an installed package has of a kind; None: there is none.  The first call reads files.

    Raises:
      ConfigError: it cannot be loaded, or is none; names the package.
    """
    if isinstance(known := loaded(group, kind), of):
        return known
    entry = installed(group).get(kind)
    if entry is None:
        return None
    what = f"connector {kind!r} of {_package(entry)} ({group}: {entry.name} = {entry.value})"
    try:
        found = entry.load()
    except Exception as error:  # whatever a foreign module raises
        raise ConfigError([f"{what} cannot be loaded: {type(error).__name__}: {error}"]) from error
    if not isinstance(found, of):
        raise ConfigError([f"{what} is {_article(found)}; expected a {of.__module__}.{of.__name__}"])
    if found.kind != kind:
        raise ConfigError([f"{what} declares the kind {found.kind!r}; expected {kind!r}"])
    for field, wanted in (("opens", "module:Class"), ("guarantees", "what it states")):
        if not getattr(found, field):
            raise ConfigError([f"{what} has no {field}; expected {wanted}"])
    _LOADED[group, kind] = found
    return found


def loaded(group: str, kind: str) -> Reader | SinkDeclaration | None:
    """A declaration that :func:`load_connector` has loaded in this process; reads no files."""
    return _LOADED.get((group, kind))


def register(group: str, declared: Reader | SinkDeclaration) -> None:
    """Takes a declaration that no package has, for this process."""
    _LOADED[group, declared.kind] = declared


def construction(declared: Reader | SinkDeclaration) -> Callable[..., Any]:
    """What makes the reader or sink of an installed package.  Raises ConfigError where it cannot be imported."""
    module, _, name = declared.opens.partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(module), name)
    except Exception as error:  # whatever a foreign module raises
        raise ConfigError(
            [f"connector {declared.kind!r}: {declared.opens} cannot be imported: {type(error).__name__}: {error}"]
        ) from error
    return found


def _package(entry: EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _article(found: object) -> str:
    return f"a {type(found).__module__}.{type(found).__qualname__}"
