"""What the reading job has, and whether all of it is right.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
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


def judge(report: Mapping[str, Any], read: TotalsRead, fed: int) -> list[str]:
    """What is wrong.

    Args:
      report: report.json of the run.
      fed: orders of the micro-batches that Spark has finished; one more may have arrived.
    """
    wrong = []
    (source,), (output,) = report["sources"], report["outputs"]
    if report["verdict"] != "CONSISTENT":
        wrong.append(f"the run is {report['verdict']}: {'; '.join(report['reasons'])}")
    if not source["complete"]:
        wrong.append("the source has not ended")
    ids = sorted(row["_id"] for row in read.rows)
    if ids != list(range(1, output["truth"] + 1)):
        wrong.append(
            f"Spark has read {len(ids)} results with {len(set(ids))} ids up to {ids[-1] if ids else 0}; "
            f"there are {output['truth']}"
        )
    if not fed <= source["tuples"] == read.orders:
        wrong.append(
            f"Spark has fed {fed} orders; the source logged {source['tuples']}, and the results count {read.orders}"
        )
    return wrong
