"""The process that judges a run at its end is silent until told, and always ended.  Here it is a shell script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import trio

from replicas.cli.run.reporter import Reporter, reporter
from replicas.cli.run.run import Supervisor
from replicas.local.job import Job
from spe.config import load_text
from spe.runtime.production import NullTrace

CONFIG = """
sources: {shop: {from: {generator: orders}}}
query: {big: {filter: {from: shop, where: qty > 1}}}
outputs: [big]
nodes: [n1]
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process that stores its pid and arguments, and whose exit status depends on its input."""
    script = tmp_path / "python"
    script.write_text(
        f'#!/bin/sh\necho "$$ $*" > {tmp_path}/noted.new; mv {tmp_path}/noted.new {tmp_path}/noted\n'
        'read word; [ "$word" = go ] && exit 7; exit 9\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    return tmp_path / "noted"


def test_the_reporter_judges_when_the_run_is_over(started: Path) -> None:
    with reporter(Path("runs/mine")) as one:
        one.start()
        assert trio.run(one.finish) == 7
    assert started.read_text().split()[1:] == ["-m", "replicas.cli", "report", "runs/mine", "--wait"]


def test_the_reporter_ends_with_an_aborted_run(started: Path) -> None:
    with reporter(Path("runs/mine")) as one:
        one.start()
        while not started.exists():
            os.sched_yield()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text().split()[0]), 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise a priority")
def test_report_after_run_has_normal_priority_with_its_java() -> None:
    """With the least priority it took minutes beside any work on the machine."""
    program = """
import os, subprocess, threading, time
from replicas.cli.report import raise_priority
os.nice(10)
threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
child = subprocess.Popen(["sleep", "30"])
raise_priority(0)
tasks = [int(task) for task in os.listdir("/proc/self/task")]
print(len(tasks) > 1, {os.getpriority(os.PRIO_PROCESS, pid) for pid in [*tasks, child.pid]})
child.kill()
"""
    command = [sys.executable, "-c", program]
    before = os.getpriority(os.PRIO_PROCESS, 0)
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    assert done.stdout == "True {0}\n", done.stderr
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_reporter_that_never_started_can_be_ended() -> None:
    Reporter(Path("runs/mine")).end()


def test_sigterm_while_the_run_is_proved_ends_the_proof(
    started: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The report runs in its own session, so the terminal does not end it."""
    script = Path(sys.executable)
    script.write_text(script.read_text().replace("exit 7", "sleep 1000"))
    job = Mock(spec=Job)
    job.run, job.seed, job.live_view = Mock(path=tmp_path, events=NullTrace()), 0, False
    job.plan, job.directory = load_text(CONFIG)
    job.addresses, job.token, job.config, job.specs = {}, "", "x.yaml", []
    monkeypatch.setattr("replicas.cli.run.run.summary_text", lambda summary: "over")
    monkeypatch.setattr("replicas.cli.run.run.failures", lambda summary: [])
    with reporter(Path("runs/mine")) as one:
        one.start()
        while not started.exists():
            os.sched_yield()
        supervisor, finish = Supervisor(job, one), one.finish

        async def over() -> dict[str, Any]:
            return {"verdict": {"complete": True, "equal": True}}

        async def terminated() -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            return await finish()

        monkeypatch.setattr(supervisor, "_run", over)
        monkeypatch.setattr(one, "finish", terminated)
        assert trio.run(supervisor.main) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text().split()[0]), 0)
