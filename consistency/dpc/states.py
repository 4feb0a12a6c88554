"""The state machine of a unit replica as a table; docs/reference/states.md is generated from it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from spe.errors import LocalProtocolError
from spe.stream.names import NodeState


class Transition(enum.Enum):
    """Events that change the state of a replica; the value is the text for people."""

    TENTATIVE = "first tentative release, or αX reached under suspend"
    HEALED = "stable again with nothing tentative released"
    RECONCILE = "partner granted, or no useful partner"
    CAUGHT_UP = "caught up, next bucket not due"
    CAUGHT_UP_DUE = "caught up, next bucket already due (forced rec_done)"


TRANSITIONS: Final[Mapping[NodeState, Mapping[Transition, NodeState]]] = MappingProxyType(
    {
        NodeState.RECOVERING: {
            Transition.CAUGHT_UP: NodeState.STABLE,
            Transition.TENTATIVE: NodeState.UP_FAILURE,  # an input is still out (A3)
        },
        NodeState.STABLE: {
            Transition.TENTATIVE: NodeState.UP_FAILURE,
        },
        NodeState.UP_FAILURE: {
            Transition.HEALED: NodeState.STABLE,
            Transition.RECONCILE: NodeState.STABILIZATION,
        },
        NodeState.STABILIZATION: {
            Transition.CAUGHT_UP: NodeState.STABLE,
            Transition.CAUGHT_UP_DUE: NodeState.UP_FAILURE,  # another failure came during redo (R7)
        },
    }
)


def after(state: NodeState, event: Transition) -> NodeState:
    """Returns the state after ``event``.  Raises LocalProtocolError for a transition that the table does not have."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise LocalProtocolError(f"no transition from {state.name} on {event.name}") from None
