"""The history of a run's processes: faults and states over time, from the notes of the supervisor and the nodes.

Lines are those of ``events.jsonl`` (the supervisor's) and of ``trace/NODE.jsonl`` (each node's own, which has its
states to the microsecond; the supervisor only polls them).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from consistency.proof.report.model import FaultSpan, Span, Track
from spe.plan.directory import COORDINATOR, Directory

Line = Mapping[str, Any]

#: Events of the supervisor when a process ends before the run does.
GONE: Final = ("process_died", "process_killed", "process_lost", "process_stopped")
_DOWN: Final = "down"
#: Faults without duration.
_INSTANT: Final = ("restart", "reset", "flip", "heal")
#: Maximum number of spans of one replica, for the room of a page.
_MOST_SPANS: Final = 2_000


def fault_spans(events: Iterable[Line], begun_us: int) -> list[FaultSpan]:
    """Returns the injected faults, in order; times count from ``begun_us``."""
    open_: dict[str, int] = {}
    faults: list[dict[str, Any]] = []
    for line in events:
        if line["event"] not in ("fault_began", "fault_ended"):
            continue
        fault = {k: v for k, v in line.items() if k not in ("t", "event", "errors")}
        key = json.dumps(fault, sort_keys=True)
        if line["event"] == "fault_began":
            open_[key] = len(faults)
            faults.append({"fault": fault, "from_us": int(line["t"]) - begun_us, "until_us": None})
        elif key in open_:
            faults[open_.pop(key)]["until_us"] = int(line["t"]) - begun_us
    return [
        FaultSpan(
            name=_described(fault_line["fault"]),
            from_us=fault_line["from_us"],
            until_us=fault_line["from_us"] if fault_line["fault"]["kind"] in _INSTANT else fault_line["until_us"],
            kind=str(fault_line["fault"]["kind"]),
            targets=[
                *fault_line["fault"].get("target", ()),
                *fault_line["fault"].get("from", ()),
                *fault_line["fault"].get("to", ()),
            ],
        )
        for fault_line in faults
    ]


def _described(fault: Line) -> str:
    """Formats the fault as ``spe inject`` takes it."""
    parts = [str(fault["kind"]), ",".join(fault.get("target", fault.get("from", ())))]
    if fault.get("to") and list(fault["to"]) != ["all"]:
        parts.append(("→ " if fault.get("one_way") else "↔ ") + ",".join(fault["to"]))
    parts += [f"by {fault['by']}"] if "by" in fault else []
    parts += [f"for {fault['for']}"] if "for" in fault else []
    return " ".join(p for p in parts if p)


def tracks(
    directory: Directory,
    events: Sequence[Line],
    traces: Mapping[str, Sequence[Line]],
    begun_us: int,
    ended_us: int,
) -> list[Track]:
    """Returns a track for each replica: its states, and ``down`` while its process did not run.

    It includes standbys, and replicas that a node ran because of a move, or of a role that a recovery gave it.

    Args:
      traces: by node; a node without a trace is followed by the supervisor's polls.
    """
    always = [str(replica) for node in directory.nodes for replica in directory.replicas_on(node)]
    changes: dict[str, list[tuple[int, str]]] = {name: [] for name in always}
    for line in events:
        if line["event"] == "state" and line["replica"].rpartition("@")[2] not in traces:
            changes.setdefault(line["replica"], []).append((int(line["t"]), line["after"]))
    for lines in traces.values():
        for line in lines:
            if line["event"] == "state":
                changes.setdefault(line["replica"], []).append((int(line["t"]), line["state"]))
    for line in events:
        if line["event"] in GONE:
            for replica, of_it in changes.items():
                if replica.rpartition("@")[2] == line["process"]:
                    of_it.append((int(line["t"]), _DOWN))
    return [
        Track(name=name, spans=_spans(sorted(of_it), begun_us, ended_us)) for name, of_it in sorted(changes.items())
    ]


def _spans(changes: list[tuple[int, str]], begun_us: int, ended_us: int) -> list[Span]:
    """Returns one span per state, without states that ended before the run began."""
    spans: list[Span] = []
    for (at, state), until in zip(changes, [*(at for at, _ in changes[1:]), ended_us]):
        if until <= begun_us or until == at:
            continue
        if spans and spans[-1].name == state:
            spans[-1] = Span(name=state, from_us=spans[-1].from_us, until_us=until - begun_us)
        else:
            spans.append(Span(name=state, from_us=max(at - begun_us, 0), until_us=until - begun_us))
    return spans[:_MOST_SPANS]


def begun_us(events: Sequence[Line]) -> int:
    """Returns when the sources began; if they never did, the time of the first event."""
    first = min((int(e["t"]) for e in events), default=0)
    return next((int(e["begun_us"]) for e in events if e["event"] == "begin"), first)


def ended_us(events: Sequence[Line]) -> int:
    """Returns when the processes were ordered to end, or else the last known time."""
    ends = [int(e["t"]) for e in events if e["event"] == "process_ended"]
    return min(ends, default=max((int(e["t"]) for e in events), default=begun_us(events)))


def something_failed(events: Iterable[Line]) -> bool:
    """Did anything happen that a run without failures does not have?"""
    return any(
        line["event"] in ("fault_began", *GONE)
        or (line["event"] == "state" and line["after"] in ("UP_FAILURE", "STABILIZATION"))
        for line in events
    )


def node_traces(folder: Path, directory: Directory) -> dict[str, list[Line]]:
    """Returns the nodes' own notes, if there are any."""
    return {str(node): read for node in directory.nodes if (read := _trace(folder, str(node)))}


def coordinator_trace(folder: Path) -> list[Line]:
    """Returns the coordinator's notes; [] where it ran elsewhere."""
    return _trace(folder, COORDINATOR)


def _trace(folder: Path, process: str) -> list[Line]:
    """Reads notes; a torn last line is skipped: the process was killed."""
    path = folder / "trace" / f"{process}.jsonl"
    lines = path.read_text("utf-8", "replace").splitlines() if path.is_file() else []
    return [line for text in lines if (line := _line(text)) is not None]


def _line(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and {"t", "event"} <= line.keys() else None
