"""kill -9 of all replicas of a million groups: ``configs/million_groups.yaml`` and its faults, on real processes.

A row per try: what was loaded and replayed, what that took and was expected to, and how long the application had no
stable result beside the time in which no process was there.  A finding is more than ``recovery``, or a verdict that is
not CONSISTENT.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml

from benchmarks.experiments.results import Row
from spe.plots import Line, Panel
from spe.stream.times import SECOND

TITLE = "All replicas of a million groups are killed at one moment"
RUNS: Final = 10
_CONFIGS: Final = Path(__file__).parents[2] / "configs"
#: A result comes each second of the stream: so long there is none anyway.
_EVERY_S: Final = 1.0
_PATIENCE_S: Final = 1_800.0
_QUICK_GROUPS: Final = 100_000


def measure(quick: bool, runs: int = RUNS) -> Iterator[Row]:
    """``quick``: one try with a tenth of the groups."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        config = yaml.safe_load((_CONFIGS / "million_groups.yaml").read_text())
        faults = yaml.safe_load((_CONFIGS / "faults" / "million_groups.yaml").read_text())
        if quick:
            _smaller(config, faults)
        (folder / "groups.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        (folder / "faults.yaml").write_text(yaml.safe_dump(faults))
        down_s = max(float(fault["for"].removesuffix("s")) for fault in faults)
        limit_s = float(config["fragments"]["groups"]["checkpoint"]["recovery"].removesuffix("s"))
        for number in range(1 if quick else runs):
            yield {"try": number + 1, **_try(folder, folder / f"run{number}", down_s, limit_s)}


def _smaller(config: dict[str, Any], faults: Sequence[dict[str, Any]]) -> None:
    config["query"]["keyed"]["map"]["compute"]["key"] = f"n % {_QUICK_GROUPS}"
    config["sources"]["rows"]["from"]["generator"] |= {"duration": "20s", "rate": 20_000}
    config["fragments"]["groups"]["checkpoint"]["groups"] = _QUICK_GROUPS
    for fault in faults:
        fault["at"] = "8s"


def _try(folder: Path, run: Path, down_s: float, limit_s: float) -> Row:
    program = [sys.executable, "-m", "replicas.cli"]
    command = ["run", folder / "groups.yaml", "--faults", folder / "faults.yaml", "--run-dir", run, "--no-view"]
    played = subprocess.run([*program, *command], capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    judged = subprocess.run([*program, "report", run], capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    summary = json.loads((run / "summary.json").read_text())
    report = json.loads((run / "report" / "report.json").read_text())
    logs = [one["log"] for one in summary["replicas"]]
    gap_s = max(one["stable_gap_max_us"] for one in summary["channels"] if one["channel"].startswith("total/")) / SECOND
    start_s = _start_s(run)
    results_s = gap_s - down_s - start_s - _EVERY_S
    recovered = [
        e for node in ("n1", "n2") for e in _lines(run / "trace" / f"{node}.jsonl") if e["event"] == "recovered"
    ]
    took_s = max((log["recovered_us"] or 0) / SECOND for log in logs)
    findings = [] if report["verdict"] == "CONSISTENT" else [f"{report['verdict']}: {report['reasons']}"]
    findings += [f"exit status {done.returncode}: {done.stderr[-500:]}" for done in (played, judged) if done.returncode]
    if len(recovered) < len(logs):
        findings.append(f"{len(recovered)} of {len(logs)} replicas went on from their logs")
    if max(took_s, results_s) > limit_s:
        findings.append(f"more than {limit_s:g} s")
    return {
        "records": max((e["records"] for e in recovered), default=0),
        "rows": max((e["rows"] for e in recovered), default=0),
        "took_s": round(took_s, 2),
        "expected_s": round(max((log["expected_us"] or 0) / SECOND for log in logs), 2),
        "start_s": round(start_s, 2),
        "results_s": round(results_s, 2),
        "log_mb": round(max(log["kept_bytes"] for log in logs) / 1e6, 1),
        "verdict": report["verdict"],
        "findings": "; ".join(findings),
    }


def _start_s(run: Path) -> float:
    """How long the second start of the slower node took."""
    started: dict[str, int] = {}
    took = [0]
    for event in _lines(run / "events.jsonl"):
        if event["event"] == "process_started" and event.get("start") == 2:
            started[event["process"]] = event["t"]
        elif event["event"] == "process_ready" and event["process"] in started:
            took.append(event["t"] - started.pop(event["process"]))
    return max(took) / SECOND


def _lines(file: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Each try, and what had been expected."""
    tries = [float(row["try"]) for row in rows]
    lines = [Line([row[name] for row in rows], name) for name in ("took_s", "expected_s", "results_s")]
    middle = median(row["took_s"] for row in rows)
    return [Panel(f"load and replay, median {middle:.1f} s; without stable results, s", tries, lines, "try")]
