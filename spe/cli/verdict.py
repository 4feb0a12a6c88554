"""Is the stable stream that each client received what a run without failures gives?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from replicas.comparison import compare
from replicas.recorder import client_folder, recorded_stable
from replicas.reference import reference_rows
from spe.cli.offline import logged_inputs
from spe.errors import OperatorFailed
from spe.plan import Channel, Plan
from spe.storage import DiskStorage


def judge(plan: Plan, folder: Path, *, complete: bool, reason: str) -> dict[str, Any]:
    """Compares the recordings of a run with the reference, computed from the sources' logs.

    Args:
      complete: False for a run that was broken off: then clients need only be right as far as they came.
      reason: why it was broken off.

    Returns:
      ``{"equal": bool, "complete": bool, "rows": tuples compared, "differences": [text], "reason": text}``;
      where an operator fails in the reference as well, ``equal`` is None and ``reference`` and ``where`` tell of it.

    Raises:
      LogError: a log or a recording is damaged.
    """
    try:
        reference = reference_rows(plan, logged_inputs(plan, folder))
    except OperatorFailed as error:
        return {
            **{"equal": None, "complete": complete, "rows": 0, "differences": [], "reason": reason},
            **{"reference": str(error), "where": error.where()},
        }
    storage = DiskStorage(folder)
    differences: list[str] = []
    rows = 0
    for name, client in plan.clients.items():
        channels = [Channel(s, p) for s in client.reads for p in range(plan.partitions_of(s))]
        schemas = {c: plan.query.schema_of(c.stream) for c in channels}
        recorded = recorded_stable(storage, client_folder(name), schemas)
        names = {str(c.stream): schemas[c].names for c in channels}
        found = compare(recorded, {c: reference[c] for c in channels}, complete=complete, names=names)
        differences += [f"client {name}: {d}" for d in found]
        rows += sum(len(ids) for ids, _ in recorded.values())
    return {"equal": not differences, "complete": complete, "rows": rows, "differences": differences, "reason": reason}
