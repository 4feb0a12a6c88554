"""When a simulated run is over: who may still run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from replicas.simulation.simulate import _others_run


@pytest.mark.parametrize(
    ("running", "expected", "dead", "why"),
    [
        ({"f/0@na"}, {"f/0@na"}, set(), ""),
        ({"f/0@na", "f/0@nc"}, {"f/0@na"}, set(), "f/0@nc runs"),
        (set(), {"f/0@na"}, set(), "f/0@na does not run"),
        # It runs what a dead node ran, or, beside one that is back, what a dead standby was chosen to run (H5).
        ({"f/0@nc"}, {"f/0@na"}, {"na"}, ""),
        ({"f/0@na", "f/0@nc"}, {"f/0@na", "f/0@nb"}, {"nb"}, ""),
        ({"f/0@na", "g/0@nc"}, {"f/0@na", "f/0@nb"}, {"nb"}, "g/0@nc runs"),
        (set(), {"f/0@na"}, {"na"}, "nobody runs f/0"),
    ],
)
def test_settled_replicas_are_those_expected_to_run(
    running: set[str], expected: set[str], dead: set[str], why: str
) -> None:
    cluster: Any = SimpleNamespace(replicas=lambda: dict.fromkeys(running), expected=lambda: expected)
    assert _others_run(cluster, dead) == why
