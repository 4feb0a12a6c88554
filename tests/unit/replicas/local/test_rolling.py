"""Which nodes may be stopped without a gap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
import trio.testing

from replicas.cli.restart import Rolling
from replicas.local.polling import Poller
from replicas.local.rolling import hindrances, moved_away, nodes_to_restart, not_back, without_partner
from replicas.local.run_dir import Target
from replicas.simulation.world.cluster import SimCluster
from spe.config import load_text
from spe.figures.sight import Seen
from spe.plan.directory import COORDINATOR
from spe.status import NodeStatus
from spe.stream.ids import PartitionId
from spe.stream.names import NodeState, UnitId
from spe.stream.times import SECOND
from tests.support.statuses import a_coordinator, a_move, a_node, a_replica, a_standby

CONFIG = """
sources: {a: {from: {generator: {name: sequence, rate: 100, seed: 1, duration: 60s}}}}
query:
  first: {filter: {from: a, where: value >= 0}}
  second: {filter: {from: first, where: value >= 0}}
fragments:
  u1: {operators: [first], replicas: [n1, n2]}
  u2: {operators: [second], replicas: [n2], standby: [n3]}
nodes: [n1, n2, n3]
"""
PLAN, DIRECTORY = load_text(CONFIG)
U1, U2 = PartitionId(UnitId("u1"), 0), PartitionId(UnitId("u2"), 0)


def answered(u1: NodeState = NodeState.STABLE, **more: NodeStatus) -> Mapping[str, NodeStatus]:
    """All nodes as the configuration has them; u1 on n1 in a state."""
    nodes = {
        "n1": a_node("n1", a_replica(u1, unit="u1")),
        "n2": a_node("n2", a_replica(unit="u1"), a_replica(unit="u2")),
        "n3": a_node("n3", standbys=(a_standby(unit="u2"),)),
    }
    return {**nodes, **more}


def test_a_node_may_stop_while_a_partner_is_stable() -> None:
    assert hindrances(DIRECTORY, answered(), "n1") == []


@pytest.mark.parametrize("state", [s for s in NodeState if s is not NodeState.STABLE])
def test_a_partner_in_another_state_blocks_the_stop(state: NodeState) -> None:
    assert f"u1/0: n1 is {state.name}" in hindrances(DIRECTORY, answered(state), "n2")


def test_a_stopped_or_silent_partner_blocks_the_stop() -> None:
    stopped = answered(n1=a_node("n1", a_replica(unit="u1", error="boom")))
    assert "u1/0: n1 is stopped by an error" in hindrances(DIRECTORY, stopped, "n2")
    silent = {n: s for n, s in answered().items() if n != "n1"}
    assert "u1/0: n1 is silent" in hindrances(DIRECTORY, silent, "n2")


def test_single_stable_partner_is_enough() -> None:
    more = answered(NodeState.RECOVERING, n3=a_node("n3", a_replica(unit="u1"), a_replica(unit="u2")))
    assert hindrances(DIRECTORY, more, "n2") == []


def test_a_partition_on_one_node_only_is_named_with_a_remedy() -> None:
    assert without_partner(DIRECTORY, answered(), "n1") == []
    assert without_partner(DIRECTORY, answered(), "n2") == [
        "u2/0 runs on n2 alone; n3 stands by, so empty n2 first with spe drain"
    ]


def test_roles_that_nodes_report_override_the_file() -> None:
    moved = answered(n1=a_node("n1"), n3=a_node("n3", a_replica(unit="u1"), a_replica(unit="u2")))
    assert hindrances(DIRECTORY, moved, "n1") == []
    assert without_partner(DIRECTORY, answered(n1=a_node("n1")), "n2")[0] == ("u1/0 runs on n2 alone")


def test_silent_node_is_taken_to_run_its_configured_roles() -> None:
    silent = {n: s for n, s in answered().items() if n != "n1"}
    assert hindrances(DIRECTORY, silent, "n1") == []
    assert hindrances(DIRECTORY, {}, "n1") == ["u1/0: n2 is silent"]


def test_node_is_back_when_new_process_runs_all_its_replicas() -> None:
    before, after = a_node("n2", incarnation=1), a_node("n2", a_replica(unit="u1"), incarnation=2)
    assert not_back(None, 1, [U1]) == not_back(before, 1, [U1]) == ["it does not answer yet"]
    assert not_back(after, 1, [U1, U2]) == ["u2/0 does not run yet"]
    assert not_back(after, 1, [U1]) == []
    recovering = a_node("n2", a_replica(NodeState.RECOVERING, unit="u1"), incarnation=2)
    assert not_back(recovering, 1, [U1]) == ["u1/0 is RECOVERING"]


def test_node_need_not_run_a_partition_moved_away() -> None:
    after = a_node("n2", a_replica(unit="u1"), incarnation=2)
    assert not_back(after, 1, [U1, U2], {"u2/0"}) == []
    done = a_move(partition="u2/0", source="n2", target="n3", phase="done")
    back = a_move(partition="u2/0", source="n3", target="n2", phase="done")
    under_way = a_move(partition="u2/0", source="n2", target="n3", phase="follow")
    assert moved_away(None, "n2") == set()
    assert moved_away(a_coordinator(done), "n2") == {"u2/0"}
    assert moved_away(a_coordinator(done), "n1") == set()
    assert moved_away(a_coordinator(done, back), "n2") == set()
    assert moved_away(a_coordinator(under_way), "n2") == set()


class Cluster:
    """Answers as a cluster whose n2 is drained of u2/0 while it restarts."""

    def __init__(self) -> None:
        self.addresses = {COORDINATOR: ""}
        self.seen: dict[str, Seen] = {}
        self._asked = 0

    async def nodes(self) -> Mapping[str, NodeStatus]:
        return answered(n3=a_node("n3", a_replica(unit="u2")), n1=a_node("n1", a_replica(unit="u1")))

    async def inject(self, name: str, fault: Mapping[str, Any], wait_s: float) -> str:
        return ""

    async def ask_status(self, name: str) -> bool:
        self._asked += 1
        phase = "leave" if self._asked < 6 else "done"
        move = a_move(partition="u2/0", source="n2", target="n3", phase=phase)
        status = a_coordinator(move) if name == COORDINATOR else a_node("n2", a_replica(unit="u1"), incarnation=2)
        self.seen[name] = Seen(status, 0, 0)
        return True


async def test_restart_during_a_drain_ends(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    env = SimCluster(PLAN, DIRECTORY).env("control")
    rolling = Rolling(env, Target(PLAN, DIRECTORY, {}, ""), 10 * SECOND)
    rolling._poller = cast(Poller, Cluster())
    assert await rolling.restart(["n2"]) == 0
    assert "n2: STABLE after" in capsys.readouterr().out


def test_nodes_restart_in_the_order_of_the_directory() -> None:
    assert nodes_to_restart(DIRECTORY, []) == ["n1", "n2", "n3"]
    assert nodes_to_restart(DIRECTORY, ["n3", "n1"]) == ["n1", "n3"]
