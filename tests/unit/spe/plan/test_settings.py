"""Settings that ``spe set`` changes on a running node (X1): how they are written and read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spe.plan.nodes import Node, Policy, Reconcile
from spe.plan.settings import NodeSettings, describe_waits, same_waits
from spe.stream.names import NodeId

NODE = Node(NodeId("n"), "n:1", 2_000_000, 0.9, Policy.PROCESS, Policy.DELAY, Reconcile.UNDO)


def test_a_changed_setting_replaces_only_that_of_the_file() -> None:
    settings = NodeSettings().changed([("x", "4s"), ("alpha", "0.7"), ("failure", "delay")])
    found = settings.over(NODE)
    assert found == replace(NODE, x_us=4_000_000, alpha=0.7, during_failure=Policy.DELAY)
    assert not same_waits(found, NODE)
    assert describe_waits(found) == "X 4s, α 0.7, policy delay"
    assert describe_waits(NODE) == "X 2s, α 0.9, policy process in failure, delay in stabilization"


def test_policy_sets_both_and_file_gives_a_setting_back() -> None:
    settings = NodeSettings().changed([("policy", "suspend"), ("x", "1s")])
    assert settings.over(NODE).during_failure is settings.over(NODE).during_stabilization is Policy.SUSPEND
    settings = settings.changed([("policy", "file"), ("stabilization", "process")])
    assert settings == NodeSettings(x_us=1_000_000, during_stabilization=Policy.PROCESS)
    assert not settings.changed([("x", "file"), ("stabilization", "file")])
    assert NodeSettings().over(NODE) is NODE


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("reconcile", "undo", "'reconcile' cannot be changed while a node runs; expected one of x, alpha, policy"),
        ("x", "4", "x: expected a duration such as 500ms"),
        ("x", "0s", "x: expected a duration above 0, got '0s'"),
        ("x", "-1s", "x: expected a duration above 0"),
        ("alpha", "1.5", "alpha: expected a number above 0 and at most 1, got '1.5'"),
        ("alpha", "nan", "alpha: expected a number above 0"),
        ("alpha", "much", "alpha: expected a number above 0"),
        ("policy", "hope", "policy: expected one of suspend, delay, process, got 'hope'"),
    ],
)
def test_nonsense_is_refused(name: str, value: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        NodeSettings().changed([(name, value)])
