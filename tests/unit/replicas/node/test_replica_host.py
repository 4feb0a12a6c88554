"""What a replica's host measures for the checkpoint log (G7)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from replicas.checkpoint.meter import LogMeter
from replicas.node.replica_host import ReplicaHost


def test_rows_of_before_a_restart_are_not_measured_as_new_ones() -> None:
    """A million rows in the one step that ends the replay would make the next recovery look far too quick."""
    core = SimpleNamespace(stable_rows=0, step_was_for_log=False)
    meter = LogMeter()
    host: Any = SimpleNamespace(
        meter=SimpleNamespace(worked=lambda ns: None),
        replica=SimpleNamespace(core=core, logging=object()),
        log_meter=meter,
        replay_ns=0,
        _rows=0,
        _slice_ns=0,
    )
    stepped = cast("Any", ReplicaHost.stepped)
    assumed_us = meter.speeds.replay_us
    core.stable_rows = 1_000_000
    stepped(host, 5_000_000, replays=True)
    assert host.replay_ns == 5_000_000
    stepped(host, 1_000, replays=False)
    assert meter.speeds.replay_us == assumed_us
    core.stable_rows += 1_000
    stepped(host, round(2e6 * assumed_us), replays=False)
    assert assumed_us < meter.speeds.replay_us < 2 * assumed_us
