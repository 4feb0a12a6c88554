"""``spe top``, ``spe restart --rolling`` and ``spe wait`` with a run of real processes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

CONFIG = """
cluster: operated
sources: {a: {from: {generator: {name: sequence, rate: 100, seed: 1, duration: 600s}}}}
query: {out: {filter: {from: a, where: value >= 0}}}
nodes: [n1, n2]
"""
PATIENCE_S = 120.0
SPE = [sys.executable, "-m", "replicas.cli"]


def spe(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SPE, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def soon(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.1)


@contextmanager
def a_run(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A run whose nodes are STABLE."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    run_dir = tmp_path / "run"
    command = [*SPE, "run", tmp_path / "c.yaml", "--run-dir", run_dir, "--no-view", "--duration", "600s"]
    with (tmp_path / "out.txt").open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as running:
        try:
            soon(lambda: any(e["event"] == "begin" for e in events(run_dir)))
            for node in ("n1", "n2"):
                assert spe("wait", run_dir, node, "--within", f"{PATIENCE_S:g}s").returncode == 0
            yield running, run_dir
        finally:
            if running.poll() is None:
                running.terminate()


def events(run_dir: Path) -> list[dict[str, Any]]:
    """What the supervisor has noted; a line that it is just writing is left out."""
    path = run_dir / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def of_nodes(run_dir: Path) -> list[tuple[str, str]]:
    """Stops and later starts, in order, by node."""
    found: list[tuple[str, str]] = []
    for line in events(run_dir):
        if line["event"] == "process_stopped" or (line["event"] == "process_started" and line["start"] > 1):
            found.append((line["event"].removeprefix("process_"), line["process"]))
    return found


def _heed_interrupts() -> None:
    """What a shell starts in the background, such as all the tests, ignores Ctrl-C, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


OWN = """
import sys
from tests.support.operators_for_tests import PassThrough


class OfItsProcess(PassThrough):
    def step(self, ports, boundary):
        rows = ports[0]
        return None if rows is None else rows.slice(0, min(len(rows), 1 + ("n1" in sys.argv)))
"""


def test_errors_of_processes_are_shown_and_fail_the_run(tmp_path: Path) -> None:
    """Here an operator that is not deterministic, with far less than 1,000 results."""
    (tmp_path / "own_operators.py").write_text(OWN)
    custom = "{custom: {class: own_operators:OfItsProcess, from: [a]}}"
    text = CONFIG.replace("{filter: {from: a, where: value >= 0}}", custom).replace("600s", "2s")
    (tmp_path / "c.yaml").write_text(text)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*SPE, "run", "c.yaml", "--run-dir", "run", "--no-view", "--dashboard", "off"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    shown, _, summary = done.stdout.partition("comparing with the reference run")
    assert ": operator 'out' is code of your own and must be deterministic" in shown, done.stdout
    for node in ("n1", "n2"):
        assert f"{node}: 1 error in logs/{node}.log, the first: main/0@{node}: out/0 differs from n" in summary


def test_a_killed_run_goes_on_in_its_directory(tmp_path: Path) -> None:
    """With its logs, recordings and sinks: the results are those of one run."""
    text = CONFIG.replace("600s", "3s") + "clients: {c: {reads: [out], sinks: [{jsonl: results}]}}\n"
    (tmp_path / "c.yaml").write_text(text)
    run_dir, options = tmp_path / "run", ["--no-view", "--dashboard", "off"]
    command = [*SPE, "run", tmp_path / "c.yaml", "--run-dir", run_dir, *options]
    rows = run_dir / "output/results/out.0.jsonl"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        soon(lambda: rows.exists() and rows.stat().st_size > 0)
        running.kill()
    done = spe("run", "--continue", run_dir, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["stable"], summary["verdict"]["equal"], summary["verdict"]["late"]) == (300, True, [])
    assert len(rows.read_text().splitlines()) == 300
    again = spe("run", "--continue", run_dir, *options)
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(rows.read_text().splitlines()) == 300


@pytest.mark.long
def test_a_rolling_restart_of_a_run(tmp_path: Path) -> None:
    with a_run(tmp_path) as (running, run_dir):
        done = spe("restart", run_dir, "--rolling", "--within", f"{PATIENCE_S:g}s")
        assert done.returncode == 0, done.stdout + done.stderr
        said = done.stdout.splitlines()
        assert [line.split(" after ")[0] for line in said] == [
            "n1: stopped and started again",
            "n1: STABLE",
            "n2: stopped and started again",
            "n2: STABLE",
        ]
        assert of_nodes(run_dir) == [("stopped", "n1"), ("started", "n1"), ("stopped", "n2"), ("started", "n2")]
        assert spe("wait", run_dir, "n1", "--partners").stdout == "n1 may stop\n"

        interrupted = subprocess.Popen(
            [*SPE, "restart", run_dir, "--rolling"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_heed_interrupts,
        )
        with interrupted:
            assert interrupted.stdout is not None
            assert interrupted.stdout.readline() == "n1: stopped and started again\n"
            interrupted.send_signal(signal.SIGINT)
            _, said_last = interrupted.communicate(timeout=PATIENCE_S)
            assert interrupted.returncode == 130, said_last
        assert spe("wait", run_dir, "n1", "--within", f"{PATIENCE_S:g}s").returncode == 0
        assert of_nodes(run_dir)[4:] == [("stopped", "n1"), ("started", "n1")]

        assert spe("inject", run_dir, "kill", "n2").returncode == 0
        for command in (["restart", run_dir, "n1"], ["wait", run_dir, "n1", "--partners"]):
            refused = spe(*command, "--within", "5s")
            assert refused.returncode == 1
            assert "main/0: n2 is silent" in refused.stdout
        assert len(of_nodes(run_dir)) == 6

        assert spe("inject", run_dir, "restart", "n2").returncode == 0
        running.send_signal(signal.SIGINT)
        running.wait(PATIENCE_S)
    verdict = json.loads((run_dir / "summary.json").read_text())["verdict"]
    assert verdict["equal"], verdict


@pytest.mark.long
def test_live_view_shows_what_supervisor_knows(tmp_path: Path) -> None:
    with a_run(tmp_path) as (running, run_dir):
        without_terminal = spe("top", run_dir)
        assert (without_terminal.returncode, without_terminal.stdout) == (2, "")
        assert "spe status prints the same once" in without_terminal.stderr
        with on_a_terminal("top", run_dir) as (top, shows):
            shows("STABLE", "operated", "client client")
            assert spe("inject", run_dir, "kill", "n2").returncode == 0
            shows("kill n2", "killed")
            top.send_signal(signal.SIGINT)
            assert top.wait(PATIENCE_S) == 0
        with on_a_terminal("top", run_dir) as (top, shows):
            shows("STABLE")
            running.terminate()
            running.wait(PATIENCE_S)
            shows("is over")
            assert top.wait(PATIENCE_S) == 0
        over = spe("top", run_dir)
        assert over.returncode == 2


@contextmanager
def on_a_terminal(*arguments: Any) -> Iterator[tuple[subprocess.Popen[bytes], Callable[..., None]]]:
    """A command that draws on a terminal; the function waits until it has drawn all these texts."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen([*SPE, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        drawn = b""

        def shows(*texts: str) -> None:
            nonlocal drawn
            drawn = b""
            until = time.monotonic() + PATIENCE_S
            while not all(text.encode() in drawn for text in texts):
                assert time.monotonic() < until, drawn[-4_000:]
                try:
                    drawn += os.read(ours, 65_536)
                except OSError:  # Linux: nobody has the other end any more
                    raise AssertionError(f"it has ended: {drawn[-4_000:]!r}") from None

        try:
            yield process, shows
        finally:
            if process.poll() is None:
                process.kill()
            os.close(ours)
