"""``spe report --verify``: checks a report against the run that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spe.errors import SpeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consistency.proof.recorded.run import Run
    from consistency.proof.report.model import Report

#: Exit statuses.  2 also means that a report could not be verified.
AS_IT_SAYS: Final = 0
DIFFERS: Final = 1
NOT_VERIFIED: Final = 2

_REPORT: Final = "report.json"

#: Starts Spark and returns the session, whose settings may be changed.
Start = Callable[[], "SparkSession"]


#: Takes the differences from a report; none if the report is right.
Show = Callable[[str | Path, Sequence[str]], None]


def print_found(place: str | Path, differences: Sequence[str]) -> None:
    if not differences:
        print(f"\nVERIFIED  {place}: everything is as it says", flush=True)
        return
    print(f"\nDIFFERS  {place}")
    print("\n".join(f"  {text}" for text in differences), flush=True)


def verify(places: Sequence[str | Path], start: Start, tell: Callable[[str], None], show: Show = print_found) -> int:
    """Verifies reports: first the digests of their files, then, with Spark, their contents.

    Args:
      places: paths of ``report.json``, each in the directory of its run; URIs on other file systems.
      start: called at most once, and only where all digests are right.

    Returns:
      AS_IT_SAYS or DIFFERS, whatever the verdicts of the reports are.

    Raises:
      SpeError: a report cannot be verified, with the reason.
    """
    from consistency.proof.session.errors import explained
    from consistency.proof.storage.folder import check_place, is_remote

    for place in places:
        check_place(str(place))
    sessions: list[SparkSession] = []

    def session() -> SparkSession:
        if not sessions:
            sessions.append(start())
        return sessions[0]

    differing = 0
    with explained():
        try:
            local = {p: _digests_of_local(p, tell) for p in places if not is_remote(str(p))}
            for place in places:
                differences = local.get(place, []) or _recomputed(place, session(), tell, digests=place not in local)
                differing += bool(differences)
                show(place, differences)
        finally:
            for started in sessions:
                started.stop()
    return DIFFERS if differing else AS_IT_SAYS


def _digests_of_local(place: str | Path, tell: Callable[[str], None]) -> list[str]:
    """Returns the differences from a report's digests; local files need no Spark."""
    from consistency.proof.recorded.evidence import differences, digests_below
    from consistency.proof.recorded.run import Run
    from consistency.proof.storage.folder import local_path

    path = local_path(str(place))
    if not path.is_file():
        raise SpeError(f"{path}: there is no such file; expected the {_REPORT} of a run")
    report = _read(path.read_bytes(), path)
    folder = _run_of(path)
    tell(f"digests of {folder}")
    assert report.evidence is not None
    # Before the run is opened: changed files may make that impossible.
    changed = [*_configuration_differs(report, folder), *differences(report.evidence.files, digests_below(folder))]
    return _with_why(changed or _outside(report, Run.open(folder), tell))


def _run_of(path: Path) -> Path:
    """Returns the directory of the run that a report belongs to."""
    folder = path.absolute().parent.parent
    if not (folder / "cluster.json").is_file():
        raise SpeError(f"{path} is not where spe report writes it: {folder} is not the directory of a run")
    return folder


def _read(text: str | bytes, where: str | Path) -> Report:
    from consistency.proof.verification import read_report

    report = read_report(text, where)
    if report.evidence is None:
        raise SpeError(f"{where} has no digests: it was made while the run went on; make it again")
    return report


def _configuration_differs(report: Report, folder: Path) -> list[str]:
    """Returns the first line in which the run's configuration differs from the report's."""
    try:
        text = (folder / "config.yaml").read_text("utf-8", "replace")
    except OSError as error:
        raise SpeError(f"{folder / 'config.yaml'} cannot be read: {error.strerror}") from error
    if text == report.configuration:
        return []
    reported, now = report.configuration.splitlines(), text.splitlines()
    at = next((n for n, (a, b) in enumerate(zip(reported, now)) if a != b), min(len(reported), len(now)))
    ours, other = (lines[at].strip() if at < len(lines) else "nothing" for lines in (reported, now))
    return [f"config.yaml differs from line {at + 1} on: the report has {ours!r}, the run {other!r}"]


def _digests_of_remote(report: Report, run: Run, spark: SparkSession, tell: Callable[[str], None]) -> list[str]:
    from consistency.proof.recorded.evidence import differences, evidence

    assert report.evidence is not None
    tell(f"digests of {run.where}")
    return _with_why(differences(report.evidence.files, evidence(run, spark).files) or _outside(report, run, tell))


def _outside(report: Report, run: Run, tell: Callable[[str], None]) -> list[str]:
    """Returns the differences in inputs and modules; mentions those that are not on this machine, and goes on."""
    from consistency.proof.recorded.evidence import differences, digests_outside

    assert report.evidence is not None
    now = digests_outside(run)
    here = {file.path for file in now}
    for file in report.evidence.outside:
        if file.path not in here:
            tell(f"{file.path} is not here: it was not compared")
    return differences([file for file in report.evidence.outside if file.path in here], now)


def _with_why(changed: list[str]) -> list[str]:
    return [*changed, "the verdict was not computed again: it would be of other data"] if changed else []


def _recomputed(place: str | Path, spark: SparkSession, tell: Callable[[str], None], *, digests: bool) -> list[str]:
    """Returns where the report differs from what Spark computes."""
    from consistency.proof.verification import disagreements
    from replicas.proving import again

    with _opened(place, spark) as (run, report):
        if digests and (changed := _digests_of_remote(report, run, spark, tell)):
            return changed
        made = again(spark, run, report, tell)
    for name in ("spe", "spark", "java"):
        here, there = made.versions.get(name, ""), report.versions.get(name, "")
        if here != there:
            tell(f"the report was made with {name} {there}; this is {here}")
    return disagreements(report, made)


@contextmanager
def _opened(place: str | Path, spark: SparkSession) -> Iterator[tuple[Run, Report]]:
    from consistency.proof.storage.folder import is_remote, local_path
    from consistency.proof.storage.remote import fetched_text, opened

    where = str(place)
    if is_remote(where):
        folder = where.rpartition("/")[0].rpartition("/")[0]
        report = _read(fetched_text(spark, where), where)
    else:
        path = local_path(where)
        folder, report = str(_run_of(path)), _read(path.read_bytes(), path)
    with opened(spark, folder) as run:
        yield run, report
