"""What is wrong can be told from the page alone: a cut link, a full disk, a source that lags, a wrong X, a slow node.

The first four happen to a simulated cluster, whose statuses the page then shows; the slow node is a real process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trio

from benchmarks.browser import browser, complaints, is_installed, screenshot
from benchmarks.dashboard import served
from replicas.cli.dashboard.hub import Hub
from replicas.faults.model import load_faults_text
from replicas.simulation.driver import FaultDriver
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from spe.figures.sight import Seen, Sight
from spe.plan.deploy import Deployed
from tests.simulation.test_explaining import BEGIN_S, SETTINGS, Cluster, deployed

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = [pytest.mark.processes, pytest.mark.skipif(not is_installed(), reason="no Chromium with its driver here")]

SPE = [sys.executable, "-m", "replicas.cli"]
PATIENCE_S = 120.0
LOOK_S = 0.5


async def recorded(cluster: Deployed, faults: str, after_s: float) -> list[Sight]:
    """What there was to see of a simulated cluster, until so long after the faults began."""
    plan, directory = cluster
    sights = []
    async with SimCluster(plan, directory, seed=1) as sim, trio.open_nursery() as nursery:
        here = Cluster(sim)
        here.driver = FaultDriver(sim, Random(1), unlimited=True)
        await sim.start()
        begun_us = sim.env("control").clock.wall_us()
        await nursery.start(here.driver.run, tuple(load_faults_text(faults, "faults", directory)))
        while not sights or sights[-1].now_us < begun_us + (BEGIN_S + after_s) * 1e6:
            await trio.sleep(LOOK_S)
            look = await here.look()
            seen = {name: Seen(one, look.at_us, look.took_us.get(name, 0)) for name, one in look.statuses.items()}
            sights.append(Sight("simulated   run", look.at_us, begun_us=begun_us, seen=seen, errors=dict(look.errors)))
        nursery.cancel_scope.cancel()
    return sights


def hub_of(cluster: Deployed, sights: Sequence[Sight]) -> Hub:
    """Shows them one after the other, then the last one."""
    left = list(sights)
    return Hub(*cluster, lambda: left.pop(0) if len(left) > 1 else left[0], period_s=0.03)


class Page(NamedTuple):
    """What an operator reads.

    Attributes:
      verdict: the two lines at the top.
      causes: with their kinds.
      next: what will happen, and what would help.
      sources: name, and what is said below it.
      lost: lines of the graph that carry nothing.
    """

    verdict: str
    causes: list[tuple[str, str]]
    next: str
    sources: dict[str, str]
    lost: int


READ = """
const texts = (what) => [...document.querySelectorAll(what)];
return [
  document.getElementById("verdict").textContent,
  texts("#why .cause.cause:not(.elsewhere)").map((c) => [c.dataset.kind, c.textContent]),
  texts("#why .next li").map((n) => n.textContent).join("\\n"),
  Object.fromEntries(texts("[data-source]").map((s) => [s.dataset.source, s.textContent])),
  texts(".l-lost").length,
];
"""


def read(driver: Chrome) -> Page:
    verdict, causes, next_, sources, lost = driver.execute_script(READ)
    return Page(verdict, [tuple(cause) for cause in causes], next_, sources, lost)


def until(driver: Chrome, condition: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not driver.execute_script(f"return Boolean({condition})"):
        assert time.monotonic() < end, (condition, read(driver), complaints(driver))
        time.sleep(0.05)


@contextmanager
def shown(faults: str, after_s: float, tmp_path: Path, settings: str = SETTINGS) -> Iterator[Page]:
    """The page at the end; a picture of it is kept with the files of the test."""
    cluster = deployed(settings)
    sights = trio.run(recorded, cluster, f"[{{at: {BEGIN_S}s, {faults}}}]", after_s, clock=JumpClock(cpu_s=300))
    with served(hub_of(cluster, sights)) as address, browser(1280, 1100) as driver:
        driver.get(address)
        until(driver, f"document.documentElement.dataset.at === '{sights[-1].now_us}'")
        until(driver, "document.querySelector('#why .cause')")
        time.sleep(0.5)
        screenshot(driver, tmp_path / "page.png", whole=True)
        yield read(driver)
        assert complaints(driver) == []


def test_a_cut_link(tmp_path: Path) -> None:
    with shown("kind: cut, from: 'source:a', to: [n1, n2]", 5, tmp_path) as page:
        assert "2 of 2 outputs are tentative" in page.verdict
        assert "The link between source:a and n" in page.verdict
        assert {kind for kind, _ in page.causes} == {"link"}
        assert all("between source:a and n" in text for _, text in page.causes)
        assert page.lost == 2
        assert "2 replicas wait for its rows" in page.sources["a"] or "4 replicas wait" in page.sources["a"]
        assert "wait" not in page.sources["b"]
        assert "when it works again" in page.next


def test_a_full_disk(tmp_path: Path) -> None:
    with shown("kind: full, target: 'source:a'", 5, tmp_path) as page:
        assert "tentative" in page.verdict
        assert "source:a has no room for" in page.verdict
        assert {kind for kind, _ in page.causes} == {"disk"}
        assert "source:a goes on by itself when there is room" in page.next


def test_a_source_that_lags(tmp_path: Path) -> None:
    """Its disk takes three seconds for each sync, so that what it sends is old."""
    with shown("kind: slow-disk, target: 'source:a', by: 3s", 8, tmp_path) as page:
        assert "tentative" in page.verdict
        assert "source:a logs nothing new" in page.verdict
        assert {kind for kind, _ in page.causes} == {"quiet"}
        behind = re.search(r"behind([\d.]+) s", page.sources["a"])
        assert behind is not None, page.sources
        assert float(behind[1]) > 2
        assert "replicas wait for its rows" in page.sources["a"]
        assert "behind0.0 ms" in page.sources["b"]


def test_a_wrong_x(tmp_path: Path) -> None:
    """Half a second for rows that come 0.6 s late."""
    settings = "defaults: {x: 500ms}\ntiming: {heartbeat: 500ms}\n"
    with shown("kind: delay, from: 'source:a', to: [n1, n2], by: 600ms, one_way: true", 6, tmp_path, settings) as page:
        assert "tentative" in page.verdict
        assert {kind for kind, _ in page.causes} == {"x"}
        assert "later than other input; X at n" in page.causes[0][1]
        assert re.search(r"an X above \d+ ms would wait for it: spe set … n\d x=…", page.next)
        assert page.lost == 0


CONFIG = """
cluster: slow
sources:
  a: {from: {generator: {name: sequence, rate: 100, seed: 1, duration: 600s}}}
  b: {from: {generator: {name: sequence, rate: 100, seed: 2, duration: 600s}}}
query: {out: {union: [a, b]}}
nodes: [n1, n2]
"""


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """The process gets a tenth of the time."""
    over = threading.Event()

    def slow() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.63)
            os.kill(pid, signal.SIGCONT)
            over.wait(0.07)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def pid_of(run_dir: Path, node: str) -> int:
    """Of a node's process."""
    wanted = f"node\0{run_dir}\0--node\0{node}\0"
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if wanted in file.read_text(errors="replace"):
                return int(file.parent.name)
        except OSError:
            continue  # it has ended
    raise AssertionError(f"{node} does not run")


@pytest.mark.long
def test_a_slow_node(tmp_path: Path) -> None:
    """Results are not affected, for the client reads the other one; that it is slow is said."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    run_dir, out = tmp_path / "run", tmp_path / "out"
    command = [*SPE, "run", tmp_path / "c.yaml", "--run-dir", run_dir, "--no-view", "--duration", "600s"]
    with out.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as running:
        try:
            end = time.monotonic() + PATIENCE_S
            while (address := re.search(r"dashboard: (\S+)", out.read_text())) is None:
                assert time.monotonic() < end, out.read_text()
                time.sleep(0.1)
            with browser(1280, 1100) as driver:
                driver.get(address[1])
                until(driver, "document.querySelectorAll('tr[data-state=STABLE]').length === 2")
                until(driver, "document.querySelector('.card').dataset.state === 'fine'")
                reads = driver.execute_script("return document.querySelector('.card').dataset.reads")
                slow = "n2" if reads == "n1" else "n1"
                said = f"{slow} answers only after"
                with slowed(pid_of(run_dir, slow)):
                    until(driver, f"document.getElementById('verdict').textContent.includes('{said}')")
                    assert "All results are stable" in read(driver).verdict
                    screenshot(driver, tmp_path / "page.png", whole=True)
                    asked = subprocess.run(
                        [*SPE, "explain-stall", str(run_dir), "--json"], capture_output=True, text=True
                    )
        finally:
            running.terminate()
    (told,) = json.loads(asked.stdout)
    kinds = {(cause["kind"], *cause["processes"]) for cause in told["elsewhere"]}
    assert kinds & {("slow", slow), ("down", slow)}, told
