"""Real processes under random faults for minutes: correct results, and no growth of memory or descriptors.

    make soak-processes MINUTES=10

A fault every few seconds within the fault model, with a quiet time at the beginning and at the end; memory and
descriptors of both times are compared.
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

import yaml

#: Length of the quiet time without faults at both ends.
QUIET_S: Final = 30
_SAMPLE_S: Final = 2.0
#: Allowed growth of a process: arenas of buffers are not returned to the system.
RSS_SLACK_BYTES: Final = 48 << 20
DESCRIPTOR_SLACK: Final = 8

KINDS: Final = ("kill", "freeze", "cut", "cut one way", "cut source", "delay", "flap", "kill after cut")
REPLICAS: Final = {"totals": ("n1", "n2"), "ranking": ("n3", "n4")}
SOURCES: Final = ("source:a", "source:b", "source:c")


def config(minutes: float) -> dict[str, Any]:
    """Three sources, two partitions of windows, a top-k behind them; X of a second."""
    seconds = round(60 * minutes)
    sources = {
        name: {
            "from": {"generator": {"name": "orders", "rate": 300, "keys": 40, "seed": at, "duration": f"{seconds}s"}},
            "boundary": "50ms",
            "disorder": "50ms",
        }
        for at, name in enumerate("abc")
    }
    window = {"sliding": "2s", "slide": "500ms"}
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
            "totals": {"operators": ["all", "sums"], "key": "key", "partitions": 2, "replicas": [["n1", "n2"]] * 2},
            "ranking": {"operators": ["best"], "replicas": ["n3", "n4"]},
        },
        "nodes": [n for nodes in REPLICAS.values() for n in nodes],
        "clients": {"screen": {"reads": ["best"]}},
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
    """Memory and descriptors of a process at a time."""

    at: float
    rss: int
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
            line = next((part for part in status.splitlines() if part.startswith("VmRSS")), "VmRSS: 0 kB")
            self.samples[name].append(Sample(time.monotonic(), 1024 * int(line.split()[1]), descriptors))

    def levels(self, began: float, ended: float) -> list[tuple[str, int, int, int, int]]:
        """(process, RSS and descriptors in the first quiet, the same in the last)."""
        found = []
        for name, samples in sorted(self.samples.items()):
            first = [s for s in samples if began + QUIET_S / 2 <= s.at < began + QUIET_S]
            last = [s for s in samples if ended - QUIET_S / 2 <= s.at < ended]
            if first and last:
                found.append((name, *_level(first), *_level(last)))
        return found


def _level(samples: list[Sample]) -> tuple[int, int]:
    return round(median(s.rss for s in samples)), round(median(s.descriptors for s in samples))


def soak(minutes: float, seed: int, folder: Path, links: str) -> int:
    """Returns 0 when everything held."""
    folder.mkdir(parents=True, exist_ok=True)
    schedule = faults(minutes, Random(seed))
    (folder / "config.yaml").write_text(yaml.safe_dump(config(minutes), sort_keys=False))
    (folder / "faults.yaml").write_text(yaml.safe_dump(schedule, sort_keys=False))
    run_dir = folder / "run"
    print(f"{minutes:g} minutes, seed {seed}, {len(schedule)} faults, links made to fail by: {links}; in {folder}")
    command = [sys.executable, "-m", "spe.cli", "run", str(folder / "config.yaml"), "--no-view"]
    options = ["--faults", str(folder / "faults.yaml"), "--run-dir", str(run_dir), "--links", links]
    watch = Watch(run_dir / "events.jsonl")
    began = time.monotonic()
    with subprocess.Popen([*command, *options]) as run:
        while run.poll() is None:
            watch.look()
            time.sleep(_SAMPLE_S)
    ended = began + 60 * minutes  # the comparison follows
    wrong = [] if run.returncode == 0 else [f"the run ended with status {run.returncode}"]
    summary = json.loads((run_dir / "summary.json").read_text())
    wrong += [
        f"{c['client']} {c['channel']}: a delay of {c['delay_max_us'] / 1e6:.2f} s, {c['bound_us'] / 1e6:.2f} s allowed"
        for c in summary["channels"]
        if c["delay_max_us"] > c["bound_us"]
    ]
    print(f"{'process':14} {'MB before':>10} {'after':>6} {'descriptors':>12} {'after':>6}")
    levels = watch.levels(began, ended)
    for name, rss, descriptors, rss_after, descriptors_after in levels:
        print(f"{name:14} {rss >> 20:>10} {rss_after >> 20:>6} {descriptors:>12} {descriptors_after:>6}")
        if rss_after > rss + RSS_SLACK_BYTES:
            wrong.append(f"{name} holds {(rss_after - rss) >> 20} MB more than before the faults")
        if descriptors_after > descriptors + DESCRIPTOR_SLACK:
            wrong.append(f"{name} holds {descriptors_after - descriptors} descriptors more than before the faults")
    seen = {name for name, *_ in levels}
    wrong += [
        f"{name} was not seen in both quiet times: the run was too short" for name in sorted({*watch.samples} - seen)
    ]
    if not levels:
        wrong.append("no levels were seen: the run was too short")
    if not schedule:
        wrong.append("there was no time for a fault: more minutes, please")
    print("\n".join(wrong) or "all held")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--links", choices=["inside", "proxy"], default="proxy")
    arguments = parser.parse_args()
    seed = int(time.time()) % 1_000_000 if arguments.seed is None else arguments.seed
    folder = arguments.folder or Path("runs") / f"soak-{time.strftime('%Y%m%d-%H%M%S')}"
    return soak(arguments.minutes, seed, folder, arguments.links)


if __name__ == "__main__":
    sys.exit(main())
