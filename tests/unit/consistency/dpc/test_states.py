"""The table of node states, and the diagram made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from consistency.dpc.states import TRANSITIONS, Event, after
from spe.errors import LocalProtocolError
from spe.stream.names import NodeState


def draw() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> RECOVERING"]
    for state, row in TRANSITIONS.items():
        lines += [f"    {state.name} --> {target.name}: {event.value}" for event, target in row.items()]
    return "\n".join(lines)


def test_every_state_can_be_left_and_reached() -> None:
    reached = {target for row in TRANSITIONS.values() for target in row.values()}
    assert set(TRANSITIONS) == set(NodeState)
    assert reached | {NodeState.RECOVERING} == set(NodeState)


def test_a_transition_that_is_not_in_the_table_is_a_fault() -> None:
    with pytest.raises(LocalProtocolError, match="no transition from STABLE on RECONCILE"):
        after(NodeState.STABLE, Event.RECONCILE)


def test_the_page_shows_the_table() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "states.md").read_text()
    assert draw() in page
