"""The cost of the dashboard: the server, and a browser that shows it for long.

python -m benchmarks.dashboard page [--minutes 2]   a simulated cluster of 100 nodes, 60 times as fast as time
python -m benchmarks.dashboard serve                the same, to look at
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
            metrics = {m["name"]: m["value"] for m in driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
            frames = int(driver.execute_script("return document.documentElement.dataset.drawn"))
            memory.append([round(time.monotonic() - began), frames, metrics["JSHeapUsedSize"] / 1e6, metrics["Nodes"]])
        return {
            "first paint, ms": round(paint[0]),
            "first frame drawn after, ms": round(paint[1]),
            "seconds, frames drawn, heap in MB after a collection, nodes of the document": memory,
            "frame, bytes": len(hub.frame),
            "frames made": hub.number,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["page", "serve"])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--speed", type=float, default=SPEED)
    options = parser.parse_args()
    if options.what == "serve":
        hub = simulated_hub(SimulatedCluster(options.nodes, options.partitions), speed=options.speed, period_s=0.5)
        with served(hub) as address:
            print(address, flush=True)
            threading.Event().wait()
    else:
        print(json.dumps(page(options.nodes, options.partitions, options.minutes), indent=1))


if __name__ == "__main__":
    main()
