"""The documented Python programs as real processes: a script that runs itself, and a program that reads results."""

from __future__ import annotations

import json
import subprocess
import sys
from ast import literal_eval
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from replicas.local.ports import free_addresses
from spe.config import load
from tests.unit.test_readme import BUILDER, READING

pytestmark = pytest.mark.processes

SECONDS = 120


def printed(*words: str, folder: Path) -> str:
    """The output of a Python program that must succeed."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def process(*words: str, log: Path, cwd: Path) -> Iterator[None]:
    with log.open("wb") as file, subprocess.Popen(words, stdout=file, stderr=file, cwd=cwd) as one:
        try:
            yield
        finally:
            one.terminate()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The page's script, with less data and with addresses."""
    a, b, *nodes = free_addresses(6)
    text = BUILDER.replace('duration="30s"', 'duration="4s"')
    text = text.replace('"150ms", boundary', f'"150ms", address={{"shop_a": {a!r}, "shop_b": {b!r}}}[name], boundary')
    text = text.replace("env.node(name)", f"env.node(name, dict(zip(('n1', 'n2', 'n3', 'n4'), {nodes!r}))[name])")
    path = tmp_path / "shop.py"
    path.write_text(text)
    return path


def test_a_script_runs_itself_and_ends_equal(script: Path) -> None:
    text = script.read_text().replace("    env.run()", '    print("DIRECTORY", env.run(run_dir="mine", view=False))')
    script.write_text(text)

    assert "DIRECTORY mine" in printed("shop.py", folder=script.parent)
    assert json.loads((script.parent / "mine" / "summary.json").read_text())["verdict"]["equal"]
    assert load(script.parent / "mine" / "config.yaml") == load(script)


@pytest.mark.long
def test_a_program_can_read_the_results_of_a_cluster(script: Path) -> None:
    reader = script.with_name("board.py")
    reader.write_text(READING.replace("shop.yaml", "shop.py"))
    spe = [sys.executable, "-m", "replicas.cli"]
    wanted = [("source", "shop_a"), ("source", "shop_b"), *(("node", f"n{i}") for i in range(1, 5))]
    with ExitStack() as running:
        for kind, name in wanted:
            log = script.parent / f"{name}.log"
            words = [*spe, kind, "shop.py", f"--{kind}", name, "--storage", f"state/{name}"]
            running.enter_context(process(*words, log=log, cwd=script.parent))
        read = printed("board.py", folder=script.parent)
    final = [literal_eval(line) for line in map(str.strip, read.splitlines()) if line.startswith("{")]
    answer = [
        json.loads(s) for s in printed("-m", "replicas.cli", "reference", "shop.py", folder=script.parent).splitlines()
    ]

    assert [(r["rank"], r["product"]) for r in final] == [(r["rank"], r["product"]) for r in answer]
    assert final
