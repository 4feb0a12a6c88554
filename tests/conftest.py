"""Settings for all tests."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Generator, Iterator
from random import randrange
from typing import Any

import pytest
from hypothesis import settings

from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.host import seeded_scheduling
from spe.runtime.gc_tuning import THRESHOLDS
from tests.support.in_turn import first_chains
from tests.support.long_forms import Part, leave_part

# No test has a time in it, and what lands is judged by examples that are the same each time.  By hand each run draws
# new ones, so that people find what a fixed set would not.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

gc.set_threshold(*THRESHOLDS)  # as in a real process: with Python's own a tenth of all time goes into it


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first_chains(items)
    if text := os.environ.get("PART"):
        leave_part(config, items, Part.parse(text))
    for item in items:
        for mark in item.iter_markers("parametrize"):
            if any(
                isinstance(a, set | frozenset) for a in mark.args
            ):  # each process would have another order, and xdist would stop
                raise pytest.UsageError(f"{item.nodeid}: the cases of a test are a set, which has no order")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.support.in_turn import InTurn

    return InTurn(config, log)


@pytest.fixture
def jump_clock() -> Iterator[JumpClock]:
    """The clock of a simulated cluster; pytest-trio runs a test by the clock that it asks for.

    The order of tasks is a seed's, which a test that fails shows, and SCHEDULING=7 plays again; where CI is set it is
    always the same.
    """
    seed = int(os.environ.get("SCHEDULING") or (0 if os.environ.get("CI") else randrange(1000)))
    print(f"SCHEDULING={seed}")
    with seeded_scheduling(seed):
        yield JumpClock(cpu_s=300)  # a run that goes in circles fails


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A command that did not end in time: what it had said by then is all that one can learn of it."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, subprocess.TimeoutExpired):
        for name, said in (("output", error.output), ("errors", error.stderr)):
            text = said.decode(errors="replace") if isinstance(said, bytes) else said
            report.sections.append((f"{name} of the command", text or ""))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have recorded of themselves (``record_property``) stands above the last lines."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    terminalreporter.section(name)
                    terminalreporter.write_line(str(value))
