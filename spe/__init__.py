"""Streams, expressions, plans, the wire and logs: the base of the other packages.

The lowest of four packages (spe <- operators <- consistency <- replicas); imports go downwards only.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
#: Format of the directory of a run; stands in its cluster.json.
RUN_VERSION = 1


def __getattr__(name: str) -> Any:
    """Loads the function ``prove`` on use: it is in the highest package, and this is the lowest."""
    if name == "prove":
        return import_module("replicas.proving").prove
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
