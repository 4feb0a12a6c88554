"""Makes the pictures of the dashboard in the documentation.

python -m benchmarks.screenshots                 docs/images/dashboard.png: a source of the demonstration is cut off
python -m benchmarks.screenshots --all shots     more to look at: a kill, dark, a phone, 100 simulated nodes
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from benchmarks.browser import browser, complaints, resize, screenshot
from benchmarks.dashboard import served, simulated_hub
from benchmarks.simulated_status import SimulatedCluster

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT: Final = Path(__file__).parents[1]
_SPE: Final = [sys.executable, "-m", "replicas.cli"]
_WIDE: Final = (1280, 1180)
_PHONE: Final = (390, 844)
#: For a cluster of other processes, this machine may be slow.
_PATIENCE_S: Final = 90.0


@contextmanager
def run(config: Path, *more: str) -> Iterator[str]:
    """A run; gives the address of its page."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [*_SPE, "run", str(config), "--run-dir", "runs/demo", "--no-view", *more]
        with out.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, cwd=folder) as running:
            try:
                end = time.monotonic() + _PATIENCE_S
                while (found := re.search(r"dashboard: (\S+)", out.read_text())) is None:
                    if running.poll() is not None or time.monotonic() > end:
                        raise RuntimeError(f"the run did not begin: {out.read_text()}")
                    time.sleep(0.1)
                yield found[1]
            finally:
                running.send_signal(signal.SIGTERM)
                running.wait()


def until(driver: Chrome, condition: str) -> None:
    """Waits for a condition of the page, in JavaScript."""
    end = time.monotonic() + _PATIENCE_S
    while not driver.execute_script(f"return Boolean({condition})"):
        if time.monotonic() > end:
            raise RuntimeError(f"the page does not get there: {condition}; {complaints(driver)}")
        time.sleep(0.05)


def of_the_demonstration(out: Path, everything: bool) -> None:
    """While a replica is dead, and while a source is cut off."""
    out.mkdir(parents=True, exist_ok=True)
    with (
        run(ROOT / "configs/quickstart.yaml", "--faults", str(ROOT / "configs/faults/quickstart.yaml")) as address,
        browser(*_WIDE) as driver,
    ):
        driver.get(address)
        if everything:
            until(driver, "document.querySelector('tr[data-state=killed]') && document.querySelector('.elsewhere')")
            time.sleep(0.6)
            screenshot(driver, out / "dashboard-kill.png")
        until(driver, "document.querySelector('.card.c-tentative .correct.now') && document.querySelector('.cause')")
        time.sleep(2.2)
        screenshot(driver, out / "dashboard.png")
        if everything:
            features = [{"name": "prefers-color-scheme", "value": "dark"}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            time.sleep(0.3)
            screenshot(driver, out / "dashboard-dark.png")
            screenshot(driver, out / "dashboard-whole.png", whole=True)
            resize(driver, *_PHONE, scale=2)
            time.sleep(0.5)
            screenshot(driver, out / "dashboard-phone.png")
            screenshot(driver, out / "dashboard-phone-whole.png", whole=True)
        print(complaints(driver) or "the browser has nothing to complain of")


def of_many_nodes(out: Path) -> None:
    """A simulated cluster, while something is cut off."""
    hub = simulated_hub(SimulatedCluster(seed=7), speed=4.0, period_s=0.25)
    with served(hub) as address, browser(*_WIDE) as driver:
        driver.get(address)
        until(driver, "document.documentElement.dataset.drawn > 10 && document.querySelector('.card.c-tentative')")
        time.sleep(1.5)
        screenshot(driver, out / "dashboard-large.png")
        screenshot(driver, out / "dashboard-large-whole.png", whole=True)
        print(complaints(driver) or "the browser has nothing to complain of")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="where more of them go")
    folder = parser.parse_args().all
    of_the_demonstration(folder or ROOT / "docs/images", everything=folder is not None)
    if folder is not None:
        of_many_nodes(folder)


if __name__ == "__main__":
    main()
