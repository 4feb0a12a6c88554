"""What happened to a run's processes: faults and states over time, from what the supervisor and the nodes noted.

Lines are those of ``events.jsonl`` (the supervisor's) and of ``trace/NODE.jsonl`` (each node's own, which knows its
states to the microsecond where the supervisor asks now and then).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from consistency.proof.report.model import FaultSpan, Span, Track
from spe.plan.directory import COORDINATOR, Directory

Line = Mapping[str, Any]

#: What the supervisor notes when a process ends before the run does.
GONE: Final = ("process_died", "process_killed", "process_lost", "process_stopped")
_DOWN: Final = "down"
#: Faults that are over as soon as they happen.
_INSTANT: Final = ("restart", "reset", "flip", "heal")
#: Spans of one replica: a run has few, and a page has no room for more.
_MOST_SPANS: Final = 2_000


def fault_spans(events: Iterable[Line], begun_us: int) -> list[FaultSpan]:
    """Injected faults, in order; times count from ``begun_us``."""
    open_: dict[str, int] = {}
    found: list[dict[str, Any]] = []
    for line in events:
        if line["event"] not in ("fault_began", "fault_ended"):
            continue
        fault = {k: v for k, v in line.items() if k not in ("t", "event", "errors")}
        key = json.dumps(fault, sort_keys=True)
        if line["event"] == "fault_began":
            open_[key] = len(found)
            found.append({"fault": fault, "from_us": int(line["t"]) - begun_us, "until_us": None})
        elif key in open_:
            found[open_.pop(key)]["until_us"] = int(line["t"]) - begun_us
    return [
        FaultSpan(
            name=_said(one["fault"]),
            from_us=one["from_us"],
            until_us=one["from_us"] if one["fault"]["kind"] in _INSTANT else one["until_us"],
            kind=str(one["fault"]["kind"]),
            targets=[*one["fault"].get("target", ()), *one["fault"].get("from", ()), *one["fault"].get("to", ())],
        )
        for one in found
    ]


def _said(fault: Line) -> str:
    """The fault as ``spe inject`` takes it."""
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
    """A track for each replica, and each other one that ran: its states, and ``down`` while its process did not run.

    Others are standbys, and what a node ran because of a move, or of a role that a recovery gave it.

    Args:
      traces: by node; a node without one is followed by what the supervisor saw.
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
    """One span per state, without those that came and went in an instant before the run began."""
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
    """When the sources began; the first event of a run in which they never did."""
    first = min((int(e["t"]) for e in events), default=0)
    return next((int(e["begun_us"]) for e in events if e["event"] == "begin"), first)


def ended_us(events: Sequence[Line]) -> int:
    """When the processes were told to end, or the last that is known."""
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
    """What nodes noted themselves, if anything."""
    return {str(node): read for node in directory.nodes if (read := _trace(folder, str(node)))}


def coordinator_trace(folder: Path) -> list[Line]:
    """What the coordinator noted; [] where it ran elsewhere."""
    return _trace(folder, COORDINATOR)


def _trace(folder: Path, process: str) -> list[Line]:
    """A torn last line is passed over: the process was killed."""
    path = folder / "trace" / f"{process}.jsonl"
    lines = path.read_text("utf-8", "replace").splitlines() if path.is_file() else []
    return [line for text in lines if (line := _line(text)) is not None]


def _line(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and {"t", "event"} <= line.keys() else None
