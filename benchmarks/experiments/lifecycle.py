"""What a cluster meets in its life, on real processes: ``configs/lifecycle.yaml``, its faults, and orders of people.

A node is drained to the spare one, and what it ran is moved back.  The load shifts to the smaller nodes, and the
coordinator balances.  Three nodes are killed at once, and come back one at a time; the coordinator dies in between.

A row for each of these, from the reports of the runs: medians; the last one has the CPU of all processes.  A finding is
what an operator would accept of no run: a move that is dropped, a tentative tuple outside the failure, an X that is not
kept, a verdict other than CONSISTENT.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml

from benchmarks.cpu import cores_of_ended
from benchmarks.experiments.results import Row
from replicas.cli.certs import certs
from replicas.cli.move import drain, move
from spe.errors import SpeError
from spe.plan.directory import COORDINATOR
from spe.plots import Line, Panel
from spe.stream.times import SECOND

TITLE = "A drain, a spare node, a load that shifts, and the loss of three nodes"
#: How often it is played where --runs does not say.
RUNS: Final = 5
_CONFIGS: Final = Path(__file__).parents[2] / "configs"
_FIGURES: Final = ("moves", "longest_s", "delay_s", "tentative", "cores")
DRAINED: Final = "n2"
#: Seconds after the sources begin when the node is drained, and when what it ran goes back.
DRAIN_S, BACK_S = 50.0, 75.0
#: A tentative tuple may come so long after the last failure: until all is corrected.
_CORRECTED_S: Final = 60.0
_PATIENCE_S: Final = 900.0
_PROGRAM: Final = (sys.executable, "-m", "replicas.cli")


def measure(quick: bool, runs: int = RUNS) -> Iterator[Row]:
    """``quick``: once, 0.6 times as long, with a fifth of the groups."""
    found: list[list[Row]] = []
    for at in range(1, (1 if quick else runs) + 1):
        found.append(list(_run(quick)))
        print(f"run {at}:", *(f"{row['part']} {[row[name] for name in _FIGURES]}" for row in found[-1]), flush=True)
    for rows in zip(*found, strict=True):
        yield {
            "part": " ".join(dict.fromkeys(str(row["part"]) for row in rows)),
            "runs": len(rows),
            **{name: _middle([row[name] for row in rows]) for name in _FIGURES},
            "findings": "; ".join(str(row["findings"]) for row in rows if row["findings"]),
        }


def _middle(values: Sequence[Any]) -> float | None:
    """The median of those that are known."""
    return median(known) if (known := [value for value in values if value is not None]) else None


def _run(quick: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as made:
        folder, times = Path(made), 0.6 if quick else 1.0
        config = yaml.safe_load((_CONFIGS / "lifecycle.yaml").read_text())
        faults = yaml.safe_load((_CONFIGS / "faults" / "lifecycle.yaml").read_text())
        if quick:
            _shorten(config, faults, times)
        config["security"] = {"certificates": str(folder / "keys")}
        (folder / "lifecycle.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        (folder / "faults.yaml").write_text(yaml.safe_dump(faults))
        _quietly(certs, folder / "lifecycle.yaml", None, 30)
        cores_used = cores_of_ended()
        said, run = _played(folder, times)
        cores = cores_used()
        said += _judged(run)
        report = json.loads((run / "report" / "report.json").read_text())
        yield from ({"cores": None, **row} for row in _rows(report, faults, said, cores))


def _shorten(config: dict[str, Any], faults: list[dict[str, Any]], times: float) -> None:
    """Memory shrinks by what the groups that are left out would have needed."""
    config["sources"]["customers"]["from"]["generator"] |= {"count": 200_000, "rate": 12_500}
    for shop in ("shop_a", "shop_b"):
        generator = config["sources"][shop]["from"]["generator"]
        generator |= {name: _scaled(generator[name], times) for name in ("drift", "duration")}
    for small in ("n3", "n4"):
        config["nodes"][small]["memory"] = "16MB"
    for fault in faults:
        fault["at"] = _scaled(fault["at"], times)


def _scaled(duration: str, times: float) -> str:
    return f"{float(duration.removesuffix('s')) * times:g}s"


def _quietly(command: Any, *arguments: Any, **options: Any) -> str:
    """What a command of the command line prints; "" where all went well, else the error last."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            failed = command(*arguments, **options)
        except SpeError as error:
            return str(error)
    return said.getvalue().strip().rpartition("\n")[2] if failed else ""


def _played(folder: Path, times: float) -> tuple[list[str], Path]:
    """Runs it; what went wrong with orders and with the run, and its directory."""
    run = folder / "run"
    command = ["run", folder / "lifecycle.yaml", "--faults", folder / "faults.yaml", "--run-dir", run, "--no-view"]
    with subprocess.Popen(
        [*_PROGRAM, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            begun_us = _begun_us(run / "events.jsonl", running)
            _sleep_until(begun_us, DRAIN_S * times)
            said = [_quietly(drain, run, DRAINED, wait=True)]
            gone = [m["target"] for m in _moves(run) if m["phase"] == "done" and m["source"] == DRAINED]
            _sleep_until(begun_us, BACK_S * times)
            for unit, partition, target in gone:
                said.append(_quietly(move, run, f"{unit}/{partition}", target, DRAINED, wait=True))
            printed, _ = running.communicate(timeout=_PATIENCE_S)
        finally:
            running.terminate()
    if running.returncode:
        said.append(printed[-2000:])
    return said, run


def _judged(run: Path) -> list[str]:
    """What went wrong with its report."""
    command = [*_PROGRAM, "report", run]
    judged = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    return [judged.stdout[-2000:] + judged.stderr[-2000:]] if judged.returncode else []


def _begun_us(events: Path, running: subprocess.Popen[str]) -> int:
    """Wall time at which the sources begin.  Raises RuntimeError: the run ended before."""
    while running.poll() is None:
        for line in _lines(events):
            if line["event"] == "begin":
                return int(line["begun_us"])
        time.sleep(0.1)
    raise RuntimeError(f"the run ended: {running.stdout.read() if running.stdout is not None else ''}")


def _moves(run: Path) -> list[Mapping[str, Any]]:
    return [line for line in _lines(run / "trace" / f"{COORDINATOR}.jsonl") if line["event"] == "move"]


def _lines(file: Path) -> list[Mapping[str, Any]]:
    """Whole lines of a trace that is being written."""
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []


def _sleep_until(since_us: int, seconds: float) -> None:
    time.sleep(max(0.0, since_us / SECOND + seconds - time.time()))


def _rows(
    report: Mapping[str, Any], faults: Sequence[Mapping[str, Any]], said: Sequence[str], cores: float
) -> Iterator[Row]:
    moves = report["moves"]
    parts = {
        "drain": [m for m in moves if m["reason"].endswith("is drained")],
        "back": [m for m in moves if m["reason"] == "ordered"],
    }
    parts["balance"] = [m for m in moves if not any(m in part for part in parts.values())]
    for part, made in parts.items():
        dropped = [f"{m['partition']} dropped: {m['why']}" for m in made if m["phase"] == "dropped"]
        yield {
            "part": part,
            "moves": len(made),
            "longest_s": max(((m["until_us"] - m["from_us"]) / SECOND for m in made if m["until_us"]), default=None),
            "delay_s": max((m["delay_max_us"] / SECOND for m in made), default=None),
            "tentative": sum(m["tentative"] for m in made),
            "findings": "; ".join(dropped if made else ["nothing moved"]),
        }
    fails_us = round(min(float(f["at"].removesuffix("s")) for f in faults) * SECOND)
    ends_us = fails_us + round(max(float(f["for"].removesuffix("s")) for f in faults) * SECOND)
    ends_us += round(_CORRECTED_S * SECOND)
    outputs = report["outputs"]
    bins = [(b["at_us"], b["at_us"] + one["bin_us"], b["tentative"]) for one in outputs for b in one["bins"]]
    outside = sum(count for since, until, count in bins if until <= fails_us or since >= ends_us)
    findings = [*filter(None, said), *([f"{outside} tentative tuples outside the failure"] if outside else [])]
    findings += [f"{one['output']}: X not kept: {one['delay']['why']}" for one in outputs if not one["delay"]["kept"]]
    took = [one["healing"]["took_us"] for one in outputs if one["healing"]["took_us"] is not None]
    yield {
        "part": "loss of three",
        "moves": None,
        "longest_s": max(took, default=0) / SECOND,
        "delay_s": max(one["delay"]["max_us"] or 0 for one in outputs) / SECOND,
        "tentative": sum(one["tentative"]["count"] for one in outputs),
        "findings": "; ".join(findings),
    }
    yield {
        "part": report["verdict"],
        "moves": len(moves),
        "longest_s": report["duration_us"] / SECOND,
        "delay_s": None,
        "tentative": outside,
        "cores": cores,
        "findings": "" if report["verdict"] == "CONSISTENT" else "; ".join(map(str, report["reasons"])),
    }


def panels(rows: Sequence[Row]) -> list[Panel]:
    """How long each part took."""
    timed = [row for row in rows if row["longest_s"] is not None][:-1]
    line = Line([row["longest_s"] for row in timed], "seconds")
    return [Panel("longest move, and time of correction, s", [float(at) for at in range(len(timed))], [line], "parts")]
