"""The report that a run ends with: a process of its own, whose Spark starts while the cluster still runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from replicas.cli.report import GO

#: Where a program that spark-submit started finds its Spark; the report has one of its own.
_GATEWAY: Final = "PYSPARK_GATEWAY_"


class Reporter:
    """``spe report --wait`` on a run's directory.  Silent until it is told that the run is over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begins to start Spark, in a session of its own, so that Ctrl-C reaches the cluster first."""
        command = [sys.executable, "-m", "replicas.cli", "report", str(self._folder), "--wait"]
        ours = {name: value for name, value in os.environ.items() if not name.startswith(_GATEWAY)}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=ours)

    async def finish(self) -> int:
        """Lets it judge the run and print what it found; its exit status."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(f"{GO}\n".encode())
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already, and printed why
        return await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)

    def end(self) -> None:
        """Ends the report and its Java, if they run."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


@contextmanager
def reporter(folder: Path) -> Iterator[Reporter]:
    """A reporter that is ended with the block, whatever happens."""
    one = Reporter(folder)
    try:
        yield one
    finally:
        one.end()
