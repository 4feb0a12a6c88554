"""Makes docs/images/dashboard.png: the demonstration, with a source that is cut off."""

from __future__ import annotations

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

from benchmarks.browser import browser, complaints, screenshot

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT: Final = Path(__file__).parents[1]
_SPE: Final = [sys.executable, "-m", "replicas.cli"]
_WIDE: Final = (1280, 1180)
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
                while (line := re.search(r"dashboard: (\S+)", out.read_text())) is None:
                    if running.poll() is not None or time.monotonic() > end:
                        raise RuntimeError(f"the run did not begin: {out.read_text()}")
                    time.sleep(0.1)
                yield line[1]
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


def main() -> None:
    with (
        run(ROOT / "configs/quickstart.yaml", "--faults", str(ROOT / "configs/faults/quickstart.yaml")) as address,
        browser(*_WIDE) as driver,
    ):
        driver.get(address)
        until(driver, "document.querySelector('.card.c-tentative .correct.now') && document.querySelector('.cause')")
        time.sleep(2.2)
        screenshot(driver, ROOT / "docs/images/dashboard.png")
        print(complaints(driver) or "the browser has nothing to complain of")


if __name__ == "__main__":
    main()
