"""Nodes as tasks of a local-cluster, whose executors are Java processes of their own, and are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consistency.proof.session.java import java_home
from replicas.cli.app import execute

pytestmark = [pytest.mark.long, pytest.mark.processes]

CONFIG = """
cluster: small
sources:
  a: {from: {generator: {name: orders, rate: 200, seed: 1, keys: 50, duration: DURATION}}}
  b: {from: {generator: {name: orders, rate: 100, seed: 2, keys: 50, duration: DURATION}}}
query:
  all: {union: [a, b]}
  totals: {aggregate: {from: all, window: 1s, group_by: key, compute: {n: count(*), revenue: sum(price * qty)}}}
outputs: [totals]
nodes: [n1, n2]
defaults: {x: 3s}
timing: {heartbeat: 400ms, connect: 3s}  # Spark starts beside it, perhaps on two cores that others use, too
"""
MASTER = "local-cluster[3,1,512]"
PATIENCE_S = 900  # Java processes start, perhaps on two cores that others use, too


class Running:
    """``spe run --on spark``, and what it has said so far."""

    def __init__(self, folder: Path, duration: str, *words: str, master: str = MASTER, more: str = "") -> None:
        (folder / "small.yaml").write_text(CONFIG.replace("DURATION", duration) + more)
        self.run, self._said = folder / "run", folder / "said"
        command = [
            sys.executable,
            "-m",
            "replicas.cli",
            "run",
            folder / "small.yaml",
            "--run-dir",
            self.run,
            "--no-view",
        ]
        command += ["--dashboard", "off", "--on", "spark", "--master", master, *words]
        for setting in ("spark.executor.memory=512m", "spark.driver.memory=512m"):
            command += ["--conf", setting]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)

    @property
    def said(self) -> str:
        return self._said.read_text()

    def until(self, true: Callable[[], Any], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not true():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, f"no {what} within {PATIENCE_S} s\n{self.said}"
            time.sleep(0.2)

    def results(self, seconds: float) -> None:
        """Waits until results have come for so long."""
        self.until(lambda: " stable, " in self.said, "results")
        time.sleep(seconds)

    def back(self, node: str, times: int) -> None:
        """Waits until a node has recovered so often."""
        self.until(lambda: self.said.count(f"main/0@{node} RECOVERING → STABLE") >= times, f"return of {node}")

    def inject(self, *words: str) -> None:
        command = [sys.executable, "-m", "replicas.cli", "inject", self.run, *words]
        found = subprocess.run(command, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr + self.said

    def pids(self, node: str) -> tuple[int, int]:
        """Of the node's process, and of the executor whose task it is."""
        (child,) = [p for p, words in processes() if words[-2:-1] == ["--supervisor-fd"] and f"spe-{node}-" in words[4]]
        pid = child
        while "--executor-id" not in dict(processes())[pid]:
            pid = parent(pid)
        return child, pid

    def all_pids(self) -> list[int]:
        """Of everybody: what this process has started, whoever their parents are now."""
        mine = {self.process.pid}
        for _ in range(10):
            mine |= {p for p, _ in processes() if parent(p) in mine}
        return sorted(mine)

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)


def processes() -> list[tuple[int, list[str]]]:
    """Process id and words of each that runs."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            words = (one / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:
            continue
        if words and not gone(int(one.name)):
            found.append((int(one.name), words))
    return found


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def gone(pid: int) -> bool:
    """It has ended, whether or not somebody has waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_gone(pids: list[int], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while left := [p for p in pids if not gone(p)]:
        assert time.monotonic() < end, [words for p, words in processes() if p in left]
        time.sleep(0.2)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(*words: str, **more: str) -> Running:
        started.append(Running(tmp_path, *words, **more))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            pids = one.all_pids()
            one.process.kill()
            for pid in pids:
                if not gone(pid):
                    os.kill(pid, signal.SIGKILL)
            one.process.wait()


def test_run_with_killed_executor_and_other_faults_is_consistent(
    start: Callable[..., Running], request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """The executor of n1 and the process of n2 are killed, one after the other, and a source is cut off for longer
    than X: clients read the other replica, and get tentative results."""
    one = start("150s")
    one.results(1)
    one.inject("kill", "n2", "--for", "2s")
    one.back("n2", 2)
    child, executor = one.pids("n1")
    assert one.pids("n2")[1] != executor
    os.kill(executor, signal.SIGKILL)
    wait_gone([child], 10)
    one.back("n1", 2)
    one.inject("cut", "source:a", "all", "--for", "6s")
    one.until(lambda: ": tentative tuples on totals/0" in one.said, "tentative results")
    status = one.end()
    assert status == 0, one.said
    assert "n1 was lost with executor" in one.said
    assert "org.apache" not in one.said
    summary = json.loads((one.run / "summary.json").read_text())
    assert summary["verdict"]["equal"]
    assert summary["verdict"]["complete"]
    assert {r["replica"]: (r["state"], r["starts"]) for r in summary["replicas"]} == {
        "main/0@n1": ("STABLE", 2),
        "main/0@n2": ("STABLE", 2),
    }
    (channel,) = summary["channels"]
    assert channel["tentative"] > 0
    events = [json.loads(line) for line in (one.run / "events.jsonl").read_text().splitlines()]
    assert [e["process"] for e in events if e["event"] == "process_lost"] == ["n1"]
    for node in ("n1", "n2"):  # what they wrote came to the driver
        assert (one.run / "logs" / f"{node}.log").read_text().count("serving on") == 2
        assert '"state": "STABLE"' in (one.run / "trace" / f"{node}.jsonl").read_text()
    request.getfixturevalue("commands_use_it")  # not before: four Java processes are enough
    assert execute(["report", str(one.run)]) == 0
    assert "\nCONSISTENT" in capsys.readouterr().out


@pytest.fixture
def apart(tmp_path: Path) -> str:
    """A setting with which executors do not see the folder of the run: it is hidden from their Java."""
    if subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True).returncode:
        pytest.skip("the kernel lets us hide no folder from a process")
    (tmp_path / "java" / "bin").mkdir(parents=True)
    launcher = tmp_path / "java" / "bin" / "java"
    (tmp_path / "run").mkdir()
    hides = f"mount -t tmpfs none {tmp_path}/run && exec {java_home()}/bin/java"
    launcher.write_text(f'#!/bin/sh\nexec unshare -m sh -c \'{hides} "$@"\' sh "$@"\n')
    launcher.chmod(0o755)
    return f"spark.executorEnv.JAVA_HOME={tmp_path}/java"


def test_nodes_need_no_disk_that_their_executors_share(start: Callable[..., Running], apart: str) -> None:
    """The files of a node come with its task, and the one that takes its place recovers from its partner."""
    one = start("10m", "--conf", apart)
    one.results(1)
    child, executor = one.pids("n1")
    assert "--storage" not in dict(processes())[child]
    os.kill(executor, signal.SIGKILL)
    one.back("n1", 2)
    assert not (one.run / "nodes").exists()
    log = one.run / "logs" / "n1.log"  # comes from the executor a little later than the coordinator hears of the node
    one.until(lambda: "begins with the state of: n2" in log.read_text(), "word of n2's state in the log")
    one.process.send_signal(signal.SIGINT)
    assert one.end() == 130
    assert "tuples so far agree with the reference" in " ".join(one.said.split())


def test_state_on_disk_needs_a_disk_that_executors_share(start: Callable[..., Running], apart: str) -> None:
    one = start("10m", "--conf", apart, more="fragments: {m: {operators: [all, totals], replicas: 1, standby: 1}}\n")
    assert one.end() == 2
    assert f"not all executors see {one.run}, and standbys keep checkpoints on disk" in one.said
    assert not (one.run / "logs").exists()


def test_a_dead_driver_leaves_neither_nodes_nor_executors_behind(start: Callable[..., Running]) -> None:
    one = start("10m")
    one.results(0)
    pids = one.all_pids()
    assert {*one.pids("n1"), *one.pids("n2")} < set(pids)
    one.process.kill()
    wait_gone(pids)


def test_ctrl_c_ends_all_and_judges_the_partial_run(start: Callable[..., Running]) -> None:
    one = start("10m")
    one.results(1)
    pids = one.all_pids()
    os.killpg(one.process.pid, signal.SIGINT)  # as a terminal does
    assert one.end() == 130
    assert "interrupted after" in one.said
    wait_gone(pids)
    assert "Traceback" not in one.said


def test_too_few_executors_are_reported_with_the_need(start: Callable[..., Running]) -> None:
    one = start("10m", master="local-cluster[1,2,512]")
    assert one.end() == 2
    assert "2 nodes need 2 tasks at a time on 2 executors or more" in one.said
    assert "there are 1 executors" in one.said
    assert not one.run.exists()
