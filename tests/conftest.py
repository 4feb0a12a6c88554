"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# No test has a time in it, and what lands is judged by examples that are the same each time.  By hand each run draws
# new ones, so that people find what a fixed set would not.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
