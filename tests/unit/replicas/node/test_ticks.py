"""What the passing of time does to the replicas of a node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from replicas.node.ticks import Ticks


def test_replica_is_woken_when_dead_consumers_are_evicted() -> None:
    """A2: there is room, and behind the end of all inputs nothing else wakes it."""
    host: Any = Mock()
    host.name = "f/0@n1"
    host.replica.serving.full.return_value = True
    host.replica.serving.make_room.return_value = ["g/0@n2"]
    host.replica.watch_skew.return_value = []
    host.replica.rests.return_value = 1_000_000
    host.replica.logging = None
    env: Any = SimpleNamespace(trace=Mock())
    Ticks(env, {}, 10_000)._look_at(host, 5)
    host.work.wake.assert_called_once_with()
    host.replica.serving.make_room.return_value = []
    Ticks(env, {}, 10_000)._look_at(host, 6)
    host.work.wake.assert_called_once_with()
