"""Judges a run: does each client's stable stream equal a run without failures, and was the promise kept?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from consistency.checking.rows import Reference
from consistency.comparison import compare
from consistency.sinks.judge import judge_sinks
from replicas.cli.reference import logged_inputs
from replicas.cli.run.recorded_history import judge_recorded
from replicas.client.recorder import recorded_stable
from replicas.reference import reference_rows
from spe.errors import OperatorFailed
from spe.log.log_start import LogCut, need_judged
from spe.log.recording import channel_folder, client_folder
from spe.log.source_log import source_folder
from spe.plan.directory import ClientSettings, Directory
from spe.plan.plan import Plan
from spe.runtime.storage import DiskStorage
from spe.stream.ids import Channel


def judge(plan: Plan, directory: Directory, folder: Path, *, complete: bool, reason: str) -> dict[str, Any]:
    """Compares the recordings of a run with the reference, computed from the sources' logs.

    Args:
      complete: False for a run that was broken off: its clients only need a correct prefix.
      reason: why it was broken off.

    Returns:
      ``{"equal": bool, "complete": bool, "rows": tuples compared, "differences": [text], "reason": text,
      "late": [text], "checked": {figure: amount}}``; ``late``: violations of P1 beyond the machine's noise.
      Where an operator fails in the reference as well, ``equal`` is None, and ``reference`` and ``where`` describe it.
      Where ``retain`` deleted needed input, ``equal`` is None, and ``reason`` says why.

    Raises:
      LogError: a log or a recording is damaged.
    """
    storage = DiskStorage(folder)
    try:
        for log in _read_for(plan, directory):
            need_judged(storage, log, log)
        reference = reference_rows(plan, logged_inputs(plan, folder))
    except OperatorFailed as error:
        return not_compared(complete, reason) | {"reference": str(error), "where": error.where()}
    except LogCut as error:
        return not_compared(complete, "; ".join(text for text in (reason, str(error)) if text))
    rows, differences = _compared(plan, directory, storage, reference, complete)
    verdict = judge_recorded(plan, directory, folder, reference, complete=complete)
    if not differences:  # the rows do not show what was taken back, or held twice
        differences = [str(f) for f in verdict.findings if f.property in ("P2", "P3", "P4")]
    elif own := [repr(str(o.name)) for o in plan.query.operators if o.spec.own_code]:
        differences.append(f"operator {' and '.join(own)} is code of your own and must be deterministic")
    return {
        **{"equal": not differences, "complete": complete, "rows": rows, "differences": differences, "reason": reason},
        **{"late": [str(f) for f in verdict.findings if f.property == "P1"]},
        **{"checked": dict(sorted(verdict.counters.amounts.items()))},
    }


def not_compared(complete: bool, reason: str) -> dict[str, Any]:
    """Returns the verdict on a run that was not compared with the reference."""
    return {"equal": None, "complete": complete, "rows": 0, "differences": [], "reason": reason}


def _compared(
    plan: Plan, directory: Directory, storage: DiskStorage, reference: Reference, complete: bool
) -> tuple[int, list[str]]:
    """Compares all recordings with the reference; returns the number of compared tuples, and the differences."""
    rows, differences = 0, []
    for name, client in directory.clients.items():
        channels = _channels(plan, client)
        schemas = {c: plan.query.schema_of(c.stream) for c in channels}
        recorded = recorded_stable(storage, client_folder(name), schemas)
        names = {str(c.stream): schemas[c].names for c in channels}
        mismatches = compare(recorded, {c: reference[c] for c in channels}, complete=complete, names=names)
        differences += [f"client {name}: {d}" for d in mismatches]
        rows += sum(len(ids) for ids, _ in recorded.values())
    return rows, differences


def sinks(plan: Plan, directory: Directory, folder: Path, *, complete: bool) -> list[dict[str, Any]]:
    """Compares each sink with its recording: ``{"sink", "rows", "equal", "text"}``; see consistency.sinks.judge.

    Raises LogError: a log or a recording is damaged.
    """
    return [judge_sink._asdict() for judge_sink in judge_sinks(plan, directory, folder, complete=complete)]


def _channels(plan: Plan, client: ClientSettings) -> list[Channel]:
    return [Channel(s, p) for s in client.reads for p in range(plan.partitions_of(s))]


def _read_for(plan: Plan, directory: Directory) -> Iterator[PurePosixPath]:
    """Yields the folders of logs and recordings that a verdict needs."""
    yield from map(source_folder, plan.sources)
    for name, client in directory.clients.items():
        yield from (channel_folder(client_folder(name), channel) for channel in _channels(plan, client))
