"""Recordings and sinks are compared with the reference at the end, in each mode, after any faults."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consistency.checking.counters import Counters
from consistency.checking.verdict import Premise
from replicas.simulation.features.recorded_results import check_kept
from replicas.simulation.simulate import Outcome, is_quiet, simulate
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster, sink_folder
from spe.log.recording import client_folder
from spe.stream.history import ProcessUp
from tests.simulation.test_simulate import CONFIG, scenario, story
from tests.support.long_forms import long_but
from tests.support.situations import until

SINKS = [{"jsonl": "final"}, {"jsonl": "changes", "mode": "corrections"}]


def with_sinks(**more: Any) -> dict[str, Any]:
    config = deepcopy(CONFIG)
    config["clients"]["c"]["sinks"] = SINKS
    return config | more


def run(faults: list[dict[str, Any]], seed: int = 1, **more: Any) -> Outcome:
    outcome = simulate(replace(scenario(seed, faults), config=with_sinks(**more)))
    assert outcome.skipped == []
    return outcome


CUT = {"at": "2s", "kind": "cut", "target": "source:a", "for": "3s"}
DEATHS: dict[str, list[dict[str, Any]]] = {
    "killed": [{"at": "4s", "kind": "kill", "target": "client:c", "for": "1s"}],
    "killed while tentative": [CUT, {"at": "4s", "kind": "kill", "target": "client:c", "for": "500ms"}],
    "without power": [CUT, {"at": "4s", "kind": "power", "target": "client:c", "for": "2s"}],
    "twice without power": [
        {"at": "3s", "kind": "power", "target": "client:c", "for": "500ms"},
        {"at": "4500ms", "kind": "power", "target": "client:c", "for": "500ms"},
    ],
    "with a full disk": [CUT, {"at": "4s", "kind": "full", "target": "client:c", "for": "2s"}],
    "killed with a full disk": [
        CUT,
        {"at": "3s", "kind": "full", "target": "client:c", "for": "3s"},
        {"at": "4s", "kind": "power", "target": "client:c", "for": "500ms"},
    ],
    "killed for good": [{"at": "6s", "kind": "kill", "target": "client:c"}],
    "after the end": [{"at": "7950ms", "kind": "power", "target": "client:c", "for": "20ms"}],
    "with a slow disk": [
        {"at": "1s", "kind": "slow-disk", "target": "client:c", "by": "300ms", "for": "6s"},
        {"at": "5s", "kind": "power", "target": "client:c", "for": "500ms"},
    ],
}
SHORT = ["killed while tentative", "twice without power", "killed with a full disk", "killed for good"]


@pytest.mark.parametrize("death", long_but(SHORT, DEATHS))
def test_a_clients_recording_and_sinks_survive_its_death(death: str) -> None:
    for seed in range(2):
        outcome = run(DEATHS[death], seed)
        assert outcome.finished, "\n".join(outcome.story[-40:])
        assert outcome.holds, story(outcome)
        amounts = outcome.counters.amounts
        assert amounts["recordings compared"] == 1
        assert amounts["sinks compared, mode stable"] == amounts["sinks compared, mode corrections"] == 1
        starts = sum(isinstance(e, ProcessUp) and e.host == "client:c" for e in outcome.history)
        assert starts == 1 if death == "with a full disk" else starts > 1


def test_a_complete_client_acknowledges_after_a_restart() -> None:
    """It acknowledges its recording and is complete, although nothing more comes."""
    sources = deepcopy(CONFIG["sources"])
    for source in sources.values():
        source["from"]["generator"]["duration"] = "4s"
    outcome = run([{"at": "7s", "kind": "power", "target": "client:c", "for": "500ms"}], sources=sources)
    assert outcome.finished, "\n".join(outcome.story[-40:])
    assert outcome.holds, story(outcome)


def test_a_complete_client_that_starts_at_the_heal_is_waited_for() -> None:
    sources = deepcopy(CONFIG["sources"])
    for source in sources.values():
        source["from"]["generator"]["duration"] = "4s"
    outcome = run([{"at": "7s", "kind": "kill", "target": "client:c"}], sources=sources)
    assert outcome.finished, "\n".join(outcome.story[-40:])
    assert outcome.holds, story(outcome)


def test_with_tiny_buffers_the_client_syncs_in_time() -> None:
    """Nodes wait for room, and the client receives nothing, so it syncs after a time-out."""
    outcome = run([], limits={"output": 1500})
    assert outcome.finished, "\n".join(outcome.story[-40:])
    assert outcome.holds, story(outcome)


@pytest.mark.parametrize("kind", long_but(["lie"], ["wipe", "lie"]))
def test_client_whose_disk_lost_synced_data_reports_it(kind: str) -> None:
    """If nodes have truncated what it acknowledged, it ends with that message; otherwise it gets everything."""
    faults: list[dict[str, Any]] = [{"at": "5s", "kind": "wipe", "target": "client:c", "for": "500ms"}]
    if kind == "lie":
        faults = [
            {"at": "1s", "kind": "lie", "target": "client:c", "for": "5s"},
            {"at": "5s", "kind": "power", "target": "client:c", "for": "500ms"},
        ]
    told = 0
    for seed in range(3):
        outcome = run(faults, seed)
        assert outcome.finished, "\n".join(outcome.story[-40:])
        assert outcome.holds, story(outcome)
        told += any("cannot go on" in line and "acknowledged" in line for line in outcome.story)
    assert told > 0


def test_a_client_that_cannot_continue_fills_small_buffers() -> None:
    """The logs that it reads fill up (A2), so the end is not judged."""
    wipe = {"at": "5s", "kind": "wipe", "target": "client:c", "for": "500ms"}
    outcome = run([wipe], limits={"output": 1500})
    assert any("cannot go on" in line for line in outcome.story)
    assert outcome.holds, story(outcome)
    assert outcome.counters.amounts["runs held up by a client that cannot go on"] == 1


def test_a_client_without_sinks_is_not_killed() -> None:
    outcome = simulate(scenario(1, [{"at": "4s", "kind": "kill", "target": "client:c", "for": "1s"}]))
    assert "an application that dies is another one" in outcome.skipped[0]


@pytest.mark.parametrize("what", ["recording", "final", "changes"])
async def test_missing_or_wrong_row_is_detected(jump_clock: JumpClock, what: str) -> None:
    plan, directory = replace(scenario(1, []), config=with_sinks()).deployed()
    async with SimCluster(plan, directory) as cluster:
        await cluster.start()
        await until(lambda: is_quiet(cluster))
        reference = cluster.reference()
        assert list(check_kept(cluster, reference, Premise(), Counters())) == []
        disk = cluster.disks["client:c"]
        if what == "recording":
            path = next(p for p in disk.files if client_folder("c") in p.parents and p.suffix == ".seg")
            del disk.files[path].written[len(disk.files[path].written) // 2 :]
        else:
            path = sink_folder(Path(what)) / "sums.0.jsonl"
            lines = disk.files[path].written.splitlines(keepends=True)
            disk.files[path].written[:] = b"".join(lines[:-1]) if what == "final" else b"".join([*lines, lines[-1]])
        (finding,) = check_kept(cluster, reference, Premise(), Counters())
        assert finding.property == "P3"
        assert list(check_kept(cluster, reference, Premise(dead=frozenset({"client:c"})), Counters())) == []
