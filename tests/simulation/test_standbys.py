"""Standbys (H1 to H8): a partition whose only replica dies continues from its standby's checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest
import trio

from replicas.link.connection import Identity, dial
from replicas.placement.coordinator import run_coordinator
from replicas.simulation.world.clock import JumpClock
from spe.config import load_data
from spe.plan.deploy import Deployed, with_addresses
from spe.plan.directory import COORDINATOR, Directory, Standbys
from spe.plan.plan import Limits, Plan
from spe.stream.batch import Batch, Element
from spe.stream.history import Delivered
from spe.stream.names import Kind, NodeState
from spe.wire.messages.replicas import Order, SnapshotRefused, SnapshotRequest
from tests.simulation.test_buffers import longer
from tests.simulation.test_cluster import make_plan
from tests.simulation.test_operator_failure import with_operator
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.operators_for_tests import NeedsAFile
from tests.support.plans import placed
from tests.support.situations import Met, play, until

SECOND = 1_000_000
WHY = "arguments: tests.support.operators_for_tests:NeedsAFile cannot be made: FileNotFoundError: model.bin"


def with_standbys(plan: Plan, directory: Directory, every_us: int = SECOND) -> Deployed:
    """The first node of each partition runs it, the others stand by."""
    placement = {id: nodes[:1] for id, nodes in directory.placement.items()}
    standbys = {id: Standbys(nodes[1:], every_us) for id, nodes in directory.placement.items()}
    return Deployed(plan, placed(directory, placement, standbys))


def runs(cluster: FaultyCluster, replica: str) -> bool:
    return replica in cluster.replicas() and cluster.replicas()[replica].state is NodeState.STABLE


def gone(cluster: FaultyCluster, replica: str) -> bool:
    return replica not in cluster.replicas()


def tentative(met: Met) -> int:
    return sum(len(e.element) for e in met.history if isinstance(e, Delivered) and is_tentative(e.element))


def is_tentative(element: Element) -> bool:
    return isinstance(element, Batch) and element.kind is Kind.TENTATIVE


async def test_an_order_that_cannot_be_followed_is_refused(
    jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby constructs no operator before it runs; only then a missing user module shows."""
    async with FaultyCluster(*with_standbys(*with_operator("NeedsAFile"))) as cluster:
        await cluster.start()
        await trio.sleep(3)
        first, second = cluster.nodes["n1a"], cluster.nodes["n1b"]
        monkeypatch.setattr(NeedsAFile, "lacking", True)
        for number in (1, 2):
            refused = second.orders.order(COORDINATOR, Order(1 << 60, number, "install", "u1", 0)).error
            assert refused == "operator 's1' raised on being made: QueryError: " + WHY
        assert first.orders.order(COORDINATOR, Order(1 << 60, 3, "replay", "u1", 0)).error.endswith(WHY)
        assert runs(cluster, "u1/0@n1a")
        taken = second.status().standbys[0].checkpoints
        await trio.sleep(3)
        assert second.status().standbys[0].checkpoints > taken
        monkeypatch.setattr(NeedsAFile, "lacking", False)
        assert second.orders.order(COORDINATOR, Order(1 << 60, 4, "install", "u1", 0)).error == ""
        await trio.sleep(3)
        assert runs(cluster, "u1/0@n1b")


def test_a_standby_takes_over_and_stands_by_again() -> None:
    plan, directory = with_standbys(*longer(*make_plan(1), 12))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(4)
        assert sorted(cluster.replicas()) == ["u1/0@n1a"]
        cluster.kill("n1a")
        await until(lambda: runs(cluster, "u1/0@n1b"))
        cluster.restart("n1a")
        await until(lambda: runs(cluster, "u1/0@n1a"))
        await until(lambda: gone(cluster, "u1/0@n1b"))

    met = play(plan, directory, script)
    (span,) = met.spans("u1/0@n1b", NodeState.STABLE)[:1]
    assert span[0] < 5 * SECOND
    assert tentative(met) == 0, "a failure shorter than αX is masked"


def test_a_retired_replica_gives_no_incomplete_snapshot() -> None:
    """Its spilled pieces are gone, so the rest of its output may lack what consumers need (A3)."""
    plan, directory = with_standbys(*longer(*make_plan(2, rate=50.0, limits=Limits(output_bytes=5_000)), 12))
    answers: list[memoryview | SnapshotRefused] = []

    async def script(cluster: FaultyCluster) -> None:
        for reader in ("n2a", "n2b"):
            cluster.cut("n1a", reader)
        await trio.sleep(4)
        maker = cluster.nodes["n1a"]
        spill = maker.status().spill
        assert spill is not None
        assert spill.written > 2

        async def ask() -> None:
            answers.append(await maker.snapshots.give(SnapshotRequest("u1", 0, SECOND)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.03)
            assert cluster.coordinator is not None
            epoch = cluster.coordinator.epoch
            assert maker.orders.order(COORDINATOR, Order(epoch, 1, "replay", "u1", 0)).error == ""
        cluster.heal()

    play(plan, directory, script, turn_us=20_000)
    assert answers == [SnapshotRefused("u1/0@n1a is recovering itself")]


def test_without_a_checkpoint_a_standby_replays_the_sources() -> None:
    """A standby without a checkpoint acknowledges nothing, so upstream still has everything."""
    plan, directory = with_standbys(*longer(*make_plan(1), 12), every_us=3600 * SECOND)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(4)
        cluster.kill("n1a")
        await until(lambda: runs(cluster, "u1/0@n1b"))
        cluster.restart("n1a")
        await until(lambda: runs(cluster, "u1/0@n1a"))

    assert any("u1/0@n1b origin=nothing" in line for line in play(plan, directory, script).log)


@pytest.mark.parametrize("dead", [pytest.param(("n1a", "n2a"), marks=pytest.mark.long), ("n1a", "n2a", "n3a")])
def test_neighbours_that_die_together_are_restored_in_order(dead: tuple[str, ...]) -> None:
    """Upstream's checkpoint contains what downstream's lacks, because of acknowledgements (H2)."""
    plan, directory = with_standbys(*longer(*make_plan(3), 14))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(4.3)
        for node in dead:
            cluster.kill(node)
        helpers = [f"u{n[1]}/0@{n[:2]}b" for n in dead]
        await until(lambda: all(runs(cluster, helper) for helper in helpers))
        await trio.sleep(2)
        for node in dead:
            cluster.restart(node)
        await until(lambda: all(gone(cluster, helper) for helper in helpers))

    play(plan, directory, script)


def test_a_standby_that_dies_with_its_partition_recovers() -> None:
    """Its checkpoints are on its disk."""
    plan, directory = with_standbys(*longer(*make_plan(2), 14))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(4.3)
        for node in ("n1a", "n1b"):
            cluster.kill(node, power=True)
        await trio.sleep(1)
        cluster.restart("n1b")
        await until(lambda: runs(cluster, "u1/0@n1b"))
        cluster.restart("n1a")
        await until(lambda: gone(cluster, "u1/0@n1b"))

    play(plan, directory, script)


def test_data_flow_without_a_coordinator() -> None:
    plan, directory = with_standbys(*longer(*make_plan(1), 14))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        cluster.kill(COORDINATOR)
        await trio.sleep(2)
        cluster.kill("n1a")
        await trio.sleep(1)
        assert gone(cluster, "u1/0@n1b")
        cluster.restart(COORDINATOR)
        await until(lambda: runs(cluster, "u1/0@n1b"))
        cluster.kill(COORDINATOR)
        cluster.restart("n1a")
        await until(lambda: runs(cluster, "u1/0@n1a"))
        await trio.sleep(1)
        assert runs(cluster, "u1/0@n1b")
        cluster.restart(COORDINATOR)
        await until(lambda: gone(cluster, "u1/0@n1b"))

    play(plan, directory, script)


def test_standby_uses_older_checkpoint_if_newest_is_damaged() -> None:
    """H2: upstream still has what follows the older of the two, so nothing is lost; the damage is reported."""
    plan, directory = with_standbys(*longer(*make_plan(2), 14))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(5.3)
        files = cluster.disks["n2b"].files
        newest = max(path for path in files if path.suffix == ".checkpoint")
        files[newest].written[len(files[newest].written) // 2] ^= 1
        cluster.kill("n2a")
        await until(lambda: runs(cluster, "u2/0@n2b"))
        cluster.restart("n2a")
        await until(lambda: gone(cluster, "u2/0@n2b"))

    met = play(plan, directory, script)
    assert sum("checkpoint_refused" in line for line in met.log) == 1
    assert any("u2/0@n2b origin=disk" in line for line in met.log)


def test_an_older_coordinator_is_refused_and_ends() -> None:
    """H6: if two run by mistake, a node follows the one that began later, and tells the other."""
    plan, directory = with_standbys(*longer(*make_plan(1), 16))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        later = cluster.env("n1b").clock.wall_us() + 3 * SECOND
        cluster.nodes["n1b"].orders.order(COORDINATOR, Order(later, 1, "retire", "u1", 0))
        cluster.kill("n1a")
        await trio.sleep(4)
        assert gone(cluster, "u1/0@n1b"), "it follows no older one"
        cluster.restart(COORDINATOR)
        await until(lambda: runs(cluster, "u1/0@n1b"))
        cluster.restart("n1a")
        await until(lambda: gone(cluster, "u1/0@n1b"))

    met = play(plan, directory, script)
    assert any("coordinator ended: n1b follows a coordinator that began later" in line for line in met.log)


def two_units(where_b: str = "n % 10 = 0", **coordinator: Any) -> Deployed:
    """Each unit alone on its node, with standby n3; ``fb`` reads more, and makes less."""
    generator = {"name": "sequence", "duration": "16s"}
    plan, directory = load_data(
        {
            "bucket": "100ms",
            "defaults": {"x": "1s"},
            "nodes": ["n1", "n2", "n3", "n4", "n5"],
            "sources": {
                "a": {"boundary": "100ms", "from": {"generator": {**generator, "seed": 0, "rate": 60}}},
                "b": {"boundary": "100ms", "from": {"generator": {**generator, "seed": 1, "rate": 100}}},
            },
            "query": {
                "s_a": {"filter": {"from": "a", "where": "n >= 0"}},
                "s_b": {"filter": {"from": "b", "where": where_b}},
                "all": {"union": {"from": ["s_a", "s_b"]}},
            },
            "outputs": ["all"],
            "fragments": {
                "fa": {"operators": ["s_a"], "replicas": ["n1"], "standby": ["n3"], "checkpoint": "1s"},
                "fb": {"operators": ["s_b"], "replicas": ["n2"], "standby": ["n3"], "checkpoint": "1s"},
                "all": {"operators": ["all"], "replicas": ["n4", "n5"]},
            },
            "clients": {"c": {"reads": ["all"]}},
            "coordinator": coordinator,
        }
    )
    return Deployed(plan, with_addresses(directory, {n: f"{n.replace(':', '-')}:1" for n in directory.addresses()}))


def test_a_budget_runs_the_most_useful_standbys() -> None:
    """H7: the standby of the larger stream runs, and the next coordinator keeps it running."""
    plan, directory = two_units(budget=1)

    async def script(cluster: FaultyCluster) -> None:
        await until(lambda: runs(cluster, "fb/0@n3"))
        assert gone(cluster, "fa/0@n3")
        await trio.sleep(2)
        cluster.kill(COORDINATOR)
        cluster.restart(COORDINATOR)
        await trio.sleep(2)
        assert runs(cluster, "fb/0@n3")
        assert gone(cluster, "fa/0@n3")
        cluster.kill("n2")
        await trio.sleep(2)
        cluster.restart("n2")

    assert tentative(play(plan, directory, script)) == 0, "who has an active replica is not missed"


def test_other_rates_move_the_active_replica_without_a_gap() -> None:
    """H7: the new one starts before the old one retires; no gap, no duplicate id, no tentative tuple."""
    plan, directory = two_units(budget=1, adapt="2s", margin=0.2)
    together: list[bool] = []

    async def script(cluster: FaultyCluster) -> None:
        await until(lambda: runs(cluster, "fb/0@n3"))
        await until(lambda: runs(cluster, "fa/0@n3"))
        together.append(runs(cluster, "fb/0@n3"))
        await until(lambda: gone(cluster, "fb/0@n3"))
        await trio.sleep(5)
        assert runs(cluster, "fa/0@n3"), "it stays"

    met = play(plan, directory, script)
    assert together == [True]
    assert tentative(met) == 0
    assert met.longest_gap_us("c", (2 * SECOND, 12 * SECOND)) < SECOND // 2


@pytest.mark.parametrize("dead", [pytest.param(("n3a",), marks=pytest.mark.long), ("n2a", "n3a")])
def test_without_checkpoints_everything_upstream_replays(dead: tuple[str, ...]) -> None:
    """H8, the last resort: upstream has truncated the beginning, so it is recomputed from the sources' logs."""
    plan, directory = with_standbys(*longer(*make_plan(3), 16))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(6.3)
        for node in dead:
            spoil(cluster, node[:2] + "b")
            cluster.kill(node)
        helpers = [f"u{n[1]}/0@{n[:2]}b" for n in dead]
        await until(lambda: all(runs(cluster, helper) for helper in helpers), within_s=20)
        for node in dead:
            spoil(cluster, node)
            cluster.restart(node)
        await until(lambda: all(gone(cluster, helper) for helper in helpers))

    met = play(plan, directory, script)
    replays = [line for line in met.log if "order verb=replay replica=u1/0@n1a" in line]
    assert any(line.endswith("refused=") for line in replays)
    assert sum("u1/0@n1a origin=nothing" in line for line in met.log) > 1  # the first one is its first start


def spoil(cluster: FaultyCluster, node: str) -> None:
    """Damages every checkpoint on the disk."""
    for path, file in cluster.disks[node].files.items():
        if path.suffix == ".checkpoint":
            file.written[len(file.written) // 2] ^= 1
            cluster.ended(cluster.began("flip", (node,)))  # the checkers know of the damage


async def seen(cluster: FaultyCluster, what: str) -> None:
    """Waits for a line of the story."""
    await until(lambda: any(what in line for line in cluster.log), look_s=0.001)


@pytest.mark.parametrize(
    "step",
    long_but(
        ["ordered verb=install", "installed replica=u1/0@n1b", "ordered verb=retire"],
        [
            f"{COORDINATOR:12} peer_lost peer=n1a",
            "ordered verb=install",
            "order verb=install",
            "installed replica=u1/0@n1b",
            "ordered verb=retire",
            "order verb=retire",
        ],
    ),
)
def test_next_coordinator_continues_after_death_at_any_step(step: str) -> None:
    plan, directory = with_standbys(*longer(*make_plan(1), 14))
    retires = "retire" in step

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        if not retires:
            cluster.kill("n1a")
            await seen(cluster, step)
        else:
            cluster.kill("n1a")
            await until(lambda: runs(cluster, "u1/0@n1b"))
            cluster.restart("n1a")
            await seen(cluster, step)
        cluster.kill(COORDINATOR, power=True)
        await trio.sleep(1)
        cluster.restart(COORDINATOR)
        if not retires:
            await until(lambda: runs(cluster, "u1/0@n1b"))
            cluster.restart("n1a")
        await until(lambda: runs(cluster, "u1/0@n1a") and gone(cluster, "u1/0@n1b"))

    play(plan, directory, script)


def test_later_of_two_coordinators_is_followed() -> None:
    """H6: a second one starts while the first runs; the first learns of it by its next heartbeat, and ends."""
    plan, directory = with_standbys(*longer(*make_plan(1), 16))
    other = replace(directory, coordinator=replace(directory.coordinator, address="elsewhere:1"))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_coordinator, cluster.env("elsewhere"), plan, other)
            await seen(cluster, "coordinator ended:")
            assert not any("ordered" in line for line in cluster.log), "nothing had to fail"
            cluster.kill("n1a")
            await until(lambda: runs(cluster, "u1/0@n1b"))
            cluster.restart("n1a")
            await until(lambda: runs(cluster, "u1/0@n1a") and gone(cluster, "u1/0@n1b"))
            nursery.cancel_scope.cancel()
        cluster.restart(COORDINATOR)

    play(plan, directory, script)


@pytest.mark.parametrize("host", ["n1b", "source:a"])
def test_processes_follow_no_older_coordinator(host: str) -> None:
    """H6: its hello is enough, and is remembered; orders and directories go by one epoch."""
    plan, directory = with_standbys(*longer(*make_plan(1), 16))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        assert cluster.coordinator is not None
        ours = cluster.coordinator.epoch
        later = Identity("coordinator", COORDINATOR, ours + 3 * SECOND)
        connection, _ = await dial(cluster.env("elsewhere"), plan, later, host, directory.addresses()[host])
        await connection.aclose()
        await seen(cluster, "coordinator ended:")
        node = cluster.nodes["n1b"]
        if host == "n1b":
            assert node.orders.order(COORDINATOR, Order(ours, 1, "install", "u1", 0)).error.startswith(
                f"epoch {ours} is over"
            )
            cluster.kill(host, power=True)
            cluster.restart(host)
            await until(lambda: (new := cluster.nodes.get(node.hosting.node)) is not None and new.server is not None)
            refused = cluster.nodes["n1b"].orders.order(COORDINATOR, Order(ours, 2, "install", "u1", 0))
            assert refused.epoch == later.incarnation
            assert refused.error.startswith(f"epoch {ours} is over")
        cluster.restart(COORDINATOR)
        cluster.kill("n1a")
        await until(lambda: runs(cluster, "u1/0@n1b"))
        cluster.restart("n1a")
        await until(lambda: gone(cluster, "u1/0@n1b"))

    met = play(plan, directory, script)
    assert any(f"coordinator ended: {host} follows a coordinator that began later" in line for line in met.log)


@pytest.mark.parametrize(
    "step",
    long_but(
        ["ordered verb=install replica=fa/0@n3"],
        ["actives_chosen active=['fa/0']", "ordered verb=install replica=fa/0@n3", "state=STABLE"],
    ),
)
def test_a_swap_of_actives_is_finished_by_the_next_coordinator(step: str) -> None:
    """H7: the wanted standbys are on its disk, and the next coordinator continues from there."""
    plan, directory = two_units(budget=1, adapt="2s", margin=0.2)

    async def script(cluster: FaultyCluster) -> None:
        await until(lambda: runs(cluster, "fb/0@n3"))
        await seen(cluster, f"fa/0@n3 {step}" if step.startswith("state") else step)
        cluster.kill(COORDINATOR)
        await trio.sleep(0.5)
        cluster.restart(COORDINATOR)
        await until(lambda: runs(cluster, "fa/0@n3") and gone(cluster, "fb/0@n3"))

    assert tentative(play(plan, directory, script)) == 0


@pytest.mark.long
def test_a_node_that_dies_during_a_swap_does_not_block_it() -> None:
    plan, directory = two_units(budget=1, adapt="2s", margin=0.2)

    async def script(cluster: FaultyCluster) -> None:
        await until(lambda: runs(cluster, "fb/0@n3"))
        await seen(cluster, "ordered verb=install replica=fa/0@n3")
        cluster.kill("n3")
        await trio.sleep(2)
        cluster.restart("n3")
        await until(lambda: runs(cluster, "fa/0@n3") and gone(cluster, "fb/0@n3"))

    play(plan, directory, script)


@pytest.mark.long
def test_the_active_replica_follows_changing_rates() -> None:
    """The larger stream shrinks to a tenth after eight seconds."""
    plan, directory = two_units("n < 800 or n % 10 = 0", budget=1, adapt="1s", margin=0.2)

    async def script(cluster: FaultyCluster) -> None:
        await until(lambda: runs(cluster, "fb/0@n3"))
        await trio.sleep(6)
        assert runs(cluster, "fb/0@n3")
        assert gone(cluster, "fa/0@n3"), "the measured rates say the same as the configured ones"
        await until(lambda: runs(cluster, "fa/0@n3") and gone(cluster, "fb/0@n3"))

    met = play(plan, directory, script)
    assert tentative(met) == 0
    assert met.longest_gap_us("c", (2 * SECOND, 14 * SECOND)) < SECOND // 2


def test_a_damaged_epoch_is_ignored() -> None:
    """H6: otherwise no coordinator would be followed until the clock reaches that epoch."""
    plan, directory = with_standbys(*longer(*make_plan(1), 16))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        cluster.kill("n1a")
        await until(lambda: runs(cluster, "u1/0@n1b"))
        cluster.kill("n1b")
        cluster.disks["n1b"].files[PurePosixPath("nodes/n1b/epoch")].written[2] ^= 4
        cluster.ended(cluster.began("flip", ("n1b",)))
        cluster.restart("n1b")
        await until(lambda: runs(cluster, "u1/0@n1b"))
        cluster.restart("n1a")
        await until(lambda: gone(cluster, "u1/0@n1b"))

    assert any("epoch_damaged" in line for line in play(plan, directory, script).log)


def test_a_new_coordinator_begins_above_all_known_epochs() -> None:
    """H6: nodes have heard of an epoch years ahead of the clock."""
    plan, directory = with_standbys(*longer(*make_plan(1), 16))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        later = cluster.env("n1b").clock.wall_us() + 10**15  # thirty years
        cluster.nodes["n1b"].orders.order(COORDINATOR, Order(later, 1, "retire", "u1", 0))
        cluster.kill("n1a")
        await seen(cluster, "coordinator ended:")
        cluster.restart(COORDINATOR)
        await until(lambda: runs(cluster, "u1/0@n1b"))
        cluster.restart("n1a")
        await until(lambda: gone(cluster, "u1/0@n1b"))

    play(plan, directory, script)
