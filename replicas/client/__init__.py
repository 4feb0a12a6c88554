"""Reads results for applications: ``connect`` in a Python program, ``spe client`` as a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replicas.client.changes import Changes, StableRows, TentativeRows, UndoneRows
    from replicas.client.session import connect

__all__ = ["Changes", "StableRows", "TentativeRows", "UndoneRows", "connect"]


def __getattr__(name: str) -> Any:
    """Loads a name on first use: a session needs the machine's network, which a simulated client must not import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from replicas.client import changes, session

    return getattr(session if name == "connect" else changes, name)
