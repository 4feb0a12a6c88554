"""The report at the end of a run: a separate process, whose Spark starts while the cluster still runs."""

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

#: Environment variables by which a program finds the Spark that started it; the report has its own Spark.
_GATEWAY: Final = "PYSPARK_GATEWAY_"


class Reporter:
    """Runs ``spe report --wait`` on the directory of a run; silent until the run is over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process in its own session, so that Ctrl-C reaches the cluster first."""
        command = [sys.executable, "-m", "replicas.cli", "report", str(self._folder), "--wait"]
        ours = {name: value for name, value in os.environ.items() if not name.startswith(_GATEWAY)}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=ours)

    async def finish(self) -> int:
        """Lets the report judge the run and print; returns its exit status."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(f"{GO}\n".encode())
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already, and printed the reason
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
    """Yields a reporter and ends it with the block."""
    started = Reporter(folder)
    try:
        yield started
    finally:
        started.end()
