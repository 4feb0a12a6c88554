"""Joins the events of a continued run into those of one run.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_GONE = ("process_killed", "process_lost", "process_stopped", "process_died", "process_ended")


def joined(lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the supervisor's events with each pause as an outage: all processes stop, and all faults end.

    Args:
      lines: lines of ``events.jsonl``; each start of a supervisor is an event ``run``.
    """
    events: list[Mapping[str, Any]] = []
    session = 0
    running: dict[str, None] = {}
    faults: dict[str, Mapping[str, Any]] = {}
    for line in lines:
        event = line["event"]
        if event == "run" and events:
            ended = [
                {**e, "event": "process_stopped"} if e["event"] == "process_ended" else e for e in events[session:]
            ]
            at_us = events[-1]["t"]
            cut = [{"t": at_us, "event": "process_stopped", "process": process} for process in running]
            healed = [{**fault, "t": at_us, "event": "fault_ended"} for fault in faults.values()]
            events[session:] = [*ended, *cut, *healed]
            session = len(events)
            running, faults = {}, {}
        elif event == "process_started":
            running[line["process"]] = None
        elif event in _GONE:
            running.pop(line["process"], None)
        elif event in ("fault_began", "fault_ended"):
            key = str(sorted((k, str(v)) for k, v in line.items() if k not in ("t", "event", "errors")))
            faults.pop(key, None)
            if event == "fault_began":
                faults[key] = line
        events.append(line)
    return events
