"""``spe report``: checks with Spark a run's final results, the errors of tentative ones, and whether X was kept."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from replicas.local.run_dir import CLUSTER
from spe.errors import SpeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consistency.proof.report.model import Report

#: Exit statuses.  2 also means that the run could not be judged.
CONSISTENT: Final = 0
INCONSISTENT: Final = 1
UNKNOWN: Final = 2

#: Line on standard input that tells a waiting report that the run is over.
GO: Final = "go"
#: Lowers the priority while the report waits.  Without the right to raise it again, it stays low.
_NICENESS: Final = 10


def report(
    folders: Sequence[str | Path], *, master: str | None, conf: Mapping[str, str], out: Path | None,
    wait: bool = False, junit: Path | None = None, verify: bool = False,
) -> int:  # fmt: skip
    """Judges runs; compares several.

    Args:
      folders: paths, or URIs that Spark can read.
      wait: the run goes on; judge it after GO on standard input.
      verify: the folders are reports to verify; for the exit status see ``replicas.cli.verify``.

    Raises:
      SpeError: a run cannot be judged, or Spark fails.
    """
    from consistency.proof.session.errors import explained

    if verify:
        return _verify(folders, master, conf, junit)
    reports: list[Report] = []
    with _written_to(junit, folders, reports), explained():
        if not wait:
            _check(folders)
        tell = ReportProgress(silent=wait)
        started = _after_the_run(tell, master, conf) if wait else try_to_start(tell, master, conf)
        if started is None:
            return UNKNOWN
        if isinstance(started, SpeError):
            raise started
        spark, took_s = started
        try:
            for folder in folders:
                reports.append(_one(spark, folder, tell, took_s))
        finally:
            spark.stop()
    if len(reports) > 1:
        _compared(reports, out or _beside(folders[0]) / "comparison.html")
    worst = {str(r.verdict) for r in reports}
    return INCONSISTENT if "INCONSISTENT" in worst else UNKNOWN if "UNKNOWN" in worst else CONSISTENT


def _after_the_run(
    tell: ReportProgress, master: str | None, conf: Mapping[str, str]
) -> tuple[SparkSession, float] | SpeError | None:
    """Starts Spark silently and at low priority, and waits until the run is over; None: the run was ended."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    os.nice(_NICENESS)
    started = try_to_start(tell, master, conf)
    if sys.stdin.readline().strip() != GO:
        return None
    raise_priority(niceness)
    tell.speak()
    return started


def raise_priority(niceness: int) -> None:
    """Sets the priority of the process group, which includes Java's threads; needs root or CAP_SYS_NICE."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PGRP, 0, niceness)


def _verify(places: Sequence[str | Path], master: str | None, conf: Mapping[str, str], junit: Path | None) -> int:
    from consistency.proof.report.junit import Case, unknown, write_junit
    from consistency.proof.report.model import Verdict
    from replicas.cli.verify import print_found, verify

    tell = ReportProgress(silent=False)
    suites: list[tuple[str, float, list[Case]]] = []

    def show(place: str | Path, differences: Sequence[str]) -> None:
        print_found(place, differences)
        verdict = Verdict.INCONSISTENT if differences else Verdict.CONSISTENT
        suites.append((str(place), 0.0, [Case("is as the report says", verdict, differences)]))

    try:
        return verify(places, lambda: start_spark(tell, master, conf), tell, show)
    except SpeError as error:
        suites.append(("spe report --verify", 0.0, [unknown(str(error))]))
        raise
    finally:
        if junit is not None:
            write_junit(junit, suites)


@contextmanager
def _written_to(junit: Path | None, folders: Sequence[str | Path], reports: Sequence[Report]) -> Iterator[None]:
    """Writes the reports in JUnit format; a run that could not be judged becomes an error there."""
    from consistency.proof.report.junit import cases_of, unknown, write_junit

    failed: list[str] = []
    try:
        yield
    except SpeError as error:
        failed.append(str(error))
        raise
    finally:
        if junit is not None:
            suites = [(judged.folder, sum(judged.timings_s.values()), cases_of(judged)) for judged in reports]
            write_junit(junit, [*suites, *((str(folders[len(reports)]), 0.0, [unknown(why)]) for why in failed)])


def _check(folders: Sequence[str | Path]) -> None:
    """Checks paths before Spark starts, which takes long.  Raises SpeError."""
    from consistency.proof.storage.folder import check_place

    for folder in folders:
        if "://" not in str(folder) and not Path(folder).is_dir():
            raise SpeError(f"{folder}: there is no such directory")
        if "://" not in str(folder) and not Path(folder, CLUSTER).is_file():
            raise SpeError(f"{folder} is not the directory of a run: it has no {CLUSTER}")
        check_place(str(folder))


class ReportProgress:
    """Prints each step with the seconds since the start, or since ``speak`` was called."""

    def __init__(self, *, silent: bool) -> None:
        self._began = time.monotonic()
        self._silent = silent
        self._last = ""

    def speak(self) -> None:
        """Prints steps from now on, starting with the latest."""
        if self._silent:
            self._silent, self._began = False, time.monotonic()
            self(self._last)

    def __call__(self, step: str) -> None:
        self._last = step
        if not self._silent:
            print(f"report {time.monotonic() - self._began:>5.1f} s  {step}", flush=True)


def start_spark(tell: ReportProgress, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Starts Spark as :func:`try_to_start`.  Raises SpeError: Spark does not start."""
    started = try_to_start(tell, master, conf)
    if isinstance(started, SpeError):
        raise started
    return started[0]


def try_to_start(
    tell: ReportProgress, master: str | None, conf: Mapping[str, str]
) -> tuple[SparkSession, float] | SpeError:
    """Returns a session that has run a query, and the seconds it took: the first query costs as much as the start."""
    from consistency.proof.session.errors import explained

    began = time.monotonic()
    try:
        with _java_noise_aside() as noise, explained(noise):
            from consistency.proof.session.session import session

            tell("starting Spark, which takes 5 to 20 s")
            spark = session("spe report", master=master, conf=conf)
            spark.range(1_000).selectExpr("id % 7 AS k").groupBy("k").count().collect()
    except SpeError as error:
        return error
    tell(f"Spark {spark.version} is ready")
    return spark, time.monotonic() - began


@contextmanager
def _java_noise_aside() -> Iterator[IO[str]]:
    """Sends standard error to a file while Java starts, since Java inherits it and prints a lot."""
    with tempfile.TemporaryFile("w+") as noise:
        sys.stderr.flush()
        ours = os.dup(2)
        os.dup2(noise.fileno(), 2)
        try:
            yield noise
        finally:
            os.dup2(ours, 2)
            os.close(ours)


def _beside(folder: str | Path) -> Path:
    """Returns the parent directory of a run; the current directory where the run is remote."""
    from consistency.proof.storage.folder import is_remote, local_path

    return Path.cwd() if is_remote(str(folder)) else local_path(str(folder)).resolve().parent


def _one(spark: SparkSession, folder: str | Path, tell: ReportProgress, started_s: float) -> Report:
    from consistency.proof.judge import write_report
    from consistency.proof.report.summary import text
    from consistency.proof.storage.remote import opened
    from replicas.proving import judged

    tell(f"reading {folder}")
    with opened(spark, folder) as run:
        report = judged(spark, run, tell, started_s)
        data, shown = write_report(spark, report, run)
    print("\n" + "\n".join(text(report)))
    print(f"\npage    {shown}\ndata    {data}, {data.removesuffix('report.json')}tables", flush=True)
    return report


def _compared(reports: Sequence[Report], into: Path) -> None:
    from consistency.proof.report.comparison import comparison, comparison_text

    try:
        into.write_text(comparison(reports), encoding="utf-8")
    except OSError as error:
        raise SpeError(f"{into} cannot be written: {error.strerror}") from error
    print("\n" + "\n".join(comparison_text(reports)))
    print(f"\npage    {into}")


def parse_conf(settings: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` each.  Raises SpeError."""
    pairs = [text.partition("=") for text in settings]
    for name, equals, value in pairs:
        if not name or not equals or not value:
            raise SpeError(
                f"--conf: expected NAME=VALUE, such as spark.driver.memory=4g, got {name + equals + value!r}"
            )
    return {name.strip(): value for name, _, value in pairs}
