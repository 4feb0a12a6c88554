"""G5: acknowledged input can be recomputed from the synced state; checked when a node dies."""

from __future__ import annotations

from collections.abc import Iterator

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from spe.stream.history import History, LogHeld


def check_remade(history: History, counters: Counters) -> Iterator[Finding]:
    """Yields findings of G5."""
    for event in history:
        if not isinstance(event, LogHeld):
            continue
        counters.add("logs of nodes that died looked at")
        rule = "acknowledged input can be recomputed from synced state"
        if event.trouble:
            yield Finding("G5", rule, event.at_us, event.replica, event.trouble)
        elif any(held < acknowledged for held, acknowledged in zip(event.positions, event.acknowledged, strict=True)):
            what = (
                f"acknowledged {list(event.acknowledged)}, and the synced log is replayed from {list(event.positions)}"
            )
            yield Finding("G5", rule, event.at_us, event.replica, what)
