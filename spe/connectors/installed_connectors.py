"""Connectors of other packages, found by their entry points.

An entry point names a kind, and a declaration: ``redis = "my_package.connectors:REDIS"`` in the group READERS_GROUP or
SINKS_GROUP.  A declaration is loaded when a configuration names its kind; its class (``opens``) is loaded on opening.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar

from spe.connectors.declaration import Reader, SinkDeclaration
from spe.errors import ConfigError, SpeError

READERS_GROUP: Final = "tentative_spe.readers"
SINKS_GROUP: Final = "tentative_spe.sinks"

D = TypeVar("D", Reader, SinkDeclaration)

_LOADED: Final[dict[tuple[str, str], Reader | SinkDeclaration]] = {}


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Entry points of installed packages, by kind.  Raises ConfigError if two packages declare one kind."""
    by_kind: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        other = by_kind.setdefault(entry.name, entry)
        if (other.value, _package(other)) != (entry.value, _package(entry)):
            raise ConfigError(
                [f"{_package(entry)} and {_package(other)} both have a connector {entry.name!r} ({group}); remove one"]
            )
    return dict(sorted(by_kind.items()))


def installed_kinds(group: str) -> list[str]:
    """Lists the kinds of other packages: ``redis (redis-streams 0.1)``."""
    return [f"{kind} ({_package(entry)})" for kind, entry in installed(group).items()]


def load_connector(group: str, kind: str, declaration: type[D]) -> D | None:
    """Loads the declaration of a kind from an installed package; None: there is none.  The first call reads files.

    Raises:
      ConfigError: it cannot be loaded, or is no declaration; the error names the package.
    """
    if isinstance(known := loaded(group, kind), declaration):
        return known
    entry = installed(group).get(kind)
    if entry is None:
        return None
    what = f"connector {kind!r} of {_package(entry)} ({group}: {entry.name} = {entry.value})"
    try:
        declared = entry.load()
    except Exception as error:  # a foreign module may raise anything
        raise ConfigError([f"{what} cannot be loaded: {type(error).__name__}: {error}"]) from error
    if not isinstance(declared, declaration):
        raise ConfigError(
            [f"{what} is {_article(declared)}; expected a {declaration.__module__}.{declaration.__name__}"]
        )
    if declared.kind != kind:
        raise ConfigError([f"{what} declares the kind {declared.kind!r}; expected {kind!r}"])
    for field, wanted in (("opens", "module:Class"), ("guarantees", "what it states")):
        if not getattr(declared, field):
            raise ConfigError([f"{what} has no {field}; expected {wanted}"])
    _LOADED[group, kind] = declared
    return declared


def loaded(group: str, kind: str) -> Reader | SinkDeclaration | None:
    """Returns a declaration that :func:`load_connector` has loaded in this process; reads no files."""
    return _LOADED.get((group, kind))


def register(group: str, declared: Reader | SinkDeclaration) -> None:
    """Adds a declaration that no package has, for this process."""
    _LOADED[group, declared.kind] = declared


def construction(declared: Reader | SinkDeclaration) -> Callable[..., Any]:
    """Imports the class of a reader or sink.  Raises ConfigError if that fails."""
    module, _, name = declared.opens.partition(":")
    try:
        constructor: Callable[..., Any] = getattr(import_module(module), name)
    except SpeError:
        raise  # a package that it needs is missing
    except Exception as error:  # a foreign module may raise anything
        raise ConfigError(
            [f"connector {declared.kind!r}: {declared.opens} cannot be imported: {type(error).__name__}: {error}"]
        ) from error
    return constructor


def _package(entry: EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _article(value: object) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"
