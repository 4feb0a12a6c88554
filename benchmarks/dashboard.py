"""The cost of the dashboard in a browser that shows it for long: a simulated cluster, 60 times as fast as time."""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from benchmarks.browser import browser, is_installed
from benchmarks.simulated_status import ASKED_US, SimulatedCluster
from benchmarks.tables import BENCHMARKS, Benchmark, show
from replicas.cli.dashboard.hub import Hub
from replicas.cli.dashboard.page import LOOPBACK, Site

SPEED: Final = 60.0
NODES: Final = 100
PARTITIONS: Final = 1_000
#: Looks at the memory of the page.
LOOKS: Final = 10
_DRAWN: Final = """
const done = arguments[0];
const look = () => document.documentElement.dataset.drawn ? done() : setTimeout(look, 20);
look();
"""
_PAINT: Final = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


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
    """Serves in a thread, beside the caller; gives the address."""
    scope, site = trio.CancelScope(), Site(hub, bind)
    started: queue.Queue[tuple[str, trio.lowlevel.TrioToken]] = queue.Queue()

    async def run() -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                started.put((await nursery.start(site.run), trio.lowlevel.current_trio_token()))

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    address, token = started.get()
    try:
        yield address
    finally:
        trio.from_thread.run_sync(scope.cancel, trio_token=token)
        thread.join()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=2.0, help="for which the page is shown (dashboard)")


def run(arguments: argparse.Namespace) -> None:
    """Time to first paint, and memory of the page while it shows a long run."""
    if not is_installed():
        print("dashboard: skipped: Chromium, its driver or Selenium is not installed")
        return
    hub = simulated_hub(SimulatedCluster(NODES, PARTITIONS), speed=SPEED, period_s=0.05)
    with served(hub) as address, browser() as driver:
        driver.set_script_timeout(600)
        driver.execute_cdp_cmd("Performance.enable", {})
        driver.get(address)
        driver.execute_async_script(_DRAWN)
        paint_ms, drawn_ms = driver.execute_script(_PAINT), driver.execute_script("return performance.now()")
        rows, began = [], time.monotonic()
        for _ in range(LOOKS):
            time.sleep(arguments.minutes * 60 / LOOKS)
            driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
            metrics = {m["name"]: m["value"] for m in driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
            frames = driver.execute_script("return document.documentElement.dataset.drawn")
            heap_mb = metrics["JSHeapUsedSize"] / 1e6
            rows.append([f"{time.monotonic() - began:.0f}", frames, f"{heap_mb:.1f}", metrics["Nodes"]])
        notes = [
            f"First paint after {paint_ms:.0f} ms, first frame drawn after {drawn_ms:.0f} ms.",
            f"A frame has {len(hub.frame) / 1e3:.0f} kB; {hub.number} were made.  Heap: after a collection.",
        ]
    show(f"Page of {NODES} nodes", ["seconds", "frames drawn", "heap, MB", "nodes of the document"], rows, notes)


BENCHMARKS["dashboard"] = Benchmark(run, options)
