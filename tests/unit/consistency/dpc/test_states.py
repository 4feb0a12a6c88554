"""The table of node states."""

from __future__ import annotations

import pytest

from consistency.dpc.states import TRANSITIONS, Transition, after
from spe.errors import LocalProtocolError
from spe.stream.names import NodeState


def test_every_state_can_be_left_and_reached() -> None:
    reached = {target for row in TRANSITIONS.values() for target in row.values()}
    assert set(TRANSITIONS) == set(NodeState)
    assert reached | {NodeState.RECOVERING} == set(NodeState)


def test_a_transition_that_is_not_in_the_table_is_a_fault() -> None:
    with pytest.raises(LocalProtocolError, match="no transition from STABLE on RECONCILE"):
        after(NodeState.STABLE, Transition.RECONCILE)
