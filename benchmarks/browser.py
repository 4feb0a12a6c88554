"""Chromium without a window, for tests, benchmarks and screenshots of the dashboard."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

_OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
#: A script that waits for the page takes no longer.
_SCRIPT_S: Final = 60.0


def is_installed() -> bool:
    """Are a browser, its driver and Selenium here?"""
    from importlib.util import find_spec

    return bool(_browser() and shutil.which("chromedriver") and find_spec("selenium"))


def _browser() -> str | None:
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


@contextmanager
def browser(width: int = 1440, height: int = 1000, *, dark: bool = False, scale: float = 1.0) -> Iterator[Chrome]:
    """A browser with a window of this size, and a profile of its own."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = _browser() or ""
    for option in _OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        options.add_argument(f"--user-data-dir={profile}")
        driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.set_script_timeout(_SCRIPT_S)
            resize(driver, width, height, scale)
            if dark:
                features = [{"name": "prefers-color-scheme", "value": "dark"}]
                driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            yield driver
        finally:
            driver.quit()


def resize(driver: Chrome, width: int, height: int, scale: float = 1.0) -> None:
    """Also to widths of phones, which a window cannot have."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def screenshot(driver: Chrome, path: Path, *, whole: bool = False) -> None:
    """Writes a picture of the window, or of the whole page."""
    import base64

    options: dict[str, Any] = {"format": "png", "captureBeyondViewport": whole}
    if whole:
        size = driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    path.write_bytes(base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


def complaints(driver: Chrome) -> list[str]:
    """Errors of scripts, and requests that the page's policy has blocked."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
