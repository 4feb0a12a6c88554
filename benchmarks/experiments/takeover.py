"""Recovery of a tree of 4, 2 and 1 tasks as real processes (PPA section VI-A, at the scale of two cores).

As in the experiment ``recovery``, but by the wall clock: seven nodes, three for backups, two sources, a client and a
coordinator, each a process.  A node is killed, or all seven, for good.  Active: backups run as well; checkpoint: they
hold the newest one; replay: they hold none, and read the sources' logs from the beginning.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.experiments.recovery import REPLAY, tree
from benchmarks.experiments.results import Row
from replicas.cli.run.recorded_history import recorded_history
from spe.config import load
from spe.plan.delays import source_epoch
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plots import Line, Panel
from spe.stream.batch import Batch, Boundary
from spe.stream.history import Delivered
from spe.stream.names import Kind
from spe.stream.times import SECOND

TITLE = "Recovery of a tree of real processes"
LEVELS: Final = (4, 2, 1)
#: Tuples per second of each of the two sources.
RATE: Final = 10_000
WINDOW_S: Final = 10
#: When nodes are killed, counted from the begin of the sources; how long the sources go on.
FAILS_S: Final = 18
LASTS_S: Final = 32
X: Final = "1500ms"
#: How, interval of checkpoints, is everything active.
MODES: Final = (
    ("active", "5s", True),
    ("checkpoint 1s", "1s", False),
    ("checkpoint 5s", "5s", False),
    ("checkpoint 15s", "15s", False),
    ("replay", REPLAY, False),
)


def measure(quick: bool) -> Iterator[Row]:
    for single in (False,) if quick else (True, False):
        for how, checkpoint, active in MODES[:2] if quick else MODES:
            yield {"how": how, "dies": "one" if single else "all"} | _run(checkpoint, active, single)


def _run(checkpoint: str, active: bool, single: bool) -> dict[str, Any]:
    """Seconds from the kill until the client has something tentative, and all that was due by then, stable."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        config, schedule, run = folder / "tree.yaml", folder / "faults.yaml", folder / "run"
        config.write_text(yaml.safe_dump(_configuration(checkpoint, active)))
        dead = ["n4_0"] if single else [f"n{level}_{p}" for level in LEVELS for p in range(level)]
        away = f"{LASTS_S - FAILS_S + 5}s"
        schedule.write_text(
            yaml.safe_dump([{"at": f"{FAILS_S}s", "kind": "kill", "target": n, "for": away} for n in dead])
        )
        command = [
            sys.executable,
            "-m",
            "replicas.cli",
            "run",
            config,
            "--faults",
            schedule,
            "--run-dir",
            run,
            "--no-view",
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        findings = "" if ended.returncode == 0 else (ended.stdout + ended.stderr)[-2000:]
        return _times(*load(config), run) | {"findings": findings}


def _times(plan: Plan, directory: Directory, run: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    first_us = min(int(line["t"]) for line in lines)
    begun_us = next(int(line["begun_us"]) for line in lines if line["event"] == "begin")
    killed_us = min(int(line["t"]) for line in lines if line["event"] == "process_killed")
    epoch = source_epoch(next(iter(plan.sources.values())), begun_us)
    assert epoch is not None
    tentative = passed = None
    for event in recorded_history(plan, directory, run):
        if not isinstance(event, Delivered) or (since := event.at_us + first_us - killed_us) < 0:
            continue
        element = event.element
        if tentative is None and isinstance(element, Batch) and element.kind is Kind.TENTATIVE:
            tentative = since / SECOND
        stable = isinstance(element, Boundary) and element.kind is Kind.STABLE
        if passed is None and stable and epoch.created_us(element.time) >= killed_us:
            passed = since / SECOND
    return {
        "checkpoints_old_s": _oldest(run, killed_us),
        "tentative_s": tentative,
        "recovered_s": passed,
        "times": None if not tentative or passed is None else passed / tentative,
    }


def _oldest(run: Path, killed_us: int) -> float | None:
    """Age of the newest checkpoint of a task, of the one where it is oldest; None: there are none."""
    newest: dict[str, int] = {}
    for path in (run / "trace").glob("b*.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "checkpoint_taken" and int(event["t"]) < killed_us:
                newest[event["replica"]] = int(event["t"])
    return (killed_us - min(newest.values())) / SECOND if newest else None


def _configuration(checkpoint: str, active: bool) -> dict[str, Any]:
    generator = {"name": "sequence", "rate": RATE, "duration": f"{LASTS_S}s"}
    sources = {f"s{i}": {"from": {"generator": generator | {"seed": i}}, "boundary": "100ms"} for i in (1, 2)}
    everybody = frozenset((level, p) for level in LEVELS for p in range(level))
    timing = {"bucket": "100ms", "defaults": {"x": X, "alpha": 0.9, "policy": "process"}}
    return timing | tree(sources, LEVELS, WINDOW_S, checkpoint, everybody if active else ())


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Recovery by how, of one and of all."""
    found = []
    for dies in ("one", "all"):
        mine = [row for row in rows if row["dies"] == dies]
        if mine:
            places = list(range(len(mine)))
            line = Line([row["recovered_s"] for row in mine], "recovered")
            names = ", ".join(f"{at}: {row['how']}" for at, row in enumerate(mine))
            found.append(Panel(f"{dies} of 7 die: recovered, seconds", places, [line], names))
    return found
