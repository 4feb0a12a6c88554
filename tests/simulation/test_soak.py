"""A soak prints commands that show its failures again, also those that only a judge of its own finds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consistency.checking.finding import Finding
from replicas.cli.campaigns.simulate import replay, write_failure
from replicas.simulation.scenarios.random_scenario import random_scenario
from tests.soak import simulation

SEED = min(range(40), key=lambda seed: len(random_scenario(seed).faults))
FINDING = Finding("reference", "it is the same row by row", 0, "the run", "lacks a row")


def unhappy(*_: Any) -> Iterator[Finding]:
    yield FINDING


def arguments(text: str) -> list[str]:
    """Returns the arguments of the command that plays a failure again."""
    words = shlex.split(text.rpartition("again: ")[2])
    assert " ".join(words[:3]) == simulation.COMMAND
    return words[3:]


def test_the_command_of_a_failed_seed_shows_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--processes", "1", "--seeds", f"{SEED}:{SEED + 1}"]
    assert simulation.main(asked) == 0
    monkeypatch.setattr(simulation, "judge_rows", unhappy)
    capsys.readouterr()
    for _ in range(2):
        assert simulation.main(asked) == 1
        told = capsys.readouterr().out
        assert str(FINDING) in told
        asked = ["--processes", "1", *arguments(told)]


def test_the_command_of_a_written_failure_shows_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulation, "judge_rows", unhappy)
    how: dict[str, Any] = {"shrink": False, "faults_only": False, "folder": tmp_path}
    told = write_failure(random_scenario(SEED), [FINDING], also=unhappy, command=simulation.COMMAND, **how)
    assert replay(tmp_path / f"seed-{SEED}.json") == 0, "no other judge finds it"
    assert simulation.main(arguments(told)) == 1
    assert str(FINDING) in capsys.readouterr().out
