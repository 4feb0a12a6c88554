"""Reports on many simulated runs: coverage and results, as text and as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from consistency.checking.counters import show_table
from replicas.cli.campaigns.campaign import Sums

#: Counters in microseconds of the time that P1 covers, with their names in the text.
_CHECKED: Final = {
    "p1 stable_us": "with a whole tree",
    "p1 tentative_us": "with tentative paths only",
    "p1 only stable_us": "in which only stable results may come",
    "p1 no path_us": "without a path (no claim)",
    "p1 little room_us": "with buffers that a failure may fill (no claim)",
}


def sums_text(sums: Sums) -> str:
    """Formats seeds, simulated hours, faults by kind, checked seconds, and coverage tables."""
    lines = [
        f"{len(sums.seeds) - len(sums.failed):,} held, {len(sums.failed):,} failed",
        "",
        f"{len(sums.seeds):,} runs (seeds {ranges(sums.seeds)}), {sums.virtual_s / 3600:.2f} simulated hours "
        f"in {sums.cpu_s:,.0f} s of computing, {sums.faults.total():,} faults",
        f"faults: {_counts(sums.faults)}",
        "P1 checked: "
        + ", ".join(f"{sums.counters.amounts[name] / 1e6:,.0f} s {text}" for name, text in _CHECKED.items()),
        f"checked: {_counts(_others(sums))}",
        "",
        "what befell replicas, by their state",
        *show_table(sums.counters.events),
        "",
        "faults, by the state of the replicas that they befell",
        *show_table(sums.counters.faults),
    ]
    return "\n".join(lines)


def _others(sums: Sums) -> Counter[str]:
    shown = {"virtual time_us", "runs", "faults"}
    return Counter(
        {
            name: amount
            for name, amount in sums.counters.amounts.items()
            if name not in shown and not name.endswith("_us") and not name.startswith("fault ")
        }
    )


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def ranges(seeds: Sequence[int]) -> str:
    """Formats seeds as ``--seeds`` does: ``0:5, 7`` for 0, 1, 2, 3, 4, 7."""
    parts: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if parts and parts[-1][-1] == seed - 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}:{p[-1] + 1}" for p in parts)
