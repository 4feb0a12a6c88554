"""What everything else is built on: streams, expressions, plans, the wire, logs, and the command line.

The lowest of four packages (spe <- operators <- consistency <- replicas); imports go downwards only.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spe.proving import prove as prove

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The function ``prove``, loaded when it is used: it is on the top level, and this package on the lowest."""
    if name == "prove":
        from spe.proving import prove

        return prove
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
