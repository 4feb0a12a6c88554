"""Real processes under random faults for minutes: correct results, and no growth of memory or descriptors.

    make soak-processes MINUTES=10
    make soak-processes MINUTES=120 STEADY=yes

A fault every few seconds within the fault model, with a quiet time at the beginning and at the end; memory and
descriptors of both times are compared.  With STEADY there are no faults, but checkpoint logs and retention: no process
may grow by more than 1 MB in ten minutes, measured after its first ten minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import numpy as np
import yaml

#: Length of the quiet time without faults at both ends.
QUIET_S: Final = 30
_SAMPLE_S: Final = 2.0
#: Allowed growth of a process: arenas of buffers are not returned to the system.
RSS_SLACK_BYTES: Final = 48 << 20
DESCRIPTOR_SLACK: Final = 8
#: A steady process: how long it may grow at first, and how fast afterwards.
WARM_UP_S: Final = 600
SLOPE_BYTES_MAX: Final = 1 << 20
SLOPE_S: Final = 600

KINDS: Final = ("kill", "freeze", "cut", "cut one way", "cut source", "delay", "flap", "kill after cut")
REPLICAS: Final = {"totals": ("n1", "n2"), "ranking": ("n3", "n4")}
SOURCES: Final = ("source:a", "source:b", "source:c")


def config(minutes: float, *, steady: bool = False) -> dict[str, Any]:
    """Three sources, two partitions of windows, a top-k behind them; X of 1.5 s.

    Args:
      steady: half the rate, fifty times the groups, checkpoint logs, and logs that are kept for two minutes only.
    """
    orders = {"rate": 150, "keys": 2000} if steady else {"rate": 300, "keys": 40}
    checkpoint = {"checkpoint": {"continuous": True, "recovery": "4s"}} if steady else {}
    retain = {"retain": {"for": "2m", "unproved": "delete"}} if steady else {}
    sources = {
        name: {
            "from": {"generator": orders | {"name": "orders", "seed": at, "duration": f"{round(60 * minutes)}s"}},
            "boundary": "50ms",
            "disorder": "50ms",
        }
        | retain
        for at, name in enumerate("abc")
    }
    window = {"sliding": "60s", "slide": "2s"} if steady else {"sliding": "2s", "slide": "500ms"}
    return {
        "cluster": "soak",
        "bucket": "50ms",
        "defaults": {"x": "1500ms", "alpha": 0.8, "policy": "process"},
        "sources": sources,
        "query": {
            "all": {"union": list(sources)},
            "sums": {
                "aggregate": {"from": "all", "window": window, "group_by": "key", "compute": {"v": "sum(price * qty)"}}
            },
            "best": {"topk": {"from": "sums", "k": 5, "order_by": ["v desc", "key"], "rank_as": "rank"}},
        },
        "outputs": ["best"],
        "fragments": {
            "totals": {"operators": ["all", "sums"], "key": "key", "partitions": 2, "replicas": [["n1", "n2"]] * 2}
            | checkpoint,
            "ranking": {"operators": ["best"], "replicas": ["n3", "n4"]} | checkpoint,
        },
        "nodes": [n for nodes in REPLICAS.values() for n in nodes],
        "clients": {"screen": {"reads": ["best"]} | retain},
    }


def faults(minutes: float, random: Random) -> list[dict[str, Any]]:
    """A fault about every six seconds; each is over and recovered from before the next one."""
    found: list[dict[str, Any]] = []
    at = float(QUIET_S)
    while at < 60 * minutes - QUIET_S - 12:
        found += _one(random.choice(KINDS), at, random)
        at += random.uniform(7, 11)
    return found


def _one(kind: str, at: float, random: Random) -> list[dict[str, Any]]:
    node = random.choice([n for nodes in REPLICAS.values() for n in nodes])
    length = random.choice([0.3, 1.0, 1.4, 2.5, 4.0])

    def fault(kind: str, at: float, length: float, **what: Any) -> dict[str, Any]:
        return {"at": f"{round(1000 * at)}ms", "kind": kind, "for": f"{round(1000 * length)}ms"} | what

    source = random.choice(SOURCES)
    match kind:
        case "kill":
            return [fault("kill", at, length, target=node)]
        case "freeze":
            return [fault("freeze", at, length, target=node)]
        case "cut":
            return [fault("cut", at, length, **{"from": random.choice(REPLICAS["totals"]), "to": ["n3", "n4"]})]
        case "cut one way":
            ends = random.choice([(source, node), ("n1", "n3"), ("n4", "client:screen"), ("n3", "n2")])
            return [fault("cut", at, length, **{"from": ends[0], "to": ends[1]}, one_way=True)]
        case "delay":
            return [fault("delay", at, length, **{"from": node, "to": "all"}, by="100ms")]
        case "flap":
            return [fault("cut", at + 0.7 * i, 0.35, target=source) for i in range(4)]
        case "kill after cut":
            return [fault("cut", at, 2.5, target=source), fault("kill", at + 2.6, 1.0, target=node)]
    return [fault("cut", at, length, target=source)]


@dataclass
class Sample:
    """Memory and descriptors of a process at a time.

    Attributes:
      at: monotonic clock, seconds.
      rss, anonymous: bytes that are in memory; those of them that are of no file.
    """

    at: float
    rss: int
    anonymous: int
    descriptors: int


class Watch:
    """Samples every process of a run from /proc."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self.samples: dict[str, list[Sample]] = defaultdict(list)

    def pids(self) -> dict[str, int]:
        pids: dict[str, int] = {}
        if self._events.exists():
            for line in self._events.read_text().splitlines():
                event = json.loads(line)
                if event.get("event") == "process_started":
                    pids[event["process"]] = event["pid"]
        return pids

    def look(self) -> None:
        for name, pid in self.pids().items():
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            except OSError:
                continue  # just killed
            rss, anonymous = (_kilobytes(status, field) << 10 for field in ("VmRSS", "RssAnon"))
            self.samples[name].append(Sample(time.monotonic(), rss, anonymous, descriptors))

    def levels(self, began: float, ended: float) -> list[tuple[str, int, int, int, int]]:
        """(process, RSS and descriptors in the first quiet, the same in the last)."""
        found = []
        for name, samples in sorted(self.samples.items()):
            first = [s for s in samples if began + QUIET_S / 2 <= s.at < began + QUIET_S]
            last = [s for s in samples if ended - QUIET_S / 2 <= s.at < ended]
            if first and last:
                found.append((name, *_level(first), *_level(last)))
        return found

    def slopes(self) -> dict[str, float]:
        """Growth of each process's anonymous memory after its warm-up, in bytes per :data:`SLOPE_S`.

        Of processes that were seen for as long as that afterwards.  Use where none is restarted.
        """
        slopes: dict[str, float] = {}
        for name, samples in sorted(self.samples.items()):
            warm = [s for s in samples if s.at >= samples[0].at + WARM_UP_S]
            if warm and warm[-1].at - warm[0].at >= SLOPE_S:
                slope = np.polyfit([s.at - warm[0].at for s in warm], [float(s.anonymous) for s in warm], 1)[0]
                slopes[name] = float(slope) * SLOPE_S
        return slopes


def _kilobytes(status: str, field: str) -> int:
    """A figure of /proc/PID/status; 0 where it is missing."""
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{field}:")), 0)


def _level(samples: list[Sample]) -> tuple[int, int]:
    return round(median(s.rss for s in samples)), round(median(s.descriptors for s in samples))


def soak(minutes: float, seed: int, folder: Path, links: str, *, steady: bool) -> int:
    """Returns 0 when everything held."""
    folder.mkdir(parents=True, exist_ok=True)
    schedule = [] if steady else faults(minutes, Random(seed))
    (folder / "config.yaml").write_text(yaml.safe_dump(config(minutes, steady=steady), sort_keys=False))
    (folder / "faults.yaml").write_text(yaml.safe_dump(schedule, sort_keys=False))
    run_dir = folder / "run"
    print(f"{minutes:g} minutes, seed {seed}, {len(schedule)} faults, links made to fail by: {links}; in {folder}")
    command = [sys.executable, "-m", "replicas.cli", "run", str(folder / "config.yaml"), "--no-view"]
    options = ["--faults", str(folder / "faults.yaml"), "--run-dir", str(run_dir), "--links", links]
    watch = Watch(run_dir / "events.jsonl")
    began = time.monotonic()
    with subprocess.Popen([*command, *options]) as run:
        while run.poll() is None:
            if not steady or time.monotonic() < began + 60 * minutes:  # the comparison follows
                watch.look()
            time.sleep(_SAMPLE_S)
    wrong = [] if run.returncode == 0 else [f"the run ended with status {run.returncode}"]
    if steady:
        wrong += judge_slopes(watch.slopes())
    else:
        wrong += judge_delays(run_dir) + judge_levels(watch, began, began + 60 * minutes)
        if not schedule:
            wrong.append("there was no time for a fault: more minutes, please")
    print("\n".join(wrong) or "all held")
    return 1 if wrong else 0


def judge_delays(run_dir: Path) -> list[str]:
    """Which results came later than allowed."""
    summary = json.loads((run_dir / "summary.json").read_text())
    return [
        f"{c['client']} {c['channel']}: a delay of {c['delay_max_us'] / 1e6:.2f} s, {c['bound_us'] / 1e6:.2f} s allowed"
        for c in summary["channels"]
        if c["delay_max_us"] > c["bound_us"]
    ]


def judge_levels(watch: Watch, began: float, ended: float) -> list[str]:
    """Prints memory and descriptors of both quiet times; returns which process holds more than before the faults."""
    wrong = []
    print(f"{'process':14} {'MB before':>10} {'after':>6} {'descriptors':>12} {'after':>6}")
    levels = watch.levels(began, ended)
    for name, rss, descriptors, rss_after, descriptors_after in levels:
        print(f"{name:14} {rss >> 20:>10} {rss_after >> 20:>6} {descriptors:>12} {descriptors_after:>6}")
        if rss_after > rss + RSS_SLACK_BYTES:
            wrong.append(f"{name} holds {(rss_after - rss) >> 20} MB more than before the faults")
        if descriptors_after > descriptors + DESCRIPTOR_SLACK:
            wrong.append(f"{name} holds {descriptors_after - descriptors} descriptors more than before the faults")
    measured = {name for name, *_ in levels}
    wrong += [
        f"{name} was not seen in both quiet times: the run was too short"
        for name in sorted({*watch.samples} - measured)
    ]
    return wrong if levels else [*wrong, "no levels were seen: the run was too short"]


def judge_slopes(slopes: dict[str, float]) -> list[str]:
    """Prints how fast the memory of each process grew; returns which grew too fast."""
    for name, slope in slopes.items():
        print(f"{name:14} {slope / (1 << 20):+7.2f} MB in {SLOPE_S // 60} minutes")
    wrong = [
        f"{name} grows by {slope / (1 << 20):.2f} MB in {SLOPE_S // 60} minutes; allowed: {SLOPE_BYTES_MAX >> 20}"
        for name, slope in slopes.items()
        if slope > SLOPE_BYTES_MAX
    ]
    minutes = (WARM_UP_S + SLOPE_S) // 60
    return wrong if slopes else [f"no slopes: the run was too short, more than {minutes} minutes are needed"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--links", choices=["inside", "proxy"], default="proxy")
    parser.add_argument("--steady", action="store_true")
    arguments = parser.parse_args()
    seed = int(time.time()) % 1_000_000 if arguments.seed is None else arguments.seed
    folder = arguments.folder or Path("runs") / f"soak-{time.strftime('%Y%m%d-%H%M%S')}"
    return soak(arguments.minutes, seed, folder, arguments.links, steady=arguments.steady)


if __name__ == "__main__":
    sys.exit(main())
