"""The life of a cluster on real processes: ``configs/lifecycle.yaml``, its faults, and orders of people.

A node is drained to the spare one, and what it ran is moved back.  The load shifts to the smaller nodes, and the
coordinator balances.  Three nodes are killed at once, and come back one at a time; the coordinator dies in between.

A row for each of these, from the reports of the runs: medians.  A finding is what an operator would accept of no run: a
move that is dropped, a tentative tuple outside the failure, an X that is not kept, a verdict other than CONSISTENT.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from benchmarks.experiments.played_run import CONFIGS, PlayedRun, played, printed_by, sleep_until
from benchmarks.experiments.record import Plot, Row, experiment, once
from replicas.cli.certs import certs
from replicas.cli.move import drain, move
from spe.errors import SpeError
from spe.plan.directory import COORDINATOR
from spe.stream.times import SECOND

DRAINED: Final = "n2"
#: Seconds after the sources begin when the node is drained, and when what it ran goes back.
DRAIN_S, BACK_S = 50.0, 75.0
#: A tentative tuple may come so long after the last failure: until all is corrected.
_CORRECTED_S: Final = 60.0
_PATIENCE_S: Final = 1_800.0


@experiment("lifecycle", "no paper", once, Plot("part", "", "longest_s"), runs=5)
def lifecycle(quick: bool) -> Iterator[Row]:
    """A drain, a spare node, a load that shifts, and the loss of three nodes.

    ``quick``: 0.6 times as long, with a fifth of the groups.
    """
    times = 0.6 if quick else 1.0
    config, faults = _configured("lifecycle")
    if quick:
        _shorten(config, faults, times)
    with played(config | {"security": {"certificates": "keys"}}, faults) as run:
        _refusal(certs, run.config, None, 30)
        problems = _played(run, times)
        report, misjudged = run.report(_PATIENCE_S)
        yield from _rows(report, faults, [*problems, misjudged])


def _configured(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A configuration and its faults."""
    config, faults = (yaml.safe_load((CONFIGS / at / f"{name}.yaml").read_text()) for at in ("", "faults"))
    return config, faults


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


def _refusal(command: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Runs a function of the command line; "" where all went well, else its error or the last line it printed."""
    try:
        failed, printed = printed_by(command, *arguments, **options)
    except SpeError as error:
        return str(error)
    return printed.strip().rpartition("\n")[2] if failed else ""


def _played(run: PlayedRun, times: float) -> list[str]:
    """Runs it, with the orders; returns what went wrong."""
    with run.started():
        begun_us = run.begun_us()
        sleep_until(begun_us, DRAIN_S * times)
        problems = [_refusal(drain, run.path, DRAINED, wait=True)]
        moves = run.events("move", COORDINATOR)
        gone = [m["target"] for m in moves if m["phase"] == "done" and m["source"] == DRAINED]
        sleep_until(begun_us, BACK_S * times)
        for unit, partition, target in gone:
            problems.append(_refusal(move, run.path, f"{unit}/{partition}", target, DRAINED, wait=True))
        return [*problems, run.end(_PATIENCE_S)]


def _rows(report: Mapping[str, Any], faults: Sequence[Mapping[str, Any]], problems: Sequence[str]) -> Iterator[Row]:
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
            "findings": dropped if made else "nothing moved",
        }
    fails_us = round(min(float(f["at"].removesuffix("s")) for f in faults) * SECOND)
    ends_us = fails_us + round(max(float(f["for"].removesuffix("s")) for f in faults) * SECOND)
    ends_us += round(_CORRECTED_S * SECOND)
    outputs = report["outputs"]
    bins = [(b["at_us"], b["at_us"] + output["bin_us"], b["tentative"]) for output in outputs for b in output["bins"]]
    outside = sum(count for since, until, count in bins if until <= fails_us or since >= ends_us)
    findings = [*problems, f"{outside} tentative tuples outside the failure" if outside else ""]
    findings += [f"{o['output']}: X not kept: {o['delay']['why']}" for o in outputs if not o["delay"]["kept"]]
    took = [o["healing"]["took_us"] for o in outputs if o["healing"]["took_us"] is not None]
    yield {
        "part": "loss of three",
        "moves": None,
        "longest_s": max(took, default=0) / SECOND,
        "delay_s": max(o["delay"]["max_us"] or 0 for o in outputs) / SECOND,
        "tentative": sum(o["tentative"]["count"] for o in outputs),
        "findings": findings,
    }
    yield {
        "part": report["verdict"],
        "moves": len(moves),
        "longest_s": report["duration_us"] / SECOND,
        "delay_s": None,
        "tentative": outside,
        "findings": () if report["verdict"] == "CONSISTENT" else report["reasons"],
    }


# --- kill -9 of all replicas: ``configs/million_groups.yaml`` and its faults ---
#
# A finding is more than ``recovery``, or a verdict that is not CONSISTENT.

#: A result comes each second of the stream: so long there is none anyway.
_EVERY_S: Final = 1.0
_QUICK_GROUPS: Final = 100_000


@experiment(
    "million", "CEC, beyond its figures", once, Plot("try", "", "took_s/expected_s results_s"), runs=10, tries=True
)
def million(quick: bool) -> Row:
    """All replicas of a million groups are killed at one moment.

    What was loaded and replayed, what that took and was expected to, and how long the application had no stable result
    beside the time in which no process was there.  ``quick``: a tenth of the groups.
    """
    config, faults = _configured("million_groups")
    if quick:
        _shrink(config, faults)
    with played(config, faults) as run:
        failed = run.play(_PATIENCE_S)
        report, misjudged = run.report(_PATIENCE_S)
        figures, findings = _figures(run, max(float(fault["for"].removesuffix("s")) for fault in faults))
    limit_s = float(config["fragments"]["groups"]["checkpoint"]["recovery"].removesuffix("s"))
    if max(figures["took_s"], figures["results_s"]) > limit_s:
        findings.append(f"more than {limit_s:g} s")
    if report["verdict"] != "CONSISTENT":
        findings.append(f"{report['verdict']}: {report['reasons']}")
    return {**figures, "verdict": report["verdict"], "findings": [*findings, failed, misjudged]}


def _shrink(config: dict[str, Any], faults: Sequence[dict[str, Any]]) -> None:
    config["query"]["keyed"]["map"]["compute"]["key"] = f"n % {_QUICK_GROUPS}"
    config["sources"]["rows"]["from"]["generator"] |= {"duration": "20s", "rate": 20_000}
    config["fragments"]["groups"]["checkpoint"]["groups"] = _QUICK_GROUPS
    for fault in faults:
        fault["at"] = "8s"


def _figures(run: PlayedRun, down_s: float) -> tuple[dict[str, Any], list[str]]:
    summary = json.loads((run.path / "summary.json").read_text())
    logs = [replica["log"] for replica in summary["replicas"]]
    channels = [channel for channel in summary["channels"] if channel["channel"].startswith("total/")]
    gap_s = max(channel["stable_gap_max_us"] for channel in channels) / SECOND
    start_s = _start_s(run)
    recovered = [event for node in ("n1", "n2") for event in run.events("recovered", node)]
    missing = f"{len(recovered)} of {len(logs)} replicas went on from their logs"
    return {
        "records": max((event["records"] for event in recovered), default=0),
        "rows": max((event["rows"] for event in recovered), default=0),
        "took_s": round(max((log["recovered_us"] or 0) / SECOND for log in logs), 2),
        "expected_s": round(max((log["expected_us"] or 0) / SECOND for log in logs), 2),
        "start_s": round(start_s, 2),
        "results_s": round(gap_s - down_s - start_s - _EVERY_S, 2),
        "log_mb": round(max(log["kept_bytes"] for log in logs) / 1e6, 1),
    }, [missing] if len(recovered) < len(logs) else []


def _start_s(run: PlayedRun) -> float:
    """How long the second start of the slower node took."""
    started = {event["process"]: event["t"] for event in run.events("process_started") if event.get("start") == 2}
    took = [0]
    for event in run.events("process_ready"):
        if event["t"] >= started.get(event["process"], event["t"] + 1):
            took.append(event["t"] - started.pop(event["process"]))
    return max(took) / SECOND
