"""The kind of fault that docs/internals/new-fault.md adds: one record, and every part of the project knows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from consistency.checking.schedule import effect_of
from consistency.faults.kind import Effect
from consistency.faults.kinds import KINDS, register, unregister
from replicas.faults.model import load_faults_text, refuse_unreal
from replicas.simulation.scenarios.random_faults import random_faults
from replicas.simulation.simulate import simulate
from spe.config import load_data
from spe.errors import ConfigError
from spe.stream.history import FaultBegan, FaultEnded
from tests.simulation.test_simulate import CONFIG, scenario

PAGE = Path(__file__).parents[4] / "docs" / "internals" / "new-fault.md"
SCRIPT = "- {at: 1s, kind: brownout, target: n1, times: 4, by: 50ms, for: 2s}"


@pytest.fixture(autouse=True)
def brownout() -> Iterator[None]:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    exec(code, {})
    yield
    unregister("brownout")


def test_a_fault_script_accepts_the_new_kind() -> None:
    directory = load_data(CONFIG).directory
    (fault,) = load_faults_text(SCRIPT, "faults.yaml", directory)
    assert str(fault) == "brownout n1 by 50ms times 4 for 2s"
    with pytest.raises(ConfigError, match="brownout needs by, such as by: 200ms"):
        load_faults_text(SCRIPT.replace("by: 50ms, ", ""), "faults.yaml", directory)
    with pytest.raises(ConfigError, match="'jitter' does not go with brownout"):
        load_faults_text(SCRIPT.replace("by:", "jitter:"), "faults.yaml", directory)
    with pytest.raises(ConfigError, match="brownout is for simulation only"):
        refuse_unreal([fault], "proxy")


def test_the_new_kind_slows_a_simulated_process_and_disk() -> None:
    syncs: set[float] = set()
    faults = [{"at": "1s", "kind": "brownout", "target": "n1", "times": 4, "by": "50ms", "for": "2s"}]
    outcome = simulate(scenario(3, faults), watch=lambda cluster: syncs.add(cluster.disks["n1"].sync_s))
    assert outcome.finished
    assert outcome.findings == []
    began = next(e for e in outcome.history if isinstance(e, FaultBegan))
    assert (began.kind, began.hosts, began.amount) == ("brownout", ("n1",), 4.0)
    assert any(isinstance(e, FaultEnded) and e.number == began.number for e in outcome.history)
    assert any("slow n1 4x" in line for line in outcome.story)
    assert syncs == {0.0, 0.05}
    assert effect_of(began) is Effect.DISTURBED


def test_random_runs_draw_the_new_kind() -> None:
    plan, directory = load_data(CONFIG)
    drawn = [
        fault
        for seed in range(30)
        for fault in random_faults(Random(seed), plan, directory, from_us=0, to_us=10_000_000)
        if fault.kind == "brownout"
    ]
    assert {(fault.amount, fault.by_us) for fault in drawn} == {(4.0, 50_000), (2.0, 5_000)}


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="there is a fault 'brownout'"):
        register(KINDS["brownout"])
