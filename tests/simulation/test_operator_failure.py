"""A user's operator that raises: its replica stops and says why, everything else goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from replicas.simulation.cluster import SimCluster
from spe.plan import Client, Plan
from spe.query import CustomSpec, Operator
from spe.states import StreamId
from spe.wire.messages import NotReady, Status, StatusRequest, Welcome
from tests.simulation.test_bad_peers import hello, subscribe, visit
from tests.simulation.test_cluster import SCHEMA, SECONDS, Outcome, make_plan


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def with_a_mistake() -> Plan:
    """Unit u1 as always; u2, on nodes of its own, runs an operator that raises at n = 300."""
    plan = make_plan(2, rate=100.0)
    first, second = plan.units
    spec = CustomSpec((StreamId("s1"),), "tests.support.operators_for_tests:RaisesAt", {"at": 300})
    wrong = Operator(StreamId("s2"), spec, SCHEMA)
    return replace(
        plan,
        units=(first, replace(second, operators=(wrong,))),
        clients={"c": Client("c", (StreamId("s1"),))},
    )


async def test_the_replica_stops_with_the_operators_name_and_the_rest_goes_on(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with SimCluster(with_a_mistake()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(SECONDS + 2)
            peer = await visit(cluster, "n2a")
            await peer.say(hello(cluster), StatusRequest(), subscribe(stream="s2"))
            assert isinstance(await peer.hear(), Welcome)
            status = await peer.hear()
            assert isinstance(status, Status)
            (replica,) = status.data["replicas"]
            assert "operator 's2' raised on the slice of" in replica["error"]
            assert "ZeroDivisionError: n is 300" in replica["error"]
            refused = await peer.hear()
            assert isinstance(refused, NotReady)
            assert "ZeroDivisionError" in refused.reason
            Outcome(cluster).assert_complete_for("s1")
    assert "u2/0@n2a stopped: operator 's2' raised" in capsys.readouterr().err
