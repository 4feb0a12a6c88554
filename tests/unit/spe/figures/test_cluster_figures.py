"""Rows of a cluster's figures, which the views, the dashboard and the summary share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spe.figures.cluster_figures import (
    STANDS_BY,
    STARTING,
    STOPPED,
    ClusterFigures,
    current_delay_us,
    used_x,
)
from spe.figures.histogram import Histogram
from spe.status import ProcessStatus, SettingsStatus
from spe.stream.ids import Channel, PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState, StreamId, UnitId
from spe.stream.times import SECOND
from tests.support.sights import NOW, a_sight, a_small_replica, deployed
from tests.support.statuses import a_channel, a_node, a_source, a_standby, an_input

REPLICA = ReplicaId(UnitId("main"), 0, NodeId("n1"))


def figures(*statuses: ProcessStatus, **changes: object) -> ClusterFigures:
    return ClusterFigures(*deployed(), a_sight(NOW, *statuses, **changes))


@pytest.mark.parametrize(
    ("changes", "delay_us"),
    [
        ({"delay_us": None}, None),
        ({"delay_us": 300_000, "last_arrival_us": NOW - 100_000}, 300_000),
        ({"delay_us": 300_000, "last_arrival_us": NOW - SECOND}, SECOND),
        ({"delay_us": 300_000, "last_arrival_us": NOW - SECOND, "ended": True}, None),
    ],
)
def test_delay_grows_while_nothing_arrives(changes: dict[str, object], delay_us: int | None) -> None:
    assert current_delay_us(a_channel(**changes), NOW) == delay_us


def test_a_standby_and_a_stopped_replica_have_a_state() -> None:
    stopped = figures(a_node("n1", a_small_replica(error="division by zero"))).replica(REPLICA)
    assert (stopped.state, dict(stopped.troubles())) == (STOPPED, {"error": "division by zero"})
    assert figures(a_node("n1", standbys=(a_standby(),))).replica(REPLICA).state == STANDS_BY
    assert figures(a_node("n1")).replica(REPLICA).state == STARTING


def test_the_worst_trouble_of_a_replica_comes_first() -> None:
    inputs = (an_input(channel="a/0", other_logs={"n9": "another log"}),)
    replica = a_small_replica(inputs=inputs, skew=("a lags",), missing=("a lacks ids",), differs=("out differs",))
    troubles = figures(a_node("n1", replica)).replica(REPLICA).troubles()
    assert [text for _, text in troubles] == ["out differs", "a lacks ids", "another log", "a lags"]


def test_tentative_results_lead_only_outside_of_stable() -> None:
    ahead = {"frontier": NOW - 3 * SECOND, "tentative_frontier": NOW}
    leads = [
        figures(a_node("n1", a_small_replica(state, **ahead))).replica(REPLICA).lead_us
        for state in (NodeState.STABLE, NodeState.UP_FAILURE)
    ]
    assert leads == [0, 3 * SECOND]


def test_bound_of_a_channel_follows_the_current_x() -> None:
    channel = Channel(StreamId("out"), 0)
    settings = SettingsStatus(x_us=5 * SECOND, alpha=0.9, during_failure="process", during_stabilization="process")
    nodes = [replace(a_node(name, a_small_replica()), settings=settings) for name in ("n1", "n2")]
    assert figures().channel("client", channel).bound_us == 2 * SECOND
    assert figures(*nodes).channel("client", channel).bound_us == 5 * SECOND


def test_a_silent_process_hides_its_state() -> None:
    row = figures(a_source("source:a", ended=True), phases={"source:a": "frozen"}).source(StreamId("a"))
    assert (row.word, row.state) == ("frozen", "frozen")
    assert figures(a_source("source:a", ended=True)).source(StreamId("a")).state == "ended"


def test_shares_of_x_are_known_with_the_first_value() -> None:
    histogram = Histogram()
    assert used_x(None) is used_x(histogram.status()) is None
    for share in (0.1, 0.94):
        histogram.add(share)
    used = used_x(histogram.status())
    assert used is not None
    assert (used.largest, used.p99, used.releases) == (0.94, 0.94, 2)


def test_moved_replicas_are_found_where_they_run() -> None:
    joined = figures(a_node("n3", a_small_replica()))
    assert joined.hosted_on(NodeId("n3")) == [ReplicaId(*PartitionId(UnitId("main"), 0), NodeId("n3"))]
