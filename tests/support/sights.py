"""A small cluster and what there is to see of it, for the dashboard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from replicas.local.process import Phase
from spe.config import load_text
from spe.figures.sight import Seen, Sight
from spe.plan.deploy import Deployed, with_default_client
from spe.status import ProcessStatus
from spe.stream.names import NodeState
from spe.stream.times import SECOND
from tests.support.statuses import a_channel, a_client, a_node, a_replica, a_source, an_input

NOW: Final = 1_700_000_000 * SECOND
CONFIG: Final = """
cluster: small
sources:
  a: {from: {generator: {name: sequence, rate: 100, duration: 60s}}}
  b: {from: {generator: {name: sequence, rate: 100, duration: 60s}}}
query: {out: {union: [a, b]}}
nodes: [n1, n2]
"""
UNIT: Final = "main"


def deployed(text: str = CONFIG) -> Deployed:
    plan, directory = load_text(text)
    return Deployed(plan, with_default_client(plan, directory))


def a_sight(
    at_us: int = NOW, *statuses: ProcessStatus, without: Iterable[str] = (), frontier: int | None = None, **changes: Any
) -> Sight:
    """One in which all is well, but for these statuses; ``frontier`` is that of all, the present by default."""
    reach = at_us if frontier is None else frontier
    inputs = tuple(an_input(channel=f"{s}/0", main=f"source:{s}", frontier=reach) for s in "ab")
    replica = {"unit": UNIT, "inputs": inputs, "frontier": reach, "x_us": 2 * SECOND}
    standard: list[ProcessStatus] = [
        a_source("source:a", frontier=reach),
        a_source("source:b", frontier=reach),
        a_node("n1", a_replica(NodeState.STABLE, **replica)),
        a_node("n2", a_replica(NodeState.STABLE, **replica)),
        a_client(a_channel(channel="out/0", frontier=reach, last_arrival_us=at_us)),
    ]
    told = {one.name: one for one in [*standard, *statuses] if one.name not in set(without)}
    given: dict[str, Any] = {
        "title": "small   runs/x",
        "now_us": at_us,
        "begun_us": NOW - 4 * SECOND,
        "phases": {one.name: Phase.RUNNING for one in standard},
        "seen": {name: Seen(one, at_us) for name, one in told.items()},
    }
    return Sight(**{**given, **changes})


def a_small_replica(state: NodeState = NodeState.STABLE, **changes: Any) -> Any:
    """One of the small cluster's."""
    inputs = tuple(an_input(channel=f"{s}/0", main=f"source:{s}", frontier=NOW) for s in "ab")
    return a_replica(state, **{"unit": UNIT, "inputs": inputs, "frontier": NOW, "x_us": 2 * SECOND, **changes})
