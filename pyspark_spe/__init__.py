"""``format("spe")`` for Spark: outputs of a running cluster, and logs and recordings of a run (docs/how-to/spark.md).

Spark finds this package by its name, so nothing need be registered where it is installed.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DefaultSource", "register"]


def __getattr__(name: str) -> Any:
    """What needs Spark is imported when it is asked for: the rest is of use, and tested, without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_spe import source

    return getattr(source, name)
