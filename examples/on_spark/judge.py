"""What the reading job has, and whether all of it is right.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class TotalsRead:
    """Micro-batches by number: one that comes again takes the place of the first."""

    batches: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    @property
    def orders(self) -> int:
        """As many as the results count, all together."""
        return sum(row["n"] for row in self.rows)

    @property
    def until_us(self) -> int:
        """Tuple time of the last result."""
        return max((row["_time_us"] for row in self.rows), default=0)


def judge(proof: Mapping[str, Any], read: TotalsRead, logged: int, fed: int) -> list[str]:
    """What is wrong.

    Args:
      proof: follow.json of the run.
      logged: orders in the log of the source.
      fed: orders of the micro-batches that Spark has finished; one more may have arrived.
    """
    wrong = [f"{one['client']} · {one['output']}: {why}" for one in proof["outputs"] for why in found(one)]
    wrong += [f"{one['name']}: {flaw}" for one in proof["sources"] for flaw in one["flaws"]]
    until = proof["consistent_us"]
    if until is None or until < read.until_us:
        wrong.append(f"the run is proved until {proof['consistent_until']} only")
    ids = sorted(row["_id"] for row in read.rows)
    if ids != list(range(1, len(ids) + 1)):
        wrong.append(f"Spark has read {len(ids)} results with {len(set(ids))} ids up to {ids[-1] if ids else 0}")
    if not fed <= logged == read.orders:
        wrong.append(f"Spark has fed {fed} orders; the source logged {logged}, and the results count {read.orders}")
    return wrong


def found(output: Mapping[str, Any]) -> Sequence[str]:
    """What the proof has against an output."""
    return [f"{flaw['count']} tuples are {flaw['flaw']}" for flaw in output["findings"]]
