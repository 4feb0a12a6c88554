"""What the dashboard costs: the server, a browser that shows it for long, and a node that is asked.

python -m benchmarks.dashboard page [--minutes 2]   a simulated cluster of 100 nodes, 60 times as fast as time
python -m benchmarks.dashboard serve                the same, to look at
python -m benchmarks.dashboard node                 CPU of a node with and without `spe dashboard`
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import trio

from benchmarks.browser import browser
from benchmarks.simulated_status import ASKED_US, SimulatedCluster
from replicas.cli.dashboard.hub import Hub
from replicas.cli.dashboard.page import LOOPBACK, Site

SPEED: Final = 60.0


def simulated_hub(cluster: SimulatedCluster, *, speed: float, period_s: float) -> Hub:
    """Frames of a simulated cluster whose time runs so many times as fast."""
    began = time.monotonic()
    return Hub(
        cluster.plan,
        cluster.directory,
        lambda: cluster.sight(round((time.monotonic() - began) * speed * 1e6)),
        period_s=period_s,
        asked_s=ASKED_US / 1e6,
    )


@contextmanager
def served(hub: Hub, bind: str = LOOPBACK) -> Iterator[str]:
    """Serves in a thread, beside what the caller does; gives the address."""
    scope, site = trio.CancelScope(), Site(hub, bind)
    told: queue.Queue[tuple[str, trio.lowlevel.TrioToken]] = queue.Queue()

    async def run() -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                told.put((await nursery.start(site.run), trio.lowlevel.current_trio_token()))

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    address, token = told.get()
    try:
        yield address
    finally:
        trio.from_thread.run_sync(scope.cancel, trio_token=token)
        thread.join()


def page(nodes: int, partitions: int, minutes: float) -> dict[str, Any]:
    """Time to first paint, and memory of the page while it shows a long run."""
    hub = simulated_hub(SimulatedCluster(nodes, partitions), speed=SPEED, period_s=0.05)
    with served(hub) as address, browser() as driver:
        driver.set_script_timeout(600)
        driver.execute_cdp_cmd("Performance.enable", {})
        driver.get(address)
        driver.execute_async_script(
            "const done = arguments[0]; const look = () => document.documentElement.dataset.drawn ? done() : "
            "setTimeout(look, 20); look();"
        )
        paint = driver.execute_script(
            "return [performance.getEntriesByName('first-contentful-paint')[0]?.startTime, performance.now()]"
        )
        memory = []
        began = time.monotonic()
        while time.monotonic() - began < minutes * 60:
            time.sleep(minutes * 6)
            driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
            found = {m["name"]: m["value"] for m in driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
            frames = int(driver.execute_script("return document.documentElement.dataset.drawn"))
            memory.append([round(time.monotonic() - began), frames, found["JSHeapUsedSize"] / 1e6, found["Nodes"]])
        return {
            "first paint, ms": round(paint[0]),
            "first frame drawn after, ms": round(paint[1]),
            "seconds, frames drawn, heap in MB after a collection, nodes of the document": memory,
            "frame, bytes": len(hub.frame),
            "frames made": hub.number,
        }


def node(seconds: int) -> dict[str, Any]:
    """CPU of the nodes of the demonstration, with and without a dashboard beside it."""
    spe = [sys.executable, "-m", "replicas.cli"]
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        text = Path("configs/quickstart.yaml").read_text(encoding="utf-8").replace("duration: 40s", "duration: 600s")
        (Path(folder) / "c.yaml").write_text(text, encoding="utf-8")
        command = [*spe, "run", folder + "/c.yaml", "--run-dir", str(run), "--no-view", "--dashboard", "off"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
            try:
                while not (run / "logs" / "client-dashboard.log").exists():
                    time.sleep(0.2)
                time.sleep(8)
                found: dict[str, Any] = {"without, share of a core": _cpu_of(run, seconds)}
                asking = subprocess.Popen([*spe, "dashboard", str(run)], stdout=subprocess.DEVNULL)
                time.sleep(3)
                found["with spe dashboard"] = _cpu_of(run, seconds)
                asking.terminate()
                asking.wait()
                found["without again"] = _cpu_of(run, seconds)
            finally:
                running.terminate()
    return found


def _cpu_of(run: Path, seconds: int) -> float:
    """Of node n1, over this time."""
    ticks = []
    for pause in (seconds, 0):
        (found,) = [
            p for p in Path("/proc").glob("[0-9]*/cmdline")
            if f"node\0{run}\0--node\0n1" in p.read_text(errors="replace")
        ]  # fmt: skip
        fields = (found.parent / "stat").read_text().rpartition(")")[2].split()
        ticks.append(int(fields[11]) + int(fields[12]))
        time.sleep(pause)
    return round((ticks[1] - ticks[0]) / 100 / seconds, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["page", "serve", "node"])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--speed", type=float, default=SPEED)
    given = parser.parse_args()
    if given.what == "serve":
        hub = simulated_hub(SimulatedCluster(given.nodes, given.partitions), speed=given.speed, period_s=0.5)
        with served(hub) as address:
            print(address, flush=True)
            threading.Event().wait()
    else:
        found = page(given.nodes, given.partitions, given.minutes) if given.what == "page" else node(given.seconds)
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
