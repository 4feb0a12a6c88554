"""More fails together than there is room for: what is worth most comes back first, the rest as nodes arrive (O1-O6)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from consistency.proof.recorded.recoveries import recovery_report
from consistency.proof.recorded.story import tracks
from consistency.proof.report.model import RecoveryStep
from replicas.placement.deciders.lending import Lent
from replicas.planning.recovery.cluster import value_of
from replicas.simulation.scenarios.scenario import Scenario
from spe.plan.deploy import Deployed
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.status import RecoveryStatus
from spe.stream.history import Note, ProcessDown
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState, UnitId
from tests.simulation.test_standbys import runs
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.situations import Met, play, until

EXAMPLE = Path(__file__).parents[2] / "configs" / "recovery.yaml"
LOST = ("n1", "n2", "n3")


def example(**sections: Any) -> Deployed:
    """configs/recovery.yaml, shorter and with fewer rows."""
    data = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    for source in data["sources"].values():
        source["from"]["generator"] |= {"rate": 20, "duration": "24s", "keys": 5}
    data["defaults"]["x"] = "1s"
    return Scenario(0, data | sections).deployed()


def recovery(cluster: FaultyCluster) -> RecoveryStatus | None:
    assert cluster.coordinator is not None
    return cluster.coordinator.status().recovery


def waiting(cluster: FaultyCluster) -> set[str]:
    status = recovery(cluster)
    return set() if status is None else set(status.waits)


def served(cluster: FaultyCluster) -> set[str]:
    found = cluster.replicas().items()
    return {name.partition("@")[0] for name, one in found if one.state is not NodeState.RECOVERING}


async def lose_them(cluster: FaultyCluster) -> None:
    await trio.sleep(6)
    for node in LOST:
        cluster.kill(node)


def test_the_most_valuable_query_comes_back_first() -> None:
    async def script(cluster: FaultyCluster) -> None:
        await lose_them(cluster)
        await until(lambda: "alarms/0" in served(cluster))
        await until(lambda: len(served(cluster)) == 4)
        (waits,) = waiting(cluster)
        assert waits.startswith("revenue/")
        await trio.sleep(2)
        assert len(served(cluster)) == 4
        for node in LOST:
            cluster.restart(node)
            await trio.sleep(2)
        await until(lambda: recovery(cluster) is None)

    plan, directory = example()
    met = play(plan, directory, script)
    first = [order for order in installs(met)][:2]
    assert any(order.startswith("alarms/0@") for order in first), first
    found = reported(met, plan, directory)
    told = [f"{one.partition}@{one.node}" for one in found if one.assigned_us is not None]
    assert sorted(told) == sorted(installs(met)), "two may be told at one moment"
    assert all(one.back_us is not None and one.back_us > one.wanted_us for one in found), found
    assert min(one.value_before for one in found if one.value_before is not None) == 0
    assert found[-1].value == 1


def reported(met: Met, plan: Plan, directory: Directory) -> list[RecoveryStep]:
    """What a report of such a run on real processes says, from what they trace."""
    traces: dict[str, list[dict[str, Any]]] = {}
    for e in met.history:
        if isinstance(e, Note):
            fields = dict(word.partition("=")[::2] for word in e.text.split(" "))
            traces.setdefault(e.host, []).append({"t": e.at_us, "event": e.name} | fields)
    killed = [
        {"t": e.at_us, "event": "process_killed", "process": e.host} for e in met.history if isinstance(e, ProcessDown)
    ]
    states = tracks(directory, killed, {n: traces[n] for n in directory.nodes}, 0, met.history[-1].at_us)
    value = partial(value_of, plan, directory, {})
    found = recovery_report(directory, traces[COORDINATOR], states, [], value, 0)
    assert found is not None
    return found.steps


def installs(met: Met) -> list[str]:
    """What nodes were told to run, in order."""
    fields = [e.text.split(" ") for e in met.history if isinstance(e, Note) and e.name == "order"]
    return [replica.partition("=")[2] for verb, replica, *_ in fields if verb == "verb=install"]


@pytest.mark.parametrize("at_s", long_but([0.3], [0.05, 0.3, 1.0, 3.0]))
def test_the_next_coordinator_continues_a_recovery(at_s: float) -> None:
    async def script(cluster: FaultyCluster) -> None:
        await lose_them(cluster)
        await trio.sleep(at_s)
        cluster.kill(COORDINATOR)
        await trio.sleep(1.5)
        cluster.restart("n2")
        await trio.sleep(0.5)
        cluster.restart(COORDINATOR)
        await trio.sleep(3)
        cluster.restart("n1")
        await trio.sleep(3)
        cluster.restart("n3")
        await until(lambda: recovery(cluster) is None)

    met = play(*example(), script)
    assert len({replica.partition("@")[0] for replica in installs(met)}) == len(installs(met)), installs(met)


@pytest.mark.long
def test_partitions_of_a_dead_helper_run_on_the_next_node() -> None:
    async def script(cluster: FaultyCluster) -> None:
        await lose_them(cluster)
        await until(lambda: len(served(cluster)) == 4)
        cluster.kill("n5")
        await trio.sleep(1)
        cluster.restart("n3")
        await until(lambda: runs(cluster, "alarms/0@n3"))
        cluster.restart("n5")
        await until(lambda: len(served(cluster)) == 5)
        cluster.restart("n1")
        await trio.sleep(2)
        cluster.restart("n2")
        await until(lambda: recovery(cluster) is None)

    play(*example(), script)


@pytest.mark.long
def test_with_room_for_all_nothing_waits() -> None:
    async def script(cluster: FaultyCluster) -> None:
        await lose_them(cluster)
        await until(lambda: len(served(cluster)) == 5, within_s=3)
        assert recovery(cluster) is None
        for node in LOST:
            cluster.restart(node)

    play(*example(coordinator={"cap": 1.0}), script)


def test_spare_restores_from_full_standby_and_returns_role() -> None:
    """The two standbys have room for four of five; the fifth begins on n6, with the checkpoint of its standby."""
    nodes = {**{f"n{i}": {} for i in range(1, 6)}, "n6": {"spare": True}}

    async def script(cluster: FaultyCluster) -> None:
        await lose_them(cluster)
        await until(lambda: len(served(cluster)) == 5, within_s=5)
        assert [name for name in cluster.replicas() if name.endswith("@n6")]
        for node in LOST:
            cluster.restart(node)
            await trio.sleep(2)
        await until(lambda: not any("n6" in roles for roles in cluster.current.roles.values()))

    met = play(*example(nodes=nodes), script)
    (lent,) = [replica for replica in installs(met) if replica.endswith("@n6")]
    text = [line for line in met.log if f"installed replica={lent}" in line]
    assert text[-1].rpartition("origin=")[2] in ("n4", "n5")


def test_a_role_that_is_not_wanted_any_more_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is decided when the disk is free, by the version of then, by which its node may have left."""
    nodes = {**{f"n{i}": {} for i in range(1, 6)}, "n6": {"spare": True}}
    wanted = [Lent(PartitionId(UnitId("alarms"), 0), NodeId("n6"))]

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(1)
        assert cluster.coordinator is not None
        directories = cluster.coordinator.directories
        monkeypatch.setattr(cluster.coordinator.recovery, "role_change", lambda *_: wanted[0] if wanted else None)
        version = directories.version
        async with directories._taking:
            await trio.sleep(1)
            wanted.clear()
        await trio.sleep(1)
        assert directories.version == version

    play(*example(nodes=nodes), script)


@pytest.mark.parametrize("dead", long_but([COORDINATOR], ["n6", COORDINATOR]))
def test_recovery_survives_death_of_helper_or_coordinator(dead: str) -> None:
    nodes = {**{f"n{i}": {} for i in range(1, 6)}, "n6": {"spare": True}}

    async def script(cluster: FaultyCluster) -> None:
        await lose_them(cluster)
        await until(lambda: any("n6" in roles for roles in cluster.current.roles.values()))
        cluster.kill(dead)
        await trio.sleep(1.5)
        cluster.restart(dead)
        await until(lambda: len(served(cluster)) == 5, within_s=8)
        for node in LOST:
            cluster.restart(node)
            await trio.sleep(2)
        await until(lambda: not any("n6" in roles for roles in cluster.current.roles.values()))

    play(*example(nodes=nodes), script)


@pytest.mark.long
def test_partition_without_standby_restarts_on_another_node() -> None:
    """n3 and both standbys of the alarms are gone: n6 gets them after a while, from the sources' logs (H8)."""
    nodes = {**{f"n{i}": {} for i in range(1, 6)}, "n6": {"spare": True}}

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(6)
        for node in ("n3", "n4", "n5"):
            cluster.kill(node)
        await until(lambda: "alarms/0" in served(cluster), within_s=20)
        for node in ("n3", "n4", "n5"):
            cluster.restart(node)
        await until(lambda: not any("n6" in roles for roles in cluster.current.roles.values()))

    play(*example(nodes=nodes), script)


def test_the_rate_of_a_source_is_measured_and_makes_a_new_plan() -> None:
    """Nothing else changes after 8 s; the rates are known at 20 s."""

    async def script(cluster: FaultyCluster) -> None:
        await lose_them(cluster)
        await trio.sleep(15)
        for node in LOST:
            cluster.restart(node)
        await until(lambda: recovery(cluster) is None)

    met = play(*example(), script)
    plans = [e.at_us for e in met.history if isinstance(e, Note) and e.name == "recovery_planned"]
    assert [at for at in plans if 19_000_000 < at < 20_900_000], plans
