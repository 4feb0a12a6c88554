"""Identifiers and enums of both the wire and the state machine."""

from __future__ import annotations

import enum
from typing import NewType

NodeId = NewType("NodeId", str)
StreamId = NewType("StreamId", str)
UnitId = NewType("UnitId", str)


class NodeState(enum.IntEnum):
    """State of an output stream of a partition replica (docs/reference/states.md)."""

    STABLE = 0
    UP_FAILURE = 1
    STABILIZATION = 2
    RECOVERING = 3


class Kind(enum.IntEnum):
    """Whether a batch or boundary is final (stable) or may be undone (tentative)."""

    STABLE = 0
    TENTATIVE = 1
