"""Replicas that write a checkpoint log (G), killed in every way: they go on from it, and nothing is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import PurePosixPath
from typing import Any
from unittest.mock import patch

import pytest
import trio

from replicas.checkpoint.log import COPIES, CheckpointLog
from replicas.checkpoint.replica_log import ReplicaLog
from replicas.node.snapshots import Snapshots
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.world.disk import SimDisk
from spe.errors import LogError, LogFull
from spe.log.format import Segment
from spe.log.marks import Mark, Marks
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.nodes import Checkpoints
from spe.stream.history import Note
from spe.stream.ids import ReplicaId
from spe.stream.names import NodeState
from spe.wire.messages.replicas import SnapshotRefused
from tests.support.faulty_cluster import FaultyCluster
from tests.support.log_checks import logs_checked
from tests.support.long_forms import long_but
from tests.support.situations import Met, play

QUERIES: dict[str, dict[str, Any]] = {
    "tumbling": {"aggregate": {"from": "s", "window": {"tumbling": "2s"}, "group_by": "key", "compute": "n"}},
    "sliding": {
        "aggregate": {"from": "s", "window": {"sliding": "2s", "slide": "500ms"}, "group_by": "key", "compute": "n"}
    },
    "count": {"aggregate": {"from": "s", "window": {"count": 7}, "group_by": "key", "compute": "n"}},
    "topk": {"topk": {"from": "s", "k": 2, "order_by": ["qty", "key desc"], "window": {"tumbling": "2s"}}},
    "top": {"topk": {"from": "s", "k": 2, "order_by": ["qty", "key desc"]}},
    "join": {"join": {"left": "s", "right": "t", "kind": "full", "on": "key", "within": ["-1s", "1s"]}},
    "chain": {"custom": {"from": ["m"], "class": "replicas.simulation.features.hash_chain:HashChain"}},
    "keyed": {
        "custom": {
            "from": ["s"],
            "class": "tests.support.operators_for_tests:Visits",
            "arguments": {"by": ["key"], "gap": 300_000},
        }
    },
}

RECONCILE = ("checkpoint", "undo")


def logged(
    query: str,
    *,
    replicas: int = 2,
    standbys: int = 0,
    reconcile: str = "checkpoint",
    seconds: int = 12,
    bucket: str = "100ms",
    **checkpoint: Any,
) -> Deployed:
    """One stateful fragment behind two sources, and one that passes on what it makes."""
    body = {kind: dict(what) for kind, what in QUERIES[query].items()}
    for what in body.values():
        if "compute" in what:
            what["compute"] = {"n": "count(*)", "v": "sum(qty)", "f": "first(price)"}
    nodes = [f"n{letter}" for letter in "abcd"[: replicas + standbys]]
    generator = {"name": "orders", "duration": f"{seconds}s", "rate": 60, "keys": 20}
    made = {"s": {"generator": {**generator, "seed": 1}}, "t": {"generator": {**generator, "seed": 2}}}
    data: dict[str, Any] = {
        "cluster": "logged",
        "bucket": bucket,
        "defaults": {"x": "1s", "reconcile": reconcile},
        "nodes": nodes,
        "sources": {name: {"boundary": bucket, "from": reader} for name, reader in made.items()},
        "query": {"m": {"map": {"from": "s", "compute": {"key": "key", "v": "qty", "p": "price"}}}, "out": body},
        "outputs": ["out"],
        "fragments": {
            "f": {
                "operators": ["out"],
                "replicas": nodes[:replicas],
                **({"standby": nodes[replicas:]} if standbys else {}),
                "checkpoint": {"continuous": True, "recovery": "2s", **checkpoint},
            },
        },
        "clients": {"client": {"reads": ["out"]}},
    }
    if query != "chain":
        del data["query"]["m"]
    else:
        data["fragments"]["f"]["operators"] = ["m", "out"]
    if query != "join":
        del made["t"]
        data["sources"] = {"s": {"boundary": bucket, "from": made["s"]}}
    return Scenario(0, data).deployed()


def told(met: Met, name: str) -> list[str]:
    return [e.text for e in met.history if isinstance(e, Note) and e.name == name]


def origins(met: Met) -> list[str]:
    """From what replicas went on."""
    return [text.rpartition("origin=")[2] for text in told(met, "installed")]


async def settled(cluster: FaultyCluster, *nodes: str) -> None:
    for node in nodes:
        cluster.restart(node)
    await trio.sleep(3)
    assert all(r.state is NodeState.STABLE for r in cluster.replicas().values())


@pytest.mark.parametrize(
    ("query", "reconcile"),
    long_but(
        [("count", "checkpoint"), ("join", "undo"), ("chain", "checkpoint"), ("keyed", "undo")],
        product(QUERIES, RECONCILE),
    ),
)
def test_all_replicas_are_killed_at_once(query: str, reconcile: str) -> None:
    async def script(cluster: FaultyCluster) -> None:
        for pause in (3, 2.3):
            await trio.sleep(pause)
            cluster.kill("na")
            cluster.kill("nb")
            await trio.sleep(0.4)
            await settled(cluster, "na", "nb")

    met = play(*logged(query, reconcile=reconcile), script)
    assert origins(met)[2:].count("log") >= 2
    assert not told(met, "log_refused")


@pytest.mark.parametrize("query", long_but(["tumbling", "join", "keyed"], QUERIES))
def test_log_is_bounded_and_rebuilt_states_are_equal(query: str) -> None:
    async def script(cluster: FaultyCluster) -> None:
        for _ in range(2):
            await killed("na", "nb", at=3.0)(cluster)

    with logs_checked(3_000) as checked:
        met = play(*logged(query, recovery="3ms", share="100%", replicas=2, seconds=14), script)
    assert origins(met)[2:] == ["log"] * 4
    assert checked.states == 4
    assert checked.slices > 60


def killed(*nodes: str, power: bool = False, at: float = 3.0) -> Callable[[FaultyCluster], Awaitable[None]]:
    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(at)
        for node in nodes:
            cluster.kill(node, power=power)
        await trio.sleep(0.3)
        await settled(cluster, *nodes)

    return script


def test_single_node_resumes_from_log_before_asking_partner() -> None:
    met = play(*logged("tumbling"), killed("nb"))
    assert origins(met)[2:] == ["log"]
    assert len(told(met, "recovered")) == 1


@pytest.mark.parametrize("query", long_but(["count"], ["count", "join", "chain"]))
def test_the_whole_cluster_loses_power(query: str) -> None:
    """What was not synced is gone, wherever it was cut."""
    deployed = logged(query)
    hosts = [*deployed.directory.nodes, *(f"source:{s}" for s in deployed.plan.sources)]

    async def script(cluster: FaultyCluster) -> None:
        for pause in (2.7, 2.2):
            await trio.sleep(pause)
            for host in hosts:
                cluster.kill(host, power=True)
            await trio.sleep(0.5)
            for host in hosts:
                cluster.restart(host)
            await settled(cluster)

    met = play(*deployed, script)
    assert origins(met)[2:].count("log") >= 2


@pytest.mark.parametrize(
    ("query", "reconcile"),
    long_but(
        [("tumbling", "checkpoint"), ("count", "undo"), ("keyed", "checkpoint")],
        product(["tumbling", "count", "topk", "keyed"], RECONCILE),
    ),
)
def test_log_has_redo_slices_and_no_tentative_slices(query: str, reconcile: str) -> None:
    """Killed while tentative, while correcting, and right after that."""

    async def script(cluster: FaultyCluster) -> None:
        for length in (1.7, 2.2, 3.5):
            await trio.sleep(1.5)
            cluster.cut("source:s", "*")
            await trio.sleep(min(length, 2.0))
            cluster.heal()
            await trio.sleep(max(length - 2.0, 0.01))
            cluster.kill("na")
            cluster.kill("nb")
            await trio.sleep(0.2)
            await settled(cluster, "na", "nb")

    met = play(*logged(query, reconcile=reconcile, seconds=20), script)
    assert origins(met)[2:].count("log") >= 3
    assert not told(met, "log_refused")


def test_full_producer_learns_what_it_can_forget() -> None:
    """Open windows hold back T; a producer with little room would wait for ever for what nobody needs."""
    config: dict[str, Any] = {
        "bucket": "100ms",
        "defaults": {"x": "1s"},
        "nodes": ["na", "nb"],
        "sources": {"s": {"from": {"generator": {"name": "orders", "duration": "8s", "rate": 60, "keys": 20}}}},
        "query": {
            "m": {"map": {"from": "s", "compute": {"key": "key", "v": "qty"}}},
            "out": {"aggregate": {"from": "m", "window": {"count": 90}, "group_by": "key", "compute": {"n": "sum(v)"}}},
        },
        "outputs": ["out"],
        "limits": {"output": 6_000},
        "fragments": {
            "f": {"operators": ["m"], "replicas": ["na"]},
            "g": {
                "operators": ["out"],
                "replicas": ["nb"],
                "checkpoint": {"continuous": True, "recovery": "60s", "share": "1%"},
            },
        },
        "clients": {"client": {"reads": ["out"]}},
    }

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(9)

    play(*Scenario(0, config).deployed(), script)


def test_results_that_a_client_has_not_read_outlive_all_replicas() -> None:
    """The log has the output that somebody may still ask for; what made it may have been forgotten upstream."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        cluster.cut("client:client", "*")
        await trio.sleep(4)
        cluster.kill("na")
        cluster.kill("nb")
        cluster.heal()
        await trio.sleep(0.2)
        await settled(cluster, "na", "nb")

    met = play(*logged("count"), script)
    assert origins(met)[2:] == ["log", "log"]


# --- disks ---


def files_of(cluster: FaultyCluster, node: str, copy: str = "") -> list[PurePosixPath]:
    """Segments of its log, of one copy or both."""
    found = [p for p in cluster.disks[node].files if p.parent.name in COPIES and Segment.parse(p.name)]
    return [p for p in found if not copy or p.parent.name == copy]


def damaged(cluster: FaultyCluster, node: str, copies: Sequence[str]) -> None:
    """A bit of a footprint in the middle is not what it was, in each of these copies."""
    for path in [p for copy in copies for p in files_of(cluster, node, copy)]:
        written = cluster.disks[node].files[path].written
        written[len(written) // 2] ^= 1


def both_die(befalls: Callable[[FaultyCluster, str], None]) -> Callable[[FaultyCluster], Awaitable[None]]:
    """Both nodes are killed, and something befalls what they leave on disk."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(4)
        for node in ("na", "nb"):
            cluster.kill(node)
            befalls(cluster, node)
        await trio.sleep(0.2)
        await settled(cluster, "na", "nb")

    return script


def test_a_flipped_bit_in_one_copy_is_read_from_the_other() -> None:
    met = play(*logged("count"), both_die(lambda cluster, node: damaged(cluster, node, "0")))
    assert origins(met)[2:] == ["log", "log"]
    assert not told(met, "log_refused")


def test_lost_copy_is_restored() -> None:
    def lost(cluster: FaultyCluster, node: str) -> None:
        for path in [p for p in cluster.disks[node].files if p.parent.name == COPIES[1]]:
            cluster.disks[node].remove(path)

    met = play(*logged("count"), both_die(lost))
    assert origins(met)[2:] == ["log", "log"]


def test_damage_in_both_copies_is_reported_and_partner_helps() -> None:
    """The other one goes on from its log; the one that cannot takes its snapshot and begins another log."""

    def one_sided(cluster: FaultyCluster, node: str) -> None:
        if node == "na":
            damaged(cluster, node, "01")

    async def script(cluster: FaultyCluster) -> None:
        await both_die(one_sided)(cluster)
        assert files_of(cluster, "na", "0")[-1].parent.parent.name == "1", "the next number has begun"
        await killed("na", "nb", at=2)(cluster)

    met = play(*logged("count", seconds=16), script)
    (refused,) = told(met, "log_refused")
    assert "replica=f/0@na" in refused
    assert "is damaged or missing in both copies" in refused
    assert origins(met)[2:].count("log") == 3


def test_both_copies_lost_is_no_state() -> None:
    """Sources have everything still; else a partner helps, as after the loss of any disk (A3, H8)."""

    def lost(cluster: FaultyCluster, node: str) -> None:
        for path in [p for p in cluster.disks[node].files if node == "na" and "log" in p.parts]:
            cluster.disks[node].remove(path)

    met = play(*logged("count"), both_die(lost))
    assert sorted(origins(met)[2:]) == ["log", "nothing"]


def test_log_is_trimmed_while_client_is_away() -> None:
    """What it may still ask for is written anew, and comes back with the state."""
    held: list[int] = []

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        for node in ("na", "nb"):
            cluster.cut("client:client", node)
        await trio.sleep(6)
        for node in ("na", "nb"):
            log = cluster.nodes[node].hosting.log(ReplicaId("f", 0, node)).log
            assert log is not None
            held.append(log.commits[-1].first - log.commits[-1].needs)
            cluster.kill(node)
        await trio.sleep(0.2)
        await settled(cluster, "na", "nb")
        cluster.heal()

    with patch.multiple("replicas.node.log_task", OUTPUT_BYTES=0, OUTPUT_AGAIN=0):
        met = play(*logged("count", recovery="5ms", share="100%"), script)
    assert origins(met)[2:] == ["log", "log"]
    assert max(held) < 60


def test_full_disk_delays_log_but_not_results() -> None:
    """Nothing is acknowledged meanwhile; killed on the full disk, it goes on from what was there before."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        for node in ("na", "nb"):
            cluster.disks[node].space_left = 10
        await trio.sleep(1.5)
        status = cluster.nodes["na"].status().replicas[0].log
        assert status is not None
        assert "No space left" in status.trouble
        acknowledged = [dict(r.recovery.acks()) for r in cluster.replicas().values()]
        await trio.sleep(0.7)
        assert [dict(r.recovery.acks()) for r in cluster.replicas().values()] == acknowledged
        cluster.kill("na")
        await trio.sleep(0.2)
        cluster.restart("na")
        await trio.sleep(1)
        cluster.disks["nb"].space_left = None
        await trio.sleep(12)  # copies are made whole, and a complete slice is tried, in their time
        status = cluster.nodes["nb"].status().replicas[0].log
        assert status is not None
        assert status.trouble == ""
        assert [dict(r.recovery.acks()) for r in cluster.replicas().values()] != acknowledged
        await killed("na", "nb", at=0.5)(cluster)

    met = play(*logged("count", seconds=22), script)
    assert "log" in origins(met)[2:]
    assert len(told(met, "log_trouble")) >= 2


def test_the_slices_of_before_are_not_used_after_a_refused_one() -> None:
    """A disk without room for one slice: the next one in the log has all."""

    async def script(cluster: FaultyCluster) -> None:
        for _ in range(3):
            await trio.sleep(1.1)
            cluster.disks["na"].space_left = 600
            await trio.sleep(0.6)
            cluster.disks["na"].space_left = None
        await trio.sleep(6)
        await killed("na", "nb", at=0)(cluster)

    met = play(*logged("count", seconds=16), script)
    assert told(met, "log_slice_refused") or told(met, "log_trouble")


@pytest.mark.parametrize("refused", ["slice", "mark"])
def test_last_slice_is_written_once_disk_has_room(refused: str) -> None:
    """Nothing follows that would be written with it; upstream would keep its input for ever."""
    write = Marks.write

    async def without_room(marks: Marks, mark: Mark) -> None:
        if "nodes" in marks._folder.parts:  # those of sources are like these
            raise LogFull("no room")
        await write(marks, mark)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2.5)
        for node in on.nodes:
            cluster.disks[node].space_left = 0 if refused == "slice" else None
        with patch.object(Marks, "write", without_room) if refused == "mark" else nullcontext():
            await trio.sleep(2.5)
        for node in on.nodes:
            cluster.disks[node].space_left = None
        await trio.sleep(14)
        for replica in cluster.replicas().values():
            assert [upto for _, upto in replica.recovery.acks()] == replica.sunion.acknowledged()

    plan, on = logged("count", seconds=3)
    play(plan, on, script)


@pytest.mark.parametrize("read", [True, False])
def test_late_log_is_written_after_end_of_input(read: bool) -> None:
    """Its newest slice is the last one, and the replica has the state from elsewhere.

    Args:
      read: it can be read meanwhile, but not written.
    """
    lock, listed, broken = SimDisk.lock, SimDisk.list, [False]

    def locking(disk: SimDisk, path: PurePosixPath) -> None:
        if broken[0] and "log" in path.parts:
            raise OSError("too many open files")
        lock(disk, path)

    def listing(disk: SimDisk, folder: PurePosixPath) -> list[str]:
        if broken[0] and not read and folder.name in COPIES:
            raise OSError("too many open files")
        return listed(disk, folder)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(5)
        cluster.kill("na")
        await trio.sleep(0.2)
        broken[0] = True
        await settled(cluster, "na")
        broken[0] = False
        await trio.sleep(8)
        for replica in cluster.replicas().values():
            assert [upto for _, upto in replica.recovery.acks()] == replica.sunion.acknowledged()
            assert replica.recovery.safe

    with patch.object(SimDisk, "lock", locking), patch.object(SimDisk, "list", listing):
        play(*logged("count", seconds=3), script)


def test_irreparable_copy_is_reported_and_log_is_restarted() -> None:
    """One copy is behind, and in the other a bit of what it alone has is not what it was."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        kept = cluster.nodes["na"].hosting.log(next(iter(cluster.nodes["na"].hosting.running.values())).replica.id)
        assert kept.log is not None
        kept.log._written[1].fails(OSError("it is gone"))
        await trio.sleep(0.8)
        segment = files_of(cluster, "na", "0")[-1]
        cluster.disks["na"].files[segment].written[-20] ^= 1
        await trio.sleep(8)
        status = cluster.nodes["na"].status().replicas[0].log
        assert status is not None
        assert status.trouble == ""
        assert kept.folder.name == "1"
        await killed("na", "nb", at=0.2)(cluster)

    met = play(*logged("count", seconds=16), script)
    (refused,) = told(met, "log_refused")
    assert "is damaged or missing in both copies" in refused
    assert origins(met)[2:] == ["log", "log"]


def test_complete_slice_contains_output_clients_may_request() -> None:
    """The log before it, which had that too, cannot be read any more."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        cluster.cut("client:client", "*")
        await trio.sleep(2)
        for node in cluster.nodes.values():
            (host,) = node.hosting.running.values()
            await node.hosting.log(host.replica.id).refuse("a test")
        await trio.sleep(2)
        cluster.kill("na")
        cluster.kill("nb")
        cluster.heal()
        await trio.sleep(0.2)
        await settled(cluster, "na", "nb")

    met = play(*logged("count", bucket="40ms"), script)
    assert origins(met)[2:] == ["log", "log"]


def test_a_log_that_cannot_be_opened_is_in_the_status() -> None:
    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        status = cluster.nodes["na"].status().replicas[0].log
        assert status is not None
        assert status.trouble == "no lock"

    with patch.object(CheckpointLog, "open", side_effect=LogError("no lock")):
        play(*logged("count", seconds=3), script)


def test_unwritable_state_is_reported_and_results_continue(capsys: pytest.CaptureFixture[str]) -> None:
    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(6)
        assert all(r.state is NodeState.STABLE for r in cluster.replicas().values())

    unstorable = {"custom": {"from": ["m"], "class": "tests.support.operators_for_tests:Unstorable"}}
    with patch.dict(QUERIES, chain=unstorable):
        met = play(*logged("chain", seconds=7, bucket="40ms"), script)
    assert any("builtins.set" in text for text in told(met, "log_slice_refused"))
    assert capsys.readouterr().err.count("cannot be written to its checkpoint log") == 2


# --- standbys ---


@pytest.mark.parametrize("query", long_but(["count", "join"], QUERIES))
def test_a_standby_follows_the_log_and_takes_over(query: str) -> None:
    """It acknowledges what its log holds, and goes on from there; then it follows the other one again."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(4)
        standby = cluster.nodes["nb"].status().standbys[0]
        assert standby.checkpoints >= 3
        assert standby.trouble == ""
        cluster.kill("na")
        await trio.sleep(3)
        cluster.restart("na")
        await trio.sleep(5)
        assert {str(r.id) for r in cluster.replicas().values()} == {"f/0@na"}
        assert cluster.nodes["nb"].status().standbys[0].trouble == ""

    met = play(*logged(query, replicas=1, standbys=1, seconds=16), script)
    assert [e.text for e in met.history if isinstance(e, Note) and e.name == "installed" and e.host == "nb"] == [
        "replica=f/0@nb origin=log"
    ]


def test_standby_replaces_log_refused_after_end_of_input() -> None:
    """It makes nothing behind the end of the refused one; upstream would keep its input for ever, and a move wait."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(5)
        cluster.kill("na")
        damaged(cluster, "nb", "01")
        await trio.sleep(3)
        (replica,) = cluster.replicas().values()
        assert [upto for _, upto in replica.recovery.acks()] == replica.sunion.acknowledged()
        await settled(cluster, "na")

    met = play(*logged("count", replicas=1, standbys=1, seconds=3), script)
    assert len(told(met, "log_refused")) == 1


def test_only_later_part_of_log_is_sent() -> None:
    sizes: list[int] = []

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(12)

    met = play(*logged("count", replicas=2, standbys=1, recovery="1s"), script)
    sizes = [int(text.rpartition("bytes=")[2]) for text in told(met, "checkpoint_taken")]
    assert len(sizes) > 6
    assert max(sizes[3:8]) < 60_000


def test_standby_turns_to_another_when_its_source_dies() -> None:
    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3.5)
        maker = told_maker(cluster)
        cluster.kill(maker)
        await trio.sleep(2.5)
        assert told_maker(cluster) != maker
        cluster.restart(maker)
        await trio.sleep(2)
        for node in ("na", "nb"):
            cluster.kill(node)
        await trio.sleep(3)
        await settled(cluster, "na", "nb")

    play(*logged("tumbling", replicas=2, standbys=1, seconds=16), script)


def told_maker(cluster: FaultyCluster) -> str:
    """Whose log the standby wrote last."""
    taken = [e.text for e in cluster.history if isinstance(e, Note) and e.name == "checkpoint_taken"]
    return taken[-1].partition("maker=")[2].split()[0]


@pytest.mark.parametrize("seconds", long_but([6.0], [2.0, 6.0]))
def test_standby_takes_over_from_full_snapshot_without_log(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or from the log, once it can be read again."""
    give = Snapshots._logged
    broken: list[bool] = []

    async def refused(snapshots: Snapshots, id: ReplicaId, *more: Any, **how: Any) -> memoryview | SnapshotRefused:
        return SnapshotRefused("damaged") if broken else await give(snapshots, id, *more, **how)

    monkeypatch.setattr(Snapshots, "_logged", refused)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        broken.append(True)
        await trio.sleep(seconds)
        assert "damaged" in cluster.nodes["nb"].status().standbys[0].trouble or seconds < 3
        if seconds < 3:
            broken.clear()
            await trio.sleep(4)
            assert cluster.nodes["nb"].status().standbys[0].trouble == ""
        cluster.kill("na")
        await trio.sleep(3)
        broken.clear()
        cluster.restart("na")
        await trio.sleep(3)
        assert {str(r.id) for r in cluster.replicas().values()} == {"f/0@na"}

    met = play(*logged("count", replicas=1, standbys=1, seconds=18), script)
    begun = [e.text for e in met.history if isinstance(e, Note) and e.name == "installed" and e.host == "nb"]
    assert begun == [f"replica=f/0@nb origin={'log' if seconds < 3 else 'disk'}"]
    assert any("whole=True" in text for text in told(met, "checkpoint_taken")) or seconds < 3


# --- another configuration ---


def without_logs(directory: Directory) -> Directory:
    """The same cluster with whole checkpoints each second."""
    whole = Checkpoints(1_000_000, disk=True)
    nodes = {name: replace(node, checkpoints=whole) for name, node in directory.nodes.items()}
    return replace(directory, logs={}, nodes=nodes)


async def all_restart(cluster: FaultyCluster, directory: Directory) -> None:
    """Every node at once, with another file."""
    for node in directory.nodes:
        cluster.kill(node)
        cluster.directories[node] = directory
    await trio.sleep(0.3)
    await settled(cluster, *directory.nodes)


def kept_by(cluster: FaultyCluster, node: str) -> set[str]:
    """What there is of its state on disk."""
    whole = {"checkpoint" for p in cluster.disks[node].files if p.suffix == ".checkpoint"}
    return whole | ({"log"} if files_of(cluster, node) else set())


@pytest.mark.parametrize(
    ("query", "reconcile"),
    long_but(
        [("tumbling", "checkpoint"), ("count", "undo")], product(["count", "tumbling", "join", "topk"], RECONCILE)
    ),
)
def test_log_can_be_switched_on_and_off_for_all_replicas(query: str, reconcile: str) -> None:
    """Each time they go on from what they have, which is kept until what is written now has more."""
    plan, on = logged(query, reconcile=reconcile, seconds=30)
    off = without_logs(on)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        for turn, directory in enumerate((off, on, off, on)):
            await all_restart(cluster, directory)
            await trio.sleep(3)
            for node in on.nodes:
                assert kept_by(cluster, node) == {"log" if turn % 2 else "checkpoint"}

    met = play(plan, on, script)
    assert origins(met)[2:] == ["log", "log", "disk", "disk", "log", "log", "disk", "disk"]
    assert not told(met, "log_refused")


@pytest.mark.parametrize("query", long_but(["count"], ["count", "join"]))
def test_setting_changes_back_before_first_write(query: str) -> None:
    """The disk takes nothing: what was there before counts, and a log that is older than a checkpoint does not."""
    plan, on = logged(query, seconds=30)
    off = without_logs(on)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        await all_restart(cluster, off)
        await trio.sleep(2)
        for directory in (on, off, on):
            for node in on.nodes:
                cluster.kill(node)
                cluster.directories[node] = directory
                cluster.disks[node].space_left = 0
            await trio.sleep(0.3)
            for node in on.nodes:
                cluster.restart(node)
                cluster.disks[node].space_left = 0
            await trio.sleep(1.5)
            assert all(r.state is NodeState.STABLE for r in cluster.replicas().values())
        for node in on.nodes:
            cluster.disks[node].space_left = None

    met = play(plan, on, script)
    assert origins(met)[2:] == ["log"] * 2 + ["disk"] * 6


def test_log_older_than_checkpoint_is_not_resumed() -> None:
    """The disk did not let it go."""
    plan, on = logged("count", seconds=20)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        await all_restart(cluster, without_logs(on))
        await trio.sleep(2)
        assert kept_by(cluster, "na") == {"log", "checkpoint"}
        await all_restart(cluster, on)

    with patch.object(ReplicaLog, "forget", side_effect=OSError("read-only")):
        met = play(plan, on, script)
    assert origins(met)[2:] == ["log", "log", "disk", "disk"]
    assert told(met, "not_forgotten")


@pytest.mark.parametrize("first", ["on", "off"])
def test_standby_has_checkpoints_from_before_setting_changed(first: str) -> None:
    plan, on = logged("count", replicas=1, standbys=1, seconds=20)
    ways = (on, without_logs(on)) if first == "on" else (without_logs(on), on)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(0.1)
        for node in on.nodes:
            cluster.kill(node)
            cluster.directories[node] = ways[0]
        await settled(cluster, *on.nodes)
        await trio.sleep(4)
        for node in on.nodes:
            cluster.kill(node)
            cluster.directories[node] = ways[1]
        cluster.wipe("na")  # what the standby holds is all there is
        await trio.sleep(0.3)
        cluster.restart("nb")
        await trio.sleep(4)
        assert {str(r.id) for r in cluster.replicas().values()} == {"f/0@nb"}
        await settled(cluster, "na")
        await trio.sleep(5)
        assert kept_by(cluster, "nb") == {"checkpoint" if first == "on" else "log"}

    met = play(plan, on, script)
    begun = [e.text for e in met.history if isinstance(e, Note) and e.name == "installed" and e.host == "nb"]
    assert begun == [f"replica=f/0@nb origin={'log' if first == 'on' else 'disk'}"]


def test_checkpoint_makes_up_for_log_damaged_in_both_copies() -> None:
    """It was written before the log was turned on, and upstream has all that follows."""
    plan, on = logged("count", replicas=1, seconds=16)

    async def script(cluster: FaultyCluster) -> None:
        cluster.kill("na")
        cluster.directories["na"] = without_logs(on)
        await settled(cluster, "na")
        cluster.kill("na")
        cluster.directories["na"] = on
        cluster.restart("na")
        await trio.sleep(0.8)
        cluster.kill("na")
        assert kept_by(cluster, "na") == {"checkpoint", "log"}
        damaged(cluster, "na", "01")
        await settled(cluster, "na")

    met = play(plan, on, script)
    assert origins(met)[-1] == "disk"
