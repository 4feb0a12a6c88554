"""Statuses of processes with sensible values, of which a test changes what matters to it."""

from __future__ import annotations

from typing import Any

from spe.status import (
    ActivationStatus,
    ChannelStatus,
    ClientStatus,
    CoordinatorStatus,
    InputStatus,
    LogStatus,
    MoveStatus,
    NodeStatus,
    ReplicaStatus,
    SourceLogStatus,
    SourceStatus,
    StandbyStatus,
    SwitchStatus,
)
from spe.stream.names import NodeState


def a_source(name: str = "source:shop", *, incarnation: int = 1, **log: Any) -> SourceStatus:
    """One whose log is open."""
    standard: dict[str, Any] = {
        "identity": "f00d",
        "last_id": 0,
        "frontier": 0,
        "ended": False,
        "note": "",
        "fault": None,
        "malformed": 0,
        "refused_ahead": 0,
        "late": 0,
        "late_by_us": 0,
    }
    return SourceStatus(name=name, incarnation=incarnation, log=SourceLogStatus(**{**standard, **log}))


def an_input(**changes: Any) -> InputStatus:
    standard: dict[str, Any] = {
        "channel": "shop/0",
        "main": "source:shop",
        "corrections": None,
        "position": 12,
        "frontier": 5,
        "switches": 1,
        "other_logs": {},
    }
    return InputStatus(**{**standard, **changes})


def a_replica(state: NodeState = NodeState.STABLE, **changes: Any) -> ReplicaStatus:
    standard: dict[str, Any] = {
        "unit": "main",
        "partition": 0,
        "fresh": False,
        "installed": True,
        "missing": (),
        "differs": (),
        "skew": (),
        "stable": 12,
        "tentative": 0,
        "suffix_bytes": 0,
        "frontier": 5,
        "tentative_frontier": 0,
        "reconciliations": 0,
        "redone_rows": 0,
        "rebuilt_rows": 0,
        "largest_slice": 3,
        "inputs": (an_input(),),
        "fill": 0.25,
        "held_bytes": 0,
        "counters": {},
        "error": None,
    }
    return ReplicaStatus(state=state, **{**standard, **changes})


def a_checkpoint_log(**changes: Any) -> LogStatus:
    standard: dict[str, Any] = {
        "recovery_us": 2_000_000,
        "least_us": 1,
        "recovered_us": None,
        "expected_us": None,
        "records": 1,
        "rows": 2,
        "live": 3,
        "load_us": 1.0,
        "replay_us": 1.0,
        "write_us": 1.0,
        "written_bytes": 10,
        "rewritten_bytes": 5,
        "kept_bytes": 7,
        "trouble": "",
    }
    return LogStatus(**{**standard, **changes})


def a_standby(**changes: Any) -> StandbyStatus:
    standard: dict[str, Any] = {"unit": "main", "partition": 0, "checkpoints": 0, "trouble": "", "positions": {}}
    return StandbyStatus(**{**standard, "makers": (), **changes})


def a_node(
    name: str, *replicas: ReplicaStatus, incarnation: int = 1, standbys: tuple[StandbyStatus, ...] = ()
) -> NodeStatus:
    return NodeStatus(name=name, incarnation=incarnation, spill=None, replicas=replicas, standbys=standbys)


def a_channel(**changes: Any) -> ChannelStatus:
    standard: dict[str, Any] = {
        "channel": "per_second/0",
        "producer": "n1",
        "stable": 3,
        "tentative": 0,
        "undone": 0,
        "switches": 0,
        "position": 3,
        "frontier": 5,
        "held": False,
        "delay_us": 250_000,
        "delay_max_us": 1_500_000,
        "gap_max_us": 300_000,
        "stable_gap_max_us": 400_000,
        "last_arrival_us": 1_000_000,
        "ended": False,
    }
    return ChannelStatus(**{**standard, **changes})


def a_client(*channels: ChannelStatus, switches: tuple[SwitchStatus, ...] = ()) -> ClientStatus:
    return ClientStatus(name="client:client", incarnation=1, channels=channels, switches=switches)


def a_move(**changes: Any) -> MoveStatus:
    standard: dict[str, Any] = {
        "number": 1,
        "partition": "main/0",
        "source": "n1",
        "target": "n2",
        "role": "active",
        "reason": "ordered",
        "phase": "wait",
        "why": "",
        "began_us": {},
        "predicted_us": None,
        "state_from": "partner",
    }
    return MoveStatus(**{**standard, **changes})


def a_coordinator(*moves: MoveStatus) -> CoordinatorStatus:
    activation = ActivationStatus(budget=0, active=(), target=(), of=None)
    return CoordinatorStatus(name="coordinator", incarnation=1, partitions=(), activation=activation, moves=moves)
