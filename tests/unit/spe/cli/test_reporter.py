"""The process that proves a run at its end: silent until told, and never left behind.  Here it is a shell script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from spe.cli.reporter import Reporter, reporter


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process that notes its pid and its arguments, and whose exit status says what it was told."""
    script = tmp_path / "python"
    script.write_text(
        f'#!/bin/sh\necho "$$ $*" > {tmp_path}/noted.new; mv {tmp_path}/noted.new {tmp_path}/noted\n'
        'read word; [ "$word" = go ] && exit 7; exit 9\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    return tmp_path / "noted"


def test_it_judges_when_it_is_told_that_the_run_is_over(started: Path) -> None:
    with reporter(Path("runs/mine")) as one:
        one.start()
        assert trio.run(one.finish) == 7
    assert started.read_text().split()[1:] == ["-m", "spe.cli", "report", "runs/mine", "--wait"]


def test_it_is_ended_with_a_run_that_is_broken_off(started: Path) -> None:
    with reporter(Path("runs/mine")) as one:
        one.start()
        while not started.exists():
            os.sched_yield()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text().split()[0]), 0)


def test_what_was_never_started_needs_no_end() -> None:
    Reporter(Path("runs/mine")).end()
