"""``spe report --follow``: proves a run while it goes on, and prints the tuple time up to which it is CONSISTENT."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.status import Status

from replicas.cli.report import CONSISTENT, INCONSISTENT, UNKNOWN, ReportProgress, start_spark
from replicas.local.run_over import alive
from spe.errors import SpeError
from spe.log.marks import read_mark
from spe.log.source_log import source_folder
from spe.stream.times import SECOND

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consistency.proof.follow.follow_loop import Following
    from consistency.proof.report.follow_model import Followed, FollowedStep

#: Least tuple time of a step.
EVERY_US: Final = 60 * SECOND
#: Polls of the logs within that time, at most one per second.
_LOOKS: Final = 4
_LEAST_WAIT_S: Final = 1.0
_MOST_WAIT_S: Final = 15.0
#: How long the directory of a run that has just begun may be incomplete.
_PATIENCE_S: Final = 60.0
_STATUS: Final = {"CONSISTENT": CONSISTENT, "INCONSISTENT": INCONSISTENT, "UNKNOWN": UNKNOWN}


def follow(
    folder: str, *, every_us: int = EVERY_US, master: str | None = None, conf: Mapping[str, str] | None = None
) -> int:
    """Proves a run until it is over, or Ctrl-C; the next call continues there.

    Returns:
      The status of ``spe report``: for a run that goes on UNKNOWN, or INCONSISTENT where something is wrong.

    Raises:
      SpeError: the run cannot be judged, or not while it goes on; or Spark fails.
    """
    from consistency.proof.follow.state import FOLDER, alone
    from consistency.proof.session.errors import explained

    path = _local(folder)
    show = Shown()
    with explained(), alone(path / FOLDER):
        try:
            proof = _opened(path, every_us)
            spark = start_spark(ReportProgress(silent=False), master, conf or {})
            try:
                with show.live():
                    return _followed(proof, spark, show)
            finally:
                spark.stop()
        except KeyboardInterrupt:
            followed = _read(path)
            print(f"\nstopped; the next spe report --follow {folder} continues", flush=True)
            return UNKNOWN if followed is None else _STATUS[followed.verdict]


def _local(folder: str) -> Path:
    from consistency.proof.storage.folder import is_remote, local_path

    if is_remote(folder):
        raise SpeError(f"{folder}: --follow reads a run on this machine; expected the path of its directory")
    path = local_path(folder)
    if not path.is_dir():
        raise SpeError(f"{path}: there is no such directory")
    return path


def _opened(path: Path, every_us: int) -> Following:
    """Opens the proof once a run that has just begun has made its logs.  Raises SpeError."""
    from consistency.proof.follow.follow_loop import Following

    began = time.monotonic()
    while (lacking := _lacking(path)) is not None:
        if time.monotonic() - began > _PATIENCE_S or not _begins(path):
            raise lacking
        time.sleep(_LEAST_WAIT_S)
    return Following(path, every_us)


def _lacking(path: Path) -> SpeError | None:
    """Returns an error about what is missing in the directory of a run; None if it is complete."""
    from consistency.proof.recorded.run import Run

    try:
        run = Run.open(path)
    except SpeError as error:
        return error
    missing = [s for s in run.plan.sources if read_mark(run.storage, source_folder(s)) is None]
    return SpeError(f"{path} is incomplete: the log of source {missing[0]!r} was not begun") if missing else None


def _begins(path: Path) -> bool:
    """Returns whether there is a run whose processes start."""
    try:
        return alive(int(json.loads((path / "cluster.json").read_text())["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _followed(proof: Following, spark: SparkSession, show: Shown) -> int:
    from consistency.proof.follow.prefix import Altered

    if proof.state.steps:
        show.line(f"continues at {show.moment(proof.state.proved_us)}, after {proof.state.steps} steps")
    try:
        proof.check()
        while not proof.state.over:
            step = proof.step(spark, lambda what: show.now(f"proves {what}"))
            if step is not None:
                show.step(step, proof)
                continue
            show.now(f"consistent until {show.moment(show.reached(proof))}; waits for {proof.waits_for}")
            time.sleep(max(_LEAST_WAIT_S, min(_MOST_WAIT_S, proof.every_us / SECOND / _LOOKS)))
    except Altered as error:
        followed = proof.write(altered=str(error))
    else:
        followed = proof.write()
    show.end(followed, proof)
    return _STATUS[followed.verdict]


def _read(path: Path) -> Followed | None:
    """Reads the result so far."""
    from consistency.proof.follow.follow_loop import RESULT
    from consistency.proof.report.follow_model import Followed

    try:
        return Followed.model_validate_json((path / RESULT).read_bytes())
    except (OSError, ValueError):
        return None


class Shown:
    """Prints to the terminal: a line per step, and a status line if the output is a terminal."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._status: Status | None = None

    @contextmanager
    def live(self) -> Iterator[None]:
        if not sys.stdout.isatty():
            yield
            return
        with self._console.status("reads what was proved before") as self._status:
            yield
        self._status = None

    @staticmethod
    def moment(time_us: int) -> str:
        from consistency.proof.report.words import moment

        return moment(time_us)

    @staticmethod
    def reached(proof: Following) -> int:
        wrong_us = proof.state.wrong_us
        return proof.state.proved_us if wrong_us is None else min(wrong_us, proof.state.proved_us)

    def now(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)

    def line(self, text: str) -> None:
        self._console.print(text, markup=False)

    def step(self, step: FollowedStep, proof: Following) -> None:
        """``until 12:03:00  1,200 results  1.3 s  consistent``."""
        if step.number == 1 and proof.state.not_judged:
            self.line(proof.state.not_judged)
        until = self.moment(proof.state.proved_us)
        wrong_us = proof.state.wrong_us
        verdict = "consistent" if wrong_us is None else f"INCONSISTENT from {self.moment(wrong_us)} on"
        flaws = f", {step.flaws:,} of them wrong" if step.flaws else ""
        self.line(f"until {until:<26}  {step.truth:>11,} results{flaws}  {step.seconds:>6.1f} s  {verdict}")

    def end(self, followed: Followed, proof: Following) -> None:
        """Prints the verdict, its reasons, and the differences."""
        from consistency.proof.follow.follow_loop import RESULT
        from consistency.proof.report.summary import finding_lines

        since = "" if followed.judged_from_us is None else f"from {followed.judged_from} on, "
        self.line(f"\n{followed.verdict}  {since}consistent until {followed.consistent_until}")
        for reason in followed.reasons:
            self.line(f"  {reason}")
        for output in followed.outputs:
            for text in finding_lines(output.title, output.findings):
                self.line(text)
        if followed.seconds_per_hour is not None:
            cost = f"{followed.seconds_per_hour:,.1f} s per hour of the stream"
            self.line(f"\n{followed.steps:,} steps took {followed.seconds:,.1f} s: {cost}")
        self.line(f"data    {proof.run.where}/{RESULT}")
