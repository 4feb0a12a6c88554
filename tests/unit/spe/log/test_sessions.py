"""Events of a run that was continued: each pause is an outage of all processes."""

from __future__ import annotations

from typing import Any

from spe.log.sessions import joined


def event(t: int, name: str, process: str = "", **fields: Any) -> dict[str, Any]:
    return {"t": t, "event": name, **({"process": process} if process else {}), **fields}


def test_a_run_of_one_session_is_unchanged() -> None:
    lines = [event(1, "run"), event(2, "process_started", "n1"), event(3, "process_ended", "n1"), event(4, "over")]
    assert joined(lines) == lines


def test_processes_that_ended_before_a_pause_were_stopped() -> None:
    first = [event(1, "run"), event(2, "process_started", "n1")]
    second = [event(9, "run"), event(10, "process_started", "n1"), event(12, "process_ended", "n1")]
    found = joined([*first, event(3, "process_ended", "n1"), *second])
    assert found == [*first, event(3, "process_stopped", "n1"), *second]


def test_killed_supervisor_stops_its_processes_and_faults() -> None:
    """Nobody noted their end; the last event was the last sign of life."""
    cut = {"kind": "cut", "from": ["a"], "to": ["n1"]}
    kill = {"kind": "kill", "target": ["n2"]}
    first = [
        event(1, "run"),
        *(event(2, "process_started", name) for name in ("n1", "n2", "n3")),
        event(3, "fault_began", **kill),
        event(4, "process_killed", "n2"),
        event(5, "fault_ended", **kill),
        event(6, "fault_began", **cut, errors=[]),
    ]
    found = joined([*first, event(9, "run"), event(10, "over")])
    assert found[: len(first)] == first
    assert found[len(first) :] == [
        event(6, "process_stopped", "n1"),
        event(6, "process_stopped", "n3"),
        event(6, "fault_ended", **cut, errors=[]),
        event(9, "run"),
        event(10, "over"),
    ]


def test_several_pauses_are_distinguished() -> None:
    found = joined([event(t, name) for t, name in ((1, "run"), (2, "over"), (3, "run"), (4, "over"), (5, "run"))])
    assert [e["t"] for e in found] == [1, 2, 3, 4, 5]
