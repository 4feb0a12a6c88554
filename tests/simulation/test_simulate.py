"""A scenario is data, and the same data give the same run."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from replicas.faults.model import read_faults
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import Outcome, simulate
from spe.errors import ConfigError
from spe.problems import Problems
from spe.stream.history import FaultBegan, FaultEnded, ProcessDown
from spe.stream.names import StreamId
from tests.support.history_lines import write_lines
from tests.support.long_forms import long_but

CONFIG: dict[str, Any] = {
    "cluster": "scenario",
    "bucket": "100ms",
    "defaults": {"x": "1s", "alpha": 0.8, "policy": "process"},
    "sources": {
        name: {
            "from": {"generator": {"name": "orders", "rate": 40, "keys": 5, "seed": at, "duration": "8s"}},
            "boundary": "100ms",
            "disorder": "20ms",
        }
        for at, name in enumerate("ab")
    },
    "query": {
        "both": {"union": ["a", "b"]},
        "sums": {
            "aggregate": {
                "from": "both",
                "window": {"tumbling": "500ms"},
                "group_by": "key",
                "compute": {"v": "sum(qty)"},
            }
        },
    },
    "outputs": ["sums"],
    "fragments": {"all": {"operators": ["both", "sums"], "replicas": ["n1", "n2"]}},
    "nodes": ["n1", "n2"],
    "clients": {"c": {"reads": ["sums"]}},
}

#: Every kind of fault, some of them overlapping.
FAULTS: list[dict[str, Any]] = [
    {"at": "500ms", "kind": "delay", "from": "n1", "to": "client:c", "by": "5ms", "jitter": "20ms", "for": "2s"},
    {"at": "600ms", "kind": "loss", "from": "source:a", "to": "n2", "share": 0.1, "for": "2s"},
    {"at": "700ms", "kind": "slow", "from": "source:b", "to": "n1", "bytes_per_second": 20_000, "for": "2s"},
    {"at": "1s", "kind": "kill", "target": "reads:c", "for": "1s"},
    {"at": "2500ms", "kind": "power", "target": "source:a", "for": "500ms"},
    {"at": "3s", "kind": "busy", "target": "n2", "times": 5, "for": "1s"},
    {"at": "3s", "kind": "refuse", "from": "n1", "to": "source:b", "for": "1s"},
    {"at": "3100ms", "kind": "reset", "from": "n1", "to": "source:b"},
    {"at": "3500ms", "kind": "cut", "from": "source:a", "to": "all", "for": "1500ms"},
    {"at": "4s", "kind": "kill", "target": "state:STABILIZATION", "for": "1s"},
    {"at": "4s", "kind": "freeze", "target": "n2", "for": "300ms"},
    {"at": "5200ms", "kind": "skew", "target": "n1", "by": "1h", "for": "1s"},
    {"at": "5300ms", "kind": "lag", "target": "client:c", "by": "30ms", "for": "1s"},
    {"at": "6s", "kind": "stall", "target": "source:b", "for": "500ms"},
    {"at": "6500ms", "kind": "restart", "target": "n1"},
]


def scenario(seed: int, faults: list[dict[str, Any]] | None = None, **options: Any) -> Scenario:
    bare = Scenario(seed, CONFIG, options, (), 8_000_000)
    problems = Problems()
    found = read_faults(FAULTS if faults is None else faults, (), bare.deployed().directory, problems)
    assert [p.message for p in problems.found] == []
    return Scenario(seed, CONFIG, options, tuple(found), 8_000_000)


def story(outcome: Outcome) -> str:
    return "\n".join(str(f) + "".join(f"\n    {line}" for line in f.around) for f in outcome.findings)


@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_fault_is_tolerated(seed: int) -> None:
    outcome = simulate(scenario(seed))
    assert outcome.finished, "\n".join(outcome.story[-60:])
    assert outcome.holds, story(outcome)


def test_the_history_has_every_fault_and_its_end() -> None:
    outcome = simulate(scenario(1))
    began = [e for e in outcome.history if isinstance(e, FaultBegan)]
    assert {e.kind for e in began} >= {str(f["kind"]) for f in FAULTS} - {"restart"}
    ended = {e.number for e in outcome.history if isinstance(e, FaultEnded)}
    assert {e.number for e in began} <= ended
    assert any(isinstance(e, ProcessDown) for e in outcome.history)


def test_a_kill_outside_the_fault_model_is_skipped() -> None:
    both = [{"at": "2s", "kind": "kill", "target": ["n1", "n2"], "for": "1s"}]
    outcome = simulate(scenario(1, both))
    assert len(outcome.skipped) == 1
    assert "nobody else has the state" in outcome.skipped[0]
    assert outcome.holds


def test_a_scenario_survives_json() -> None:
    one = scenario(7, link={"delay_us": 300}, limits={"output_bytes": 100_000})
    again = Scenario.from_data(json.loads(one.dump()))
    assert again.dump() == one.dump()
    assert again.plan().limits.output_bytes == 100_000
    assert again.link().delay_us == 300


def test_wrong_scenario_data_are_refused() -> None:
    with pytest.raises(ConfigError, match="no scenario"):
        Scenario.from_data({"version": 1, "seed": 1})
    data = scenario(1).to_data()
    data["faults"] = [{"at": "1s", "kind": "kill", "target": "n9"}]
    with pytest.raises(ConfigError, match="n9"):
        Scenario.from_data(data)


def digest(seed: int) -> str:
    """A digest of the whole history of a run."""
    one = scenario(seed)
    query = one.plan().query
    lines = write_lines(simulate(one).history, {StreamId(s): query.schema_of(StreamId(s)) for s in ("a", "b", "sums")})
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@pytest.mark.parametrize("seed", long_but([1], [1, 2]))
def test_a_run_is_the_same_in_any_process(seed: int) -> None:
    """With any PYTHONHASHSEED: nothing depends on the order of sets, object ids, real time or unseeded randomness."""
    program = f"from tests.simulation.test_simulate import digest; print(digest({seed}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in (0, 4242)
    }
    assert found == {digest(seed)}
