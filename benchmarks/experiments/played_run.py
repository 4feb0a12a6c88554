"""``spe run`` of a configuration as real processes, with its faults: played, watched in its traces, and judged."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.cpu import cpu_of
from replicas.cli.run.recorded_history import recorded_history
from replicas.client.recorder import read_recording
from spe.config import load
from spe.log.recording import channel_folder, client_folder
from spe.plan.deploy import Deployed
from spe.runtime.storage import DiskStorage
from spe.stream.change import Change
from spe.stream.history import History
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.times import SECOND

CONFIGS: Final = Path(__file__).parents[2] / "configs"
PROGRAM: Final = (sys.executable, "-m", "replicas.cli")
#: Characters of what a failed command printed.
_SHOWN: Final = 2000

#: A line of a trace.
Event = Mapping[str, Any]


class PlayedRun:
    """A run in a folder: ``run.yaml``, its faults, and its directory ``run``."""

    def __init__(self, folder: Path, config: Mapping[str, Any], faults: Sequence[Any] = ()) -> None:
        self.config, self.path = folder / "run.yaml", folder / "run"
        self.config.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        self._command: list[Any] = [*PROGRAM, "run", self.config, "--run-dir", self.path, "--no-view"]
        if faults:
            schedule = folder / "faults.yaml"
            schedule.write_text(yaml.safe_dump(list(faults)))
            self._command += ["--faults", schedule]
        self.process: subprocess.Popen[str] | None = None
        self._cpu: dict[str, float] = {}

    def play(self, patience_s: float = 300) -> str:
        """Runs it to its end; what it printed if it failed, else ""."""
        with self.started():
            return self.end(patience_s)

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """The run goes on meanwhile; it is stopped where it has not ended."""
        with subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as self.process:
            try:
                yield
            finally:
                self.process.terminate()

    def end(self, patience_s: float) -> str:
        """Waits for its end; what it printed if it failed, else ""."""
        assert self.process is not None
        printed, _ = self.process.communicate(timeout=patience_s)
        return printed[-_SHOWN:] if self.process.returncode else ""

    @property
    def is_going(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def first_us(self) -> int:
        """Wall time of its first event, from which its recorded history counts."""
        return min(int(line["t"]) for line in self.events())

    def events(self, event: str = "", process: str = "") -> list[Event]:
        """Lines about an event (or all), of a process or of the run itself, as far as they are written."""
        file = self.path / "trace" / f"{process}.jsonl" if process else self.path / "events.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == event or not event]

    def wait_for(self, event: str, process: str = "", patience_s: float = 90) -> Event:
        """The first line about an event.  Raises RuntimeError: the run ended without it, or it takes too long."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until and self.is_going:
            if lines := self.events(event, process):
                return lines[0]
            time.sleep(0.05)
        raise RuntimeError(f"{process or 'the run'} has no {event}: {'' if self.is_going else self.end(1)}")

    def begun_us(self) -> int:
        """Wall time at which the sources begin."""
        return int(self.wait_for("begin")["begun_us"])

    def pids(self) -> dict[str, int]:
        """The newest process of each name."""
        return {line["process"]: line["pid"] for line in self.events("process_started")}

    def cpu(self) -> dict[str, float]:
        """CPU seconds of each process so far; of one that has died, as when this was last asked."""
        for name, pid in self.pids().items():
            with contextlib.suppress(OSError):
                self._cpu[name] = cpu_of(pid)
        return dict(self._cpu)

    @cached_property
    def deployed(self) -> Deployed:
        return load(self.config)

    def history(self) -> History:
        return recorded_history(*self.deployed, self.path)

    def recorded(self, stream: str, partition: int = 0) -> Iterator[Change]:
        """The changes of a channel that its client ``client`` recorded."""
        channel = Channel(StreamId(stream), partition)
        folder = channel_folder(client_folder("client"), channel)
        schema = self.deployed.plan.query.schema_of(channel.stream)
        return read_recording(DiskStorage(self.path), folder, schema)

    def report(self, patience_s: float = 300) -> tuple[Mapping[str, Any], str]:
        """The report of ``spe report``, and what that printed if it failed."""
        command = [*PROGRAM, "report", str(self.path)]
        judged = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, check=False)
        report = json.loads((self.path / "report" / "report.json").read_text())
        return report, (judged.stdout + judged.stderr)[-_SHOWN:] if judged.returncode else ""


@contextlib.contextmanager
def played(config: Mapping[str, Any], faults: Sequence[Any] = ()) -> Iterator[PlayedRun]:
    """A run in a temporary folder, that is yet to be started."""
    with tempfile.TemporaryDirectory() as folder:
        yield PlayedRun(Path(folder), config, faults)


def sleep_until(since_us: int, seconds: float) -> None:
    """Until so many seconds after a wall time."""
    time.sleep(max(0.0, since_us / SECOND + seconds - time.time()))


def printed_by(command: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, str]:
    """The result of a function of the command line, and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = command(*arguments, **options)
    return result, printed.getvalue()
