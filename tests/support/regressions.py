"""Schedules that failed once, made small; every test run plays them (tests/simulation/test_regressions.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "regressions"
REGRESSIONS: Final = sorted(FOLDER.glob("*.json"))
