"""Schedules that failed once, made small; tests/simulation/test_regressions.py plays them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "regressions"
REGRESSIONS: Final = sorted(FOLDER.glob("*.json"))
